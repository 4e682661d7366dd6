"""Gather and scatter: elements at positions that integer tensors hold.

Positions count from 0, negative ones from the end; one outside of the dim is an InputError at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from mirage.errors import DTypeError, InputError, ShapeError
from mirage.ir.annotations import Annotation, PartialTensor
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import GraphOperator, wide
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.loops.scalars import Scalar, checked
from mirage.ir.operator import Attribute, Attrs, broadcast_shapes, register, same_dtype
from mirage.ir.operators.contraction import normalize_axis
from mirage.ir.types import INTEGERS, TensorType, is_one, shape_text


def outside(op: str, axis: int, index: int, n: int) -> InputError:
    """The error of an index into a dim of n elements."""
    return InputError(f"{op}: axis {axis}: index {index} is outside of a dim of {n} elements; use {-n} to {n - 1}")


@dataclass(frozen=True, eq=False)
class _Indexed(GraphOperator):
    """`x` and integer indices into one of its dims."""

    along: bool = field(default=False, kw_only=True)

    def check_elements(self, args: Sequence[Annotation]) -> None:
        super().check_elements(args)
        indices = args[1]
        assert isinstance(indices, TensorType | PartialTensor)
        if indices.dtype not in (None, *INTEGERS):
            raise DTypeError(f"{self.name}: the indices are {indices}; cast them to int64")

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return PartialTensor(None, args[0].dtype if isinstance(args[0], TensorType | PartialTensor) else None)

    def axis(self, x: TensorType, attrs: Attrs) -> int:
        return normalize_axis(self.name, attrs["axis"], x.rank)

    def gathered(self, x: TensorType, indices: TensorType, attrs: Attrs) -> TensorType:
        """The type of the elements of `x` at the indices."""
        axis = self.axis(x, attrs)
        if not self.along:
            return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
        both = f"[{shape_text(x.shape)}] and indices [{shape_text(indices.shape)}]"
        if indices.rank != x.rank:
            raise ShapeError(f"{self.name}: of {both}; they must have one rank: reshape the indices")
        others = [TensorType((*t.shape[:axis], sympy.Integer(1), *t.shape[axis + 1 :])) for t in (x, indices)]
        shape = list(broadcast_shapes(f"{self.name} (dims other than the axis)", others))
        shape[axis] = indices.shape[axis]
        return TensorType(tuple(shape), x.dtype)

    def positions(self, xp: ArrayModule, x: Any, indices: Any, axis: int) -> Any:
        """The indices counted from 0; raises InputError for one that is outside of the dim."""
        n = x.shape[axis]
        wrong = (indices < -n) | (indices >= n)
        if wrong.any():
            raise outside(self.name, axis, int(indices[wrong].reshape(-1)[0]), n)
        return xp.where(indices < 0, indices + n, indices)

    def where(self, axis: int) -> str:
        return f"{self.name}: axis {axis}"


class Take(_Indexed):
    """`x` with dim `axis` replaced by the dims of `indices`: the slices at these positions, as `numpy.take`."""

    def gradient(self, b: Backward) -> Cotangents:
        x = b.type(b.args[0])
        return b.op("scatter", b.zeros(x), b.args[1], b.full_g(), axis=self.axis(x, b.attrs), add=True), None

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return self.gathered(types[0], types[1], attrs)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, indices = arrays
        axis = attrs["axis"] % x.ndim
        # NumPy gives a number where neither has dims left
        return xp.asarray(xp.take(x, self.positions(xp, x, indices, axis), axis=axis))

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        x, indices = operands(types)
        axis, rank = self.axis(types[0], attrs), types[1].rank

        def element(*i: Scalar) -> Scalar:
            at = indices[i[axis : axis + rank]]
            return x[(*i[:axis], checked(at, types[0].shape[axis], self.where(axis)), *i[axis + rank :])]

        return compute(out, element)


class TakeAlongAxis(_Indexed):
    """Element j along `axis` is the one at position `indices[j]`; the other dims of both broadcast, as in NumPy."""

    def gradient(self, b: Backward) -> Cotangents:
        x, g = b.type(b.args[0]), b.full_g()
        axis = self.axis(x, b.attrs)
        out = b.type(b.out).shape
        # what it reads, before the elements that dims of size 1 repeat are summed
        read = TensorType((*out[:axis], x.shape[axis], *out[axis + 1 :]), x.dtype)
        found = b.op("put_along_axis", b.zeros(read), b.args[1], g, axis=axis, add=True)
        return b.gathered(found, read.shape, x.shape), None

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return self.gathered(types[0], types[1], attrs)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, indices = arrays
        axis = attrs["axis"] % x.ndim
        return xp.take_along_axis(x, self.positions(xp, x, indices, axis), axis=axis)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        x, indices = operands(types)
        axis = self.axis(types[0], attrs)

        def element(*i: Scalar) -> Scalar:
            at: list[Scalar | int] = [0 if is_one(d) else v for d, v in zip(types[0].shape, i, strict=True)]
            # a dim of size 1 that broadcasts, but not the axis
            read = [0 if is_one(d) and k != axis else v for k, (d, v) in enumerate(zip(types[1].shape, i, strict=True))]
            at[axis] = checked(indices[tuple(read)], types[0].shape[axis], self.where(axis))
            return x[tuple(at)]

        return compute(out, element)


@dataclass(frozen=True, eq=False)
class Scatter(_Indexed):
    """A copy of `x` in which `values` are written to, or with `add` added to, the elements that a gather would read.

    `values` has the shape of that gather, or broadcasts to it. Where two go to one element, the later is written.
    """

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, indices, values = types
        axis = self.axis(x, attrs)
        if attrs["add"] and x.dtype == "bool":
            raise DTypeError(f"{self.name}: add=True to {x}; cast it to a number first")
        there = self.gathered(x, indices, attrs)
        if self.along and any(a != b for k, (a, b) in enumerate(zip(there.shape, x.shape, strict=True)) if k != axis):
            raise ShapeError(
                f"{self.name}: indices [{shape_text(indices.shape)}] broadcast [{shape_text(x.shape)}]; outside of axis "
                f"{axis} their dims are 1 or those of the tensor that is written to"
            )
        problem = (
            f"{self.name}: values [{shape_text(values.shape)}] do not fit the elements [{shape_text(there.shape)}] that "
            f"indices [{shape_text(indices.shape)}] name in [{shape_text(x.shape)}]; give them that shape"
        )
        if values.rank > there.rank:
            raise ShapeError(problem)
        try:
            shape = broadcast_shapes(self.name, [there, values])
        except ShapeError:
            raise ShapeError(problem) from None
        if shape != there.shape:
            raise ShapeError(problem)
        return TensorType(x.shape, same_dtype(self.name, (x, values)))

    def gradient(self, b: Backward) -> Cotangents:
        (x, indices, values), g = b.types(), b.full_g()
        axis = self.axis(x, b.attrs)
        gather, at = "take_along_axis" if self.along else "take", b.args[1]
        there = self.gathered(x, indices, b.attrs).shape
        gx = b.g
        if not b.attrs["add"] and b.wanted[0]:
            gx = b.op(self.name, g, at, b.full((), 0, x.dtype), axis=axis)
        if not b.wanted[2]:
            return gx, None, None
        found = b.op(gather, g, at, axis=axis)
        if not b.attrs["add"] and not all(map(is_one, indices.shape)):
            # of the values that go to one element, the last one is there
            if self.along:
                order = b.spread(b.along(there[axis], axis, x.rank), there)
            else:
                order = b.reshape(b.arange(sympy.expand(sympy.prod(indices.shape))), indices.shape)
                order = b.reshape(order, (*indices.shape, *(sympy.Integer(1),) * (x.rank - axis - 1)))
            last = b.op(self.name, b.full(x.shape, -1, "int64"), at, order, axis=axis)
            found = b.where(b.op("equal", b.op(gather, last, at, axis=axis), order), found)
        return gx, None, b.gathered(found, there, values.shape)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, indices, values = arrays
        if attrs["add"]:
            index = self.places(xp, x, indices, attrs["axis"])
            total = xp.array(wide(x))
            if x.dtype == np.int64:
                # CuPy adds unsigned numbers only, which are the same bits
                xp.add.at(total.view(np.uint64), index, values.astype(np.uint64))
            else:
                xp.add.at(total, index, wide(values))
            return total.astype(x.dtype, copy=False)
        found = x.copy()
        found[self.places(xp, x, indices, attrs["axis"])] = values
        return found

    def places(self, xp: ArrayModule, x: Any, indices: Any, axis: int) -> tuple[Any, ...]:
        """The index of the elements that are written to; raises InputError for a position that is outside of the dim."""
        axis %= x.ndim
        at = self.positions(xp, x, indices, axis)
        if not self.along:
            return (*(slice(None),) * axis, at)
        shape = (*x.shape[:axis], at.shape[axis], *x.shape[axis + 1 :])
        grid = xp.ogrid[tuple(slice(n) for n in shape)]
        return tuple(xp.broadcast_to(at, shape) if k == axis else g for k, g in enumerate(grid))


_AXIS = Attribute("axis", "int", 0)
_LAST = Attribute("axis", "int", -1)
_ADD = Attribute("add", "bool", False)
TAKE = register(Take("take", 2, 2, (_AXIS,)))
TAKE_ALONG_AXIS = register(TakeAlongAxis("take_along_axis", 2, 2, (_LAST,), along=True))
SCATTER = register(Scatter("scatter", 3, 3, (_AXIS, _ADD)))
PUT_ALONG_AXIS = register(Scatter("put_along_axis", 3, 3, (_LAST, _ADD), along=True))
