"""Which operators may act on a partial sum.

A partial sum is completed later, by an accumulator or by a later kernel that sums over `a.grid`. An operator
may act on it before that only if it commutes with addition; otherwise the result would depend on the sizes of
tiles and splits. Whether it does follows from its definition, read over this algebra.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction

from mirage.ir.dims import Dim
from mirage.ir.functions import ScalarFunction


class Part(Enum):
    """How a value depends on which part of an axis is seen."""

    FIXED = "fixed"  # not at all
    PARTIAL = "partial"  # it is a sum over that part
    OTHER = "other"


class LinearAlgebra:
    """Operators over `Part`: PARTIAL in, PARTIAL out only where summing before or after is the same."""

    def constant(self, value: Fraction) -> Part:
        return Part.FIXED

    def dim(self, size: Dim) -> Part:
        return Part.FIXED

    def add(self, x: Part, y: Part) -> Part:
        return x if x is y else Part.OTHER

    def sub(self, x: Part, y: Part) -> Part:
        return self.add(x, y)

    def mul(self, x: Part, y: Part) -> Part:
        if x is Part.FIXED:
            return y
        return x if y is Part.FIXED else Part.OTHER

    def div(self, x: Part, y: Part) -> Part:
        return x if y is Part.FIXED else Part.OTHER

    def neg(self, x: Part) -> Part:
        return x

    def function(self, fn: ScalarFunction, x: Part, *params: Fraction) -> Part:
        return x if x is Part.FIXED else Part.OTHER


LINEAR = LinearAlgebra()
