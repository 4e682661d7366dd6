"""Elementwise operators and scalar constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from mirage.errors import AttributeValueError
from mirage.ir.arithmetic import FloatArithmetic, Floats
from mirage.ir.dims import evaluate
from mirage.ir.functions import (
    ABS,
    CEIL,
    CLAMP,
    COS,
    EXP,
    FLOOR,
    GAUSS_CDF,
    LOG,
    LOG_STEP,
    MAXIMUM,
    POW,
    RELU,
    ROUND,
    SIGMOID,
    SIN,
    SQRT,
    TANH,
)
from mirage.ir.loops.program import LoopProgram, TensorExpr, compute, operands
from mirage.ir.loops.scalars import maximum
from mirage.ir.operator import ALL_LEVELS, NUMERIC, Attribute, Attrs, Elementwise, Operator, elementwise, register
from mirage.ir.types import INTEGERS, TensorType
from mirage.ir.unknowns import Relation

ADD = elementwise("add", lambda al, x, y: al.add(x, y), arity=2, takes=NUMERIC)
SUB = elementwise("sub", lambda al, x, y: al.sub(x, y), arity=2, takes=NUMERIC)
MUL = elementwise("mul", lambda al, x, y: al.mul(x, y), arity=2, takes=NUMERIC)
DIV = elementwise("div", lambda al, x, y: al.div(x, y), arity=2, flops=4)
NEG = elementwise("neg", lambda al, x: al.neg(x), takes=NUMERIC)
SQUARE = elementwise("square", lambda al, x: al.mul(x, x), takes=NUMERIC)

for _fn in (EXP, LOG, LOG_STEP, SQRT, RELU, SIGMOID, TANH, SIN, COS, FLOOR, CEIL, ROUND, GAUSS_CDF):
    elementwise(_fn.name, lambda al, x, fn=_fn: al.function(fn, x), flops=_fn.flops)

RSQRT = elementwise("rsqrt", lambda al, x: al.div(al.constant(Fraction(1)), al.function(SQRT, x)), flops=12)
SILU = elementwise("silu", lambda al, x: al.mul(x, al.function(SIGMOID, x)), flops=25)
GELU = elementwise("gelu", lambda al, x: al.mul(x, al.function(GAUSS_CDF, x)), flops=27)
MAXIMUM_OP = elementwise(
    "maximum", lambda al, x, value: al.function(MAXIMUM, x, value), attributes=[Attribute("value", "number")]
)


class _Abs(Elementwise):
    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        if out.dtype not in INTEGERS:
            return super().to_loops(types, attrs, out)
        (x,) = operands(types)
        return compute(out, lambda *i: maximum(x[i], -x[i]))


ABS_OP = register(_Abs("abs", 1, 1, (), ALL_LEVELS, lambda al, x: al.function(ABS, x), takes=NUMERIC))


class _Clamp(Elementwise):
    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        if attrs["lo"] > attrs["hi"]:
            raise AttributeValueError(f"clamp: lo={float(attrs['lo'])} is above hi={float(attrs['hi'])}; swap them")
        return attrs


CLAMP_OP = register(
    _Clamp(
        "clamp",
        1,
        1,
        (Attribute("lo", "number"), Attribute("hi", "number")),
        ALL_LEVELS,
        lambda al, x, lo, hi: al.function(CLAMP, x, lo, hi),
        2,
    )
)


def _pow(al: Any, x: Any, exponent: Fraction) -> Any:
    """Small integer and half-integer powers are products and roots, which proofs understand; others are opaque."""
    n = abs(exponent)
    # x**0 too: a constant would lose the operand's shape
    if n == 0 or n.denominator > 2 or n > 8:
        return al.function(POW, x, exponent)
    factors = [x] * int(n) + ([al.function(SQRT, x)] if n.denominator == 2 else [])
    result = factors[0]
    for f in factors[1:]:
        result = al.mul(result, f)
    return al.div(al.constant(Fraction(1)), result) if exponent < 0 else result


POW_OP = elementwise("pow", _pow, attributes=[Attribute("exponent", "number")], flops=40)


class _Scalar(Elementwise):
    """A rank-0 operand without a dtype of its own: it takes that of whatever it meets."""

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        return TensorType((), "scalar")

    def relate(self, r: Relation) -> bool:
        return Operator.relate(self, r)

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        value = evaluate(attrs["dim"], sizes) if "dim" in attrs else attrs["value"]
        return int(value) if value.denominator == 1 else float(value)


CONSTANT = register(
    _Scalar("constant", 0, 0, (Attribute("value", "number"),), ALL_LEVELS, lambda al, value: al.constant(value), 0)
)
SIZE = register(_Scalar("size", 0, 0, (Attribute("dim", "dim"),), ALL_LEVELS, lambda al, dim: al.dim(dim), 0))
