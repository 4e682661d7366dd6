"""Lowerings of sorts, of elements by their rank, and of places between bounds."""

from __future__ import annotations

from typing import Any

from mirage.frontends import array_ops, graph_ops
from mirage.frontends.aten.table import Call, lowers, promoted_type
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import as_tensor, unsupported
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, axis_of, size_of, sliced
from mirage.frontends.tensors import GraphTensor
from mirage.ir.types import DTYPES

#: bounds up to which each element is compared with every one
_BOUNDS = 64


def numeric(x: Any) -> Any:
    """The tensor in an element type that is ordered: booleans become integers."""
    return cast(x, "int32") if x.dtype == "bool" else x


def distinct(x: Any) -> Any:
    """A tensor whose elements mostly differ; raises UnsupportedNode for others: which of equal ones is first is ATen's choice."""
    return x if x.dtype in DTYPES else unsupported("many of its elements may be equal, of which ATen chooses")


@lowers("sort")
def _sort_unstable(c: Call, x: Any, dim: int = -1, descending: bool = False) -> Any:
    # integers are sorted to group them, which booleans are not
    return _sort(c, x if x.dtype != "bool" else distinct(x), dim, descending)


def _sort(c: Call, x: Any, dim: int = -1, descending: bool = False) -> Any:
    if not x.ndim:
        return x, array_ops.full((), 0, "int64")
    axis, y = axis_of(dim, x.ndim), numeric(x)
    return c.tensor(graph_ops.sort(y, axis, descending)), graph_ops.argsort(y, axis, descending)


@lowers("sort.stable")
def _sort_stable(c: Call, x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(c, x, dim, descending)


@lowers("topk")
def _topk(c: Call, x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    whole = distinct(x if x.ndim else x.reshape(1))
    values, places = graph_ops.topk(whole, k, axis_of(dim, whole.ndim), largest)
    return (values, places) if x.ndim else (values.reshape(c.shape), places.reshape(c.shape))


@lowers("kthvalue")
def _kthvalue(c: Call, x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, array_ops.full((), 0, "int64")
    axis = axis_of(dim, x.ndim)
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape) if keepdim or d != axis)
    found = (op(distinct(x), axis) for op in (graph_ops.sort, graph_ops.argsort))
    return tuple(sliced(y, {axis: (k - 1, k)}).reshape(shape) for y in found)


def _middle(c: Call, x: Any, axis: int, keepdim: bool) -> Any:
    """The lower one of the middle elements along an axis, and its position: of those that are no NaN, or NaN if there is one."""
    if x.shape[axis] == 0:
        unsupported("a median of no elements")
    counted = graph_ops.cast(graph_ops.equal(x, x), "int64").sum(axis, keepdims=True)
    place = apply("elementwise_max", counted - 1, 0) // 2
    if "nan" not in c.name:
        # NaNs are the last in order, and the first of them is the median if there is any
        missing = graph_ops.less(counted, array_ops.dim_value(x.shape[axis]))
        place = graph_ops.where(missing, counted, place)
    order = graph_ops.argsort(x, axis)
    index = array_ops.take_along_axis(order, place, axis)
    values = array_ops.take_along_axis(x, index, axis)
    shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape) if keepdim or d != axis)
    return values.reshape(shape), index.reshape(shape)


@lowers("median", "nanmedian")
def _median(c: Call, x: Any) -> Any:
    return _middle(c, x.reshape(size_of(x.shape)), 0, False)[0]


@lowers("median.dim", "nanmedian.dim")
def _median_along(c: Call, x: Any, dim: int, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, array_ops.full((), 0, "int64")
    return _middle(c, distinct(x), axis_of(dim, x.ndim), keepdim)


def below(c: Call, bounds: Any, x: Any, right: bool) -> Any:
    """How many of the sorted bounds are below each element, or with `right` not above it; NaN is above all."""
    if bounds.ndim == 1 and x.ndim != 1:
        many = as_tensor(x).reshape(*x.shape, 1)
    else:
        many = as_shape(x, (*bounds.shape[:-1], x.shape[-1])).reshape(*bounds.shape[:-1], x.shape[-1], 1)
        bounds = bounds.reshape(*bounds.shape[:-1], 1, bounds.shape[-1])
    bounds, many = c.promoted(bounds, many)
    counted = graph_ops.less_equal(bounds, many) if right else graph_ops.less(bounds, many)
    if many.dtype in DTYPES:
        counted = graph_ops.logical_or(counted, graph_ops.isnan(many))
    return cast(counted, c.dtype).sum(-1)


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    c: Call,
    bounds: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    many = x if isinstance(x, GraphTensor) else c.tensor(x, promoted_type((bounds, x)))
    if sorter is not None:
        bounds = array_ops.take_along_axis(bounds, sorter, -1)
    return below(c, few(bounds), many, right or side == "right")


@lowers("bucketize.Tensor")
def _bucketize(c: Call, x: Any, bounds: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return below(c, few(bounds), x, right)


def few(bounds: Any) -> Any:
    """Bounds; raises UnsupportedNode where comparing with each of them would be slower than ATen's search."""
    count = bounds.shape[-1]
    if not isinstance(count, int) or count > _BOUNDS:
        unsupported(f"it has {count} bounds; up to {_BOUNDS} are compared one by one")
    return bounds

