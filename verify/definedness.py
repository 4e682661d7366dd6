"""Where a value is defined: the conditions on divisors and on arguments of functions, beside its exact form.

A form forgets what was cancelled: x / x is 1. So each value is kept as a *term*, its form with the conditions under which all
that it was computed from is defined. Terms of equal forms are equal functions only where the conditions of both hold. A condition
that always holds is dropped: a sum of exps, a norm with a positive epsilon and a size are never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import sympy

from mirage.errors import TermTooLarge
from mirage.ir.functions import ABS, FUNCTIONS, POW, SQRT, Range, ScalarFunction
from mirage.mugraph.exact import ExactAlgebra, Form, Index, Monomial
from mirage.verify.form_text import form_text

#: a part of an axis; with the axis that a concat joins it to, where it stands for the same elements of that axis
Everywhere = frozenset[str | tuple[str, str]]


class Condition(NamedTuple):
    """That a form is not 0, or at least 0, for all indices of the parts `everywhere` and each of its other ones."""

    kind: Literal["nonzero", "nonnegative"]
    form: Form
    everywhere: Everywhere = frozenset()


Conditions = frozenset[Condition]
_ALWAYS: Conditions = frozenset()


class Term(NamedTuple):
    """A form, and the conditions under which what it was computed from is defined."""

    form: Form
    conditions: Conditions

    @property
    def free(self) -> frozenset[str]:
        """Parts on which the value depends."""
        return self.form.free


class DefinedAlgebra:
    """The algebra of terms, whose forms are those of an exact algebra, which says which errors are raised.

    With `opaque`, a form that would be too large is taken as unknown instead: equal operands then give equal forms, and no more
    is known.
    """

    def __init__(self, exact: ExactAlgebra, *, opaque: bool = False) -> None:
        self.exact = exact
        self.parts = exact.parts
        self.opaque = opaque
        self._signs = _Signs(self.exact)
        self._nonzero: dict[Form, Conditions] = {}

    # -- the algebra

    def tensor(self, name: str, axes: tuple[str, ...]) -> Term:
        return Term(self.exact.tensor(name, axes), _ALWAYS)

    def constant(self, value: Fraction) -> Term:
        return Term(self.exact.constant(value), _ALWAYS)

    def dim(self, size: sympy.Expr) -> Term:
        return Term(self.exact.dim(size), _ALWAYS)

    def add(self, x: Term, y: Term) -> Term:
        return self._made(self._unless_large("add", x.form, y.form), x.conditions | y.conditions, "add", x.form, y.form)

    def neg(self, x: Term) -> Term:
        return Term(self.exact.neg(x.form), x.conditions)

    def sub(self, x: Term, y: Term) -> Term:
        return self.add(x, self.neg(y))

    def mul(self, x: Term, y: Term) -> Term:
        return self._made(self._unless_large("mul", x.form, y.form), x.conditions | y.conditions, "mul", x.form, y.form)

    def div(self, x: Term, y: Term) -> Term:
        return self.mul(
            x, self._made(self.exact.inverse(y.form), y.conditions | self.nonzero(y.form), "inverse", y.form)
        )

    def function(self, fn: ScalarFunction, x: Term, *params: Fraction) -> Term:
        conditions = x.conditions | self._domain(fn, x.form, params)
        form = self.exact.function(fn, x.form, *params)
        if fn.least is None:
            return Term(form, conditions)
        # an algebra may write it by other functions, of which less is known
        return self._made(form, conditions, fn.range_of(*params).value)

    def sum(self, x: Term, parts: frozenset[str]) -> Term:
        conditions = frozenset(_for_all(c, parts) for c in x.conditions) if x.conditions else _ALWAYS
        return self._made(self.exact.sum(x.form, parts), conditions, "sum", x.form)

    def concat(self, xs: Sequence[Term], joined: tuple[str, tuple[str, ...]]) -> Term:
        conditions: set[Condition] = set()
        whole, pieces = joined
        for x, piece in zip(xs, pieces, strict=True):
            own = frozenset(self.parts.get(piece, (piece,)))
            conditions.update(
                c._replace(everywhere=c.everywhere | {(p, whole) for p in own & c.form.free}) for c in x.conditions
            )
        return Term(self.exact.concat([x.form for x in xs], joined), frozenset(conditions))

    def _unless_large(self, op: Literal["add", "mul"], x: Form, y: Form) -> Form:
        try:
            return self.exact.add(x, y) if op == "add" else self.exact.mul(x, y)
        except TermTooLarge:
            if not self.opaque:
                raise
            return self.exact.unknown(op, x, y)

    def _made(self, form: Form, conditions: Conditions, op: str, *args: Form) -> Term:
        if not conditions:
            # what holds of it where something else is defined need not hold everywhere
            self._signs.made.setdefault(form, []).append((op, args))
        return Term(form, conditions)

    # -- conditions

    def nonzero(self, form: Form) -> Conditions:
        """That a form is not 0, as conditions on its factors."""
        found = self._nonzero.get(form)
        if found is None:
            found = self._nonzero[form] = self._find_nonzero(form)
        return found

    def _find_nonzero(self, form: Form) -> Conditions:
        if self._signs.nonzero(form):
            return _ALWAYS
        common, rest = self.exact.common_factors(form)
        conditions: set[Condition] = set()
        for number, index, power in common:
            # a negative power was divided by before
            if power > 0:
                conditions |= self._factor_nonzero(number, index)
        if (rest.free or rest.bound or not rest.terms or len(rest.terms) > 1) and not self._signs.nonzero(rest):
            conditions.add(Condition("nonzero", self.exact.monic(rest)))
        return frozenset(conditions)

    def _factor_nonzero(self, number: int, index: Index) -> Conditions:
        if self._signs.of_factor(number) is Range.POSITIVE:
            return _ALWAYS
        match self.exact.key(number):
            case ("function", SQRT.name | ABS.name, _, Form() as x):
                return self.nonzero(x)
            case ("function", POW.name, (exponent,), Form() as x) if exponent:
                return self.nonzero(x)
        return frozenset({Condition("nonzero", self.exact.factor(number, index))})

    def _domain(self, fn: ScalarFunction, x: Form, params: Sequence[Fraction]) -> Conditions:
        """Where a function is defined."""
        domain, pole = fn.domain_of(*params), fn is POW and params[0] < 0
        if domain is Range.ANY and not pole:
            return _ALWAYS
        conditions = self.nonzero(x) if pole or domain is Range.POSITIVE else _ALWAYS
        if domain is not Range.ANY and self._signs.of(x) is Range.ANY:
            conditions |= {Condition("nonnegative", self.exact.monic(x, abs))}
        return conditions

    def sign(self, form: Form) -> Range:
        """What is known of the sign of a form, wherever it is defined."""
        return self._signs.of(form)

    def apart(self, xs: Sequence[Term], ys: Sequence[Term]) -> str | None:
        """Where some x or its y alone may be undefined, as the conditions under which both are defined; None if nowhere."""
        self._signs.forget()
        found: set[Condition] = set()
        for x, y in zip(xs, ys, strict=True):
            if x.conditions != y.conditions:
                found |= self._missing(x.conditions, y.conditions) | self._missing(y.conditions, x.conditions)
        return " and ".join(sorted(self._texts(found))) or None

    def _missing(self, conditions: Conditions, given: Conditions) -> set[Condition]:
        """Those of some conditions that do not follow from the given ones."""
        return {
            c
            for c in conditions
            if not any(g.kind == c.kind and g.form is c.form and g.everywhere >= c.everywhere for g in given)
            and not self._always(c)
        }

    def _always(self, c: Condition) -> bool:
        """Whether a condition always holds, by what is known by now."""
        if c.kind == "nonzero":
            return self._signs.nonzero(c.form)
        return self._signs.of(c.form) is not Range.ANY

    def _texts(self, conditions: set[Condition]) -> Iterable[str]:
        for c in conditions:
            other = c._replace(kind="nonnegative" if c.kind == "nonzero" else "nonzero")
            if other not in conditions:
                yield f"{form_text(self.exact, c.form)} {'!=' if c.kind == 'nonzero' else '>='} 0"
            elif c.kind == "nonzero":
                yield f"{form_text(self.exact, c.form)} > 0"


def _for_all(c: Condition, parts: frozenset[str]) -> Condition:
    """The condition on a sum's terms as one on the sum: it must hold for all indices over which is summed."""
    # what is joined to a summed axis is summed with it
    axes = {p.partition(".")[0] for p in parts}
    joined = {e for e in c.everywhere if isinstance(e, tuple) and e[1] in axes}
    return c._replace(everywhere=(c.everywhere - joined) | (c.form.free & parts) | {e[0] for e in joined})


class _Signs:
    """What is known of the signs of forms: of their monomials, and of the operators that they were made by."""

    def __init__(self, exact: ExactAlgebra) -> None:
        self.exact = exact
        #: by form, operators whose result it is wherever it is defined, which is everywhere
        self.made: dict[Form, list[tuple[str, tuple[Form, ...]]]] = {}
        self._found: dict[Form, Range] = {}

    def forget(self) -> None:
        """Find signs anew, as more operators are known."""
        self._found.clear()

    def nonzero(self, form: Form) -> bool:
        return self.of(form) is Range.POSITIVE or self.of(self.exact.neg(form)) is Range.POSITIVE

    def of(self, form: Form) -> Range:
        """The sign of a form wherever it is defined."""
        found = self._found.get(form)
        if found is None:
            # a form that is made of itself
            self._found[form] = Range.ANY
            signs = [_sum_of(self._monomial(m, c) for m, c in form.terms)]
            for op, args in self.made.get(form, ()):
                if signs[-1] is Range.POSITIVE:
                    break
                signs.append(self._result(op, args))
            found = self._found[form] = max(signs, key=_ORDER.index)
        return found

    def _result(self, op: str, args: tuple[Form, ...]) -> Range:
        signs = [self.of(x) for x in args]
        if not args:
            return Range(op)
        if op == "add":
            return _sum_of(signs)
        if op == "mul" and args[0] is args[1]:
            return Range.POSITIVE if self.nonzero(args[0]) else Range.NONNEGATIVE
        return min(signs, key=_ORDER.index)

    def _monomial(self, m: Monomial, coefficient: Fraction) -> Range:
        if coefficient < 0:
            return Range.ANY
        worst = Range.POSITIVE
        for number, _, power in m[1]:
            sign = self.of_factor(number)
            if power % 2 == 0 and sign is Range.ANY:
                sign = Range.NONNEGATIVE
            if power < 0 and sign is Range.NONNEGATIVE:
                # it is not 0 where it is defined
                sign = Range.POSITIVE
            worst = min(worst, sign, key=_ORDER.index)
        return worst

    def of_factor(self, number: int) -> Range:
        match self.exact.key(number):
            case ("size" | "part size", _):
                return Range.POSITIVE
            case ("function", POW.name, (Fraction() as exponent,), Form() as x):
                return self._power(exponent, self.of(x))
            case ("function", str() as name, tuple() as params, Form()) if name in FUNCTIONS:
                return FUNCTIONS[name].range_of(*params)
            case ("sum", Form() as inside):
                return self.of(inside)
            case ("concat", _, tuple() as inside):
                return min(map(self.of, inside), key=_ORDER.index)
        return Range.ANY

    @staticmethod
    def _power(exponent: Fraction, base: Range) -> Range:
        """The sign of a power: that of its base, and where it is no odd one never negative."""
        odd = exponent.denominator == 1 and exponent.numerator % 2
        return Range.NONNEGATIVE if base is Range.ANY and not odd else base


_ORDER = [Range.ANY, Range.NONNEGATIVE, Range.POSITIVE]


def _sum_of(signs: Iterable[Range]) -> Range:
    found = set(signs)
    if Range.ANY in found:
        return Range.ANY
    return Range.POSITIVE if Range.POSITIVE in found else Range.NONNEGATIVE
