"""Lowerings of operators that work element by element."""

from __future__ import annotations

from math import inf
from typing import Any

from mirage.frontends import graph_ops, ops
from mirage.frontends.aten.table import Call, Lowering, add, lowers, promoted_type
from mirage.frontends.imported import unsupported
from mirage.frontends.proxy import apply
from mirage.ir.types import DTYPES


def unary(fn: Lowering) -> Lowering:
    """A function of one tensor, which becomes of the result's element type first: floating-point functions of integers."""
    return lambda c, x: fn(c.tensor(x))


def binary(op: str) -> Lowering:
    """An operator of two operands of the result's element type."""
    return lambda c, x, y: apply(op, c.number(x), c.number(y))


def whole(name: str) -> Lowering:
    """A function that rounds: integers stay what they are."""
    return lambda c, x: apply(name, x) if c.dtype in DTYPES else x


def between(op: str, booleans: str) -> Lowering:
    """An operator of two operands of the result's element type, and what it is for booleans."""
    return lambda c, x, y: apply(booleans, c.tensor(x), c.tensor(y)) if c.dtype == "bool" else binary(op)(c, x, y)


def compared(op: str) -> Lowering:
    """An operator of two operands, promoted, that gives booleans."""

    def lowering(c: Call, x: Any, y: Any) -> Any:
        wanted = promoted_type((x, y))
        # booleans have no order in the graph IR
        wanted = "int32" if wanted == "bool" and op not in ("equal", "not_equal") else wanted
        return apply(op, c.number(x, wanted), c.number(y, wanted))

    return lowering


def logical(op: str) -> Lowering:
    """An operator of two operands, each as a boolean."""
    return lambda c, x, y: apply(op, c.tensor(x, "bool"), c.tensor(y, "bool"))


add(
    {
        "abs": lambda c, x: x if c.dtype == "bool" else ops.abs(x),
        "cos": unary(ops.cos),
        "exp": unary(ops.exp),
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
        "contiguous": lambda c, x, **_: x,
        "dropout": lambda c, x, p, train: unsupported("it draws random numbers") if train and p else x,
        "_to_copy": lambda c, x, **_: c.tensor(x),
        "to.dtype": lambda c, x, *_: c.tensor(x),
        "to.dtype_layout": lambda c, x, **_: c.tensor(x),
        "to.device": lambda c, x, *_: c.tensor(x),
        "prims.convert_element_type": lambda c, x, dtype: c.tensor(x),
        "mul.Tensor": between("mul", "logical_and"),
        "mul.Scalar": between("mul", "logical_and"),
        "div.Tensor": binary("div"),
        "div.Scalar": binary("div"),
        "maximum": between("elementwise_max", "logical_or"),
        "minimum": between("elementwise_min", "logical_and"),
        "fmax": lambda c, x, y: _beside_nan(c, "elementwise_max", "logical_or", x, y),
        "fmin": lambda c, x, y: _beside_nan(c, "elementwise_min", "logical_and", x, y),
        "atan2": binary("atan2"),
        "hypot": binary("hypot"),
        "copysign.Tensor": binary("copysign"),
        "copysign.Scalar": binary("copysign"),
        "pow.Tensor_Tensor": lambda c, x, y: _power(c, x, y),
        "pow.Scalar": lambda c, x, y: _power(c, x, y),
        "ldexp.Tensor": lambda c, x, y: c.tensor(x) * _power(c, 2, y),
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
for name in ("ceil", "floor", "round", "trunc"):
    add({name: whole(name)})
for name in ("erf", "log1p", "expm1", "exp2", "log2", "log10", "tan", "sinh", "cosh"):
    add({name: unary(lambda x, name=name: apply(name, x))})
for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
    add({name: unary(lambda x, name=name: apply(name, x))})
for name in ("fmod", "remainder"):
    rest = lambda c, x, y, name=name: _rest(c, name, x, y)  # noqa: E731
    add({f"{name}.Tensor": rest, f"{name}.Scalar": rest})
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
    bits = between(f"bitwise_{name}", op)
    add({f"bitwise_{name}.Tensor": bits, f"bitwise_{name}.Scalar": bits, f"bitwise_{name}.Scalar_Tensor": bits})
    add({f"__{name}__.Tensor": bits, f"__{name}__.Scalar": bits})
for name in ("left", "right"):
    shift = binary(f"{name}_shift")
    add({f"bitwise_{name}_shift.Tensor": shift, f"bitwise_{name}_shift.Tensor_Scalar": shift})
    add({f"__{name[0]}shift__.Tensor": shift, f"__{name[0]}shift__.Scalar": shift})


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


@lowers("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor")
def _clamp(c: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    x = c.tensor(x)
    if low is not None:
        x = between("elementwise_max", "logical_or")(c, x, low)
    return x if high is None else between("elementwise_min", "logical_and")(c, x, high)


@lowers("hardtanh")
def _hardtanh(c: Call, x: Any, low: Any = -1, high: Any = 1) -> Any:
    return _clamp(c, x, low, high)


@lowers("clamp_max", "clamp_max.Tensor")
def _clamp_max(c: Call, x: Any, high: Any) -> Any:
    return _clamp(c, x, None, high)


@lowers("scalar_tensor")
def _scalar_tensor(c: Call, value: Any, **_: Any) -> Any:
    return c.tensor(value)


@lowers("copy")
def _copy(c: Call, x: Any, y: Any, non_blocking: bool = False) -> Any:
    return apply("broadcast_to", c.tensor(y), shape=c.shape)


def _beside_nan(c: Call, op: str, booleans: str, x: Any, y: Any) -> Any:
    """An extreme of two numbers that is the other one where one is NaN."""
    if c.dtype not in DTYPES:
        return between(op, booleans)(c, x, y)
    x, y = c.tensor(x), c.tensor(y)
    found = graph_ops.where(graph_ops.isnan(y), x, apply(op, x, y))
    return graph_ops.where(graph_ops.isnan(x), y, found)


def _power(c: Call, x: Any, y: Any) -> Any:
    if c.dtype not in DTYPES:
        unsupported("it is a power of integers")
    return apply("power", c.tensor(x), c.tensor(y))


def _opposite(r: Any, y: Any) -> Any:
    """Where the rest of a division and the divisor have other signs, and there is a rest."""
    return graph_ops.logical_and(
        graph_ops.not_equal(r, 0), graph_ops.not_equal(graph_ops.less(r, 0), graph_ops.less(y, 0))
    )


def _rest(c: Call, name: str, x: Any, y: Any) -> Any:
    """The rest of a division, with the sign of the first operand (`fmod`) or of the second (`remainder`)."""
    x, y = c.tensor(x), c.tensor(y)
    if c.dtype == "bool":
        unsupported("it is a division of booleans")
    r = apply("fmod" if c.dtype in DTYPES else "remainder", x, y)
    if (name == "fmod") == (c.dtype in DTYPES):
        return r
    if name == "remainder":
        return graph_ops.where(_opposite(r, y), r + y, r)
    return graph_ops.where(_opposite(r, x), r - y, r)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(c: Call, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return binary("div")(c, x, y)
    if rounding_mode == "floor":
        return _floor_divide(c, x, y)
    x, y = c.tensor(x), c.tensor(y)
    if c.dtype in DTYPES:
        return apply("trunc", x / y)
    if c.dtype == "bool":
        unsupported("it is a division of booleans")
    return apply("floor_divide", x, y) + c.tensor(_opposite(apply("remainder", x, y), x))


@lowers("floor_divide", "floor_divide.Scalar")
def _floor_divide(c: Call, x: Any, y: Any) -> Any:
    x, y = c.tensor(x), c.tensor(y)
    if c.dtype == "bool":
        unsupported("it is a division of booleans")
    if c.dtype not in DTYPES:
        return apply("floor_divide", x, y)
    # exact where the quotient is: the rest is taken off before the division
    r = apply("fmod", x, y)
    quotient = (x - r) / y
    quotient = graph_ops.where(_opposite(r, y), quotient - 1, quotient)
    lower = ops.floor(quotient)
    found = graph_ops.where(quotient - lower > 0.5, lower + 1, lower)
    found = graph_ops.where(graph_ops.equal(quotient, 0), apply("copysign", c.tensor(0.0), x / y), found)
    return graph_ops.where(graph_ops.equal(y, 0), x / y, found)


@lowers("round.decimals")
def _round_decimals(c: Call, x: Any, decimals: int = 0) -> Any:
    if c.dtype not in DTYPES:
        unsupported("it rounds integers to decimals")
    x, scale = c.tensor(x), float(10 ** abs(decimals))
    return apply("round", x / scale) * scale if decimals < 0 else apply("round", x * scale) / scale


@lowers("sign", "sgn")
def _sign(c: Call, x: Any) -> Any:
    if c.dtype == "bool":
        return x
    # 0 for NaN
    return c.tensor(graph_ops.greater(x, 0)) - c.tensor(graph_ops.less(x, 0))


@lowers("signbit")
def _signbit(c: Call, x: Any) -> Any:
    if x.dtype == "bool":
        return graph_ops.logical_and(x, graph_ops.logical_not(x))
    return graph_ops.less(apply("copysign", c.tensor(1.0, x.dtype), x) if x.dtype in DTYPES else x, 0)


@lowers("isinf")
def _isinf(c: Call, x: Any) -> Any:
    if x.dtype in DTYPES:
        return graph_ops.equal(ops.abs(x), c.tensor(inf, x.dtype))
    return graph_ops.not_equal(x, x)


@lowers("elu")
def _elu(c: Call, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    below = apply("expm1", x * input_scale) * (alpha * scale)
    return graph_ops.where(graph_ops.greater(x, 0), x * scale, below)


@lowers("leaky_relu")
def _leaky_relu(c: Call, x: Any, slope: Any = 0.01) -> Any:
    return graph_ops.where(graph_ops.greater(x, 0), x, x * slope)
