"""Products by inverses in place of quotients, where these are as exact."""

from __future__ import annotations

from fractions import Fraction

from mirage.ir.loops.scalars import Binary, Cast, Const, Scalar, apply, constant, logical_and
from mirage.ir.loops.traverse import loops_of, transform
from mirage.ir.types import INTEGERS

#: numbers between 2 to these powers and the inverse have a normal inverse
_EXPONENT = {"float32": 126, "float64": 1022}


def with_inverses(body: Scalar, loop: str) -> tuple[Scalar, list[Scalar]]:
    """The body with products by the inverse, computed once, for quotients by what does not depend on a loop: a vector's
    division takes the time of ten products. Also the divisors that may be so small or large that they have no exact inverse.
    """
    risky: dict[Scalar, None] = {}

    def change(n: Scalar) -> Scalar | None:
        match n:
            case Binary(op="div", left=x, right=y) if loop in loops_of(n) and loop not in loops_of(y):
                if not (isinstance(y, Cast) and y.x.dtype in INTEGERS) and not _has_inverse(y):
                    risky[y] = None
                return x * (1 / y)
        return None

    return transform(body, change), list(risky)


def invertible(divisor: Scalar) -> Scalar:
    """Whether the inverse of a divisor is a normal number, as an expression."""
    size, largest = apply("abs", divisor), _largest(divisor)
    least, most = constant(1 / largest, divisor.dtype), constant(largest, divisor.dtype)
    return logical_and(size >= least, size <= most)


def _has_inverse(divisor: Scalar) -> bool:
    """Whether a divisor is a constant whose inverse is a normal number."""
    value = divisor.value if isinstance(divisor, Const) else None
    return isinstance(value, Fraction) and 1 / _largest(divisor) <= abs(value) <= _largest(divisor)


def _largest(divisor: Scalar) -> Fraction:
    return Fraction(2 ** _EXPONENT[divisor.dtype])
