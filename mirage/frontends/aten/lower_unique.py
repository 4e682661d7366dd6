"""Lowerings of distinct elements: runs of equal ones, for which elements that are not in order are sorted first."""

from __future__ import annotations

from math import prod
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.lower_order import numeric
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, axis_of, fresh_dim, size_of

#: elements of slices up to which these are sorted by one element after the other
_COLUMNS = 32


def _runs(c: Call, rows: Any) -> tuple[Any, Any, Any]:
    """Of rows `[count, columns]`: whether each is another one than that before, the number of its run, the runs' lengths."""
    count, columns = rows.shape
    places = array_ops.arange(0, count)
    before = array_ops.take(rows, apply("elementwise_max", places - 1, 0), 0)
    # NaN is another one than itself
    other = graph_ops.any(graph_ops.not_equal(rows, before), -1) if columns != 0 else graph_ops.less(places, 0)
    first = graph_ops.logical_or(graph_ops.equal(places, 0), other)
    starts = as_shape(graph_ops.nonzero(first), (fresh_dim(c.trace), 1))
    starts = starts.reshape(starts.shape[0])
    end = array_ops.dim_value(count).reshape(1)
    lengths = array_ops.take(ops.concat([starts, end], 0), array_ops.arange(0, starts.shape[0]) + 1) - starts
    return first, graph_ops.cumsum(graph_ops.cast(first, "int64"), 0) - 1, lengths


def _rows(x: Any, dim: int | None) -> Any:
    """The elements, or the slices along a dim, as rows `[count, columns]`."""
    if dim is None:
        return x.reshape(size_of(x.shape), 1)
    x = ops.transpose(x, (dim, *(k for k in range(x.ndim) if k != dim))) if dim else x
    return x.reshape(x.shape[0], size_of(x.shape[1:]))


def _wanted(c: Call, uniques: Any, inverse: Any, lengths: Any, places: bool, counts: bool) -> Any:
    """The results, of which those that are not wanted are empty."""
    empty = array_ops.full((0,), 0, "int64")
    return uniques, inverse if places else empty, lengths if counts else empty


@lowers("unique_consecutive")
def _unique_consecutive(
    c: Call, x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is None:
        first, inverse, lengths = _runs(c, _rows(x, None))
        uniques = graph_ops.boolean_mask(x.reshape(size_of(x.shape)), first)
        return _wanted(c, uniques, inverse.reshape(x.shape), lengths, return_inverse, return_counts)
    axis = _axis(x, dim)
    first, inverse, lengths = _runs(c, _rows(x, axis))
    return _chosen(c, x, first, axis), inverse, lengths


def _axis(x: Any, dim: int) -> int:
    if not x.ndim:
        unsupported("a tensor without dims has no slices")
    return axis_of(dim, x.ndim)


def _chosen(c: Call, x: Any, first: Any, axis: int) -> Any:
    """The slices along an axis that a mask chooses."""
    if not axis:
        return graph_ops.boolean_mask(x, first)
    found = as_shape(graph_ops.nonzero(first), (fresh_dim(c.trace), 1))
    return array_ops.take(x, found.reshape(found.shape[0]), axis)


def _in_order(order: Any, numbers: Any) -> Any:
    """Numbers of sorted elements as those of the elements in their own order."""
    return array_ops.scatter(array_ops.full(numbers.shape, 0, "int64"), order, numbers, 0)


@lowers("_unique2")
def _unique2(c: Call, x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    flat = x.reshape(size_of(x.shape))
    order = graph_ops.argsort(numeric(flat), 0)
    ascending = array_ops.take(flat, order)
    first, numbers, lengths = _runs(c, _rows(ascending, None))
    inverse = _in_order(order, numbers).reshape(x.shape)
    return _wanted(c, graph_ops.boolean_mask(ascending, first), inverse, lengths, return_inverse, return_counts)


@lowers("unique_dim")
def _unique_dim(
    c: Call, x: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    axis = _axis(x, dim)
    columns = prod(n for k, n in enumerate(x.shape) if k != axis)
    if not isinstance(columns, int) or columns > _COLUMNS:
        unsupported(f"its slices have {columns} elements; up to {_COLUMNS} are sorted by one after the other")
    rows = _rows(x, axis)
    order = array_ops.arange(0, x.shape[axis])
    for k in reversed(range(columns)):
        column = array_ops.take(numeric(rows), array_ops.full((), k, "int64"), 1)
        # equal ones stay in the order of the later elements
        order = array_ops.take(order, graph_ops.argsort(array_ops.take(column, order), 0))
    first, numbers, lengths = _runs(c, array_ops.take(rows, order, 0))
    return _chosen(c, array_ops.take(x, order, axis), first, axis), _in_order(order, numbers), lengths
