"""Scalar expressions as an algebra: an elementwise operator's definition over it is its loop-level meaning."""

from __future__ import annotations

from fractions import Fraction

from mirage.ir.dims import Dim
from mirage.ir.functions import ScalarFunction
from mirage.ir.loops.scalars import Scalar, apply, binary, cast, constant, negative, size, value_dtype


class ScalarAlgebra:
    """The algebra of `mirage.ir.algebra` over scalar expressions of one floating-point type."""

    def __init__(self, dtype: str) -> None:
        self.dtype = value_dtype(dtype)

    def constant(self, value: Fraction) -> Scalar:
        return constant(value, self.dtype)

    def dim(self, size_: Dim) -> Scalar:
        return cast(size(size_), self.dtype)

    def add(self, x: Scalar, y: Scalar) -> Scalar:
        return binary("add", x, y)

    def sub(self, x: Scalar, y: Scalar) -> Scalar:
        return binary("sub", x, y)

    def mul(self, x: Scalar, y: Scalar) -> Scalar:
        return binary("mul", x, y)

    def div(self, x: Scalar, y: Scalar) -> Scalar:
        return binary("div", x, y)

    def neg(self, x: Scalar) -> Scalar:
        return negative(x)

    def function(self, fn: ScalarFunction, x: Scalar, *params: Fraction) -> Scalar:
        return apply(fn, x, *params)
