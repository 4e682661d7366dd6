"""Sorting, and operators whose results are as large as the data says: they run as library functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy

from mirage.errors import DTypeError, ShapeError
from mirage.ir.annotations import Annotation, PartialTensor, TupleType, tensor_annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph.nodes import ShapeValue
from mirage.ir.graph_operator import GraphOperator, wide
from mirage.ir.operator import NUMERIC, Attribute, Attrs, common_dtype, register
from mirage.ir.operators.contraction import normalize_axis
from mirage.ir.requirements import AtMost, at_most, needs
from mirage.ir.types import TensorType, shape_text


def _order(xp: ArrayModule, x: Any, axis: int, descending: bool) -> Any:
    """The positions of the sorted elements, equal ones in their order; NaNs are the largest."""
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable")
    # equal elements keep their order only if the reversed array is sorted
    backwards = xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)
    return x.shape[axis] - 1 - backwards


_SORT = (Attribute("axis", "int", -1), Attribute("descending", "bool", False))


def _put_back(b: Backward, positions: Any, g: Any) -> Any:
    """The cotangents of elements that were put in order, where they have been before."""
    return b.op("put_along_axis", b.zeros(b.type(b.args[0])), positions, g, axis=b.attrs["axis"])


class Sort(GraphOperator):
    """The elements sorted along `axis`; NaNs are the largest."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        normalize_axis("sort", attrs["axis"], types[0].rank)
        return types[0]

    def gradient(self, b: Backward) -> Cotangents:
        return (_put_back(b, b.op("argsort", b.args[0], **b.attrs), b.full_g()),)

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        (x,) = arrays
        found = xp.sort(wide(x), axis=attrs["axis"]).astype(x.dtype, copy=False)
        return xp.flip(found, attrs["axis"]).copy() if attrs["descending"] else found


SORT = register(Sort("sort", 1, 1, _SORT, takes=NUMERIC))


class Argsort(GraphOperator):
    """The positions (int64) of the sorted elements along `axis`, equal ones in their order; NaNs are the largest."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        normalize_axis("argsort", attrs["axis"], types[0].rank)
        return TensorType(types[0].shape, "int64")

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return PartialTensor(None, "int64")

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return _order(xp, wide(arrays[0]), attrs["axis"], attrs["descending"]).astype(np.int64, copy=False)


ARGSORT = register(Argsort("argsort", 1, 1, _SORT, takes=NUMERIC))


class TopK(GraphOperator):
    """The `k` largest elements along `axis`, or the smallest, in order, and their positions (int64).

    Of equal elements the first come first. NaNs are the largest.
    """

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        (x,) = types
        axis = normalize_axis("topk", attrs["axis"], x.rank)
        shape = (*x.shape[:axis], attrs["k"], *x.shape[axis + 1 :])
        return TupleType((TensorType(shape, x.dtype), TensorType(shape, "int64")))

    def gradient(self, b: Backward) -> Cotangents:
        (values, positions), g = b.out, b.g[0]
        return (None if g is None else _put_back(b, positions, b.spread(g, b.type(values).shape)),)

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        axis = normalize_axis("topk", attrs["axis"], types[0].rank)
        return needs(at_most(attrs["k"], types[0].shape[axis], f"k is within the dim of axis {axis}"))

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return TupleType((PartialTensor(None, common_dtype(args)), PartialTensor(None, "int64")))

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        (x,) = arrays
        axis = attrs["axis"] % x.ndim
        order = _order(xp, wide(x), axis, attrs["largest"])
        first = order[tuple(slice(attrs["k"]) if k == axis else slice(None) for k in range(x.ndim))]
        return xp.take_along_axis(x, first, axis), first.astype(np.int64)


TOPK = register(
    TopK(
        "topk",
        1,
        1,
        (Attribute("k", "dim"), Attribute("axis", "int", -1), Attribute("largest", "bool", True)),
        takes=NUMERIC,
    )
)


class Unique(GraphOperator):
    """The distinct elements of all dims, sorted: rank 1."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return PartialTensor((None,), types[0].dtype)

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return PartialTensor((None,), common_dtype(args))

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        (x,) = arrays
        return xp.unique(wide(x)).astype(x.dtype, copy=False)


UNIQUE = register(Unique("unique", 1, 1))


class Nonzero(GraphOperator):
    """The positions (int64) of the elements that are not 0, in row-major order: `[count, rank]`, as `numpy.argwhere`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        return PartialTensor((None, sympy.Integer(types[0].rank)), "int64")

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return PartialTensor((None, None), "int64")

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return xp.argwhere(arrays[0]).astype(np.int64, copy=False)


NONZERO = register(Nonzero("nonzero", 1, 1))


class BooleanMask(GraphOperator):
    """`x[mask]`: the slices of `x` at which the mask over its first dims holds, in order, along one dim."""

    def check_elements(self, args: Sequence[Annotation]) -> None:
        super().check_elements(args)
        mask = args[1]
        assert isinstance(mask, TensorType | PartialTensor)
        if mask.dtype not in ("bool", None):
            raise DTypeError(f"boolean_mask: the mask is {mask}; compare it with something, or cast it to bool")

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, mask = types
        if mask.rank == 0 or mask.shape != x.shape[: mask.rank]:
            raise ShapeError(
                f"boolean_mask: a mask [{shape_text(mask.shape)}] of [{shape_text(x.shape)}]; it has the shape of the first "
                "dims, at least one"
            )
        return tensor_annotation((None, *x.shape[mask.rank :]), x.dtype)

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        x, mask = args
        assert isinstance(x, TensorType | PartialTensor) and isinstance(mask, TensorType | PartialTensor)
        if x.shape is None or mask.shape is None:
            return PartialTensor(None, x.dtype)
        return PartialTensor((None, *x.shape[len(mask.shape) :]), x.dtype)

    def gradient(self, b: Backward) -> Cotangents:
        (x, mask), g = b.types(), b.full_g()
        flat = sympy.expand(sympy.prod(mask.shape))
        count, *rest = b.type(g).shape
        found = b.op("nonzero", b.reshape(b.args[1], (flat,)))
        places = b.op("reshape_to", found, ShapeValue((count,)))
        whole = b.op("scatter", b.zeros(TensorType((flat, *rest), x.dtype)), places, g, axis=0)
        return b.reshape(whole, x.shape), None

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        return arrays[0][arrays[1]]


BOOLEAN_MASK = register(BooleanMask("boolean_mask", 2, 2))
