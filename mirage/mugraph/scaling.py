"""The algebra of exp-degrees: how the value of an operator scales with the exps that it depends on, and what a shift of their
exponents leaves of it (see `mirage.mugraph.degree`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import sympy

from mirage.ir.functions import CLAMP, EXP, LOG, MAXIMUM, Range, ScalarFunction

#: index of a site -> degree
Degree = dict[int, int]


class Value(NamedTuple):
    """What is known of a tensor: its axes, its degree, and what a shift leaves of it.

    `nonnegative`: no element is below 0. `attained`: besides, where all exps on which it depends are largest in their rows, it
    is at least a positive constant once these are shifted. Two exps may be so at different places along an axis over which
    the maxima of both are taken: `together` are the pairs of exps that were multiplied elementwise, and the axis.
    """

    axes: frozenset[str]
    degree: Degree
    nonnegative: bool = False
    attained: bool = False
    constant: bool = False
    together: frozenset[tuple[int, int, str]] = frozenset()

    @property
    def key(self) -> Hashable:
        return (*self[:1], tuple(sorted(self.degree.items())), *self[2:])


class BrokenRule(Exception):
    """A rule of degrees that a tensor breaks, in words, and the sites whose degrees break it."""

    def __init__(self, text: str, sites: Iterable[int]) -> None:
        super().__init__(text)
        self.sites = frozenset(sites)


class DegreeAlgebra:
    """The algebra of degrees, of one node; every exp that it meets becomes a site, unless it is `plain`.

    `logarithm`: whether the node is a log of its operand and nothing else, so that what a shift takes from the operand can be
    added to the result.
    """

    def __init__(self, first_site: int, plain: bool = False, logarithm: bool = False) -> None:
        self.next = first_site
        self.plain = plain
        self.logarithm = logarithm
        #: what must not vanish where exponents are shifted, with what is done with it: it is a divisor, or the argument of a log
        self.kept: list[tuple[str, Value]] = []
        #: of its own sites: exps of one argument are largest at the same places
        self.arguments: dict[int, Value] = {}

    def constant(self, value: Fraction) -> Value:
        return Value(frozenset(), {}, value >= 0, value > 0, constant=True)

    def dim(self, size: sympy.Expr) -> Value:
        return self.constant(Fraction(1))

    def add(self, x: Value, y: Value) -> Value:
        nonnegative = x.nonnegative and y.nonnegative
        attained = nonnegative and (x.attained or y.attained)
        constant = x.constant and y.constant
        return Value(x.axes | y.axes, _same(x, y), nonnegative, attained, constant, x.together | y.together)

    def sub(self, x: Value, y: Value) -> Value:
        return Value(x.axes | y.axes, _same(x, y))

    def mul(self, x: Value, y: Value) -> Value:
        degree = _nonzero({s: x.degree.get(s, 0) + y.degree.get(s, 0) for s in (*x.degree, *y.degree)})
        pairs = {(min(s, t), max(s, t)) for s in x.degree for t in y.degree if s != t}
        together = {
            (s, t, a)
            for s, t in pairs
            if s not in self.arguments or self.arguments[s] is not self.arguments.get(t)
            for a in x.axes & y.axes
        }
        return Value(
            x.axes | y.axes,
            degree,
            x is y or (x.nonnegative and y.nonnegative),
            x.attained and y.attained,
            x.constant and y.constant,
            x.together | y.together | together,
        )

    def div(self, x: Value, y: Value) -> Value:
        if y.degree:
            self.kept.append(("divides by", y))
        degree = _nonzero({s: x.degree.get(s, 0) - y.degree.get(s, 0) for s in (*x.degree, *y.degree)})
        nonnegative = x.nonnegative and y.nonnegative
        # only a constant is known to be bounded above
        attained = x.attained and y.attained and y.constant
        return Value(x.axes | y.axes, degree, nonnegative, attained, x.constant and y.constant, x.together)

    def neg(self, x: Value) -> Value:
        return Value(x.axes, x.degree)

    def function(self, fn: ScalarFunction, x: Value, *params: Fraction) -> Value:
        if x.degree and fn is LOG and self.logarithm:
            # log(v exp(d m)) = log(v) + d m
            self.kept.append(("takes the log of", x))
            return Value(x.axes, {})
        if x.degree:
            raise BrokenRule(f"applies {fn.name} to a term of degree {degree_text(x.degree)}, not 0", x.degree)
        if fn in (MAXIMUM, CLAMP):
            return Value(x.axes, {}, params[0] >= 0, params[0] > 0)
        if fn is not EXP or self.plain:
            return Value(x.axes, {}, fn.range is not Range.ANY)
        self.arguments[self.next] = x
        self.next += 1
        return Value(x.axes, {self.next - 1: 1}, True, True)

    def sum(self, x: Value, axes: Iterable[str]) -> Value:
        return x._replace(axes=x.axes.difference(axes))


def _same(x: Value, y: Value) -> Degree:
    if x.degree != y.degree:
        apart = [s for s in {*x.degree, *y.degree} if x.degree.get(s) != y.degree.get(s)]
        raise BrokenRule(
            f"adds terms of degrees {degree_text(x.degree)} and {degree_text(y.degree)}, which scale differently", apart
        )
    return x.degree


def _nonzero(x: Degree) -> Degree:
    return {s: d for s, d in x.items() if d}


def degree_text(x: Mapping[int, int]) -> str:
    return ", ".join(f"{d} in exp {s}" for s, d in sorted(x.items())) or "0"
