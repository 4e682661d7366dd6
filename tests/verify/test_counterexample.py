"""Counterexamples in floats: found where two functions differ, and never where rounding alone tells them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage import api
from mirage.ir.axes import to_axes
from mirage.ir.functions import FUNCTIONS, Range
from mirage.ir.program import Program
from mirage.mugraph.reference import reference_graph
from mirage.verify.counterexample import MAX_ELEMENTS, counterexample
from mirage.verify.intervals import IntervalArithmetic, apart
from tests.verify.graphs import attention, flash, replace_node

Function = Callable[..., Any]


def program(f: Function, *shape: int | str) -> Program:
    x = mi.tensor(*(shape or ("n", 4)))
    return mi.trace(f, name="p", x=x, y=x)


DIFFERENT: dict[str, tuple[Function, Function]] = {
    "another operator": (lambda x, y: x * y, lambda x, y: x + y),
    "only for negative inputs": (lambda x, y: mi.relu(x) + y, lambda x, y: x + y),
    "by little": (lambda x, y: mi.exp(x) * y, lambda x, y: mi.exp(x + 1e-9) * y),
    "another function": (lambda x, y: mi.sin(x) + y, lambda x, y: mi.cos(x) + y),
    "only for large inputs": (lambda x, y: mi.clamp(x, -100, 100) + y, lambda x, y: x + y),
    "over another axis": (
        lambda x, y: x + mi.sum(y, axis=0, keepdims=True),
        lambda x, y: x + mi.sum(y, axis=1, keepdims=True),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_programs_have_one(name: str) -> None:
    f, g = DIFFERENT[name]
    a, b = program(f), program(g)
    assert counterexample(a, b).startswith("output 0[")
    assert counterexample(a, reference_graph(to_axes(b)))
    assert api.verify(a, b).verdict == "different"


ROUNDED: dict[str, tuple[Function, Function]] = {
    "a sum in another order": (lambda x, y: (x + 1e10) - 1e10 + y, lambda x, y: x + y),
    "a variance": (
        lambda x, y: mi.mean(mi.square(x + 1e6), axis=1, keepdims=True)
        - mi.square(mi.mean(x + 1e6, axis=1, keepdims=True)) + y,
        lambda x, y: mi.mean(mi.square(x - mi.mean(x, axis=1, keepdims=True)), axis=1, keepdims=True) + y,
    ),
    "constants of which one is rounded": (lambda x, y: (x + y) / 10, lambda x, y: x / 10 + y / 10),
    "both overflow": (lambda x, y: mi.exp(x * x) / mi.exp(x * x) + y, lambda x, y: 1 + y),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_what_differs_by_rounding_alone_has_none(name: str) -> None:
    f, g = ROUNDED[name]
    assert counterexample(program(f), program(g)) == ""


def test_elements_that_are_undefined_are_not_compared() -> None:
    assert counterexample(program(lambda x, y: mi.log(x) + y), program(lambda x, y: mi.log(mi.abs(x)) + y)) == ""


def test_graphs_have_one_where_they_are_wrong() -> None:
    assert counterexample(attention(), replace_node(flash(), (3, 6), op="sigmoid"))
    assert counterexample(to_axes(attention()), replace_node(flash(), (3, 6), op="sigmoid"))
    assert counterexample(attention(), flash()) == counterexample(to_axes(attention()), flash()) == ""


def test_nothing_is_tried_where_tensors_are_too_large() -> None:
    a, b = (program(f, 2, MAX_ELEMENTS) for f in (lambda x, y: x + y, lambda x, y: x - y))
    assert counterexample(a, b) == ""
    assert api.verify(a, b).verdict == "unknown"


def test_programs_of_random_functions_are_unknown_where_floats_agree() -> None:
    c = api.verify(program(lambda x, y: mi.floor(x + 1) + y), program(lambda x, y: mi.floor(x) + 1 + y))
    assert c.verdict == "unknown" and not c.equal and c.difference and not c.counterexample


numbers = st.floats(-1e3, 1e3).map(lambda v: np.asarray(v))


@settings(deadline=None)
@given(numbers, numbers, st.sampled_from(["add", "sub", "mul", "div"]))
def test_intervals_hold_the_exact_result(x: np.ndarray, y: np.ndarray, op: str) -> None:
    from fractions import Fraction

    ar = IntervalArithmetic({})
    a, b = Fraction(float(x)), Fraction(float(y))
    found = getattr(ar, op)(ar.exactly(x), ar.exactly(y))
    if op == "div" and b == 0:
        assert np.isnan(found.lo)
        return
    exact = {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b}[op]()
    assert Fraction(float(found.lo)) <= exact <= Fraction(float(found.hi))


@settings(deadline=None)
@given(st.sampled_from(sorted(FUNCTIONS)), st.floats(-20, 20), st.floats(0, 1e-3), st.floats(0, 1))
def test_functions_of_intervals_hold_those_of_all_numbers(name: str, lo: float, width: float, part: float) -> None:
    fn = FUNCTIONS[name]
    params = {"maximum": (0.5,), "clamp": (-1.0, 2.5), "pow": (2.5,)}.get(name, ())
    ar = IntervalArithmetic({})
    x = ar.add(ar.exactly(np.asarray(lo)), ar.exactly(np.asarray(width)))
    x.lo = np.asarray(lo)
    inside = np.asarray(min(max(lo + part * width, float(x.lo)), float(x.hi)))
    found = ar.function(fn, x, *params)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        value = float(fn.numpy(inside, *params))
    assert np.isnan(found.lo) or found.lo <= value <= found.hi
    if fn.domain is Range.POSITIVE and lo <= 0:
        assert np.isnan(found.lo)


def test_what_may_be_undefined_meets_everything() -> None:
    ar = IntervalArithmetic({})
    zero, one = (ar.exactly(np.asarray([v])) for v in (0.0, 1.0))
    undefined = ar.mul(ar.div(one, zero), zero)
    assert not apart(undefined, one).any() and not apart(zero, undefined).any()
    assert apart(zero, one).all() and not apart(one, one).any()
