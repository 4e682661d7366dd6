"""Learning decision trees: the fastest version where a tree can say so, little regret where it cannot, few leaves."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.kernels.decision import MAX_DEPTH, Split, Tree, decide, leaves
from mirage.search.buckets import sample_points
from mirage.search.decide import LEAF_PRICE, UNMEASURED, learn

Sizes = dict[str, int]

GRID = [{"b": b, "t": t} for b in (1, 8, 64, 512) for t in (1, 64, 512, 4096)]


def table(points: list[Sizes], best: Callable[[Sizes], int], versions: int, slower: float = 2.0) -> list[list[float]]:
    return [[1.0 if v == best(p) else slower for v in range(versions)] for p in points]


def regret(tree: Tree, points: list[Sizes], times: list[list[float]]) -> float:
    return sum(row[decide(tree, p)] / min(row) - 1 for p, row in zip(points, times, strict=True))


SEPARABLE: dict[str, tuple[Callable[[Sizes], int], int, int]] = {
    "one version": (lambda p: 1, 2, 1),
    "small batches": (lambda p: int(p["b"] > 8), 2, 2),
    "three ranges": (lambda p: (p["t"] > 1) + (p["t"] > 512), 3, 3),
    "a corner": (lambda p: int(p["b"] > 8 and p["t"] > 64), 2, 3),
    "a product": (lambda p: int(p["b"] * p["t"] > 4096), 2, 2),
    "quarters": (lambda p: (p["b"] > 8) + 2 * (p["t"] > 64), 4, 4),
}


@pytest.mark.parametrize("name", SEPARABLE)
def test_separable_tables_are_separated_with_the_fewest_leaves(name: str) -> None:
    best, versions, count = SEPARABLE[name]
    tree = learn(["b", "t"], GRID, table(GRID, best, versions))
    assert [decide(tree, p) for p in GRID] == [best(p) for p in GRID]
    assert len(list(leaves(tree))) == count


def test_thresholds_are_half_way_on_a_logarithmic_scale() -> None:
    points = [{"b": b} for b in (1, 8, 64)]
    assert learn(["b"], points, [[1, 2], [1, 2], [2, 1]]) == Split(("b",), 22, 0, 1)
    assert learn(["b"], [{"b": 3}, {"b": 4}], [[1, 2], [2, 1]]) == Split(("b",), 3, 0, 1)


def test_a_dim_is_preferred_to_a_product_that_says_the_same() -> None:
    points = [{"b": 8, "t": t} for t in (1, 64, 512)]
    assert learn(["b", "t"], points, table(points, lambda p: int(p["t"] > 64), 2)) == Split(("t",), 181, 0, 1)


def test_small_differences_are_no_reason_for_a_leaf() -> None:
    points = [{"b": 1}, {"b": 8}]
    small, large = 1 + LEAF_PRICE / 2, 1 + 2 * LEAF_PRICE
    assert learn(["b"], points, [[1.0, small], [small, 1.0]], wanted=0) in (0, 1)
    assert isinstance(learn(["b"], points, [[1.0, large], [large, 1.0]], wanted=0), Split)


def test_at_wanted_points_the_fastest_runs_however_small_the_difference() -> None:
    points = [{"b": 1}, {"b": 8}, {"b": 64}]
    times = [[1.0, 1.001], [1.5, 1.0], [1.5, 1.0]]
    assert [decide(learn(["b"], points, times, wanted=w), points[0]) for w in (0, 1)] == [1, 0]


def test_what_was_not_measured_is_avoided() -> None:
    points = [{"b": 1}, {"b": 8}, {"b": 64}]
    times = [[1.0, math.inf], [3.0, 1.0], [1.0, math.inf]]
    tree = learn(["b"], points, times)
    assert [decide(tree, p) for p in points] == [0, 1, 0]
    assert UNMEASURED > 1 / LEAF_PRICE


def test_points_of_the_same_sizes_cannot_be_told_apart() -> None:
    points = [{"b": 4}, {"b": 4}]
    assert learn(["b"], points, [[1.0, 2.0], [5.0, 1.0]], wanted=0) == 1
    assert learn(["b"], points, [[1.0, 2.0], [5.0, 1.0]], wanted=1) == 0


def test_a_program_without_dims_has_a_leaf() -> None:
    assert learn([], [{}], [[2.0, 1.0, 3.0]]) == 1


def all_trees(points: list[Sizes], symbols: list[str], versions: int, depth: int) -> list[Tree]:
    """Every tree of this depth whose thresholds lie between values of points."""
    found: list[Tree] = list(range(versions))
    if depth == 0:
        return found
    below = all_trees(points, symbols, versions, depth - 1)
    for dims in [*((s,) for s in symbols), *itertools.combinations(symbols, 2)]:
        values = sorted({math.prod(p[d] for d in dims) for p in points})
        for low, high in itertools.pairwise(values):
            found += [Split(dims, math.isqrt(low * high), a, b) for a in below for b in below]
    return found


@settings(max_examples=25)
@given(st.integers(0, 1 << 30))
def test_no_tree_is_better(seed: int) -> None:
    rng = random.Random(seed)
    points = rng.sample(GRID, 5)
    times = [[rng.uniform(1, 2) for _ in range(2)] for _ in points]
    tree = learn(["b", "t"], points, times, wanted=0)

    def cost(t: Tree) -> float:
        return regret(t, points, times) + LEAF_PRICE * (len(list(leaves(t))) - 1)

    # deeper trees are too many to be tried
    assert cost(tree) <= min(cost(t) for t in all_trees(points, ["b", "t"], 2, 1)) + 1e-9
    two = all_trees(points, ["b"], 2, 2)
    assert cost(tree) <= min(cost(t) for t in two) + 1e-9


tables = st.integers(1, 4).flatmap(
    lambda dims: st.tuples(
        st.just(dims),
        st.lists(st.tuples(*[st.integers(1, 1 << 20)] * dims), min_size=1, max_size=12),
        st.integers(1, 10),
        st.integers(0, 1 << 30),
    )
)


@settings(max_examples=60, deadline=None)
@given(tables)
def test_regret_is_bounded_by_that_of_the_best_single_version(
    case: tuple[int, list[tuple[int, ...]], int, int],
) -> None:
    dims, values, versions, seed = case
    rng = random.Random(seed)
    symbols = ["a", "b", "c", "d"][:dims]
    points = [dict(zip(symbols, v, strict=True)) for v in values]
    times = [[rng.uniform(1, 10) for _ in range(versions)] for _ in points]
    tree = learn(symbols, points, times, wanted=0)
    single = min(regret(v, points, times) for v in range(versions))
    count = len(list(leaves(tree)))
    assert count <= 2**MAX_DEPTH
    assert regret(tree, points, times) <= single - LEAF_PRICE * (count - 1) + 1e-9
    assert learn(symbols, points, times, wanted=0) == tree


def test_twelve_points_of_four_dims_take_little_time() -> None:
    rng = random.Random(0)
    anchor: Mapping[str, int] = {"a": 2, "b": 16, "c": 128, "d": 4096}
    points = [dict(anchor), *sample_points([anchor], lambda _: True)]
    times = [[rng.uniform(1, 10) for _ in range(12)] for _ in points]
    tree = learn(list(anchor), points, times)
    assert decide(tree, anchor) == times[0].index(min(times[0]))
