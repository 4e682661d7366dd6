"""Dims in normal form under facts that are solved: symbols replaced by what they equal, and what ranges decide."""

from __future__ import annotations

import math

import sympy

from mirage.ir.dim_bounds import SIZE, Interval, interval
from mirage.ir.dims import Dim, DimFunction, FloorDiv, Maximum, Minimum, Modulo
from mirage.ir.polynomials import terms


class NormalForm:
    """Substitutions for some symbols, and the ranges of the others."""

    def __init__(self) -> None:
        self.substitution: dict[sympy.Symbol, Dim] = {}
        self.ranges: dict[sympy.Symbol, Interval] = {}
        #: quotient symbol -> (symbol, divisor, remainder)
        self.quotients: dict[sympy.Symbol, tuple[sympy.Symbol, int, int]] = {}

    def range(self, s: sympy.Symbol) -> Interval:
        """The range of a symbol that is left."""
        return self.ranges.get(s, SIZE)

    def reduce(self, dim: Dim) -> Dim:
        """The dim over the symbols that are left, simplified by their ranges; raises DimError for a divisor that is 0."""
        return self._narrowed(sympy.expand(dim.xreplace(self.substitution)))

    def _narrowed(self, dim: Dim) -> Dim:
        if not dim.has(DimFunction):
            return dim
        args = [self._narrowed(a) for a in dim.args]
        if not isinstance(dim, DimFunction):
            return sympy.expand(dim.func(*args))
        if isinstance(dim, Minimum | Maximum):
            sign = 1 if isinstance(dim, Minimum) else -1
            kept: list[Dim] = []
            for x in args:
                if not any(self.not_negative(sign * (x - y)) for y in kept):
                    kept = [y for y in kept if not self.not_negative(sign * (y - x))] + [x]
            return dim.func(*kept)
        value = dim.func(*args)
        found = interval(value, self.ranges)
        if found.low is not None and found.low == found.high:
            return sympy.Integer(found.low)
        if isinstance(value, Modulo) and self.not_negative(args[0]) and self.not_negative(args[1] - args[0] - 1):
            return args[0]
        return value

    def not_negative(self, dim: Dim) -> bool:
        """Whether ranges alone say that a dim over the symbols that are left is 0 or more."""
        low = interval(sympy.expand(dim), self.ranges).low
        return low is not None and low >= 0

    def shown(self, dim: Dim) -> Dim:
        """A reduced dim without quotient symbols: q is s // k, and k*q + t is s."""
        for q, (s, k, t) in reversed(self.quotients.items()):
            if q not in dim.free_symbols:
                continue
            if dim.has(DimFunction):
                functions = {f: f.func(*(self.shown(a) for a in f.args)) for f in _outermost(dim)}
                dim = dim.xreplace(functions)
            parts = []
            for c, monomial in terms(sympy.expand(dim)):
                power = sympy.degree(monomial, q) if monomial.has(q) else 0
                rest = monomial / q**power
                g = math.gcd(c, k) if power == 1 else k if c % k**power == 0 else 1
                # g**power * q**power = ((s - t) // (k / g)) ** power, and the division is exact
                parts.append(c // g**power * rest * FloorDiv(s - t, k // g) ** power)
            dim = sympy.expand(sympy.Add(*parts))
        return dim


def _outermost(dim: Dim) -> list[DimFunction]:
    """The functions in a dim that are not operands of others in it."""
    if isinstance(dim, DimFunction):
        return [dim]
    return [f for a in dim.args for f in _outermost(a)]
