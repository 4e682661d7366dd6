"""Operators defined by expansion into others: mean, softmax, log_softmax, rms_norm, layer_norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from mirage.errors import ShapeError
from mirage.ir.expand import evaluate_expansion
from mirage.ir.functions import EXP, LOG
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.loops.lower import lower_expansion
from mirage.ir.loops.program import LoopProgram, TensorExpr, compute, extra_dims, operands, reduce_axes, reduction
from mirage.ir.loops.scalars import Operand, Scalar, apply
from mirage.ir.operator import ALL_LEVELS, Attribute, Attrs, Operator, register, same_dtype
from mirage.ir.operators.contraction import normalize_axes, normalize_axis, reduced_type
from mirage.ir.types import TensorType, shape_text
from mirage.ir.unknowns import Relation

if TYPE_CHECKING:
    from mirage.ir.arithmetic import Arithmetic
    from mirage.ir.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class Composite(Operator):
    """An operator that is a small program over others.

    `stable`, where given, is the floating-point form that users expect (softmax subtracts the row's maximum); exact
    arithmetics evaluate the expansion.
    """

    build: Callable[..., int] = None  # type: ignore[assignment]
    stable: Callable[..., np.ndarray] | None = None

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        x = types[0]
        if "axis" in attrs:
            normalize_axis(self.name, attrs["axis"], x.rank)
            for w in types[1:]:
                if w.rank != 1 or attrs["axis"] % x.rank != x.rank - 1 or w.shape[0] != x.shape[-1]:
                    raise ShapeError(
                        f"{self.name}: weight [{shape_text(w.shape)}] does not fit [{shape_text(x.shape)}]; "
                        f"a weight or bias has the shape of the last dim, [{x.shape[-1]}]"
                    )
        return TensorType(x.shape, same_dtype(self.name, types))

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        r.same_shape(r.args[0], r.out)
        # a weight is for the last dim
        weights = [r.ranked(w, 1)[0] for w in r.args[1:]]
        shape = r.shape(r.out)
        if not shape:
            return not weights
        for w in weights:
            r.equal(w, shape[-1])
        return True

    def expand(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs) -> int:
        return self.build(b, *args, **attrs)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        return lower_expansion(self, types, attrs)

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        if ar.is_float and self.stable is not None:
            return self.stable(*args, **attrs)
        return evaluate_expansion(self, ar, args, attrs, shapes)


class _Mean(Composite):
    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        return reduced_type(self.name, types[0], attrs)

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        return r.reduced(r.attrs["axes"], r.attrs["keepdims"])


def _mean(b: ProgramBuilder, x: int, axes: tuple[int, ...], keepdims: bool) -> int:
    shape = b.type(x).shape
    count = sympy.expand(sympy.prod([shape[i] for i in normalize_axes("mean", axes, len(shape))]))
    return b.op("div", b.op("sum", x, axes=axes, keepdims=keepdims), b.op("size", dim=count))


MEAN = register(
    _Mean("mean", 1, 1, (Attribute("axes", "ints"), Attribute("keepdims", "bool", False)), ALL_LEVELS, _mean)
)


def _softmax(b: ProgramBuilder, x: int, axis: int) -> int:
    e = b.op("exp", x)
    return b.op("div", e, b.op("sum", e, axes=(axis,), keepdims=True))


def _stable_softmax(x: Any, axis: int) -> Any:
    if x.shape[axis] == 0:
        return x.copy()
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _log_softmax(b: ProgramBuilder, x: int, axis: int) -> int:
    return b.op("sub", x, b.op("log", b.op("sum", b.op("exp", x), axes=(axis,), keepdims=True)))


def _stable_log_softmax(x: Any, axis: int) -> Any:
    if x.shape[axis] == 0:
        return x.copy()
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


class _Softmax(Composite):
    def gradient(self, b: Backward) -> Cotangents:
        # from the result: the exps of the expansion overflow
        (x,) = b.types()
        axes = (normalize_axis(self.name, b.attrs["axis"], x.rank),)
        if self is LOG_SOFTMAX:
            total = b.sum(b.full_g(), axes, keepdims=True)
            return (b.sub(b.g, b.mul(b.op("exp", b.out), total)),)
        return (b.mul(b.out, b.sub(b.g, b.sum(b.mul(b.g, b.out), axes, keepdims=True))),)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        axis = normalize_axis(self.name, attrs["axis"], out.rank)
        (x,) = operands(types)
        rows = TensorType((*out.shape[:axis], *out.shape[axis + 1 :]), out.dtype)
        greatest, e, total = Operand("greatest", rows), Operand("e", out), Operand("total", rows)

        def row(i: Sequence[Scalar]) -> tuple[Scalar, ...]:
            return (*i[:axis], *i[axis + 1 :])

        stages = {
            "greatest": reduce_axes("max", x.type, (axis,), rows),
            "e": compute(out, lambda *i: apply(EXP, x[i] - greatest[row(i)])),
            "total": reduction(rows, (out.shape[axis],), "sum", lambda i, r: e[(*i[:axis], *r, *i[axis:])]),
        }
        if self is LOG_SOFTMAX:
            log = Operand("log", rows)
            stages["log"] = compute(rows, lambda *i: apply(LOG, total[i]))
            stages["out"] = compute(out, lambda *i: x[i] - greatest[row(i)] - log[row(i)])
        else:
            stages["out"] = compute(out, lambda *i: e[i] / total[row(i)])
        dims = extra_dims(types, list(stages.values()))
        return LoopProgram(self.name, (("x0", x.type),), dims, tuple(stages.items()), ("out",))


_AXIS = (Attribute("axis", "int", -1),)
SOFTMAX = register(_Softmax("softmax", 1, 1, _AXIS, ALL_LEVELS, _softmax, _stable_softmax))
LOG_SOFTMAX = register(_Softmax("log_softmax", 1, 1, _AXIS, ALL_LEVELS, _log_softmax, _stable_log_softmax))


def _rms_norm(b: ProgramBuilder, x: int, *weight: int, axis: int, eps: Any) -> int:
    scale = b.op(
        "rsqrt", b.op("add", b.op("mean", b.op("square", x), axes=(axis,), keepdims=True), b.op("constant", value=eps))
    )
    y = b.op("mul", x, scale)
    return b.op("mul", y, weight[0]) if weight else y


_NORM = (Attribute("axis", "int", -1), Attribute("eps", "number", 1e-6))
RMS_NORM = register(Composite("rms_norm", 1, 2, _NORM, ALL_LEVELS, _rms_norm))


def _layer_norm(b: ProgramBuilder, x: int, *params: int, axis: int, eps: Any) -> int:
    centered = b.op("sub", x, b.op("mean", x, axes=(axis,), keepdims=True))
    y = _rms_norm(b, centered, axis=axis, eps=eps)
    if params:
        y = b.op("mul", y, params[0])
    return b.op("add", y, params[1]) if len(params) > 1 else y


LAYER_NORM = register(Composite("layer_norm", 1, 3, _NORM, ALL_LEVELS, _layer_norm))
