"""Casts between element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage.ir.annotations import Annotation, PartialTensor, tensor_annotation
from mirage.ir.arithmetic import Arithmetic, ArrayModule
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.loops import scalars
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.operator import Attribute, Attrs, register
from mirage.ir.types import ELEMENTS, TensorType
from mirage.ir.unify import AxisLowering, AxisTensor
from mirage.ir.unknowns import Relation


class Cast(GraphOperator):
    """The same elements in another type: rounded to the nearest number, towards zero for integers; a bool is 0 or 1.

    What a number becomes that the integer type does not reach is unspecified.
    """

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return TensorType(types[0].shape, attrs["dtype"])

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        shape = args[0].shape if isinstance(args[0], TensorType | PartialTensor) else None
        return tensor_annotation(shape, attrs["dtype"])

    def relate(self, r: Relation) -> bool:
        r.dtype(r.out, r.attrs["dtype"])
        r.same_shape(r.args[0], r.out)
        return True

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return arrays[0].astype(ELEMENTS[attrs["dtype"]])

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        # programs widen what inputs are stored in, and nothing else: the number stays
        return args[0]

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return operands[0]

    def gradient(self, b: Backward) -> Cotangents:
        return (b.op("cast", b.g, dtype=b.type(b.args[0]).dtype),)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        (x,) = operands(types)
        return compute(out, lambda *i: scalars.cast(x[i], out.dtype))


CAST = register(Cast("cast", 1, 1, (Attribute("dtype", "dtype"),)))
