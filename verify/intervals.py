"""Interval arithmetic: results in float64 with all that rounding may have done to them (Moore, Interval Analysis, 1966).

An interval holds the exact result. Where two programs have intervals that do not meet, they are different functions; a value
that may be undefined, or of which too little is known, is not a number, and meets all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mirage.ir.arithmetic import Arithmetic, contract
from mirage.ir.decimals import as_written
from mirage.ir.functions import ABS, COS, POW, SIN, Range, ScalarFunction

#: of a function of NumPy or SciPy, relative; they are right to a few units in the last place
_FUNCTION_ERROR = 2.0**-46
#: of a function that a user defines, whose NumPy form may compute in another type
_USER_ERROR = 2.0**-20
_TINY = float(np.finfo(np.float64).tiny)


class Interval:
    """Arrays of least and greatest values; both are not a number where nothing is known."""

    __slots__ = ("hi", "lo")

    def __init__(self, lo: np.ndarray, hi: np.ndarray) -> None:
        self.lo = lo
        self.hi = hi


def apart(x: Interval, y: Interval) -> np.ndarray:
    """Where two intervals do not meet."""
    found: np.ndarray = (x.hi < y.lo) | (y.hi < x.lo)
    return found


class IntervalArithmetic(Arithmetic[Interval]):
    """Intervals of float64, rounded outwards."""

    def exactly(self, x: np.ndarray) -> Interval:
        """Numbers as intervals of width 0."""
        return Interval(x.astype(np.float64), x.astype(np.float64))

    def constant(self, value: Fraction) -> Interval:
        near = np.asarray(float(value))
        return self.exactly(near) if Fraction(float(value)) == as_written(value) else _outwards(near, near)

    def add(self, x: Interval, y: Interval) -> Interval:
        return _outwards(np.asarray(x.lo + y.lo), np.asarray(x.hi + y.hi))

    def sub(self, x: Interval, y: Interval) -> Interval:
        return _outwards(np.asarray(x.lo - y.hi), np.asarray(x.hi - y.lo))

    def neg(self, x: Interval) -> Interval:
        return Interval(np.negative(x.hi), np.negative(x.lo))

    def mul(self, x: Interval, y: Interval) -> Interval:
        if x is y:
            # a square is no product of any two numbers of the interval
            ends = np.abs(x.lo), np.abs(x.hi)
            least = np.where((x.lo <= 0) & (x.hi >= 0), 0.0, np.minimum(*ends))
            found = _outwards(least * least, np.maximum(*ends) ** 2)
            return Interval(np.maximum(found.lo, 0.0), found.hi)
        return _hull(x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi)

    def div(self, x: Interval, y: Interval) -> Interval:
        with np.errstate(all="ignore"):
            quotient = _hull(x.lo / y.lo, x.lo / y.hi, x.hi / y.lo, x.hi / y.hi)
        return _unknown(quotient, (y.lo <= 0) & (y.hi >= 0))

    def function(self, fn: ScalarFunction, x: Interval, *params: Fraction) -> Interval:
        with np.errstate(all="ignore"):
            found = self._function(fn, x, [float(p) for p in params])
        if fn.domain is Range.POSITIVE:
            found = _unknown(found, x.lo <= 0)
        if fn.domain is Range.NONNEGATIVE:
            found = _unknown(found, x.lo < 0)
        return found if fn.range is Range.ANY else Interval(np.maximum(found.lo, 0.0), found.hi)

    def _function(self, fn: ScalarFunction, x: Interval, params: Sequence[float]) -> Interval:
        lo, hi = (np.asarray(fn.numpy(v, *params), dtype=np.float64) for v in (x.lo, x.hi))
        if fn.increasing:
            return _wider(lo, hi, _FUNCTION_ERROR)
        if fn is ABS:
            across = (x.lo < 0) & (x.hi > 0)
            return Interval(np.where(across, 0.0, np.minimum(lo, hi)), np.maximum(lo, hi))
        if fn in (SIN, COS):
            # neither changes by more than its argument
            width = x.hi - x.lo
            return _wider(np.minimum(lo, hi) - width, np.maximum(lo, hi) + width, _FUNCTION_ERROR)
        single = x.lo == x.hi
        if fn is POW:
            monotone = single | (x.lo > 0)
            return _unknown(_wider(np.minimum(lo, hi), np.maximum(lo, hi), _FUNCTION_ERROR), ~monotone)
        return _unknown(_wider(lo, hi, _USER_ERROR), ~single)

    def apply(self, fn: Callable[..., Any], *xs: Interval) -> Interval:
        return Interval(np.asarray(fn(*(x.lo for x in xs))), np.asarray(fn(*(x.hi for x in xs))))

    def einsum(
        self, x: Interval, y: Interval, xl: Sequence[int], yl: Sequence[int], ol: Sequence[int]
    ) -> Interval:
        def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.asarray(contract(a, b, xl, yl, ol))

        (xm, xr), (ym, yr) = _middle(x), _middle(y)
        ax, ay = np.abs(xm), np.abs(ym)
        middle = product(xm, ym)
        sizes = {**dict(zip(xl, ax.shape, strict=True)), **dict(zip(yl, ay.shape, strict=True))}
        count = 2 + math.prod(n for label, n in sizes.items() if label not in ol)
        radius = product(ax + xr, yr) + product(xr, ay) + count * 2.0**-52 * product(ax, ay)
        radius = radius * (1 + count * 2.0**-50) + _TINY
        return _outwards(middle - radius, middle + radius)

    def sum(self, x: Interval, axes: tuple[int, ...]) -> Interval:
        lo, hi = (np.asarray(v.sum(axis=axes)) for v in (x.lo, x.hi))
        count = max(x.lo.size, 1)
        error = np.asarray(np.maximum(np.abs(x.lo), np.abs(x.hi)).sum(axis=axes)) * (count * 2.0**-51)
        return _outwards(lo - error, hi + error)

    def zeros(self, shape: Sequence[int]) -> Interval:
        return Interval(np.zeros(tuple(shape)), np.zeros(tuple(shape)))

    def shape(self, x: Interval) -> tuple[int, ...]:
        return tuple(x.lo.shape)


def _outwards(lo: np.ndarray, hi: np.ndarray) -> Interval:
    return Interval(np.asarray(np.nextafter(lo, -np.inf)), np.asarray(np.nextafter(hi, np.inf)))


def _hull(*values: np.ndarray) -> Interval:
    stacked = np.stack(np.broadcast_arrays(*values))
    return _outwards(stacked.min(axis=0), stacked.max(axis=0))


def _wider(lo: np.ndarray, hi: np.ndarray, error: float) -> Interval:
    return Interval(lo - error * np.abs(lo) - _TINY, hi + error * np.abs(hi) + _TINY)


def _unknown(x: Interval, where: np.ndarray) -> Interval:
    return Interval(np.where(where, np.nan, x.lo), np.where(where, np.nan, x.hi))


def _middle(x: Interval) -> tuple[np.ndarray, np.ndarray]:
    middle = x.lo + (x.hi - x.lo) / 2
    return middle, np.asarray(np.nextafter(np.maximum(middle - x.lo, x.hi - middle), np.inf))
