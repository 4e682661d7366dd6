"""Fronts against the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirage.search.pareto import Front

COSTS = st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=24)


def minimal(costs: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """The costs that no other one is at most in every entry."""
    return {c for c in costs if not any(d != c and all(x <= y for x, y in zip(d, c, strict=True)) for d in costs)}


def filled(costs: list[tuple[int, ...]]) -> tuple[Front, dict[tuple[int, ...], int]]:
    """A front, and the numbers of those that it took."""
    front, taken = Front(), {}
    for c in costs:
        cost = np.array(c, dtype=float)
        if not front.dominates(cost):
            taken[c] = front.add(cost)
    return front, taken


@given(COSTS)
def test_the_living_are_the_minimal(costs: list[tuple[int, ...]]) -> None:
    front, taken = filled(costs)
    assert {c for c, number in taken.items() if front.alive(number)} == minimal(costs)


@given(COSTS, COSTS)
def test_dominated_by_any_member(costs: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> None:
    front, _ = filled(costs)
    wanted = [any(all(x <= y for x, y in zip(c, other, strict=True)) for c in costs) for other in others]
    rows = np.array(others, dtype=float).reshape(-1, 3)
    assert [front.dominates(row) for row in rows] == wanted
    assert front.dominates_each(rows).tolist() == wanted


def test_an_empty_front_dominates_nothing() -> None:
    front = Front()
    assert not front.dominates(np.zeros(3))
    assert front.dominates_each(np.zeros((2, 3))).tolist() == [False, False]
    assert front.dominates_each(np.zeros((0, 3))).tolist() == []


def test_the_dead_dominate_nothing_that_their_successor_does_not() -> None:
    """A cost is only dropped for one that is at most it, which takes its place."""
    front = Front()
    first = front.add(np.array([2.0, 2.0]))
    second = front.add(np.array([1.0, 2.0]))
    assert not front.alive(first) and front.alive(second)
    assert front.dominates(np.array([2.0, 2.0]))
    assert not front.dominates(np.array([1.0, 1.0]))


def test_a_front_grows() -> None:
    """Beyond the rows that it begins with, and nobody is forgotten."""
    front = Front()
    numbers = [front.add(np.array([k, 99.0 - k])) for k in range(100)]
    assert numbers == list(range(100))
    assert all(map(front.alive, numbers))
    assert all(front.dominates(np.array([k, 99.0 - k])) for k in range(100))
    assert not front.dominates(np.array([50.0, 48.0]))
