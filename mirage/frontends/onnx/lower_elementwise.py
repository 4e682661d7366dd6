"""Lowerings of operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf
from typing import Any

import numpy as np

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.graph_ops import where
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import BROADCASTING, Call, add, fitting, lowers
from mirage.frontends.onnx.types import NAMES
from mirage.frontends.proxy import apply
from mirage.ir.types import DTYPES


def binary(op: str) -> Callable[..., Any]:
    """An operator of two operands, of which a number may be one."""

    def lowering(c: Call, x: Any, y: Any) -> Any:
        first, second = c.number(0), c.number(1)
        if not isinstance(first, float) or not isinstance(second, float):
            x, y = first, second
        return apply(op, *fitting(x, y))

    return lowering


def many(op: str) -> Callable[..., Any]:
    """An operator of any number of operands."""
    return lambda c, *xs: reduce(lambda x, y: apply(op, *fitting(x, y)), xs)


def rounded(name: str) -> Callable[..., Any]:
    """A function that rounds: integers stay what they are."""
    return lambda c, x: apply(name, x) if x.dtype in DTYPES else x


for _name, _op in {
    "Exp": "exp", "Log": "log", "Neg": "neg", "Sqrt": "sqrt", "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Abs": "abs",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Sinh": "sinh", "Cosh": "cosh", "Asin": "asin", "Acos": "acos", "Atan": "atan",
    "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "IsNaN": "isnan", "Not": "logical_not", "Sign": "sign",
}.items():  # fmt: skip
    add({_name: lambda c, x, op=_op: apply(op, x)})
for _name, _op in {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "And": "logical_and", "Or": "logical_or", "Xor": "not_equal", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}.items():  # fmt: skip
    add({_name: binary(_op)}, since=BROADCASTING)
add(
    {
        "Relu": lambda c, x: ops.relu(x) if x.dtype in DTYPES else apply("elementwise_max", x, 0),
        "Reciprocal": lambda c, x: 1.0 / x,
        "Floor": rounded("floor"),
        "Ceil": rounded("ceil"),
        "Round": rounded("round"),
        "Sum": many("add"),
        "Max": many("elementwise_max"),
        "Min": many("elementwise_min"),
        "Mean": lambda c, *xs: many("add")(c, *xs) / float(len(xs)),
        "BitwiseNot": lambda c, x: apply("sub", -1, x),
        "Where": lambda c, condition, x, y: where(*fitting(condition, x, y)),
        "Celu": lambda c, x: _above(x, x, c.attr("alpha", 1.0) * apply("expm1", x / c.attr("alpha", 1.0))),
        "Elu": lambda c, x: _above(x, x, c.attr("alpha", 1.0) * apply("expm1", x)),
        "LeakyRelu": lambda c, x: _above(x, x, x * c.attr("alpha", 0.01)),
        "ThresholdedRelu": lambda c, x: where(x > c.attr("alpha", 1.0), x, 0),
        "Softplus": lambda c, x: ops.relu(x) + apply("log1p", ops.exp(-ops.abs(x))),
        "Softsign": lambda c, x: x / (1 + ops.abs(x)),
        "HardSigmoid": lambda c, x: ops.clamp(x * c.attr("alpha", 0.2) + c.attr("beta", 0.5), 0, 1),
        "HardSwish": lambda c, x: x * ops.clamp(x / 6 + 0.5, 0, 1),
        "Mish": lambda c, x: x * ops.tanh(ops.relu(x) + apply("log1p", ops.exp(-ops.abs(x)))),
        "Swish": lambda c, x: x * ops.sigmoid(x * c.attr("alpha", 1.0)),
        "CastLike": lambda c, x, y: c.cast(x, y.dtype),
    }
)


def _above(x: Any, y: Any, z: Any) -> Any:
    """`y` where `x` is above 0, else `z`."""
    return where(graph_ops.greater(x, 0), y, z)


@lowers("PRelu", since=BROADCASTING)
def _prelu(c: Call, x: Any, slope: Any) -> Any:
    return _above(x, x, x * fitting(x, slope)[1])


@lowers("Div", since=BROADCASTING)
def _div(c: Call, x: Any, y: Any) -> Any:
    if x.dtype in DTYPES:
        return binary("div")(c, x, y)
    x, y = fitting(x, y)
    quotient, rest = apply("floor_divide", x, y), apply("remainder", x, y)
    # towards zero: one more where the quotient is negative and there is a rest
    negative = graph_ops.not_equal(graph_ops.less(x, 0), graph_ops.less(y, 0))
    return quotient + c.cast(graph_ops.logical_and(negative, graph_ops.not_equal(rest, 0)), x.dtype)


def _signs_differ(rest: Any, x: Any) -> Any:
    """Where there is a rest, and its sign is not that of `x`."""
    other = graph_ops.not_equal(graph_ops.less(rest, 0), graph_ops.less(x, 0))
    return graph_ops.logical_and(graph_ops.not_equal(rest, 0), other)


@lowers("Mod")
def _mod(c: Call, x: Any, y: Any) -> Any:
    x, y = fitting(x, y)
    if x.dtype in DTYPES:
        rest = apply("fmod", x, y)
        return rest if c.attr("fmod", 0) else where(_signs_differ(rest, y), rest + y, rest)
    rest = apply("remainder", x, y)
    return where(_signs_differ(rest, x), rest - y, rest) if c.attr("fmod", 0) else rest


@lowers("Pow", since=BROADCASTING)
def _pow(c: Call, x: Any, y: Any) -> Any:
    exponent = c.known(1)
    if x.dtype in DTYPES:
        if exponent is not None and exponent.dtype != object and exponent.size == 1 and exponent.ndim <= x.ndim:
            return ops.pow(x, float(exponent.item()))
        return apply("power", *fitting(x, c.cast(y, x.dtype)))
    if exponent is not None and exponent.dtype != object and exponent.size == 1 and exponent.item() == 2:
        return ops.square(x)
    if y.dtype not in DTYPES and x.dtype == "int64":
        unsupported("it is a power of integers, which may be longer than floating-point numbers")
    return c.cast(apply("power", *fitting(c.cast(x, "float64"), c.cast(y, "float64"))), x.dtype)


@lowers("BitShift")
def _shift(c: Call, x: Any, y: Any) -> Any:
    return apply("left_shift" if c.attr("direction") == "LEFT" else "right_shift", *fitting(x, y))


@lowers("Clip")
def _clip(c: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    if c.version < 11:
        low, high = (None if c.attr(side) is None else c.constant(c.attr(side), x.dtype) for side in ("min", "max"))
    if low is not None:
        x = apply("elementwise_max", x, low)
    return x if high is None else apply("elementwise_min", x, high)


@lowers("Cast", since=6)
def _cast(c: Call, x: Any) -> Any:
    return c.cast(x, c.dtype_of("to", x.dtype))


@lowers("Gelu")
def _gelu(c: Call, x: Any) -> Any:
    if c.attr("approximate", "none") == "none":
        return ops.gelu(x)
    return 0.5 * x * (1 + ops.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@lowers("Selu", since=6)
def _selu(c: Call, x: Any) -> Any:
    alpha, gamma = c.attr("alpha", 1.6732632423543772), c.attr("gamma", 1.0507009873554805)
    return _above(x, x * gamma, apply("expm1", x) * (alpha * gamma))


@lowers("Shrink")
def _shrink(c: Call, x: Any) -> Any:
    bias, least = c.attr("bias", 0.0), c.attr("lambd", 0.5)
    if x.dtype not in DTYPES:
        unsupported("it shrinks integers")
    return where(graph_ops.less(x, -least), x + bias, where(graph_ops.greater(x, least), x - bias, 0))


@lowers("IsInf")
def _isinf(c: Call, x: Any) -> Any:
    positive, negative = c.attr("detect_positive", 1), c.attr("detect_negative", 1)
    found = [graph_ops.equal(x, c.constant(v, x.dtype)) for v, on in ((inf, positive), (-inf, negative)) if on]
    return reduce(graph_ops.logical_or, found) if found else array_ops.broadcast_to(c.constant(False, "bool"), x.shape)


@lowers("Dropout", since=10)
def _dropout(c: Call, x: Any, *options: Any) -> Any:
    training = c.known(2) if len(c.values) > 2 and c.values[2] is not None else np.False_
    if training is None or bool(training):
        ratio = c.known(1)
        if ratio is None or float(ratio) != 0:
            unsupported("it draws random numbers")
    return x, array_ops.broadcast_to(c.constant(True, "bool"), x.shape)


@lowers("BitCast")
def _bitcast(c: Call, x: Any) -> Any:
    return unsupported("it reads bits as another type") if NAMES.get(c.attr("to")) != x.dtype else x
