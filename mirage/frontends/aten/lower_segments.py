"""Lowerings of operators that combine what belongs together: segments of an axis, bags of embeddings."""

from __future__ import annotations

from math import inf, nan
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.lower_indexing import combined
from mirage.frontends.aten.lower_order import few
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import unsupported
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import fitted, sliced

#: what a segment without elements is, unless a call says so
_NOTHING = {"sum": 0.0, "mean": nan, "max": -inf, "min": inf, "prod": 1.0}


@lowers("segment_reduce")
def _segment_reduce(
    c: Call, x: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: float | None = None,
) -> Any:  # fmt: skip
    if indices is not None or (lengths is None) == (offsets is None):
        unsupported("its segments are not given by lengths or offsets alone")
    if offsets is not None:
        last, count = offsets.ndim - 1, offsets.shape[-1] - 1
        start, end = (sliced(offsets, {last: (k, count + k)}) for k in (0, 1))
    else:
        end = graph_ops.cumsum(lengths, lengths.ndim - 1)
        start = end - lengths
    axis = end.ndim - 1
    few(end)
    size = x.shape[axis]
    places = array_ops.arange(0, size)
    start, end = (array_ops.expand_dims(v, -1) for v in (start, end))
    within = graph_ops.logical_and(graph_ops.less_equal(start, places), graph_ops.less(places, end))
    within = within.reshape(*within.shape, *(1,) * (x.ndim - axis - 1))
    empty, first = _NOTHING[reduce], _NOTHING["sum" if reduce == "mean" else reduce]
    elements = graph_ops.where(within, array_ops.expand_dims(x, axis), c.tensor(first))
    found = apply("sum" if reduce == "mean" else reduce, elements, axes=(axis + 1,), keepdims=False)
    if initial is not None:
        empty = initial
        more = c.tensor(initial)
        names = {"max": "elementwise_max", "min": "elementwise_min", "prod": "mul"}
        found = apply(names.get(reduce, "add"), found, more)
    if reduce == "mean":
        count = cast(within, c.dtype).sum(axis + 1)
        found = graph_ops.where(graph_ops.equal(count, 0), c.tensor(empty), found / count)
    if lengths is None or unsafe:
        return found
    # ATen refuses lengths that are not those of the whole axis
    whole = graph_ops.equal(lengths.sum(axis, keepdims=True), array_ops.dim_value(size))
    whole = whole.reshape(*whole.shape, *(1,) * (x.ndim - axis - 1))
    return graph_ops.where(whole, found, c.tensor(nan))


@lowers("_embedding_bag_forward_only")
def _embedding_bag(
    c: Call, weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    bags, (count,) = c.shape[0], indices.shape
    # how many bags begin up to each index, of which the last is its own
    begun = array_ops.scatter(array_ops.full((count + 1,), 0, "int64"), offsets, array_ops.full((), 1, "int64"), 0, True)
    bag = sliced(graph_ops.cumsum(begun, 0), {0: (0, count)}) - 1
    if padding_idx >= 0:
        # in a bag behind the last
        bag = graph_ops.where(graph_ops.equal(indices, padding_idx), array_ops.dim_value(bags), bag)
    # an index below 0 is outside
    rows = array_ops.take(weight, graph_ops.where(indices < 0, array_ops.dim_value(weight.shape[0]), indices), 0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(count, 1)
    room = array_ops.full((bags + 1, weight.shape[1]), 0, c.dtype)
    if mode == 2:
        if padding_idx >= 0:
            unsupported("which of its elements are the first ones depends on the data")
        # as ATen, whose comparisons a NaN wins that is the first of its bag, and no other
        places = array_ops.arange(0, count)
        before = array_ops.take(bag, apply("elementwise_max", places - 1, 0))
        first = graph_ops.logical_or(graph_ops.equal(places, 0), graph_ops.not_equal(bag, before)).reshape(count, 1)
        lost = graph_ops.logical_and(graph_ops.isnan(rows), graph_ops.logical_not(first))
        rows = graph_ops.where(lost, c.tensor(-inf), rows)
        found = combined(c, room, 0, fitted(bag.reshape(count, 1), rows.shape), rows, "amax", False)
    else:
        found = array_ops.scatter(room, bag, rows, 0, True)
    if mode == 1:
        many = array_ops.scatter(array_ops.full((bags + 1,), 0, c.dtype), bag, array_ops.full((), 1, c.dtype), 0, True)
        found = found / ops.maximum(many, 1.0).reshape(bags + 1, 1)
    # what only gradients need
    return sliced(found, {0: (0, bags)}), *(array_ops.full(t.shape, 0, t.dtype) for t in c.results[1:])
