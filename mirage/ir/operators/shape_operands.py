"""Operators that take a shape as a value: one that was computed, or of which the dims are only known at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import sympy

from mirage.errors import InputError, ShapeError
from mirage.ir.annotations import Annotation, PartialShape, PartialTensor, ShapeType, partial_text, tensor_annotation
from mirage.ir.arithmetic import FloatArithmetic, Floats
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph.nodes import ShapeValue
from mirage.ir.graph_operator import check_number, filled
from mirage.ir.operator import ANY_ELEMENT, Attribute, Attrs, Level, Operator, register
from mirage.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class _WithShape(Operator):
    """An operator whose last operand is a shape."""

    levels: frozenset[Level] = frozenset()
    takes: frozenset[str] = field(default=ANY_ELEMENT, kw_only=True)

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        raise ShapeError(f"{self.name}: the last operand is a shape, not a tensor; use it in a graph")

    def wanted(self, args: Sequence[Annotation]) -> PartialShape | None:
        """What is known of the shape; raises ShapeError where the operand is none."""
        self.check_arity(len(args))
        self.check_elements(args[:-1])
        if not isinstance(args[-1], ShapeType):
            raise ShapeError(f"{self.name}: operand {len(args)} is {args[-1]}, not a shape; pass the shape of a tensor")
        return args[-1].dims


class ReshapeTo(_WithShape):
    """The elements of a tensor, in row-major order, under a shape that is given as a value."""

    def annotate(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        shape, x = self.wanted(args), args[0]
        assert isinstance(x, TensorType | PartialTensor)
        counts = [_count(s) for s in (x.shape, shape)]
        if None not in counts and counts[0] != counts[1]:
            raise ShapeError(
                f"reshape_to: [{partial_text(x.shape)}] to [{partial_text(shape)}]: {counts[0]} elements cannot become "
                f"{counts[1]}; the products must be equal"
            )
        return tensor_annotation(shape, x.dtype)

    def gradient(self, b: Backward) -> Cotangents:
        return b.op("reshape_to", b.full_g(), ShapeValue(b.type(b.args[0]).shape)), None

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        x, shape = arrays
        if prod(shape) != x.size:
            raise InputError(
                f"reshape_to: {list(x.shape)} to {list(shape)}: {x.size} elements cannot become {prod(shape)}"
            )
        return x.reshape(shape).copy()


def _count(shape: PartialShape | None) -> int | None:
    """The number of elements where every dim is a number."""
    if shape is None or not all(isinstance(d, sympy.Integer) for d in shape):
        return None
    return prod(int(d) for d in shape if d is not None)


RESHAPE_TO = register(ReshapeTo("reshape_to", 2, 2))


class FullOf(_WithShape):
    """A tensor of a shape that is given as a value; every element is `value`."""

    def annotate(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        check_number("full_of", attrs["value"], attrs["dtype"])
        return tensor_annotation(self.wanted(args), attrs["dtype"])

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        return filled(arithmetic.xp, arrays[0], check_number("full_of", attrs["value"], attrs["dtype"]))


FULL_OF = register(FullOf("full_of", 1, 1, (Attribute("value", "number"), Attribute("dtype", "dtype", "float32"))))


class BroadcastToShape(_WithShape):
    """A tensor under a shape that is given as a value and that its dims broadcast to."""

    def annotate(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        shape, x = self.wanted(args), args[0]
        assert isinstance(x, TensorType | PartialTensor)
        if shape is not None and x.shape is not None:
            pairs = zip(reversed(x.shape), reversed(shape), strict=False)
            if len(x.shape) > len(shape) or any(_differ(d, n) for d, n in pairs):
                raise ShapeError(
                    f"broadcast_to_shape: [{partial_text(x.shape)}] to [{partial_text(shape)}]: each of the last dims must "
                    "be equal, or 1 in the tensor"
                )
        return tensor_annotation(shape, x.dtype)

    def gradient(self, b: Backward) -> Cotangents:
        return b.gathered(b.g, b.type(b.out).shape, b.type(b.args[0]).shape), None

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        x, shape = arrays
        try:
            return arithmetic.xp.broadcast_to(x, shape).copy()
        except ValueError:
            raise InputError(
                f"broadcast_to_shape: {list(x.shape)} to {list(shape)}: each of the last dims must be equal, or 1"
            ) from None


def _differ(d: sympy.Expr | None, n: sympy.Expr | None) -> bool:
    """Whether a dim can broadcast to another at no size."""
    return isinstance(d, sympy.Integer) and isinstance(n, sympy.Integer) and d not in (1, n)


BROADCAST_TO_SHAPE = register(BroadcastToShape("broadcast_to_shape", 2, 2))
