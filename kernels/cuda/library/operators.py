"""Operators on arrays of CuPy, by the same definitions as on NumPy's: what differs is the arithmetic."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.functions import ScalarFunction
from mirage.kernels.cuda.library.program import CupyArrays


@cache
def device_arrays() -> CupyArrays:
    """CuPy's functions; raises LibraryError where it is not installed."""
    return CupyArrays()


class _CupyArithmetic(FloatArithmetic):
    """Floating point with CuPy's arrays."""

    def function(self, fn: ScalarFunction, x: Any, *params: Fraction) -> Any:
        return device_arrays().function(fn, params, self.dtype)(x)


@cache
def cupy_arithmetic(module: Any) -> type[FloatArithmetic]:
    """The arithmetic of arrays of that module: CuPy."""
    return type("CupyArithmetic", (_CupyArithmetic,), {"xp": module})
