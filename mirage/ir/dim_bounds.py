"""Interval arithmetic over dims: the values that a dim takes while its symbols stay in ranges.

A symbol without a range is a size, 0 or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import sympy


class Interval(NamedTuple):
    """The integers from low to high, both included; None is no bound."""

    low: int | None = None
    high: int | None = None

    @property
    def empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high

    def has(self, value: int) -> bool:
        """Whether an integer is in it."""
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def meet(self, other: Interval) -> Interval:
        """What is in both."""
        lows = [x for x in (self.low, other.low) if x is not None]
        highs = [x for x in (self.high, other.high) if x is not None]
        return Interval(max(lows, default=None), min(highs, default=None))

    def plus(self, other: Interval) -> Interval:
        """The sums of an integer of each."""
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Interval(low, high)

    def times(self, other: Interval) -> Interval:
        """The products of an integer of each."""
        ends = [_product(x, y) for x in self._ends() for y in other._ends()]
        return Interval(*(None if abs(x) > _LARGEST else int(x) for x in (min(ends), max(ends))))

    def power(self, exponent: int) -> Interval:
        """The powers of its integers; exponent >= 1."""
        found = self
        for _ in range(exponent - 1):
            found = found.times(self)
        return found.meet(SIZE) if exponent % 2 == 0 else found

    def _ends(self) -> tuple[float, float]:
        return (-_INFINITY if self.low is None else self.low, _INFINITY if self.high is None else self.high)


def _product(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


_INFINITY = float("inf")
#: ends of products beyond this are no bounds: a size has 63 bits, and ranges that narrow each other would grow for ever
_LARGEST = 2**128
_ZERO = Interval(0, 0)
#: what a size may be
SIZE = Interval(0, None)


def floor_div_interval(a: Interval, b: Interval) -> Interval:
    """The values of a // b; a divisor is never 0."""
    if b == _ZERO:
        return Interval()
    if b.high is not None and b.high <= 0:
        minus = Interval(-1, -1)
        return floor_div_interval(a.times(minus), b.times(minus))
    if b.low is None or b.low < 0:
        return Interval()
    smallest, largest = max(b.low, 1), b.high

    def end(x: int, divisor: int | None) -> int:
        return x // divisor if divisor is not None else -1 if x < 0 else 0

    low = None if a.low is None else end(a.low, smallest if a.low < 0 else largest)
    high = None if a.high is None else end(a.high, largest if a.high < 0 else smallest)
    return Interval(low, high)


def modulo_interval(a: Interval, b: Interval) -> Interval:
    """The values of a % b, which has the sign of b; a divisor is never 0."""
    if b.low is None or b.low < 0 or b == _ZERO:
        return Interval()
    if a.low is not None and a.low >= 0:
        if a.high is not None and a.high < max(b.low, 1):
            return a
        return Interval(0, None if b.high is None else b.high - 1).meet(Interval(0, a.high))
    return Interval(0, None if b.high is None else b.high - 1)


def minimum_interval(*args: Interval) -> Interval:
    """The values of min(...)."""
    lows, highs = [x.low for x in args], [x.high for x in args if x.high is not None]
    return Interval(None if None in lows else min(x for x in lows if x is not None), min(highs, default=None))


def maximum_interval(*args: Interval) -> Interval:
    """The values of max(...)."""
    lows, highs = [x.low for x in args if x.low is not None], [x.high for x in args]
    return Interval(max(lows, default=None), None if None in highs else max(x for x in highs if x is not None))


def interval(dim: sympy.Expr, ranges: Mapping[sympy.Symbol, Interval] | None = None) -> Interval:
    """An interval that holds every value of a dim whose symbols stay in their ranges."""
    if dim.is_Integer:
        return Interval(int(dim), int(dim))
    if dim.is_Symbol:
        return (ranges or {}).get(dim, SIZE)
    parts = [interval(x, ranges) for x in dim.args]
    if dim.is_Pow:
        return parts[0].power(int(dim.exp)) if dim.exp.is_Integer and dim.exp > 0 else Interval()
    if dim.is_Add or dim.is_Mul:
        found, *rest = parts
        combine: Callable[[Interval, Interval], Interval] = Interval.plus if dim.is_Add else Interval.times
        for x in rest:
            found = combine(found, x)
        return found
    rule: Callable[..., Interval] | None = getattr(dim, "interval", None)
    return rule(*parts) if rule is not None else Interval()
