"""Functions of one or two numbers that only graphs have, each in NumPy, and for loops by functions that these have.

The second forms lose no digits where numbers cancel: a factor corrects the rounding of 1 + x (Kahan, "Branch cuts for complex
elementary functions", 1987); they stay within a few units in the last place, and give what NumPy gives for infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log, nan, pi, sqrt
from typing import Any, TypeAlias

import numpy as np

from mirage.ir.functions import ERF
from mirage.ir.gradient import Cotangents, Emitter
from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.loops.scalars import Scalar, apply, equal, logical_and, logical_or, maximum, minimum, select
from mirage.ir.operator import FLOATING, register

_EXP, _LOG, _SQRT, _ABS = "exp", "log", "sqrt", "abs"
Backwards: TypeAlias = Callable[..., Cotangents]
#: beyond this, the square of a number is the number one more or less than it
_LARGE = 1e9


def _signed(magnitude: Scalar, x: Scalar) -> Scalar:
    return select(x < 0, -magnitude, magnitude)


def log1p(x: Scalar) -> Scalar:
    """log(1 + x)."""
    u = x + 1
    corrected = apply(_LOG, u) * (x / (u - 1))
    return select(equal(u, 1), x, select(equal(u, inf), u, corrected))


def expm1(x: Scalar) -> Scalar:
    """exp(x) - 1."""
    u = apply(_EXP, x)
    corrected = (u - 1) * (x / apply(_LOG, u))
    return select(equal(u, 1), x, select(equal(u - 1, -1), u - 1, select(equal(u, inf), u, corrected)))


def _exp2(x: Scalar) -> Scalar:
    # ln 2 = 45426 / 2^16 + the rest: whole multiples of the first part are exact
    whole = apply("floor", x)
    rest = (x - whole) * log(2) + whole * (log(2) - 45426 / 65536)
    split = apply(_EXP, whole * (45426 / 65536)) * apply(_EXP, rest)
    return select(apply(_ABS, x) < 2000, split, apply(_EXP, x))


def _sinh(x: Scalar) -> Scalar:
    a = apply(_ABS, x)
    e, half = expm1(a), apply(_EXP, a / 2)
    return _signed(select(a < 20, (e + e / (e + 1)) / 2, half / 2 * half), x)


def _cosh(x: Scalar) -> Scalar:
    a = apply(_ABS, x)
    e, half = apply(_EXP, a), apply(_EXP, a / 2)
    return select(a < 20, (e + 1 / e) / 2, half / 2 * half)


def _asinh(x: Scalar) -> Scalar:
    a = apply(_ABS, x)
    square = a * a
    near = log1p(a + square / (apply(_SQRT, square + 1) + 1))
    return _signed(select(a < _LARGE, near, apply(_LOG, a) + log(2)), x)


def _acosh(x: Scalar) -> Scalar:
    t = x - 1
    far = select(x < _LARGE, log1p(t + apply(_SQRT, t * (t + 2))), apply(_LOG, x) + log(2))
    return select(x < 1, nan, far)


def _atanh(x: Scalar) -> Scalar:
    a = apply(_ABS, x)
    return _signed(log1p(2 * a / (1 - a)) / 2, x)


def _atan_unit(r: Scalar) -> Scalar:
    """The arc tangent of a number from 0 to 1: by its series within tan(pi / 8), to which the others are rotated."""
    beyond = r > sqrt(2) - 1
    t = select(beyond, (r - 1) / (r + 1), r)
    z = t * t
    last = 10 if r.dtype == "float32" else 22
    series = z * ((-1) ** last / (2 * last + 1))
    for k in reversed(range(1, last)):
        series = z * (series + (-1) ** k / (2 * k + 1))
    angle = t + t * series
    return select(beyond, angle + pi / 4, angle)


def atan(x: Scalar) -> Scalar:
    """The arc tangent."""
    a = apply(_ABS, x)
    return _signed(select(a > 1, pi / 2 - _atan_unit(1 / a), _atan_unit(a)), x)


def _negative(x: Scalar) -> Scalar:
    """Whether the sign bit of a number is set: of -0, too."""
    return logical_or(x < 0, logical_and(equal(x, 0), 1 / x < 0))


def _atan2(y: Scalar, x: Scalar) -> Scalar:
    a, b = apply(_ABS, y), apply(_ABS, x)
    large = maximum(a, b)
    ratio = select(equal(a, b), select(equal(a, 0), a, a / a), minimum(a, b) / large)
    ratio = select(logical_and(equal(a, inf), equal(b, inf)), 1, ratio)
    angle = select(a > b, pi / 2 - _atan_unit(ratio), _atan_unit(ratio))
    angle = select(_negative(x), pi - angle, angle)
    return select(_negative(y), -angle, angle)


def _elementwise(
    name: str, numpy: Callable[..., Any], loops: Callable[..., Scalar] | None, backward: Backwards, arity: int = 1
) -> None:
    register(GraphElementwise(name, arity, arity, takes=FLOATING, numpy=numpy, loops=loops, backward=backward))


def _times(derivative: Callable[..., Any]) -> Backwards:
    """The rule of a function of one number, from its derivative by an algebra, the number, and the function of it."""
    return lambda b, g, x, y: (b.mul(g, derivative(b, x, y)),)


def _over(divisor: Callable[..., Any]) -> Backwards:
    """As `_times`, from 1 over the derivative."""
    return lambda b, g, x, y: (b.div(g, divisor(b, x)),)


def _power_back(b: Emitter, g: Any, x: Any, y: Any, out: Any) -> Cotangents:
    by_base = b.mul(g, b.mul(y, b.op("power", x, b.sub(y, 1))))
    by_exponent = b.mul(g, b.mul(out, b.op("log", x)))
    # 0 to a power that is not negative stays as it is
    fixed = b.op("logical_and", b.op("equal", x, 0), b.op("greater_equal", y, 0))
    return b.where(b.op("not_equal", y, 0), by_base), b.where(b.op("logical_not", fixed), by_exponent)


def _atan2_back(b: Emitter, g: Any, y: Any, x: Any, out: Any) -> Cotangents:
    scaled = b.div(g, b.add(b.mul(x, x), b.mul(y, y)))
    return b.mul(scaled, x), b.neg(b.mul(scaled, y))


def _square_root(b: Emitter, x: Any) -> Any:
    return b.op("sqrt", x)


def _one_minus_square(b: Emitter, x: Any) -> Any:
    # no digit is lost where x is close to 1
    return b.mul(b.sub(1, x), b.add(1, x))


def _one_plus_square(b: Emitter, x: Any) -> Any:
    return b.add(b.mul(x, x), 1)


_elementwise("erf", ERF.numpy, lambda x: apply(ERF, x), lambda b, g, x, y: (b.through(ERF, g, x, y),))
_elementwise("log1p", np.log1p, log1p, _over(lambda b, x: b.add(x, 1)))
_elementwise("expm1", np.expm1, expm1, _times(lambda b, x, y: b.add(y, 1)))
_elementwise("exp2", np.exp2, _exp2, _times(lambda b, x, y: b.mul(y, log(2))))
_elementwise("log2", np.log2, lambda x: apply(_LOG, x) * (1 / log(2)), _over(lambda b, x: b.mul(x, log(2))))
_elementwise("log10", np.log10, lambda x: apply(_LOG, x) * (1 / log(10)), _over(lambda b, x: b.mul(x, log(10))))
_elementwise(
    "tan", np.tan, lambda x: apply("sin", x) / apply("cos", x), _times(lambda b, x, y: _one_plus_square(b, y))
)
_elementwise("sinh", np.sinh, _sinh, _times(lambda b, x, y: b.op("cosh", x)))
_elementwise("cosh", np.cosh, _cosh, _times(lambda b, x, y: b.op("sinh", x)))
_elementwise(
    "asin",
    np.arcsin,
    lambda x: 2 * atan(x / (apply(_SQRT, (1 - x) * (x + 1)) + 1)),
    _over(lambda b, x: _square_root(b, _one_minus_square(b, x))),
)
_elementwise(
    "acos",
    np.arccos,
    lambda x: 2 * atan(apply(_SQRT, (1 - x) / (x + 1))),
    _over(lambda b, x: b.neg(_square_root(b, _one_minus_square(b, x)))),
)
_elementwise("atan", np.arctan, atan, _over(_one_plus_square))
_elementwise("asinh", np.arcsinh, _asinh, _over(lambda b, x: _square_root(b, _one_plus_square(b, x))))
_elementwise(
    "acosh", np.arccosh, _acosh, _over(lambda b, x: _square_root(b, b.mul(b.sub(x, 1), b.add(x, 1))))
)
_elementwise("atanh", np.arctanh, _atanh, _over(_one_minus_square))
_elementwise("atan2", np.arctan2, _atan2, _atan2_back, 2)
_elementwise(
    "trunc", np.trunc, lambda x: select(x < 0, apply("ceil", x), apply("floor", x)), lambda b, g, x, y: (None,)
)
# the rest of a division towards zero, with the sign of x: no digit of it is lost, however large the quotient is
_elementwise(
    "fmod", np.fmod, None, lambda b, g, x, y, out: (g, b.neg(b.mul(g, b.op("trunc", b.div(x, y))))), 2
)
_elementwise("power", np.power, None, _power_back, 2)
_elementwise(
    "hypot", np.hypot, None, lambda b, g, x, y, out: (b.mul(g, b.div(x, out)), b.mul(g, b.div(y, out))), 2
)
_elementwise(
    "copysign",
    np.copysign,
    None,
    lambda b, g, x, y, out: (b.where(b.op("not_equal", x, 0), b.mul(g, b.div(out, x))), None),
    2,
)
