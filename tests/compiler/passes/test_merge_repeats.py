"""Products with copies of one matrix become one product with the rows of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.passes import collect_constraints, dead_code, merge_repeats
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

SIGNATURE = "x: float32[b, 6, t, 4], y: float32[b, 6, t, s], k: float32[b, 3, s, 4], q: float32[6, t, 4], e: float32[2, s, 4]"
SHAPES = [(2, 6, 5, 4), (2, 6, 5, 7), (2, 3, 7, 4), (6, 5, 4), (2, 7, 4)]
REPEATED = (
    "a = reshape(k, shape=(b, 3, 1, s, 4))\nc = broadcast_to(a, shape=(b, 3, 2, s, 4))\nw = reshape(c, shape=(b, 6, s, 4))"
)
REPEAT = "w = repeat(k, times=2, axis=1)"
TURNED = "u = transpose(w, perm=(0, 1, 3, 2))"


def merged(body: str) -> Module:
    return after(main_text(body, SIGNATURE), collect_constraints.run, merge_repeats.run, dead_code.run)


@pytest.mark.parametrize("copies", [REPEATED, REPEAT, "w = repeat(k, times=2, axis=-3)"])
@pytest.mark.parametrize("product", [f"{TURNED}\nr = matmul(x, u)", f"{TURNED}\nr = matmul(q, u)", "r = matmul(y, w)"])
def test_copies_are_not_made(copies: str, product: str) -> None:
    body = f"{copies}\n{product}"
    module = merged(body)
    assert set(ops(module)) <= {"reshape", "transpose", "matmul"}
    arrays = random_arrays(0, *SHAPES)
    assert_equal(evaluate(module, *arrays), evaluate(parse_module(main_text(body, SIGNATURE)), *arrays), 1e-6)


@pytest.mark.parametrize(
    "body",
    [
        # copies of rows, of a batch, copies in another order, of products that share a matrix already, and turned otherwise
        "w = repeat(q, times=2, axis=1)\nu = transpose(w, perm=(0, 2, 1))\nr = matmul(x, u)",
        "a = reshape(e, shape=(1, 2, s, 4))\nc = broadcast_to(a, shape=(3, 2, s, 4))\nw = reshape(c, shape=(6, s, 4))\n"
        "r = matmul(y, w)",
        f"{REPEAT}\nz = sum(y, axes=(1,), keepdims=True)\nr = matmul(z, w)",
        f"{REPEAT}\nu = transpose(w, perm=(1, 0, 3, 2))\nz = transpose(x, perm=(1, 0, 2, 3))\nr = matmul(z, u)",
        f"{REPEAT}\nr = add(w, w)",
    ],
)
def test_what_stays(body: str) -> None:
    assert str(merged(body)) == str(after(main_text(body, SIGNATURE), dead_code.run))


def test_a_cast_of_copies_is_one_of_what_is_copied() -> None:
    signature = "y: float32[b, 6, t, s], k: float32[b, 3, n, 4]"
    text = main_text(REPEAT + "\nz = match_cast[float32[b, 6, s, 4]](w)\nr = matmul(y, z)", signature)
    module = after(text, collect_constraints.run, merge_repeats.run, dead_code.run)
    assert "repeat" not in ops(module) and "broadcast_to" not in ops(module) and "match_cast" in str(module)
    y, k = random_arrays(0, (2, 6, 5, 7), (2, 3, 7, 4))
    assert_equal(evaluate(module, y, k), evaluate(parse_module(text), y, k), 1e-6)


@pytest.mark.parametrize("tokens", [1, 5])
def test_grouped_query_attention_reads_its_cache_where_it_lies(tokens: int) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        k, v = (mi.repeat(t, 4, axis=1) for t in (k, v))
        return mi.softmax(q @ mi.transpose(k, (0, 1, 3, 2)), axis=-1) @ v

    shapes = {"q": ("b", 8, "t", 16), "k": ("b", 2, "s", 16), "v": ("b", 2, "s", 16)}
    run = mi.compile(attention, {n: mi.tensor(*s) for n, s in shapes.items()}, without=("superoptimize",), cache=False)
    assert not any("repeat" in kind for kind in run.facts.kernels.values())
    q, k, v = random_arrays(1, (3, 8, tokens, 16), (3, 2, 9, 16), (3, 2, 9, 16))
    wide = [a.astype(np.float64) for a in (q, np.repeat(k, 4, 1), np.repeat(v, 4, 1))]
    scores = np.exp(wide[0] @ wide[1].swapaxes(2, 3))
    wanted = scores / scores.sum(-1, keepdims=True) @ wide[2]
    assert np.abs(run(q, k, v) - wanted).max() <= 1e-6 * np.abs(wanted).max()
