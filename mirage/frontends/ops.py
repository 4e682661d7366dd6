"""Operators as functions, for traced programs: `mirage.softmax(q @ k.mT) @ v`.

Every function takes tensors of the running trace or numbers, and raises TraceError, ShapeError or
AttributeValueError with the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from mirage.frontends.proxy import Axes, Operand, Proxy, Scalar, apply, binary, fail, operand, running, unary
from mirage.ir.dims import DimLike
from mirage.ir.types import DTYPES


def constant(value: Scalar | np.ndarray) -> Proxy:
    """A number, or a dim used as one, as a rank-0 tensor; in functions for `mirage.compile` also an array."""
    return _tensor("constant", value)


matmul = binary("matmul", "`x[..., m, k] @ y[..., k, n]`.")


def sum(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """Sum over `axis`: an int, a tuple, or None for all dims."""
    return _tensor("sum", x).sum(axis, keepdims)


def mean(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """Mean over `axis`: an int, a tuple, or None for all dims."""
    return _tensor("mean", x).mean(axis, keepdims)


exp = unary("exp", "e to the power of x.")
sqrt = unary("sqrt", "The square root.")
log = unary("log", "The natural logarithm.")
sin = unary("sin", "The sine of radians.")
cos = unary("cos", "The cosine of radians.")
abs = unary("abs", "The absolute value.")
floor = unary("floor", "Rounded down.")
ceil = unary("ceil", "Rounded up.")
round = unary("round", "Rounded to the nearest integer, halves to the even one.")
rsqrt = unary("rsqrt", "1 / sqrt(x).")
square = unary("square", "x * x.")


def pow(x: Operand, exponent: Scalar) -> Proxy:
    """x ** exponent for a constant exponent."""
    return _tensor("pow", x) ** exponent


neg = unary("neg", "-x.")
relu = unary("relu", "max(x, 0).")
log_step = unary("log_step", "0 where x > 0, and -inf elsewhere: added to scores, it hides some.")
sigmoid = unary("sigmoid", "1 / (1 + exp(-x)).")
tanh = unary("tanh", "The hyperbolic tangent.")
silu = unary("silu", "x * sigmoid(x).")
gelu = unary("gelu", "x * Phi(x), Phi the standard normal distribution function.")


def maximum(x: Operand, y: Operand) -> Proxy:
    """The larger of a tensor and a constant, in either order; in functions for `mirage.compile` also of two tensors."""
    if not _with_constant("maximum", x, y):
        return apply("elementwise_max", x, y)
    x, value = (x, y) if isinstance(x, Proxy) else (y, x)
    return apply("maximum", _tensor("maximum", x), value=value)


def minimum(x: Operand, y: Operand) -> Proxy:
    """The smaller of a tensor and a constant, in either order; in functions for `mirage.compile` also of two tensors."""
    if not _with_constant("minimum", x, y):
        return apply("elementwise_min", x, y)
    # a program has no minimum of its own
    return -maximum(-x, -y)


def _with_constant(name: str, x: Operand, y: Operand) -> bool:
    """Whether an extreme is one with a constant, as programs have it; any other is an operator of graphs alone."""
    tensor, value = (x, y) if isinstance(x, Proxy) else (y, x)
    if running(name).graph is None:
        if isinstance(value, Proxy):
            fail(f"{name}: of two tensors, {x!r} and {y!r}; in a program, one side has to be a constant")
        return True
    floating = not isinstance(tensor, Proxy) or tensor.dtype in ("scalar", *DTYPES)
    return floating and isinstance(value, int | float | Fraction | np.integer | np.floating)


def clamp(x: Operand, lo: Scalar, hi: Scalar) -> Proxy:
    """min(max(x, lo), hi) for constants lo <= hi."""
    return apply("clamp", x, lo=lo, hi=hi)


def repeat(x: Proxy, repeats: DimLike, axis: int) -> Proxy:
    """Each slice along `axis` repeated `repeats` times in a row, as `numpy.repeat` does."""
    return apply("repeat", x, times=repeats, axis=axis)


def reshape(x: Proxy, *shape: DimLike | Sequence[DimLike]) -> Proxy:
    """The same elements under another shape: ints, text such as "4*n", dims; one may be -1."""
    return _tensor("reshape", x).reshape(*shape)


def transpose(x: Proxy, *perm: int | Sequence[int]) -> Proxy:
    """Dims in the order `perm`, which defaults to reverse order."""
    return _tensor("transpose", x).transpose(*perm)


def swapaxes(x: Proxy, axis1: int, axis2: int) -> Proxy:
    """Two dims exchanged."""
    return _tensor("swapaxes", x).swapaxes(axis1, axis2)


def concat(xs: Sequence[Proxy], axis: int = 0) -> Proxy:
    """Tensors joined along one dim."""
    if isinstance(xs, Proxy):
        fail("concat: one tensor; pass a list of tensors")
    return apply("concat", *xs, axis=axis) if len(xs) != 1 else _tensor("concat", xs[0])


def softmax(x: Proxy, axis: int = -1) -> Proxy:
    """exp(x) / sum(exp(x)) along `axis`."""
    return apply("softmax", x, axis=axis)


def log_softmax(x: Proxy, axis: int = -1) -> Proxy:
    """x - log(sum(exp(x))) along `axis`: the log of a softmax, without the overflow of exp."""
    return apply("log_softmax", x, axis=axis)


def rms_norm(x: Proxy, weight: Proxy | None = None, axis: int = -1, eps: float = 1e-6) -> Proxy:
    """x / sqrt(mean(x^2) + eps) along `axis`, times `weight` of the shape of the last dim."""
    return apply("rms_norm", *(v for v in (x, weight) if v is not None), axis=axis, eps=eps)


def layer_norm(
    x: Proxy, weight: Proxy | None = None, bias: Proxy | None = None, axis: int = -1, eps: float = 1e-6
) -> Proxy:
    """(x - mean(x)) / sqrt(var(x) + eps) along `axis`, times `weight` plus `bias` of the last dim's shape."""
    if weight is None and bias is not None:
        return apply("layer_norm", x, axis=axis, eps=eps) + bias
    return apply("layer_norm", *(v for v in (x, weight, bias) if v is not None), axis=axis, eps=eps)


def _tensor(name: str, x: Operand) -> Proxy:
    t = running(name)
    return x if isinstance(x, Proxy) else t.wrap(operand(t, name, x))
