"""The large programs compute what a decoder layer does."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.large import LARGE, Llama
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.search.computed import SOURCES

WIDTH, HEADS, SHARED, HEAD, HIDDEN = 8, 4, 2, 4, 12
LAYER = Llama(WIDTH, HEADS, SHARED, HEAD, HIDDEN)
SMALL = LAYER.programs()
SIZES = {"b": 2, "s": 5}


def arrays(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {k: rng.standard_normal(t.bind(SIZES)) for k, t in SMALL[name].specs.items()}


def run(name: str, given: dict[str, np.ndarray]) -> np.ndarray:
    (found,) = run_reference(SMALL[name].trace(), list(given.values()), SIZES, "float64")
    return np.asarray(found)


def normed(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g)


def test_the_mlp() -> None:
    a = arrays("mlp_block")
    n = normed(a["x"], a["g"])
    gate = n @ a["w1"]
    wanted = a["x"] + (gate / (1 + np.exp(-gate)) * (n @ a["w3"])) @ a["w2"]
    np.testing.assert_allclose(run("mlp_block", a), wanted, rtol=1e-9, atol=1e-9)


def test_every_query_head_attends_with_keys_turned_by_their_positions() -> None:
    a = arrays("attention_block")
    n = normed(a["x"], a["g"])
    wanted = np.array(a["x"])
    for head in range(HEADS):
        own = slice(head * HEAD, (head + 1) * HEAD)
        shared = slice(head // (HEADS // SHARED) * HEAD, (head // (HEADS // SHARED) + 1) * HEAD)
        q = np.einsum("bsi,sij->bsj", n @ a["wq"][:, own], a["rotation"])
        k = np.einsum("bsi,sij->bsj", n @ a["wk"][:, shared], a["rotation"])
        scores = np.einsum("bsj,btj->bst", q, k) / HEAD**0.5 + a["mask"]
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        wanted = wanted + weights @ (n @ a["wv"][:, shared]) @ a["wo"][own]
    np.testing.assert_allclose(run("attention_block", a), wanted, rtol=1e-9, atol=1e-9)


def test_the_layer_is_both_blocks() -> None:
    a = arrays("decoder_layer")
    attention = {k: a["g1" if k == "g" else k] for k in SMALL["attention_block"].specs}
    mlp = {k: a["g2" if k == "g" else k] for k in SMALL["mlp_block"].specs}
    mlp["x"] = run("attention_block", attention)
    np.testing.assert_allclose(run("decoder_layer", a), run("mlp_block", mlp), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "operators"), [("mlp_block", 13), ("attention_block", 28), ("decoder_layer", 41)])
def test_their_operators(name: str, operators: int) -> None:
    assert sum(n.op not in SOURCES for n in to_axes(LARGE[name].trace()).nodes) == operators


@pytest.mark.parametrize(("name", "about"), [(name, about) for name, found in LAYER.by_hand().items() for about in found])
def test_partitions_by_hand_compute_their_programs(name: str, about: str) -> None:
    a = arrays(name)
    tensors = dict(a)
    parts = LAYER.by_hand()[name][about]
    for part in parts:
        given = [tensors[n] for n in part.reads]
        assert set(part.constants) <= set(part.program.input_names)
        tensors.update(zip(part.yields, run_reference(part.program, given, SIZES, "float64"), strict=True))
    assert len(parts) > 1 and parts[-1].yields == ("y",)
    np.testing.assert_allclose(tensors["y"], run(name, a), rtol=1e-9, atol=1e-9)
