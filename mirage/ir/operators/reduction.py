"""Reductions other than sums, the positions of extremes, and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from mirage.errors import ShapeError
from mirage.ir.annotations import Annotation, PartialTensor
from mirage.ir.arithmetic import Arithmetic, ArrayModule
from mirage.ir.gradient import Backward, Cotangents, Emitter
from mirage.ir.graph_operator import GraphOperator, filled, wide
from mirage.ir.loops.program import TensorExpr, reduce_axes
from mirage.ir.operator import ALL_LEVELS, FLOATING, NUMERIC, Attribute, Attrs, Level, register
from mirage.ir.operators.contraction import (
    evaluate_fold,
    fold_to_axes,
    normalize_axes,
    normalize_axis,
    reduced_back,
    reduced_type,
)
from mirage.ir.types import TensorType
from mirage.ir.unknowns import Relation

if TYPE_CHECKING:
    from mirage.ir.unify import AxisLowering, AxisTensor


def _least(dtype: np.dtype) -> Any:
    return np.iinfo(dtype).min if dtype.kind == "i" else -np.inf


def _largest(dtype: np.dtype) -> Any:
    return np.iinfo(dtype).max if dtype.kind == "i" else np.inf


@dataclass(frozen=True, eq=False)
class Reduction(GraphOperator):
    """One number for the elements along `axes`, which are removed, or kept with size 1.

    Of no elements the maximum is -inf or the least integer, the minimum inf or the largest. A NaN makes the result NaN.
    """

    combiner: str = field(kw_only=True)
    initial: Callable[[np.dtype], Any] = field(kw_only=True)

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return reduced_type(self.name, types[0], attrs)

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        return r.reduced(r.attrs["axes"], r.attrs["keepdims"])

    def gradient(self, b: Backward) -> Cotangents:
        (x,) = b.types()
        axes = normalize_axes(self.name, b.attrs["axes"], x.rank)
        if self is PROD:
            return (_prod_back(b, axes),)
        # each of several extreme elements gets an equal part
        extreme = b.op("equal", b.args[0], reduced_back(b, b.out, axes))
        count = b.sum(b.op("cast", extreme, dtype=x.dtype), axes, keepdims=True)
        return (b.where(extreme, b.div(reduced_back(b, b.g, axes), count)),)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, axes = wide(arrays[0]), tuple(axis % arrays[0].ndim for axis in attrs["axes"])
        if not axes:
            return arrays[0].copy()
        if x.size == 0:
            shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
            kept = shape if attrs["keepdims"] else [n for d, n in enumerate(x.shape) if d not in axes]
            return filled(xp, kept, np.asarray(self.initial(x.dtype), arrays[0].dtype))
        found = getattr(xp, self.combiner)(x, axis=axes, keepdims=attrs["keepdims"])
        return xp.asarray(found).astype(arrays[0].dtype, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        axes = normalize_axes(self.name, attrs["axes"], types[0].rank)
        return reduce_axes(self.combiner, types[0], axes, out)


@dataclass(frozen=True, eq=False)
class Maximum(Reduction):
    """The largest element: also an operator of muGraphs."""

    levels: frozenset[Level] = ALL_LEVELS

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        return evaluate_fold(self.name, ar, args[0], attrs, shapes[0])

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return fold_to_axes(self.name, low, operands[0], attrs)


def _prod_back(b: Backward, axes: Sequence[int]) -> Any:
    """The cotangent times the product of all other elements: of those before and those behind, as one may be 0."""
    (x,) = b.types()
    others = [k for k in range(x.rank) if k not in axes]
    order = (*others, *axes)
    moved = [x.shape[k] for k in order]
    rows = moved[: len(others)]
    count = sympy.expand(sympy.prod(moved[len(others) :]))
    flat = b.reshape(b.op("transpose", b.args[0], perm=order), (*rows, count))
    last, one = len(rows), sympy.Integer(1)

    def before(y: Any) -> Any:
        side = [sympy.Integer(0)] * last
        padded = b.op("pad", y, low=(*side, one), high=(*side, sympy.Integer(0)), value=1)
        shifted = b.op("slice", padded, axes=(last,), starts=(0,), stops=(count,))
        return b.op("cumprod", shifted, axis=last)

    behind = b.op("flip", before(b.op("flip", flat, axes=(last,))), axes=(last,))
    found = b.reshape(b.mul(before(flat), behind), moved)
    back = b.op("transpose", found, perm=tuple(order.index(k) for k in range(x.rank)))
    return b.mul(reduced_back(b, b.g, axes), back)


def _reduction(
    name: str,
    initial: Callable[[np.dtype], Any],
    takes: frozenset[str] = NUMERIC,
    kind: type[Reduction] = Reduction,
) -> Reduction:
    attributes = (Attribute("axes", "ints"), Attribute("keepdims", "bool", False))
    op = kind(name, 1, 1, attributes, takes=takes, combiner=name, initial=initial)
    register(op)
    return op


MAX = _reduction("max", _least, kind=Maximum)
MIN = _reduction("min", _largest)
PROD = _reduction("prod", lambda dtype: 1)
ANY = _reduction("any", lambda dtype: False, frozenset({"bool"}))
ALL = _reduction("all", lambda dtype: True, frozenset({"bool"}))


@dataclass(frozen=True, eq=False)
class ExtremePosition(GraphOperator):
    """The position (int64) of the first largest or smallest element along `axis`; 0 where there is none.

    A NaN counts as the extreme element. The operator's name is that of the function of a module of arrays.
    """

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        if types[0].rank == 0:
            raise ShapeError(f"{self.name}: of a tensor of rank 0; pass one with a dim to look along")
        axis = normalize_axis(self.name, attrs["axis"], types[0].rank)
        found = reduced_type(self.name, types[0], {"axes": (axis,), "keepdims": attrs["keepdims"]})
        return TensorType(found.shape, "int64")

    def relate(self, r: Relation) -> bool:
        r.dtype(r.out, "int64")
        return r.reduced((r.attrs["axis"],), r.attrs["keepdims"])

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return PartialTensor(None, "int64")

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, axis = wide(arrays[0]), attrs["axis"]
        if x.shape[axis] == 0:
            shape = list(x.shape)
            shape[axis] = 1
            found = xp.zeros(shape, np.int64)
            return found if attrs["keepdims"] else found.squeeze(axis)
        found = getattr(xp, self.name)(x, axis=axis, keepdims=attrs["keepdims"])
        return xp.asarray(found).astype(np.int64, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        axis = normalize_axis(self.name, attrs["axis"], types[0].rank)
        return reduce_axes(self.name, types[0], [axis], out)


_POSITION = (Attribute("axis", "int"), Attribute("keepdims", "bool", False))
ARGMAX = register(ExtremePosition("argmax", 1, 1, _POSITION, takes=NUMERIC))
ARGMIN = register(ExtremePosition("argmin", 1, 1, _POSITION, takes=NUMERIC))


@dataclass(frozen=True, eq=False)
class Cumulative(GraphOperator):
    """Element j along `axis` is the sum, or what else the name says, of elements 0 to j; 16-bit types are computed in float32."""

    accumulate: Callable[..., Any] = field(kw_only=True)
    #: the cotangent of the operand, from that of the result, for the last axis
    backward: Callable[[Emitter, Any, Any, Any], Any] = field(kw_only=True)

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        normalize_axis(self.name, attrs["axis"], types[0].rank)
        return types[0]

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        r.same_shape(r.args[0], r.out)
        return True

    def gradient(self, b: Backward) -> Cotangents:
        (x,) = b.types()
        axis = normalize_axis(self.name, b.attrs["axis"], x.rank)
        order = (*(k for k in range(x.rank) if k != axis), axis)
        given = [b.op("transpose", v, perm=order) for v in (b.full_g(), b.args[0], b.out)]
        found = self.backward(b, *given)
        return (b.op("transpose", found, perm=tuple(order.index(k) for k in range(x.rank))),)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x = wide(arrays[0])
        return self.accumulate(xp, x, axis=attrs["axis"], dtype=x.dtype).astype(arrays[0].dtype, copy=False)


def _cumsum_back(b: Emitter, g: Any, x: Any, y: Any) -> Any:
    last = b.type(g).rank - 1
    return b.op("flip", b.op("cumsum", b.op("flip", g, axes=(last,)), axis=last), axes=(last,))


def _later(b: Emitter, x: Any, terms: Callable[[Any, Any, Any], Any]) -> Any:
    """For each element i, the sum of the terms of elements j = i, i + 1, ...

    `terms` gets i and j as positions, and how to make a row of what there is for each j; it gives `[..., i, j]`.
    """
    shape = b.type(x).shape
    rank, n, one = len(shape) + 1, shape[-1], sympy.Integer(1)
    i, j = b.along(n, rank - 2, rank), b.along(n, rank - 1, rank)
    found = terms(i, j, lambda y: b.reshape(y, (*shape[:-1], one, n)))
    return b.sum(b.where(b.op("greater_equal", j, i), found), (rank - 1,))


def _cumprod_back(b: Emitter, g: Any, x: Any, y: Any) -> Any:
    # the products without element i, which may be 0
    def terms(i: Any, j: Any, row: Callable[[Any], Any]) -> Any:
        others = b.where(b.op("not_equal", i, j), row(x), 1)
        return b.mul(row(g), b.op("cumprod", others, axis=b.type(others).rank - 1))

    return _later(b, x, terms)


def _cumlogsumexp_back(b: Emitter, g: Any, x: Any, y: Any) -> Any:
    shape = b.type(x).shape
    column = b.reshape(x, (*shape, sympy.Integer(1)))
    return _later(b, x, lambda i, j, row: b.mul(row(g), b.op("exp", b.sub(column, row(y)))))


def _running_back(b: Emitter, g: Any, x: Any, y: Any) -> Any:
    t = b.type(x)
    last = t.rank - 1
    # the position of the latest element that was the extreme one
    places = b.where(b.op("equal", x, y), b.along(t.shape[-1], last, t.rank), 0)
    return b.op("put_along_axis", b.zeros(t), b.op("cummax", places, axis=last), g, axis=last, add=True)


def _cumulative(
    name: str,
    accumulate: Callable[..., Any],
    backward: Callable[[Emitter, Any, Any, Any], Any],
    takes: frozenset[str] = NUMERIC,
) -> Cumulative:
    op = Cumulative(name, 1, 1, (Attribute("axis", "int"),), takes=takes, accumulate=accumulate, backward=backward)
    register(op)
    return op


CUMSUM = _cumulative("cumsum", lambda xp, x, **options: xp.cumsum(x, **options), _cumsum_back)
CUMPROD = _cumulative("cumprod", lambda xp, x, **options: xp.cumprod(x, **options), _cumprod_back)
CUMMAX = _cumulative("cummax", lambda xp, x, **options: xp.maximum.accumulate(x, **options), _running_back)
CUMMIN = _cumulative("cummin", lambda xp, x, **options: xp.minimum.accumulate(x, **options), _running_back)
CUMLOGSUMEXP = _cumulative(
    "cumlogsumexp", lambda xp, x, **options: xp.logaddexp.accumulate(x, **options), _cumlogsumexp_back, FLOATING
)
