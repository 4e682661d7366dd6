"""Where programs are defined: what is cancelled leaves a condition, unless it cannot be 0 or is divided by anyway."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage import api
from mirage.ir.axes import to_axes
from mirage.ir.functions import EXP, LOG, POW, RELU, SQRT
from mirage.ir.program import Program
from mirage.mugraph.exact import ExactAlgebra
from mirage.mugraph.reference import reference_graph
from mirage.search.candidates import Known, admitted
from mirage.verify.definedness import DefinedAlgebra, Term
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import compare_graph, compare_programs, prove, prove_programs
from mirage.verify.safety import offered

Function = Callable[..., Any]


def program(f: Function, name: str = "p") -> Program:
    return mi.trace(f, name=name, x=mi.tensor("n", 4), y=mi.tensor("n", 4))


def total(x: Any) -> Any:
    return mi.sum(x, axis=1, keepdims=True)


def plain(x: Any, y: Any) -> Any:
    return y + x


#: a program that is not defined everywhere, one that is equal to it where both are defined, and where that is
CONDITIONS: dict[str, tuple[Function, Function, str]] = {
    "nowhere": (
        lambda x, y: y / (mi.relu(x) * mi.relu(-x)) * (mi.relu(x) * mi.relu(-x)) + x,
        plain,
        "relu(-x) != 0 and relu(x) != 0",
    ),
    "a quotient": (lambda x, y: x / x * y + x, plain, "x != 0"),
    "a quotient of a product": (lambda x, y: x * y / (x * y) + x, lambda x, y: 1 + x + 0 * y, "x != 0 and y != 0"),
    "log": (lambda x, y: mi.log(x) - mi.log(x) + y + x, plain, "x > 0"),
    "sqrt": (lambda x, y: mi.sqrt(x) - mi.sqrt(x) + y + x, plain, "x >= 0"),
    "rsqrt": (lambda x, y: mi.rsqrt(x) * mi.sqrt(x) * y + x, plain, "x > 0"),
    "floor": (lambda x, y: y / mi.floor(x) * mi.floor(x) + x, plain, "floor(x) != 0"),
    "times zero": (lambda x, y: 0 * (y / x) + x, lambda x, y: x + 0 * y, "x != 0"),
    "a power": (lambda x, y: mi.pow(x, -3) * mi.pow(x, 3) * y + x, plain, "x != 0"),
    "a root as a power": (lambda x, y: mi.pow(x, 1.3) - mi.pow(x, 1.3) + y + x, plain, "x >= 0"),
    "an odd power": (lambda x, y: mi.sqrt(mi.pow(x, 9)) - mi.sqrt(mi.pow(x, 9)) + y + x, plain, "pow(x, 9) >= 0"),
    "divided by a power": (lambda x, y: y / mi.pow(x, 9) * mi.pow(x, 9) + x, plain, "x != 0"),
    "a maximum that may be 0": (lambda x, y: y / mi.maximum(x, 0) * mi.maximum(x, 0) + x, plain, "maximum(x, 0) != 0"),
    "a maximum that may be negative": (
        lambda x, y: mi.sqrt(mi.maximum(x, -1)) - mi.sqrt(mi.maximum(x, -1)) + y + x, plain, "maximum(x, -1) >= 0"
    ),
    "a sum": (lambda x, y: (x + y) / (x + y) + x, lambda x, y: 1 + x + 0 * y, "x + y != 0"),
    "a sum over an axis": (lambda x, y: total(x) / total(x) + y + 0 * x, lambda x, y: 1 + y + 0 * x, "sum(x) != 0"),
    "inside a sum": (lambda x, y: total(y / x * x) + x, lambda x, y: total(y + 0 * x) + x, "x != 0"),
    "a norm without epsilon": (
        lambda x, y: x / mi.sqrt(total(x * x)) * mi.sqrt(total(x * x)) + y,
        plain,
        "sum(x^2) != 0",
    ),
    "more of it than the other": (lambda x, y: y / (x * y) / y, lambda x, y: 1 / x / y * y / y, ""),
    "another divisor": (lambda x, y: (x / y) / (x / y) + x, lambda x, y: y / y + x, "x != 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_is_cancelled_leaves_a_condition(name: str) -> None:
    f, g, condition = CONDITIONS[name]
    a, b = program(f), program(g)
    for x, y in ((a, b), (b, a)):
        found = compare_programs(x, y)
        # a quotient of sums is no form that is known
        proved = name not in ("a sum", "a sum over an axis")
        assert found == ("proved" if proved else "not proved", condition or None)
        assert prove_programs(x, y) == ("not proved" if condition else "proved")
        certificate = api.verify(x, y)
        assert certificate.verdict == ("proved equal" if proved else "tested equal")
        assert certificate.condition == (condition or None)
        assert certificate.equal is (not condition)
    for x in (a, b):
        assert api.verify(x, x).equal and prove_programs(x, x) == "proved"


@pytest.mark.parametrize("name", CONDITIONS)
def test_graphs_under_a_condition_are_not_offered(name: str) -> None:
    f, g, condition = CONDITIONS[name]
    p = program(f)
    graph = reference_graph(to_axes(program(g)))
    assert compare_graph(to_axes(p), graph).condition == (condition or None)
    assert prove(to_axes(p), graph) == ("not proved" if condition else "proved")
    assert (admitted(Verifier(p), Known(graph, 0.0)) is None) is bool(condition)
    own = reference_graph(to_axes(p))
    assert prove(to_axes(p), own) == "proved" and admitted(Verifier(p), Known(own, 0.0)) is not None


#: programs whose divisors are never 0, and what they are equal to everywhere
ALWAYS: dict[str, tuple[Function, Function]] = {
    "an exp": (lambda x, y: y / mi.exp(x) * mi.exp(x) + x, plain),
    "a sum of exps": (lambda x, y: y / total(mi.exp(x)) * total(mi.exp(x)) + x, plain),
    "a norm": (
        lambda x, y: y * mi.rsqrt(total(x * x) + 1e-5) * mi.sqrt(total(x * x) + 1e-5) + x,
        plain,
    ),
    "a mean of squares": (
        lambda x, y: y / mi.sqrt(mi.mean(mi.square(x), axis=1, keepdims=True) + 1) * mi.sqrt(total(x * x) / 4 + 1) + x,
        plain,
    ),
    "a variance, as a square of differences": (
        lambda x, y: _variance(x) * (y / _variance(x)) + x,
        plain,
    ),
    "a constant": (lambda x, y: y / 3 * 3 + x, plain),
    "a negative constant": (lambda x, y: y / -3 * -3 + x, plain),
    "a size": (lambda x, y: mi.mean(y, axis=1, keepdims=True) * 4 + x, lambda x, y: total(y) + x),
    "a sigmoid": (lambda x, y: y / mi.sigmoid(x) * mi.sigmoid(x) + x, plain),
    "one more than a square": (lambda x, y: y / (1 + x * x) * (1 + x * x) + x, plain),
    "less than zero": (lambda x, y: y / (-mi.exp(x) - 1) * (-mi.exp(x) - 1) + x, plain),
    "a maximum with more than 0": (lambda x, y: mi.log(mi.maximum(x, 0.1)) - mi.log(mi.maximum(x, 0.1)) + y + x, plain),
    "a clamp above 0": (lambda x, y: y / mi.clamp(x, 0.1, 2) * mi.clamp(x, 0.1, 2) + x, plain),
    "an even power": (lambda x, y: mi.sqrt(mi.pow(x, 10)) - mi.sqrt(mi.pow(x, 10)) + y + x, plain),
    "a power of a positive": (lambda x, y: y / mi.pow(mi.exp(x), -1.3) * mi.pow(mi.exp(x), -1.3) + x, plain),
    "divided by anyway": (lambda x, y: y / x / x * x, lambda x, y: y / x),
    "the root of a square and more": (lambda x, y: mi.sqrt(x * x + 2) - mi.sqrt(x * x + 2) + y + x, plain),
}


def _variance(x: Any) -> Any:
    return mi.mean(mi.square(x - mi.mean(x, axis=1, keepdims=True)), axis=1, keepdims=True) + 1e-5


@pytest.mark.parametrize("name", ALWAYS)
def test_divisors_that_are_never_zero_leave_none(name: str) -> None:
    f, g = ALWAYS[name]
    found = compare_programs(program(f), program(g))
    assert found.condition is None
    assert api.verify(program(f), program(g)).equal


def test_a_difference_of_squares_that_is_a_variance_has_no_condition_beside_one() -> None:
    def other(x: Any) -> Any:
        mean = mi.mean(x, axis=1, keepdims=True)
        return mi.mean(x * x, axis=1, keepdims=True) - 2 * mean * mean + mean * mean + 1e-5

    a, b = program(lambda x, y: y / mi.sqrt(_variance(x))), program(lambda x, y: y / mi.sqrt(other(x)))
    assert compare_programs(a, b).condition is None
    # where nothing else says that it is a sum of squares, it may be less than 0
    found = compare_programs(
        program(lambda x, y: mi.sqrt(other(x)) - mi.sqrt(other(x)) + y), program(lambda x, y: y + 0 * x)
    )
    assert found.condition is not None and found.condition.endswith(">= 0")


def test_a_divisor_in_every_row_is_more_than_one_in_its_row() -> None:
    a = program(lambda x, y: total(y / x) + total(1 / x) - total(1 / x))
    b = program(lambda x, y: total(y / x))
    assert compare_programs(a, b).condition is None
    rows = program(lambda x, y: y / x)
    spoiled = program(lambda x, y: y / x + 0 * total(1 / x))
    assert compare_programs(rows, spoiled).condition == "x != 0" and not api.verify(rows, spoiled).equal


def test_outputs_have_conditions_of_their_own() -> None:
    one = mi.trace(lambda x, y: (y / x, x / x * y), name="one", x=mi.tensor("n", 4), y=mi.tensor("n", 4))
    other = mi.trace(lambda x, y: (y / x, y), name="other", x=mi.tensor("n", 4), y=mi.tensor("n", 4))
    assert compare_programs(one, other).condition == "x != 0"
    assert compare_programs(one, one).condition is None


def test_a_program_that_divides_by_zero_is_equal_to_itself_alone() -> None:
    a, b = program(lambda x, y: y / (x - x)), program(lambda x, y: y / (y - y))
    assert api.verify(a, a).proof == "proved"
    assert compare_programs(a, program(lambda x, y: 0 * x + 0 * y)).condition == "0 != 0"
    assert compare_programs(a, b).condition is None


def test_conditions_are_found_where_the_proof_is_given_up() -> None:
    def wide(x: Any, y: Any) -> Any:
        s = x + y
        for k in range(8):
            s = s * (x + y * (k + 2) + 1)
        return s * s * s

    a, b = program(lambda x, y: wide(x, y) / x * x), program(wide)
    assert compare_programs(a, b) == ("not proved", "x != 0")
    assert compare_programs(b, program(lambda x, y: wide(x, y) / mi.exp(x) * mi.exp(x))).condition is None


def test_programs_without_an_axis_form_are_asked_operator_by_operator() -> None:
    def straddling(f: Function) -> Program:
        x = mi.tensor("n", 6)
        return mi.trace(lambda x: mi.reshape(mi.reshape(f(x), ("n", 2, 3)), ("n", 3, 2)), name="p", x=x)

    plain, twice = (
        straddling(lambda x: x + 2 * x),
        straddling(lambda x: x + x + mi.mean(mi.exp(x) - mi.exp(x), 0) + x / 1),
    )
    assert compare_programs(plain, twice) == ("not proved", None)
    cancelled = straddling(lambda x: x * x / x + 2 * x)
    for pair in ((plain, cancelled), (cancelled, plain)):
        assert compare_programs(*pair) == ("not proved", "both are defined")
        assert not api.verify(*pair).equal
    assert compare_programs(cancelled, cancelled) == ("proved", None)


def test_conditions_on_what_is_joined_hold_for_all_of_it_once_that_is_summed() -> None:
    al = DefinedAlgebra(ExactAlgebra({}))
    x, y = al.tensor("x", ("i", "j")), al.tensor("y", ("i", "k"))
    one = al.constant(Fraction(1))
    joined = al.concat([al.mul(al.div(one, x), x), y], ("l", ("j", "k")))
    summed = al.sum(joined, frozenset({"l"}))
    apart = al.sum(al.mul(al.div(one, x), x), frozenset({"j"}))
    assert summed.conditions == apart.conditions != joined.conditions


def test_functions_are_defined_where_the_table_says() -> None:
    al = DefinedAlgebra(ExactAlgebra({}))
    x = al.tensor("x", ("i",))

    def kinds(t: Term) -> list[str]:
        return sorted(c.kind for c in t.conditions)

    assert kinds(al.function(LOG, x)) == ["nonnegative", "nonzero"]
    assert kinds(al.function(SQRT, x)) == ["nonnegative"]
    assert kinds(al.function(SQRT, al.function(RELU, x))) == []
    assert kinds(al.function(LOG, al.function(EXP, x))) == []
    assert kinds(al.function(POW, x, Fraction(5, 3))) == ["nonnegative"]
    assert kinds(al.function(POW, x, Fraction(-20))) == ["nonzero"]
    assert kinds(al.function(POW, x, Fraction(20))) == []


def test_a_result_never_cancels_what_the_program_divides_by() -> None:
    r = mi.superoptimize(program(lambda x, y: x / x * y + x), sizes={"n": 8}, budget=1.0, cache=False)
    assert all(c.certificate.condition is None for c in r.graphs)
    x, y = np.ones((2, 8, 4), np.float32)
    x[3, 1] = 0
    found = r(x, y)
    assert np.isnan(found[3, 1]) and np.isfinite(np.delete(found.ravel(), 13)).all()
    assert offered(r.program, reference_graph(to_axes(r.program)))
