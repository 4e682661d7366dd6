"""Lowerings of operators that work element by element."""

from __future__ import annotations

from typing import Any

from mirage.frontends import graph_ops, ops
from mirage.frontends.aten.table import Call, Lowering, add, lowers, unsupported
from mirage.frontends.proxy import apply
from mirage.ir.types import DTYPES


def unary(fn: Lowering) -> Lowering:
    """A function of one tensor, which becomes of the result's element type first: floating-point functions of integers."""
    return lambda c, x: fn(c.tensor(x))


def binary(op: str) -> Lowering:
    """An operator of two operands of the result's element type."""
    return lambda c, x, y: apply(op, c.number(x), c.number(y))


def compared(op: str) -> Lowering:
    """An operator of two operands, promoted, that gives booleans."""

    def lowering(c: Call, x: Any, y: Any) -> Any:
        a, b = c.promoted(x, y)
        return apply(op, a, b)

    return lowering


def logical(op: str) -> Lowering:
    """An operator of two operands, each as a boolean."""
    return lambda c, x, y: apply(op, c.tensor(x, "bool"), c.tensor(y, "bool"))


add(
    {
        "abs": lambda c, x: x if c.dtype == "bool" else ops.abs(x),
        "ceil": lambda c, x: ops.ceil(x) if c.dtype in DTYPES else x,
        "cos": unary(ops.cos),
        "exp": unary(ops.exp),
        "floor": lambda c, x: ops.floor(x) if c.dtype in DTYPES else x,
        "log": unary(ops.log),
        "neg": unary(ops.neg),
        "reciprocal": unary(lambda x: 1.0 / x),
        "relu": lambda c, x: ops.relu(x) if c.dtype in DTYPES else apply("elementwise_max", x, 0),
        "rsqrt": unary(ops.rsqrt),
        "sigmoid": unary(ops.sigmoid),
        "silu": unary(ops.silu),
        "sin": unary(ops.sin),
        "sqrt": unary(ops.sqrt),
        "square": unary(ops.square),
        "tanh": unary(ops.tanh),
        "isnan": lambda c, x: graph_ops.isnan(x) if x.dtype in DTYPES else graph_ops.not_equal(x, x),
        "logical_not": lambda c, x: graph_ops.logical_not(c.tensor(x, "bool")),
        "clone": lambda c, x, memory_format=None: x,
        "alias": lambda c, x: x,
        "detach": lambda c, x: x,
        "lift_fresh_copy": lambda c, x: x,
        "_to_copy": lambda c, x, **_: c.tensor(x),
        "mul.Tensor": binary("mul"),
        "mul.Scalar": binary("mul"),
        "div.Tensor": binary("div"),
        "div.Scalar": binary("div"),
        "maximum": binary("elementwise_max"),
        "minimum": binary("elementwise_min"),
        "add.Tensor": lambda c, x, y, alpha=1: _sum(c, "add", x, y, alpha),
        "add.Scalar": lambda c, x, y, alpha=1: _sum(c, "add", x, y, alpha),
        "sub.Tensor": lambda c, x, y, alpha=1: _sum(c, "sub", x, y, alpha),
        "sub.Scalar": lambda c, x, y, alpha=1: _sum(c, "sub", x, y, alpha),
        "rsub.Scalar": lambda c, x, y, alpha=1: _sum(c, "sub", y, x, alpha),
        "logical_and": logical("logical_and"),
        "logical_or": logical("logical_or"),
        "logical_xor": logical("not_equal"),
    }
)
for name, op in {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    add({f"{name}.Tensor": compared(op), f"{name}.Scalar": compared(op)})
for name, op in {"and": "logical_and", "or": "logical_or", "xor": "not_equal"}.items():
    bits = lambda c, x, y, op=op: logical(op)(c, x, y) if c.dtype == "bool" else unsupported("it is of bits")  # noqa: E731
    add({f"bitwise_{name}.Tensor": bits, f"bitwise_{name}.Scalar": bits})


def _sum(c: Call, op: str, x: Any, y: Any, alpha: Any) -> Any:
    if c.dtype == "bool":
        return apply("logical_or", c.tensor(x), c.tensor(y)) if alpha else c.tensor(x)
    y = c.number(y)
    return apply(op, c.number(x), y if alpha == 1 else y * alpha)


@lowers("bitwise_not")
def _bitwise_not(c: Call, x: Any) -> Any:
    return graph_ops.logical_not(x) if c.dtype == "bool" else apply("sub", -1, x)


@lowers("gelu")
def _gelu(c: Call, x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return ops.gelu(x)
    return 0.5 * x * (1 + ops.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@lowers("pow.Tensor_Scalar")
def _pow(c: Call, x: Any, exponent: Any) -> Any:
    x = c.tensor(x)
    if c.dtype not in DTYPES:
        if exponent == 2:
            return ops.square(x)
        unsupported("it is a power of integers")
    return ops.pow(x, exponent)


@lowers("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(c: Call, condition: Any, x: Any, y: Any) -> Any:
    return graph_ops.where(c.tensor(condition, "bool"), c.tensor(x), c.tensor(y))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(c: Call, x: Any, mask: Any, value: Any) -> Any:
    return graph_ops.where(c.tensor(mask, "bool"), c.tensor(value), x)


@lowers("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor", "hardtanh")
def _clamp(c: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    x = c.tensor(x)
    if low is not None:
        x = apply("elementwise_max", x, c.number(low))
    return x if high is None else apply("elementwise_min", x, c.number(high))


@lowers("clamp_max", "clamp_max.Tensor")
def _clamp_max(c: Call, x: Any, high: Any) -> Any:
    return _clamp(c, x, None, high)


@lowers("scalar_tensor")
def _scalar_tensor(c: Call, value: Any, **_: Any) -> Any:
    return c.tensor(value)


@lowers("copy")
def _copy(c: Call, x: Any, y: Any, non_blocking: bool = False) -> Any:
    return apply("broadcast_to", c.tensor(y), shape=c.shape)
