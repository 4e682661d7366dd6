"""Tensors made of constants and dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage.errors import AttributeValueError
from mirage.ir.annotations import Annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.graph_operator import GraphOperator, check_number, filled, steps_between
from mirage.ir.loops.program import TensorExpr, compute
from mirage.ir.loops.scalars import cast, constant, size
from mirage.ir.operator import NUMERIC, Attribute, Attrs, register
from mirage.ir.requirements import AtMost, at_most, needs
from mirage.ir.types import ELEMENTS, TensorType


class Full(GraphOperator):
    """Every element is `value`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        check_number("full", attrs["value"], attrs["dtype"])
        return TensorType(attrs["shape"], attrs["dtype"])

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return filled(xp, attrs["shape"], check_number("full", attrs["value"], attrs["dtype"]))

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        return compute(out, lambda *i: cast(constant(attrs["value"], out.dtype), out.dtype))


FULL = register(
    Full(
        "full", 0, 0, (Attribute("shape", "dims"), Attribute("value", "number"), Attribute("dtype", "dtype", "float32"))
    )
)


class Arange(GraphOperator):
    """`start, start + step, ...` below `stop`, in the dims' order: rank 1; `step` is a positive integer."""

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        if attrs["step"] < 1:
            raise AttributeValueError(
                f"arange: step={attrs['step']} is not positive; flip the result of a positive step"
            )
        if attrs["dtype"] not in NUMERIC:
            raise AttributeValueError(
                f"arange: dtype={attrs['dtype']!r} is not one of numbers; compare the result instead"
            )
        return attrs

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return TensorType((steps_between(attrs["start"], attrs["stop"], attrs["step"]),), attrs["dtype"])

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        first = at_most(0, attrs["start"], "the start is not negative")
        return needs(first, at_most(attrs["start"], attrs["stop"], "the start is not behind the stop"))

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return xp.arange(attrs["start"], attrs["stop"], attrs["step"], dtype=np.int64).astype(ELEMENTS[attrs["dtype"]])

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        return compute(out, lambda i: cast(i * attrs["step"] + size(attrs["start"]), out.dtype))


ARANGE = register(
    Arange(
        "arange",
        0,
        0,
        (
            Attribute("stop", "dim"),
            Attribute("start", "dim", 0),
            Attribute("step", "int", 1),
            Attribute("dtype", "dtype", "int64"),
        ),
    )
)


class DimValue(GraphOperator):
    """The size of a dim as an int64 tensor of rank 0."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return TensorType((), "int64")

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return filled(xp, (), np.asarray(attrs["dim"], np.int64))

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        return compute(out, lambda: size(attrs["dim"]))


DIM_VALUE = register(DimValue("dim_value", 0, 0, (Attribute("dim", "dim"),)))
