"""Lowerings of operators that read or write the elements at positions which tensors hold.

An index outside of its dim is an InputError at run time; one below 0 counts from the end where torch counts so, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.lower_movement import position, window_start
from mirage.frontends.aten.table import Call, add, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import (
    as_broadcast,
    as_shape,
    axis_of,
    broadcast,
    fitted,
    fresh_dim,
    size_of,
    sliced,
    window,
)
from mirage.ir.types import DTYPES, is_one


def flat(x: Any) -> Any:
    """The elements in one dim."""
    return x if x.ndim == 1 else x.reshape(size_of(x.shape))


def linear(indices: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The positions in row-major order of what several indices, one per dim, name together; each is checked to be in its dim."""
    total = None
    for index, size in zip(indices, sizes, strict=True):
        inside = array_ops.take(array_ops.arange(0, size), index)
        total = inside if total is None else total * size + inside
    return total


def scattered(x: Any, index: Any, values: Any, axis: int, add: bool, along: bool = False) -> Any:
    """`array_ops.scatter`, or `put_along_axis`, in which booleans are added, too: to what is true if either is."""
    op = array_ops.put_along_axis if along else array_ops.scatter
    if not add or x.dtype != "bool":
        return op(x, index, values, axis, add)
    total = op(graph_ops.cast(x, "int64"), index, graph_ops.cast(values, "int64"), axis, True)
    return graph_ops.not_equal(total, 0)


# several indices, of which some are masks


@dataclass
class _Places:
    """What `x[indices]` names, as positions along one axis of a tensor with the dims of `x` in another order and joined."""

    x: Any
    axis: int
    index: Any
    #: the dims of `x` in the order in which `x` here has them, before some were joined
    order: tuple[int, ...]
    shape: tuple[Any, ...]

    def back(self, y: Any) -> Any:
        """A tensor like `x` here with the dims in their own order."""
        y = y.reshape(self.shape)
        if self.order == tuple(range(len(self.order))):
            return y
        return ops.transpose(y, tuple(self.order.index(k) for k in range(len(self.order))))


def _per_dim(c: Call, x: Any, indices: Sequence[Any]) -> list[Any]:
    """For each dim of `x` its index, or None; a mask gives those of the places where it holds."""
    found: list[Any] = []
    for index in indices:
        if index is None or index.dtype != "bool":
            found.append(index)
            continue
        if not index.ndim:
            unsupported("a mask of it has no dims")
        mask = as_shape(index, x.shape[len(found) : len(found) + index.ndim])
        where = graph_ops.nonzero(mask)
        where = as_shape(where, (fresh_dim(c.trace), mask.ndim))
        rows = where.shape[0]
        found += [
            ops.reshape(array_ops.take(where, array_ops.full((1,), k, "int64"), 1), rows) for k in range(mask.ndim)
        ]
    return found + [None] * (x.ndim - len(found))


def _places(c: Call, x: Any, indices: Sequence[Any]) -> _Places:
    per_dim = _per_dim(c, x, indices)
    axes = [k for k, index in enumerate(per_dim) if index is not None]
    if not axes:
        unsupported("no dim is indexed")
    shape = broadcast(*(per_dim[k].shape for k in axes))
    found = [as_broadcast(per_dim[k], shape) for k in axes]
    axis, order = axes[0], tuple(range(x.ndim))
    if axes != list(range(axis, axis + len(axes))):
        # indices apart from each other give their dims to the front
        axis, order = 0, (*axes, *(k for k in order if k not in axes))
        x = ops.transpose(x, order)
    dims = x.shape
    if len(axes) == 1:
        return _Places(x, axis, found[0], order, dims)
    sizes = dims[axis : axis + len(axes)]
    joined = x.reshape(*dims[:axis], size_of(sizes), *dims[axis + len(axes) :])
    return _Places(joined, axis, fitted(linear(found, sizes), shape), order, dims)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(c: Call, x: Any, indices: Any) -> Any:
    if len(indices) == 1 and indices[0].dtype == "bool" and indices[0].ndim:
        return where_true(x, indices[0])
    if (found := _one_by_one(x, indices)) is not None:
        return found
    at = _places(c, x, indices)
    return array_ops.take(at.x, at.index, at.axis)


def _one_by_one(x: Any, indices: Sequence[Any]) -> Any:
    """`x[indices]` where each index has dims of its own, in order, as those of rows and of columns of an image; else None.

    One dim is indexed after the other, so that no position in both together has to be divided into these.
    """
    axes = [k for k, index in enumerate(indices) if index is not None]
    if len(axes) < 2 or axes != list(range(axes[0], axes[0] + len(axes))) or any(indices[k].dtype == "bool" for k in axes):
        return None
    given = [indices[k] for k in axes]
    shape = broadcast(*(index.shape for index in given))
    # of each index, the dims of the result that it has
    own = [[len(shape) - g.ndim + i for i, n in enumerate(g.type.shape) if not is_one(n)] for g in given]
    in_order = [k for dims in own for k in dims]
    if in_order != sorted(set(in_order)):
        return None
    axis = axes[0]
    before, behind = x.shape[:axis], x.shape[axis + len(axes) :]
    for index, dims in zip(given, own, strict=True):
        x = array_ops.take(x, index.reshape(tuple(shape[i] for i in dims)), axis)
        axis += len(dims)
    return x.reshape(*before, *shape, *behind)


def where_true(x: Any, mask: Any) -> Any:
    """The slices of a tensor at which a mask over its first dims holds."""
    return graph_ops.boolean_mask(x, as_shape(mask, x.shape[: mask.ndim]))


@lowers("index_put", "_unsafe_index_put")
def _index_put(c: Call, x: Any, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
    values = c.tensor(values)
    masked = _masked(c, x, indices, values, accumulate)
    if masked is not None:
        return masked
    at = _places(c, x, indices)
    there = (*at.x.shape[: at.axis], *at.index.shape, *at.x.shape[at.axis + 1 :])
    return at.back(scattered(at.x, at.index, as_broadcast(values, there), at.axis, accumulate))


def _masked(c: Call, x: Any, indices: Any, values: Any, accumulate: bool) -> Any:
    """What an `index_put` gives if its one index is a mask and the values are the same wherever it holds; None for others."""
    given = [index for index in indices if index is not None]
    if len(given) != 1 or given[0].dtype != "bool" or (accumulate and c.dtype == "bool"):
        return None
    (mask,) = given
    at = len(indices) - 1
    behind = x.ndim - at - mask.ndim
    if values.ndim == behind + 1 and is_one(values.type.shape[0]):
        values = values.reshape(values.shape[1:])
    if not mask.ndim or values.ndim > behind:
        return None
    mask = as_shape(mask, x.shape[at : at + mask.ndim]).reshape(*x.shape[at : at + mask.ndim], *(1,) * behind)
    values = as_broadcast(values, x.shape)
    return graph_ops.where(mask, x + values if accumulate else values, x)


# one index along one dim


def _vector(x: Any) -> Any:
    """A tensor with at least one dim."""
    return x if x.ndim else x.reshape(1)


def _from_front(c: Call, index: Any, size: Any) -> Any:
    """The index for an operator that refuses what is below 0: that becomes the size, which is outside, too."""
    return graph_ops.where(index < 0, c.tensor(size, index.dtype), index)


@lowers("index_select")
def _index_select(c: Call, x: Any, dim: int, index: Any) -> Any:
    whole, axis = _vector(x), axis_of(dim, max(x.ndim, 1))
    y = array_ops.take(whole, _from_front(c, _vector(index), whole.shape[axis]), axis)
    return y if x.ndim else y.reshape(())


@lowers("take")
def _take(c: Call, x: Any, index: Any) -> Any:
    return array_ops.take(flat(x), index)


@lowers("embedding")
def _embedding(c: Call, weight: Any, indices: Any, *_: Any, **__: Any) -> Any:
    return array_ops.take(weight, _from_front(c, indices, weight.shape[0]), 0)


@lowers("embedding_renorm")
def _embedding_renorm(c: Call, weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    index = _from_front(c, flat(indices), weight.shape[0])
    rows = array_ops.take(weight, index, 0)
    size = ops.abs(rows)
    if norm_type == inf:
        norm = graph_ops.max(size, -1, keepdims=True)
    elif norm_type == 2:
        norm = ops.sqrt(ops.square(rows).sum(-1, keepdims=True))
    elif norm_type == 1:
        norm = size.sum(-1, keepdims=True)
    else:
        unsupported(f"its norm is of order {norm_type}")
    # as ATen: a row that is read twice is scaled once
    scaled = graph_ops.where(graph_ops.greater(norm, max_norm), rows * (max_norm / (norm + 1e-7)), rows)
    return array_ops.scatter(weight, index, scaled, 0)


@lowers("gather")
def _gather(c: Call, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    if max(x.ndim, 1) != max(index.ndim, 1):
        unsupported("the index has another rank than the tensor")
    x, axis = _vector(x), axis_of(dim, max(x.ndim, 1))
    at = _from_front(c, _vector(index), x.shape[axis])
    # only as much as the index covers is read
    x = window(x, _with(at.shape, axis, x.shape[axis]))
    return array_ops.take_along_axis(x, at, axis).reshape(index.shape)


def _with(shape: Sequence[Any], axis: int, size: Any) -> tuple[Any, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def put(x: Any, axis: int, index: Any, values: Any, accumulate: bool = False) -> Any:
    """A copy of `x` with values of the index's shape written, or added, where a gather would read; all of one rank."""
    part = window(x, _with(index.shape, axis, x.shape[axis]))
    found = scattered(part, index, values, axis, accumulate, along=True)
    return found if part is x else array_ops.update_slice(x, found, (0,) * x.ndim)


def _scattered(c: Call, x: Any, dim: int, index: Any, source: Any, accumulate: bool = False) -> Any:
    if max(x.ndim, 1) != max(index.ndim, 1):
        unsupported("the index has another rank than the tensor")
    whole, axis = _vector(x), axis_of(dim, max(x.ndim, 1))
    index = _from_front(c, _vector(index), whole.shape[axis])
    source = c.tensor(source)
    values = window(source, index.shape) if source.ndim else source
    return put(whole, axis, index, values, accumulate).reshape(x.shape)


def _copied(c: Call, x: Any, dim: int, index: Any, source: Any, accumulate: bool = False) -> Any:
    """A copy of `x` with slices written, or added, at positions along a dim."""
    axis, whole, index = axis_of(dim, max(x.ndim, 1)), _vector(x), _vector(index)
    values = c.tensor(source)
    if values.ndim:
        values = as_shape(values, _with(whole.shape, axis, index.shape[0]))
    return scattered(whole, index, values, axis, accumulate).reshape(x.shape)


add(
    {
        "scatter.src": _scattered,
        "scatter.value": _scattered,
        "scatter_add": lambda c, x, dim, index, source: _scattered(c, x, dim, index, source, True),
        "index_copy": lambda c, x, dim, index, source: _copied(c, x, dim, index, _vector(source)),
        "index_fill.int_Scalar": _copied,
        "index_fill.int_Tensor": _copied,
    }
)


@lowers("scatter.reduce", "scatter.value_reduce")
def _scatter_reduced(c: Call, x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    if reduce != "add":
        unsupported(f"it combines by {reduce!r}")
    return _scattered(c, x, dim, index, source, True)


@lowers("scatter_reduce.two")
def _scatter_reduce(
    c: Call, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    if max(x.ndim, 1) != max(index.ndim, 1):
        unsupported("the index has another rank than the tensor")
    whole, index, axis = _vector(x), _vector(index), axis_of(dim, max(x.ndim, 1))
    values = window(_vector(source), index.shape)
    return combined(c, whole, axis, index, values, reduce, include_self).reshape(x.shape)


@lowers("index_reduce")
def _index_reduce(c: Call, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    whole, values, axis = _vector(x), _vector(source), axis_of(dim, max(x.ndim, 1))
    rows = index.reshape(*_with((1,) * values.ndim, axis, size_of(index.shape)))
    return combined(c, whole, axis, fitted(rows, values.shape), values, reduce, include_self).reshape(x.shape)


def combined(c: Call, x: Any, axis: int, index: Any, values: Any, reduce: str, include_self: bool) -> Any:
    """A copy of `x` with values, and with `include_self` what is there, combined where a gather would read."""
    if c.dtype == "bool" and reduce in ("amin", "prod"):
        # all are true where none is false
        x, values = graph_ops.logical_not(x), graph_ops.logical_not(values)
        return graph_ops.logical_not(combined(c, x, axis, index, values, "sum", include_self))
    if c.dtype == "bool" and reduce == "amax":
        reduce = "sum"
    if reduce in ("amax", "amin"):
        return _greatest(c, x, axis, index, values, reduce == "amin", include_self)
    if reduce not in ("sum", "mean"):
        unsupported(f"it combines by {reduce!r}")
    zero, one = (array_ops.full((), v, c.dtype) for v in (0, 1))
    total = put(x if include_self else put(x, axis, index, zero), axis, index, values, True)
    if reduce == "sum":
        return total
    count = put(array_ops.full(x.shape, int(include_self), c.dtype), axis, index, one, True)
    count = apply("elementwise_max", count, one)
    return total / count if c.dtype in DTYPES else graph_ops.floor_divide(total, count)


def _greatest(c: Call, x: Any, axis: int, index: Any, values: Any, least: bool, include_self: bool) -> Any:
    """`combined` by the largest, or the least: values are written in their order, the one that counts as the last."""
    # NaN is the last in ascending order, and counts in either
    negative = least and c.dtype in DTYPES
    x, values = (-x, -values) if negative else (x, values)
    order = graph_ops.argsort(values, axis, least and not negative)
    index, values = (array_ops.take_along_axis(t, order, axis) for t in (index, values))
    found = put(x, axis, index, values)
    if include_self:
        found = apply("elementwise_min" if least and not negative else "elementwise_max", x, found)
    return -found if negative else found


@lowers("index_add")
def _index_add(c: Call, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    source = c.tensor(source)
    if c.dtype == "bool":
        return _copied(c, x, dim, index, _vector(source), True) if alpha else x
    return _copied(c, x, dim, index, _vector(source if alpha == 1 else source * alpha), True)


@lowers("put")
def _put(c: Call, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    values = as_shape(flat(c.tensor(source)), (size_of(index.shape),))
    return scattered(flat(x), flat(index), values, 0, accumulate).reshape(x.shape)


# masks


@lowers("masked_select")
def _masked_select(c: Call, x: Any, mask: Any) -> Any:
    shape = broadcast(x.shape, mask.shape)
    return graph_ops.boolean_mask(flat(fitted(x, shape)), flat(fitted(mask, shape)))


@lowers("masked_scatter")
def _masked_scatter(c: Call, x: Any, mask: Any, source: Any) -> Any:
    shape = broadcast(x.shape, mask.shape)
    mask = flat(fitted(mask, shape))
    source = flat(c.tensor(source))
    # position 0 is one that nothing is read from but where the mask does not hold
    ahead = ops.concat([array_ops.full((1,), 0, c.dtype), source], 0)
    at = graph_ops.where(mask, graph_ops.cumsum(mask.astype("int64"), 0), array_ops.full((), 0, "int64"))
    return graph_ops.where(mask, array_ops.take(ahead, at), flat(fitted(x, shape))).reshape(shape)


# windows that are written to


@lowers("slice_scatter")
def _slice_scatter(
    c: Call, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    dim = axis_of(dim, x.ndim)
    source = as_shape(c.tensor(source), _with(x.shape, dim, source.shape[dim]))
    first = window_start(x.shape[dim], start, end, step, source.shape[dim])
    if step == 1:
        return array_ops.update_slice(x, source, _with((0,) * x.ndim, dim, first))
    index = array_ops.arange(0, source.shape[dim]) * step + first
    return array_ops.scatter(x, index, source, dim)


@lowers("select_scatter")
def _select_scatter(c: Call, x: Any, source: Any, dim: int, index: Any) -> Any:
    dim = axis_of(dim, x.ndim)
    first = position(x.shape[dim], index)
    part = as_shape(c.tensor(source), (*x.shape[:dim], *x.shape[dim + 1 :])).reshape(_with(x.shape, dim, 1))
    return array_ops.update_slice(x, part, _with((0,) * x.ndim, dim, first))


@dataclass
class _Diagonal:
    """Two dims of a tensor, joined behind the others, and the positions of a diagonal in them."""

    x: Any
    index: Any
    order: tuple[int, ...]
    shape: tuple[Any, ...]


def _diagonal_of(x: Any, offset: int, dim1: int, dim2: int, length: Any) -> _Diagonal:
    first, second = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    order = (*(k for k in range(x.ndim) if k not in (first, second)), first, second)
    x = ops.transpose(x, order) if order != tuple(range(x.ndim)) else x
    *others, rows, columns = x.shape
    start = offset if offset >= 0 else -offset * columns
    index = array_ops.arange(0, length) * (columns + 1) + start
    return _Diagonal(x.reshape(*others, size_of((rows, columns))), index, order, x.shape)


@lowers("diagonal", "diagonal_copy")
def _diagonal(c: Call, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    at = _diagonal_of(x, offset, dim1, dim2, c.shape[-1])
    return array_ops.take(at.x, at.index, -1)


@lowers("diagonal_scatter")
def _diagonal_scatter(c: Call, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    at = _diagonal_of(x, offset, dim1, dim2, source.shape[-1])
    values = as_shape(c.tensor(source), (*at.x.shape[:-1], source.shape[-1]))
    found = array_ops.scatter(at.x, at.index, values, -1).reshape(at.shape)
    return ops.transpose(found, tuple(at.order.index(k) for k in range(x.ndim)))


# places of elements


@lowers("nonzero")
def _nonzero(c: Call, x: Any) -> Any:
    return graph_ops.nonzero(x)


@lowers("nonzero_static")
def _nonzero_static(c: Call, x: Any, *, size: Any, fill_value: int = -1) -> Any:
    found = graph_ops.nonzero(x)
    found = as_shape(found, (fresh_dim(c.trace), x.ndim))
    return sliced(ops.concat([found, array_ops.full(c.shape, fill_value, "int64")], 0), {0: (0, c.shape[0])})
