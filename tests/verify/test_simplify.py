"""Identities of scalar functions: each holds for numbers, and forms of what they make equal are equal."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage import api
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import to_axes
from mirage.ir.decimals import as_written
from mirage.ir.functions import ABS, CLAMP, FUNCTIONS, MAXIMUM, RELU, ScalarFunction
from mirage.ir.program import Program
from mirage.mugraph.exact import ExactAlgebra, Form
from mirage.mugraph.reference import reference_graph
from mirage.search.candidates import Known, admitted
from mirage.verify.equivalence import Verifier
from mirage.verify.simplify import SimplifyingAlgebra

Function = Callable[..., Any]
PARAMETERS: dict[str, tuple[Fraction, ...]] = {
    "maximum": (Fraction(-1, 2),),
    "clamp": (Fraction(-1), Fraction(5, 2)),
    "pow": (Fraction(0),),
}
near = st.floats(-30, 30)


def check(left: np.ndarray, right: np.ndarray) -> None:
    assert np.allclose(left, right, rtol=1e-9, atol=1e-9, equal_nan=True)


@settings(deadline=None)
@given(near)
def test_every_identity_holds_for_numbers(number: float) -> None:
    al, x = FloatArithmetic({}), np.asarray(number)
    for fn in FUNCTIONS.values():
        params = PARAMETERS.get(fn.name, ())
        if fn.written is not None:
            check(al.function(fn, x, *params), fn.written(al, x, *params))
        if fn.turned is not None:
            check(al.function(fn, -x), fn.turned(al, x))
        if fn.inverse:
            argument = np.abs(x) + 0.1
            check(al.function(fn, al.function(FUNCTIONS[fn.inverse], argument)), argument)


def program(f: Function) -> Program:
    return mi.trace(f, name="p", x=mi.tensor("n", 4), y=mi.tensor("n", 4))


EQUAL: dict[str, tuple[Function, Function]] = {
    "abs is even": (lambda x: mi.abs(x), lambda x: mi.abs(-x)),
    "abs twice": (lambda x: mi.abs(mi.abs(x)), lambda x: mi.abs(x)),
    "abs of relus": (lambda x: mi.relu(x) + mi.relu(-x), lambda x: mi.abs(x)),
    "relu twice": (lambda x: mi.relu(mi.relu(x)), lambda x: mi.relu(x)),
    "a difference of relus": (lambda x: mi.relu(x) - mi.relu(-x), lambda x: x),
    "relu as a maximum": (lambda x: mi.maximum(x, 0), lambda x: mi.relu(x)),
    "maxima": (lambda x: mi.maximum(mi.maximum(x, 1), 2), lambda x: mi.maximum(x, 2)),
    "clamps": (lambda x: mi.clamp(mi.clamp(x, 0, 6), -1, 3), lambda x: mi.clamp(x, 0, 3)),
    "a clamp of relu": (lambda x: mi.clamp(mi.relu(x), -1, 6), lambda x: mi.clamp(x, 0, 6)),
    "a clamp as a difference": (lambda x: mi.relu(x) - mi.relu(x - 6), lambda x: mi.clamp(x, 0, 6)),
    "a factor of relu": (lambda x: mi.relu(2 * x), lambda x: 2 * mi.relu(x)),
    "sigmoid": (lambda x: mi.sigmoid(x), lambda x: 1 / (1 + mi.exp(-x))),
    "sigmoid of the negative": (lambda x: mi.sigmoid(-x), lambda x: 1 - mi.sigmoid(x)),
    "another sigmoid": (lambda x: 3 / (3 + 3 * mi.exp(x)), lambda x: 1 - mi.sigmoid(x)),
    "silu": (lambda x: mi.silu(x), lambda x: x / (1 + mi.exp(-x))),
    "tanh": (lambda x: mi.tanh(x), lambda x: 2 * mi.sigmoid(2 * x) - 1),
    "tanh is odd": (lambda x: mi.tanh(-x), lambda x: -mi.tanh(x)),
    "gelu": (lambda x: mi.gelu(x) - mi.gelu(-x), lambda x: x),
    "a power of 0": (lambda x: mi.pow(x, 0), lambda x: 1 + 0 * x),
    "log of exp": (lambda x: mi.log(mi.exp(x)), lambda x: x),
    "floor and ceil": (lambda x: mi.ceil(-x), lambda x: -mi.floor(x)),
    "sin and cos": (lambda x: mi.sin(-x) + mi.cos(-x), lambda x: mi.cos(x) - mi.sin(x)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_are_proved_equal(name: str) -> None:
    f, g = EQUAL[name]
    a, b = (program(lambda x, y, h=h: h(x + y) * y) for h in (f, g))
    for c in (api.verify(a, b), api.verify(b, a), api.verify(a, reference_graph(to_axes(b)))):
        assert c.verdict == "proved equal" and c.equal and c.condition is None and not c.counterexample
    verifier, graph = Verifier(a), reference_graph(to_axes(b))
    assert verifier.confirm(graph, verifier.admit(graph)).verdict == "proved equal"


NOT_EQUAL: dict[str, tuple[Function, Function]] = {
    "abs": (lambda x: mi.abs(x), lambda x: x),
    "relu is not odd": (lambda x: mi.relu(-x), lambda x: -mi.relu(x)),
    "clamps": (lambda x: mi.clamp(mi.clamp(x, 0, 3), -1, 6), lambda x: mi.clamp(x, 0, 6)),
    "sigmoid": (lambda x: mi.sigmoid(x), lambda x: 1 / (2 + mi.exp(-x))),
    "floor": (lambda x: mi.floor(-x), lambda x: -mi.floor(x)),
    "cos is not odd": (lambda x: mi.cos(-x), lambda x: -mi.cos(x)),
    "another power": (lambda x: mi.pow(x, 0), lambda x: x),
}


@pytest.mark.parametrize("name", NOT_EQUAL)
def test_different_programs_are_not(name: str) -> None:
    f, g = NOT_EQUAL[name]
    a, b = (program(lambda x, y, h=h: h(x + y) * y) for h in (f, g))
    c = api.verify(a, b)
    assert c.verdict == "different" and c.counterexample and not c.equal


def test_an_exp_of_a_log_is_equal_where_the_log_is_defined() -> None:
    c = api.verify(program(lambda x, y: mi.exp(mi.log(x)) * y), program(lambda x, y: x * y))
    assert c.verdict == "proved equal" and c.condition == "x > 0" and not c.equal


#: functions of one value that are made of lines
pieces = st.recursive(
    st.just(("x",)),
    lambda t: st.one_of(
        st.tuples(st.sampled_from(["relu", "abs"]), t),
        st.tuples(st.just("maximum"), t, st.integers(-2, 2)),
        st.tuples(st.just("clamp"), t, st.integers(-3, 0), st.integers(0, 3)),
        st.tuples(st.just("line"), t, st.sampled_from([-2, -1, 1, 3]), st.integers(-2, 2)),
        st.tuples(st.just("add"), t, t),
    ),
    max_leaves=4,
)  # fmt: skip


def form(al: ExactAlgebra, x: Form, t: Any) -> Form:
    functions: dict[str, ScalarFunction] = {"relu": RELU, "abs": ABS, "maximum": MAXIMUM, "clamp": CLAMP}
    match t:
        case ("x",):
            return x
        case ("add", a, b):
            return al.add(form(al, x, a), form(al, x, b))
        case ("line", a, slope, offset):
            return al.add(al.mul(al.constant(Fraction(slope)), form(al, x, a)), al.constant(Fraction(offset)))
        case (name, a, *params):
            return al.function(functions[name], form(al, x, a), *map(Fraction, params))
    raise AssertionError(t)


def value(x: Fraction, t: Any) -> Fraction:
    match t:
        case ("x",):
            return x
        case ("add", a, b):
            return value(x, a) + value(x, b)
        case ("line", a, slope, offset):
            return slope * value(x, a) + offset
        case ("relu", a):
            return max(value(x, a), Fraction(0))
        case ("abs", a):
            return abs(value(x, a))
        case ("maximum", a, c):
            return max(value(x, a), Fraction(c))
        case ("clamp", a, lo, hi):
            return min(max(value(x, a), Fraction(lo)), Fraction(hi))
    raise AssertionError(t)


@settings(max_examples=3 * settings().max_examples)
@given(pieces, pieces)
def test_functions_made_of_lines_have_equal_forms_exactly_where_they_are_equal(s: Any, t: Any) -> None:
    al = SimplifyingAlgebra({})
    x = al.tensor("x", ("i",))
    # breaks are at multiples of some 1 / k, and none is far away
    sample = [Fraction(k, 12) for k in range(-480, 481, 5)]
    same = all(value(v, s) == value(v, t) for v in sample)
    assert (form(al, x, s) is form(al, x, t)) is same


def test_relus_of_several_values_are_left_as_they_are() -> None:
    al = SimplifyingAlgebra({})
    x, y = (al.tensor(n, ("i",)) for n in "xy")
    both = al.add(al.function(RELU, x), al.function(RELU, y))
    assert al.function(RELU, both) is al.function(RELU, both) is not both
    two = al.constant(Fraction(2))
    assert al.function(RELU, al.mul(two, al.add(al.function(RELU, x), y))) is al.mul(
        two, al.function(RELU, al.add(al.function(RELU, x), y))
    )


@pytest.mark.parametrize(("parts", "whole", "equal"), [((0.1, 0.2), 0.3, True), ((0.1, 0.2), 0.30000001, False)])
def test_constants_are_the_decimals_as_which_they_are_written(parts: tuple[float, float], whole: float, equal: bool) -> None:
    a, b = program(lambda x, y: (parts[0] * x + parts[1] * x) * y), program(lambda x, y: whole * x * y)
    for c in (api.verify(a, b), api.verify(a, reference_graph(to_axes(b)))):
        assert c.equal is equal and c.verdict == ("proved equal" if equal else "different")
    assert as_written(Fraction(1, 3)) == Fraction(1, 3) and as_written(Fraction(1, 8)) == Fraction(1, 8)
    assert as_written(Fraction(3, 2**24)) == Fraction(3, 2**24)
    assert as_written(Fraction(0.1)) == Fraction(1, 10) and float(as_written(Fraction(1e-300))) == 1e-300


def test_a_mean_over_a_literal_size_is_a_sum_over_that_number() -> None:
    def mean(x: Any, y: Any) -> Any:
        return mi.mean(x, axis=1, keepdims=True) * y

    def by(count: int) -> Program:
        return program(lambda x, y: mi.sum(x, axis=1, keepdims=True) / count * y)

    a = program(mean)
    for b in (by(4), reference_graph(to_axes(by(4)))):
        assert api.verify(a, b).verdict == "proved equal"
    for b in (by(3), reference_graph(to_axes(by(3)))):
        assert api.verify(a, b).verdict == "different"
    graph = reference_graph(to_axes(by(4)))
    assert admitted(Verifier(a), Known(graph, 0.0)) is not None


def test_constants_are_clamped() -> None:
    al = SimplifyingAlgebra({})
    for c in (-3, 0, 2):
        assert al.function(RELU, al.constant(Fraction(c))) is al.constant(Fraction(max(c, 0)))
