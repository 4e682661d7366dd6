"""Tiles of masked scores that are passed over: nothing is lost, and what is hidden is not computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.fused_graph import fused_graphs
from mirage.ir.axes import to_axes
from mirage.kernels.cpu.emit.hidden import find_terms
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import FEATURES, CostModel, Machine
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, MuGraph
from tests.kernels.kernels import tiles

HEADS, WIDTH = 3, 8
#: tokens: none, fewer than a tile has, several tiles and a rest
TOKENS = (0, 3, 37)
TILES = {"n": 8, "n_2": 4}


def scores(q: Any, k: Any) -> Any:
    return q @ mi.transpose(k, (0, 2, 1)) * 0.25


def factor(q: Any, k: Any, v: Any, s: Any) -> Any:
    """where(s, x, -1e9), as a sum of products."""
    return mi.softmax(scores(q, k) * s + (1 - s) * -1e9, axis=-1) @ v


def added(q: Any, k: Any, v: Any, s: Any) -> Any:
    """`s` is 0 or -inf."""
    return mi.softmax(scores(q, k) + s, axis=-1) @ v



def program(fn: Callable[..., Any], *mask: Any, dtype: str = "float32") -> Any:
    t = mi.tensor(HEADS, "n", WIDTH, dtype=dtype)
    return mi.trace(fn, q=t, k=t, v=t, s=mi.tensor(*(mask or ("n", "n")), dtype=dtype))


def looped(p: Any) -> MuGraph:
    """One kernel with a for-loop over the keys."""
    return next(g for g in fused_graphs(to_axes(p)) if block(g).loop)


def block(g: MuGraph) -> Graph:
    return next(n.graph for n in g.kernel.nodes if n.graph is not None)


class Run:
    """The kernel of a program, with these tiles where others than `TILES` are meant."""

    def __init__(self, graph: MuGraph, **tile: int) -> None:
        self.executable = CpuExecutable(graph, tiles(graph, {**TILES, **tile}), analyze(graph))
        self.passes_over = "pass_over" in self.executable.source

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        (result,) = self.executable(arrays, {"n": arrays[0].shape[1]})
        return result


def exact(fn: Callable[..., Any], q: Any, k: Any, v: Any, s: Any) -> np.ndarray:
    """The result in float64."""
    q, k, v, s = (a.astype(np.float64) for a in (q, k, v, s))
    x = q @ k.swapaxes(1, 2) * 0.25
    with np.errstate(invalid="ignore"):
        x = x + s if fn is added else x * s + (1 - s) * -1e9
        e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=-1, keepdims=True) @ v)


def masks(n: int) -> dict[str, np.ndarray]:
    """Which scores are seen."""
    i, j = np.arange(n)[:, None], np.arange(n)
    rng = np.random.default_rng(1)
    return {
        "causal": j <= i,
        "the future": j >= i,
        "window": (j <= i) & (i - j < 5),
        "documents": i // 10 == j // 10,
        "any": rng.random((n, n)) < 0.5,
        "nothing": np.zeros((n, n), bool),
        "all": np.ones((n, n), bool),
        "rows without a key": (j <= i) & (i % 7 != 3) & (j > 12),
    }


def arrays(n: int, dtype: Any, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((HEADS, n, WIDTH)).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", [factor, added])
def test_masked_attention_is_that_of_float64(fn: Callable[..., Any], dtype: str) -> None:
    run = Run(looped(program(fn, dtype=dtype)), **{f"d{HEADS}": 2})
    assert run.passes_over
    for n in TOKENS:
        q, k, v = arrays(n, dtype)
        for name, seen in masks(n).items():
            if fn is added and not seen.any(axis=-1).all():
                continue  # NaN
            s = (seen if fn is factor else np.where(seen, 0, -np.inf)).astype(dtype)
            np.testing.assert_allclose(run(q, k, v, s), exact(fn, q, k, v, s), rtol=1e-4, atol=2e-5, err_msg=f"{name} {n}")


@pytest.mark.parametrize("mask", [(HEADS, "n", "n"), ("n",), (HEADS, 1, "n")])
def test_masks_of_any_axes(mask: tuple[Any, ...]) -> None:
    run = Run(looped(program(factor, *mask)))
    n = 29
    q, k, v = arrays(n, np.float32)
    shape = tuple(n if a == "n" else a for a in mask)
    s = np.broadcast_to(np.arange(n) < 13, shape).astype(np.float32)
    np.testing.assert_allclose(run(q, k, v, s), exact(factor, q, k, v, s), rtol=1e-4, atol=2e-5)


def test_what_is_hidden_is_not_computed() -> None:
    """Values that are NaN where no query sees them reach a result only where their tile is computed."""
    n = 32
    q, k, v = arrays(n, np.float32)
    seen = masks(n)["causal"]
    k[:, 16:] = v[:, 16:] = np.nan
    for fn, s in ((factor, seen.astype(np.float32)), (added, np.where(seen, 0, -np.inf).astype(np.float32))):
        run = Run(looped(program(fn)))
        got = run(q, k, v, s)
        assert np.isfinite(got[:, :16]).all() and np.isnan(got[:, 16:]).all()
        # a tile of queries that ends with the first NaN
        assert np.isnan(Run(looped(program(fn)), n=32)(q, k, v, s)).all()


def test_low_scores_that_are_seen_do_not_make_hidden_ones_nothing() -> None:
    """A row whose scores are all less than what hides others is not that of a mask: hidden scores count in it."""
    n = 32
    q, k, v = arrays(n, np.float32)
    run = Run(looped(program(lambda q, k, v, s: mi.softmax(scores(q, k) * s + (1 - s) * -2000, axis=-1) @ v)))
    assert run.passes_over
    s = masks(n)["causal"].astype(np.float32)
    for scale in (1, -1):
        # every score of a query is about -4000, or 4000
        low = np.full_like(q, 50 * scale)
        keys = np.full_like(k, -40) + 0.01 * k
        x = low.astype(np.float64) @ keys.swapaxes(1, 2) * 0.25 * s + (1 - s) * -2000
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(run(low, keys, v, s), e / e.sum(axis=-1, keepdims=True) @ v, rtol=2e-2, atol=2e-3)


def compared(q: Any, k: Any, v: Any, i: Any, j: Any) -> Any:
    """What is seen is computed from positions."""
    seen = mi.clamp(i + 1 - j, 0, 1)
    return mi.softmax(scores(q, k) * seen + (1 - seen) * -1e9, axis=-1) @ v


def apart(q: Any, k: Any, v: Any, i: Any, j: Any) -> Any:
    """The same of what is alike, hidden by -inf, with a term that varies."""
    seen = 1 - mi.clamp(mi.abs(i - j), 0, 1)
    return mi.softmax(scores(q, k) + 0.01 * (i - j) + mi.log_step(seen), axis=-1) @ v


def positions(fn: Callable[..., Any], dtype: str = "float32", **tile: int) -> Run:
    t = mi.tensor(HEADS, "n", WIDTH, dtype=dtype)
    i, j = mi.tensor("n", 1, dtype=dtype), mi.tensor("n", dtype=dtype)
    run = Run(looped(mi.trace(fn, q=t, k=t, v=t, i=i, j=j)), **tile)
    assert run.passes_over and "added0" in run.executable.source
    return run


def exact_at(fn: Callable[..., Any], q: Any, k: Any, v: Any, i: Any, j: Any) -> np.ndarray:
    q, k, v, i, j = (a.astype(np.float64) for a in (q, k, v, i, j))
    if fn is compared:
        return exact(factor, q, k, v, np.clip(i + 1 - j, 0, 1))
    return exact(added, q, k, v, 0.01 * (i - j) + np.where(i == j, 0, -np.inf))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masks_that_are_computed_from_vectors(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for fn in (compared, apart):
        run = positions(fn, dtype, **{f"d{HEADS}": 2})
        for n in TOKENS:
            order = np.arange(n)
            for name, j in {"in order": order, "backwards": order[::-1], "alike": order // 5, "any": rng.permutation(n)}.items():
                given = *arrays(n, dtype), j.astype(dtype)[:, None].copy(), j.astype(dtype)
                want = exact_at(fn, *given)
                np.testing.assert_allclose(run(*given), want, rtol=1e-4, atol=2e-5, err_msg=f"{fn.__name__} {name} {n}")


def test_a_row_that_sees_nothing_is_computed_with_all_tiles() -> None:
    n = 29
    q, k, v = arrays(n, np.float32)
    i, j = np.arange(-5, n - 5, dtype=np.float32)[:, None].copy(), np.arange(n, dtype=np.float32)
    got = positions(compared)(q, k, v, i, j)
    np.testing.assert_allclose(got, exact_at(compared, q, k, v, i, j), rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(got[:, :5], np.broadcast_to(v.mean(axis=1, keepdims=True), got[:, :5].shape), rtol=1e-4, atol=1e-5)


def test_bounds_pass_over_what_is_hidden() -> None:
    n = 32
    q, k, v = arrays(n, np.float32)
    k[:, 16:] = v[:, 16:] = np.nan
    i, j = np.arange(n, dtype=np.float32)[:, None].copy(), np.arange(n, dtype=np.float32)
    got = positions(compared)(q, k, v, i, j)
    assert np.isfinite(got[:, :16]).all() and np.isnan(got[:, 16:]).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("fn", [compared, apart])
def test_bounds_of_numbers_that_are_not_finite_hide_nothing_that_is_seen(fn: Callable[..., Any], odd: float) -> None:
    n = 24
    q, k, v = arrays(n, np.float32)
    i, j = np.arange(n, dtype=np.float32)[:, None].copy(), np.arange(n, dtype=np.float32)
    j[17] = odd
    with np.errstate(all="ignore"):
        want = exact_at(fn, q, k, v, i, j)
    np.testing.assert_allclose(positions(fn)(q, k, v, i, j), want, rtol=1e-4, atol=2e-5)


def test_masks_without_bounds_are_looked_at() -> None:
    """What is as large as the mask has no bounds that take less than a look, and products of what varies have them."""

    def beside(q: Any, k: Any, v: Any, s: Any) -> Any:
        seen = mi.clamp(s, 0, 1)
        return mi.softmax(scores(q, k) * seen + (1 - seen) * -1e9, axis=-1) @ v

    run = Run(looped(program(beside)))
    assert run.passes_over and "added0" not in run.executable.source


def exponent(p: Any) -> tuple[Graph, int]:
    graph = block(looped(p))
    return graph, next(n.operands[0].node for n in graph.nodes if n.op == "exp")


def test_terms_of_an_exponent() -> None:
    graph, i = exponent(program(factor))
    terms = find_terms(graph, i)
    assert terms is not None
    mask = next(i for i, n in enumerate(graph.nodes) if n.op == "input" and len(n.axes()) == 2)
    assert terms.factors == ((mask,),) and terms.inputs == (mask,)
    assert [graph.nodes[j].op for _, j in terms.added] == ["mul"]
    assert terms.axes == {"n", "n_2"}
    graph, i = exponent(program(added))
    terms = find_terms(graph, i)
    assert terms is not None and terms.factors == ((),) and terms.members == ()


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v, s: mi.softmax(scores(q, k), axis=-1) @ v,
        # nothing is added
        lambda q, k, v, s: mi.softmax(scores(q, k) * s, axis=-1) @ v,
        # what is added is the same for all keys
        lambda q, k, v, s: mi.softmax(scores(q, k) + mi.sum(s, axis=-1, keepdims=True), axis=-1) @ v,
    ],
)
def test_scores_without_a_mask_have_all_tiles(fn: Callable[..., Any]) -> None:
    p = program(fn)
    assert find_terms(*exponent(p)) is None
    assert not Run(looped(p)).passes_over


def test_sums_that_hidden_tiles_reach_have_all_tiles() -> None:
    """Beside the attention, a kernel that sums the values has to visit them all."""

    def beside(q: Any, k: Any, v: Any, s: Any) -> Any:
        return mi.softmax(scores(q, k) + s, axis=-1) @ v + mi.sum(v, axis=1, keepdims=True)

    p = program(beside)
    found = [g for g in fused_graphs(to_axes(p)) if block(g).loop]
    for graph in found:
        run = Run(graph)
        assert not run.passes_over
        n = 16
        q, k, v = arrays(n, np.float32)
        s = np.where(masks(n)["causal"], 0, -np.inf).astype(np.float32)
        want = exact(added, q, k, v, s) + v.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(run(q, k, v, s), want, rtol=1e-4, atol=1e-5)


def test_the_model_counts_what_a_causal_mask_leaves() -> None:
    machine = Machine(1, 1 << 15, 1 << 20, 1 << 25)

    def fma(fn: Callable[..., Any], n: int, keys: int, tile: int) -> float:
        graph = looped(program(fn))
        (kernel,) = graph.kernels
        (schedule,) = tiles(graph, {"n": tile, "n_2": tile}).kernels
        sizes = {"d3": HEADS, "n": n, "d8": WIDTH, "n_2": keys, "d8_2": WIDTH}
        model = CostModel(machine)
        counts = model.schedule(model.work(kernel), schedule, sizes, "l2", 4)
        return float(counts[list(FEATURES).index("fma")])

    def plain(q: Any, k: Any, v: Any, s: Any) -> Any:
        return mi.softmax(scores(q, k) * s, axis=-1) @ v

    share = [fma(factor, 512, 512, tile) / fma(plain, 512, 512, tile) for tile in (512, 128, 64, 16)]
    assert share == pytest.approx([1, 0.625, 0.5625, 0.5625])
    # nothing is known of which of all keys new queries see
    assert fma(factor, 64, 512, 64) == fma(plain, 64, 512, 64)
