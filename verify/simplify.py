"""Exact forms with the identities of scalar functions: equal functions that are written otherwise have equal forms."""

from __future__ import annotations

import itertools
from fractions import Fraction

from mirage.errors import TermTooLarge
from mirage.ir.functions import EXP, FUNCTIONS, RELU, SIGMOID, ScalarFunction
from mirage.mugraph.exact import ExactAlgebra, Form

_ZERO, _ONE = Fraction(0), Fraction(1)


class SimplifyingAlgebra(ExactAlgebra):
    """The exact algebra, where functions are replaced by what their identities make of them (`ScalarFunction`).

    Of an argument and its negative, a function is kept of the one whose first coefficient is positive. A function of a single
    value that relus make is written as a sum of relus of that value, which has one such form (`relu`).
    """

    def function(self, fn: ScalarFunction, x: Form, *params: Fraction) -> Form:
        try:
            found = self._simplified(fn, x, params)
        except TermTooLarge:
            found = None
        return super().function(fn, x, *params) if found is None else found

    def _simplified(self, fn: ScalarFunction, x: Form, params: tuple[Fraction, ...]) -> Form | None:
        found: Form | None = None
        if fn.written is not None:
            found = fn.written(self, x, *params)
        elif fn.inverse:
            found = self._argument(FUNCTIONS[fn.inverse], x)
        elif fn.turned is not None and self._turned(x):
            found = fn.turned(self, self.neg(x), *params)
        elif fn is RELU:
            found = self.relu(x)
        return found

    def inverse(self, y: Form) -> Form:
        if len(y.terms) == 2:
            (first, c), (second, d) = y.terms
            # 1 / (1 + exp(x)) = sigmoid(-x)
            if first == ((), ()) and c == d and (x := self._argument(EXP, self._form({second: _ONE}))) is not None:
                return self._scaled(self.function(SIGMOID, self.neg(x)), 1 / c)
        return super().inverse(y)

    def _turned(self, x: Form) -> bool:
        """Whether the first coefficient is negative; of x and -x it is that of one, unless they are 0."""
        return bool(x.terms) and x.terms[-1][1] < 0

    def _argument(self, fn: ScalarFunction, x: Form) -> Form | None:
        """The y of an x that is fn(y); None where it is none."""
        if len(x.terms) != 1:
            return None
        (((bound, factors), c),) = x.terms
        if c != 1 or bound or len(factors) != 1 or factors[0][2] != 1:
            return None
        match self.key(factors[0][0]):
            case ("function", fn.name, (), Form() as inside):
                return inside
        return None

    def relu(self, x: Form) -> Form:
        """relu(x) for an x that is not turned, as a sum of relus of t where x is linear in some t and its relus.

        Such a function is given by its line where t is smallest, and by the places where its slope changes, and by how much.
        """
        slopes: dict[Fraction, Fraction] = {}
        variable: Form | None = None
        offset, others = self._split(x)
        linear = dict(others.terms)
        for monomial, c in others.terms:
            inside = self._argument(RELU, self._form({monomial: _ONE}))
            if inside is None:
                continue
            k, t = self._split(inside)
            if variable is not None and variable is not t:
                return self._scaled_relu(x)
            variable = t
            slopes[-k] = c
            del linear[monomial]
        rest = self._form(linear)
        if variable is None:
            if not rest.terms:
                return self.constant(max(offset, _ZERO))
            variable = self._scaled(rest, 1 / abs(rest.terms[-1][1]))
        slope = rest.terms[-1][1] / variable.terms[-1][1] if rest.terms else _ZERO
        if rest is not self._scaled(variable, slope):
            return self._scaled_relu(x)
        return self._piecewise(variable, *_positive_part(slope, offset, slopes))

    def _scaled_relu(self, x: Form) -> Form:
        """relu(c x) = c relu(x) for a c above 0."""
        c = x.terms[-1][1]
        return self._scaled(super().function(RELU, self._scaled(x, 1 / c)), c)

    def _split(self, x: Form) -> tuple[Fraction, Form]:
        """The constant in a form, and the rest."""
        constant = dict(x.terms).get(((), ()), _ZERO)
        return constant, self.sub(x, self.constant(constant))

    def _piecewise(self, t: Form, slope: Fraction, offset: Fraction, changes: dict[Fraction, Fraction]) -> Form:
        """slope t + offset, and relus of t where the slope changes."""
        total = self.add(self._scaled(t, slope), self.constant(offset))
        for k, change in changes.items():
            relu = super().function(RELU, self.sub(t, self.constant(k)))
            total = self.add(total, self._scaled(relu, change))
        return total


def _positive_part(
    slope: Fraction, offset: Fraction, changes: dict[Fraction, Fraction]
) -> tuple[Fraction, Fraction, dict[Fraction, Fraction]]:
    """max(f, 0) of a piecewise linear f: its slope and offset where t is smallest, and the changes of the slope by t."""
    breaks = sorted(changes)

    def value(t: Fraction) -> Fraction:
        return slope * t + offset + sum((c * (t - k) for k, c in changes.items() if t > k), _ZERO)

    # where a line crosses 0 between two breaks, or beyond the last of them
    lines = [(slope, offset)]
    for k in breaks:
        s, o = lines[-1]
        lines.append((s + changes[k], o - changes[k] * k))
    ends = [None, *breaks, None]
    crossings = set(breaks)
    for (s, o), low, high in zip(lines, ends[:-1], ends[1:], strict=True):
        if s and (low is None or -o / s > low) and (high is None or -o / s < high):
            crossings.add(-o / s)
    points = sorted(crossings)
    if not points:
        return (slope, offset, {}) if offset > 0 else (_ZERO, _ZERO, {})
    inside = [points[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(points)), points[-1] + 1]
    pieces = []
    for t in inside:
        s, o = lines[sum(k < t for k in breaks)]
        pieces.append((s, o) if value(t) > 0 else (_ZERO, _ZERO))
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(pieces)]
    return *pieces[0], {k: step for k, step in zip(points, steps, strict=True) if step}
