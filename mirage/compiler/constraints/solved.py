"""Facts in solved form: symbols replaced by what they equal, ranges of the others, and what is left.

An equality that is linear in a symbol eliminates it; `s % k == t` replaces s by k*q + t for a new symbol q, the quotient,
which the outside never sees (`NormalForm.shown`). What cannot be solved stays as equation, bound or congruence.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import sympy

from mirage.compiler.constraints.facts import Fact, Relation
from mirage.compiler.constraints.normal import NormalForm
from mirage.errors import DimError
from mirage.ir.dim_bounds import SIZE, Interval, interval
from mirage.ir.dims import Dim, Modulo
from mirage.ir.polynomials import common_monomial, content, divide, terms

#: ranges narrowed by one fact: two facts can narrow each other without end, as n < m and m < n do
_MAX_NARROWINGS = 64


class Contradiction(Exception):
    """No sizes satisfy the facts."""


class Solved(NormalForm):
    """Facts in solved form; every dim in it is over the symbols that are left."""

    def __init__(self) -> None:
        super().__init__()
        #: dims that are 0
        self.equations: list[Dim] = []
        #: dims without constant term, and where they stay
        self.bounds: list[tuple[Dim, Interval]] = []
        #: dims that are divisible by an integer
        self.congruences: list[tuple[Dim, int]] = []
        #: symbols in the order in which facts name them first
        self.order: dict[sympy.Symbol, int] = {}
        self._pending: list[Callable[[], None]] = []
        self._narrowings = 0

    def copy(self) -> Solved:
        new = Solved()
        new.substitution, new.ranges, new.quotients = dict(self.substitution), dict(self.ranges), dict(self.quotients)
        new.equations, new.bounds, new.congruences = list(self.equations), list(self.bounds), list(self.congruences)
        new.order = dict(self.order)
        return new

    def connected(self, dim: Dim) -> set[sympy.Symbol]:
        """The symbols of a dim, and those that a fact that could not be solved relates to them, also over others."""
        found: set[sympy.Symbol] = set(dim.free_symbols)
        while True:
            more = found.union(*(e.free_symbols for e in self._left() if e.free_symbols & found))
            if more == found:
                return found
            found = more

    def about(self, dim: Dim) -> bool:
        """Whether a fact that could not be solved is about a symbol of the dim."""
        return any(e.free_symbols & dim.free_symbols for e in self._left())

    def _left(self) -> list[Dim]:
        return [*self.equations, *(e for e, _ in self.bounds), *(e for e, _ in self.congruences)]

    # --- facts -------------------------------------------------------------------------------------------

    def assume(self, fact: Fact) -> None:
        """Take a fact in; raises Contradiction where solving finds that no sizes satisfy it and the others."""
        difference = fact.dim - fact.value
        self._narrowings = 0
        for s in sorted(difference.free_symbols, key=lambda s: s.name):
            self.order.setdefault(s, len(self.order))
        match fact.relation:
            case Relation.EQUAL:
                self._pending.append(lambda: self._equation(difference))
            case Relation.AT_LEAST:
                self._pending.append(lambda: self._bound(difference, SIZE))
            case Relation.AT_MOST:
                self._pending.append(lambda: self._bound(difference, Interval(None, 0)))
            case Relation.DIVISIBLE:
                self._pending.append(lambda: self._congruence(fact.dim, int(fact.value)))
        try:
            while self._pending:
                self._pending.pop(0)()
        except DimError:
            # a divisor that is 0
            raise Contradiction from None

    def _equation(self, dim: Dim) -> None:
        d = self._without_positive_factor(self.reduce(dim))
        if d == 0:
            return
        d = divide(d, sympy.Integer(content(d)))
        if not interval(d, self.ranges).has(0):
            raise Contradiction
        choices = []
        for c, monomial in terms(d):
            rest = sympy.expand(c * monomial - d) * c
            if monomial.is_Symbol and abs(c) == 1 and monomial not in rest.free_symbols:
                negative = any(k < 0 for k, _ in terms(rest))
                choices.append((negative, -self.order[monomial], monomial, rest))
        if not choices:
            self.equations.append(d)
            return
        # the plainest expression for the symbol that was named last
        *_, s, value = min(choices, key=lambda x: x[:2])
        self._eliminate(s, value)

    def _without_positive_factor(self, d: Dim) -> Dim:
        """The dim divided by the symbols, 1 or more, that divide it: it is 0 where the quotient is."""
        if d == 0:
            return d
        for factor in sympy.Mul.make_args(common_monomial(d)):
            base, power = factor.as_base_exp()
            low = interval(base, self.ranges).low
            if base != 1 and low is not None and low > 0:
                d = sympy.expand(d / base**power)
        return d

    def _eliminate(self, s: sympy.Symbol, value: Dim) -> None:
        self.substitution = {x: sympy.expand(e.xreplace({s: value})) for x, e in self.substitution.items()}
        self.substitution[s] = value
        allowed = self.ranges.pop(s, SIZE)
        self._pending.append(lambda: self._bound(value, allowed))
        self._again(s)

    def _again(self, s: sympy.Symbol) -> None:
        """Solve anew what is left about a symbol."""
        for d in [d for d in self.equations if s in d.free_symbols]:
            self.equations.remove(d)
            self._pending.append(lambda d=d: self._equation(d))  # type: ignore[misc]
        for b in [b for b in self.bounds if s in b[0].free_symbols]:
            self.bounds.remove(b)
            self._pending.append(lambda b=b: self._bound(*b))  # type: ignore[misc]
        for k in [k for k in self.congruences if s in k[0].free_symbols]:
            self.congruences.remove(k)
            self._pending.append(lambda k=k: self._congruence(*k))  # type: ignore[misc]

    def _bound(self, dim: Dim, allowed: Interval) -> None:
        d = self.reduce(dim)
        values = interval(d, self.ranges)
        inside = values.meet(allowed)
        if inside.empty:
            raise Contradiction
        if inside == values:
            return
        constant = sum(c for c, monomial in terms(d) if monomial == 1)
        d, allowed = d - constant, allowed.plus(Interval(-constant, -constant))
        if len(terms(d)) > 1 or not terms(d)[0][1].is_Symbol:
            self.bounds.append((d, allowed))
        for c, monomial in terms(d):
            rest = interval(d - c * monomial, self.ranges)
            self._bound_monomial(c, monomial, allowed.plus(rest.times(Interval(-1, -1))))

    def _bound_monomial(self, c: int, monomial: Dim, allowed: Interval) -> None:
        """Tighten the ranges of the factors of c * monomial, which is in an interval."""
        low, high = (allowed.low, allowed.high) if c > 0 else (_negated(allowed.high), _negated(allowed.low))
        low = None if low is None else -(-low // abs(c))
        high = None if high is None else high // abs(c)
        for s in [s for s in sympy.Mul.make_args(monomial) if s.is_Symbol]:
            others = interval(monomial / s, self.ranges)
            if monomial == s:
                self._tighten(s, Interval(low, high))
            elif high is not None and others.low is not None and others.low > 0 and self.not_negative(s):
                self._tighten(s, Interval(None, high // others.low) if high >= 0 else Interval(0, -1))

    def _tighten(self, s: sympy.Symbol, allowed: Interval) -> None:
        before = self.range(s)
        now = before.meet(allowed)
        if now.empty:
            raise Contradiction
        if now == before:
            return
        self.ranges[s] = now
        if now.low == now.high:
            self._eliminate(s, sympy.Integer(now.low))
        elif self._narrowings < _MAX_NARROWINGS:
            self._narrowings += 1
            self._again(s)

    def _congruence(self, dim: Dim, k: int) -> None:
        remainder = self.reduce(Modulo(self.reduce(dim), sympy.Integer(k)))
        if remainder == 0:
            return
        if not interval(remainder, self.ranges).has(0):
            raise Contradiction
        multiple = terms(remainder)[0][1]
        if not isinstance(multiple, Modulo) or not multiple.args[1].is_Integer or len(terms(remainder)) != 1:
            self.congruences.append((self.reduce(dim), k))
            return
        # a multiple of x % modulus is 0, so x % modulus is
        x, modulus = multiple.args[0], int(multiple.args[1])
        constant = sum(c for c, monomial in terms(x) if monomial == 1)
        parts = [(c, monomial) for c, monomial in terms(x) if monomial != 1]
        if len(parts) == 1 and parts[0][1].is_Symbol and math.gcd(parts[0][0], modulus) == 1:
            self._divide(parts[0][1], modulus, -constant * pow(parts[0][0], -1, modulus) % modulus)
        else:
            self.congruences.append((x, modulus))

    def _divide(self, s: sympy.Symbol, k: int, t: int) -> None:
        """s = k*q + t for a new q; 0 <= t < k."""
        q = sympy.Symbol(f"({s.name} - {t})/{k}", integer=True, nonnegative=True)
        self.quotients[q] = (s, k, t)
        self.order[q] = len(self.order)
        low, high = self.range(s)
        self.ranges[q] = Interval(
            max(0, -(-(low - t) // k)) if low is not None else 0, None if high is None else (high - t) // k
        )
        if self.ranges[q].empty:
            raise Contradiction
        self._eliminate(s, k * q + t)


def _negated(x: int | None) -> int | None:
    return None if x is None else -x
