"""Families of rules: squares, powers, maxima and clamps, reciprocals, shifts of a softmax; and where they say nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.search.targets import find_targets
from mirage.verify.rules.rewritten import prove_programs_by_rules

Function = Callable[..., Any]
T = mi.tensor
SIZES = {"n": 1 << 12}


def above(x: Any) -> Any:
    """A value above 0."""
    return x * x + 1


def total(x: Any) -> Any:
    return mi.sum(x, axis=1, keepdims=True)


#: by the rule that is needed, a program and a better form of it
PAIRS: dict[str, tuple[Function, Function]] = {
    "cancel a factor": (
        lambda x, y: (mi.exp(x) * mi.exp(x) - mi.exp(y) * mi.exp(y)) / (mi.exp(x) + mi.exp(y)),
        lambda x, y: mi.exp(x) - mi.exp(y),
    ),
    "root of a square": (lambda x, y: mi.sqrt(x * x - 2 * x * y + y * y), lambda x, y: mi.abs(x - y)),
    "maximum of a maximum": (lambda x, y: mi.maximum(mi.maximum(x, 1), 2) + y, lambda x, y: mi.maximum(x, 2) + y),
    "relu of what is not negative": (lambda x, y: mi.relu(mi.maximum(x, 1)) + y, lambda x, y: mi.maximum(x, 1) + y),
    "clamp of a clamp": (
        lambda x, y: mi.clamp(mi.clamp(x, 0, 6), 1, 8) + y, lambda x, y: mi.clamp(x, 1, 6) + y
    ),
    "minimum of a maximum": (lambda x, y: mi.minimum(mi.relu(x), 6) + y, lambda x, y: mi.clamp(x, 0, 6) + y),
    "maximum of a minimum": (lambda x, y: mi.relu(mi.minimum(x, 6)) + y, lambda x, y: mi.clamp(x, 0, 6) + y),
    "relu and a constant": (lambda x, y: mi.relu(x - 0.3) + 0.3 + y, lambda x, y: mi.maximum(x, 0.3) + y),
    "exp of a log": (lambda x, y: mi.exp(mi.log(mi.maximum(x, 0.1))) + y, lambda x, y: mi.maximum(x, 0.1) + y),
    "power of an exp": (lambda x, y: mi.exp(x) ** 0.3 + y, lambda x, y: mi.exp(0.3 * x) + y),
    "product of powers": (lambda x, y: above(x) ** 0.3 * above(x) ** 0.7 + y, lambda x, y: above(x) + y),
    "divide by a power": (lambda x, y: above(x) / above(x) ** 0.3 + y, lambda x, y: above(x) ** 0.7 + y),
    "power of a power": (lambda x, y: (above(x) ** 0.3) ** 1.2 + y, lambda x, y: above(x) ** 0.36 + y),
    "root of a power": (lambda x, y: mi.sqrt(above(x) ** 0.3) + y, lambda x, y: above(x) ** 0.15 + y),
    "product of equal powers": (
        lambda x, y: above(x) ** 0.3 * above(y) ** 0.3, lambda x, y: (above(x) * above(y)) ** 0.3
    ),
    "log of a power": (lambda x, y: mi.log(above(x) ** 0.3) + y, lambda x, y: 0.3 * mi.log(above(x)) + y),
    "exp of a scaled log": (lambda x, y: mi.exp(3 * mi.log(above(x))) + y, lambda x, y: above(x) ** 3 + y),
    "add reciprocals": (
        lambda x, y: 1 / mi.exp(x) + 1 / above(y), lambda x, y: (mi.exp(x) + above(y)) / (mi.exp(x) * above(y))
    ),
    "divide by a product": (lambda x, y: (1 / above(x)) * (1 / above(y)), lambda x, y: 1 / (above(x) * above(y))),
    "cancel a common factor": (
        lambda x, y: mi.softmax(x + total(y)), lambda x, y: mi.softmax(x) + 0 * y
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", PAIRS)
def test_a_better_form_follows_by_a_rule(rule: str) -> None:
    a, b = (mi.trace(f, x=T("n", 4), y=T("n", 4)) for f in PAIRS[rule])
    found = prove_programs_by_rules(a, b)
    assert found is not None and rule in found.rules


#: a program, and what it is not or is not wherever it is defined
APART: dict[str, tuple[Function, Function]] = {
    "the lower of two bounds": (lambda x, y: mi.maximum(mi.maximum(x, 1), 2) + y, lambda x, y: mi.maximum(x, 1) + y),
    "a relu of a negative bound": (lambda x, y: mi.relu(mi.maximum(x, -1)) + y, lambda x, y: mi.maximum(x, -1) + y),
    "a log of what may be 0": (lambda x, y: mi.exp(mi.log(mi.maximum(x, 0))) + y, lambda x, y: mi.maximum(x, 0) + y),
    "powers of what may be negative": (lambda x, y: x**0.3 * x**0.7 + y, lambda x, y: x + y),
    "an even power undone": (lambda x, y: (x**10) ** 0.1 + y, lambda x, y: x + y),
    "the other sign": (lambda x, y: mi.sqrt(x * x + 2 * x * y + y * y), lambda x, y: mi.abs(x - y)),
    "a shift along the row": (lambda x, y: mi.softmax(x + y), lambda x, y: mi.softmax(x) + 0 * y),
    "reciprocals of what may be 0": (lambda x, y: 1 / (1 / x) + y, lambda x, y: x + y),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_not_equal_everywhere_does_not_follow(name: str) -> None:
    a, b = (mi.trace(f, x=T("n", 4), y=T("n", 4)) for f in APART[name])
    assert prove_programs_by_rules(a, b) is None
    assert not mi.verify(a, b).equal  # type: ignore[operator]


@pytest.mark.parametrize(
    "written",
    [
        lambda x, y: x * x + 2 * (x * y) + y * y,
        lambda x, y: x**2 + y**2 - 2 * x * y,
        lambda x, y: x * x + 2 * x + 1 + 0 * y,
    ],
)
def test_a_perfect_square_is_a_target(written: Function) -> None:
    program = to_axes(mi.trace(written, x=T("n"), y=T("n")))
    targets = find_targets(program, {a: SIZES["n"] for a in program.axes})
    assert targets.programs
    best = targets.programs[0].program
    assert sum(n.op in ("mul", "square") for n in best.nodes) == 1


def test_a_sum_of_squares_and_products_is_a_sum_of_squares_of_differences() -> None:
    def expanded(x: Any, y: Any) -> Any:
        return mi.sum(x * x, axis=1) - 2 * mi.sum(x * y, axis=1) + mi.sum(y * y, axis=1)

    program = to_axes(mi.trace(expanded, x=T("n", 64), y=T("n", 64)))
    targets = find_targets(program, {a: 512 if str(d) == "n" else 64 for a, d in program.axes.items()})
    best = targets.programs[0].program
    assert sum(bool(n.reduce) for n in best.nodes) == 1


def test_decimals_are_added_as_they_are_written() -> None:
    """The sum of the numbers of binary64 is not quite 1."""
    a = mi.trace(lambda x: mi.exp(x) ** 0.3 * mi.exp(x) ** 0.7, x=T("n"))
    assert prove_programs_by_rules(a, mi.trace(lambda x: mi.exp(x), x=T("n"))) is not None
