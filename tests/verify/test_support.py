"""How many elements of an axis tests need, and programs that only larger sizes tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.mugraph.reference import reference_graph
from mirage.results.evidence import compare
from mirage.verify.equivalence import Verifier, verify_programs
from mirage.verify.support import elements_needed, read_sums
from tests.verify.graphs import PAIRS, attention

T = mi.tensor


def traced(fn: Callable[[Any], Any], *shape: Any) -> Program:
    return mi.trace(fn, "f", x=T(*(shape or ("n", 4))))


def needed(a: Program, b: Program | None = None) -> dict[str, int]:
    axes = to_axes(a).axes
    sums = [read_sums(reference_graph(to_axes(p))) for p in (a, b or a)]
    return elements_needed(sums[0], sums[1], axes)


def power_sum(x: Any, k: int) -> Any:
    return mi.sum(x**k, axis=0)


def centred(x: Any) -> Any:
    return x - mi.mean(x, axis=0, keepdims=True)


NEEDED: dict[str, tuple[Callable[[Any], Any], dict[str, int]]] = {
    "no sum": (lambda x: x * x, {}),
    "a sum": (lambda x: mi.sum(x, axis=0), {"n": 2}),
    "a sum of products": (lambda x: mi.sum(x * x * x, axis=0), {"n": 2}),
    "a product of sums": (lambda x: power_sum(x, 1) * power_sum(x, 2) * power_sum(x, 3), {"n": 3}),
    "a mean uses the size": (lambda x: mi.mean(x, axis=0) ** 3, {"n": 4}),
    "a literal size": (lambda x: mi.sum(x, axis=1) ** 2, {"d4": 3}),
    "a variance": (lambda x: mi.mean(centred(x) ** 2, axis=0), {"n": 3}),
    "a function of a sum is an input": (lambda x: mi.relu(power_sum(x, 1)) ** 4, {"n": 2}),
    "a function of a product of sums": (lambda x: mi.relu(power_sum(x, 1) ** 3), {"n": 3}),
    "two axes": (lambda x: mi.sum(mi.sum(x, axis=0) ** 2, axis=0), {"n": 2, "d4": 2}),
}


@pytest.mark.parametrize("name", NEEDED)
def test_products_of_sums_are_counted_by_axis(name: str) -> None:
    fn, wanted = NEEDED[name]
    assert needed(traced(fn)) == wanted


def test_a_quotient_of_sums_is_compared_with_another() -> None:
    """Attention's sums over keys, times those of the other side; one sum over each contracted axis."""
    assert needed(attention()) == {"d64": 2, "t": 2}


@pytest.mark.parametrize(("program", "graph"), PAIRS)
def test_a_graph_needs_what_its_program_does(program: Callable[[], Program], graph: Callable[[], Any]) -> None:
    sums = [read_sums(g) for g in (reference_graph(to_axes(program())), graph())]
    axes = to_axes(program()).axes
    assert elements_needed(sums[0], sums[1], axes) == elements_needed(sums[0], sums[0], axes)
    assert max(elements_needed(sums[0], sums[1], axes).values()) <= 3


def newton(k: int) -> Callable[[Any], Any]:
    """A polynomial of power sums that is zero for fewer than k elements: k! times the k-th elementary symmetric polynomial."""
    if k == 3:
        return lambda x: power_sum(x, 1) ** 3 - 3 * power_sum(x, 1) * power_sum(x, 2) + 2 * power_sum(x, 3)
    return lambda x: (
        power_sum(x, 1) ** 4
        - 6 * power_sum(x, 1) ** 2 * power_sum(x, 2)
        + 3 * power_sum(x, 2) ** 2
        + 8 * power_sum(x, 1) * power_sum(x, 3)
        - 6 * power_sum(x, 4)
    )


@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_what_vanishes_at_small_sizes_is_no_zero(k: int, seed: int) -> None:
    a = traced(lambda x: power_sum(x, 1))
    b = traced(lambda x: power_sum(x, 1) + newton(k)(x))
    assert needed(a, b) == {"n": k}
    assert not verify_programs(a, b, seed=seed).equal


def count(x: Any) -> Any:
    return mi.sum(x * 0 + 1, axis=0, keepdims=True)


SIZES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "equal at two and three": (lambda x: x, lambda x: x + (count(x) - 2) * (count(x) - 3) * x),
    "equal up to three": (lambda x: x, lambda x: x + (count(x) - 1) * (count(x) - 2) * (count(x) - 3) * x),
    "a mean of two": (lambda x: mi.mean(x, axis=0), lambda x: mi.sum(x, axis=0) / 2),
    "a size that is used twice": (lambda x: mi.mean(x, axis=0), lambda x: mi.sum(x / count(x) ** 2, axis=0) * 2),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 7, 11])
def test_programs_that_are_equal_at_small_sizes_only(name: str, seed: int) -> None:
    a, b = map(traced, SIZES[name])
    assert not verify_programs(a, b, seed=seed).equal
    verifier = Verifier(a, seed)
    other = reference_graph(to_axes(b))
    assert verifier.check(reference_graph(to_axes(a))).equal and not verifier.check(other).equal


SAME: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a counted mean": (
        lambda x: mi.mean(x, axis=0, keepdims=True),
        lambda x: mi.sum(x, axis=0, keepdims=True) / count(x),
    ),
    "a literal mean": (lambda x: mi.mean(x, axis=1), lambda x: mi.sum(x, axis=1) / 4),
    "a variance": (
        lambda x: mi.sum(centred(x) ** 2, axis=0),
        lambda x: mi.sum(x * x, axis=0) - mi.sum(x, axis=0) * mi.mean(x, axis=0),
    ),
}

@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("seed", [0, 1, 7, 11])
def test_programs_that_are_equal_at_all_sizes(name: str, seed: int) -> None:
    a, b = map(traced, SAME[name])
    c = verify_programs(a, b, seed=seed)
    assert c.verdict == "tested equal" and not c.uncovered
    assert Verifier(a, seed).check(reference_graph(to_axes(b))).verdict == "tested equal"


@pytest.mark.slow
def test_too_many_products_of_sums_are_said() -> None:
    a = traced(lambda x: power_sum(x, 1) ** 7)
    b = traced(lambda x: power_sum(x, 1) ** 6 * power_sum(x, 1))
    c = verify_programs(a, b)
    assert c.verdict == "unknown" and not c.difference
    assert c.reason == "the tests do not speak for all sizes of n (which takes 7 elements)"
    assert compare(a, b, 0).verdict == "proved equal"
