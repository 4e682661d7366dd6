"""Reductions other than sums, the positions of extremes, and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage.errors import ShapeError
from mirage.ir.annotations import Annotation, PartialTensor
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.graph_operator import GraphOperator, filled, wide
from mirage.ir.loops.program import TensorExpr, reduce_axes
from mirage.ir.operator import FLOATING, NUMERIC, Attribute, Attrs, register
from mirage.ir.operators.contraction import normalize_axes, normalize_axis, reduced_type
from mirage.ir.types import TensorType


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


def _reduction(
    name: str, initial: Callable[[np.dtype], Any], takes: frozenset[str] = NUMERIC
) -> Reduction:
    attributes = (Attribute("axes", "ints"), Attribute("keepdims", "bool", False))
    op = Reduction(name, 1, 1, attributes, takes=takes, combiner=name, initial=initial)
    register(op)
    return op


MAX = _reduction("max", _least)
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

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        normalize_axis(self.name, attrs["axis"], types[0].rank)
        return types[0]

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x = wide(arrays[0])
        return self.accumulate(xp, x, axis=attrs["axis"], dtype=x.dtype).astype(arrays[0].dtype, copy=False)


def _cumulative(name: str, accumulate: Callable[..., Any], takes: frozenset[str] = NUMERIC) -> Cumulative:
    op = Cumulative(name, 1, 1, (Attribute("axis", "int"),), takes=takes, accumulate=accumulate)
    register(op)
    return op


CUMSUM = _cumulative("cumsum", lambda xp, x, **options: xp.cumsum(x, **options))
CUMPROD = _cumulative("cumprod", lambda xp, x, **options: xp.cumprod(x, **options))
CUMMAX = _cumulative("cummax", lambda xp, x, **options: xp.maximum.accumulate(x, **options))
CUMMIN = _cumulative("cummin", lambda xp, x, **options: xp.minimum.accumulate(x, **options))
CUMLOGSUMEXP = _cumulative("cumlogsumexp", lambda xp, x, **options: xp.logaddexp.accumulate(x, **options), FLOATING)
