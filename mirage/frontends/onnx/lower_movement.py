"""Lowerings of operators that move elements, and make them of shapes."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
import sympy

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.onnx.values import SMALL, array_of
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, axis_of, broadcast, fitted, fresh_dim, joined, reshaped, size_of, sliced
from mirage.ir.dims import Dim, divide, floor_div, maximum, minimum, to_dim
from mirage.ir.types import DTYPES, ELEMENTS, INTEGERS


def items(known: np.ndarray | None) -> list[Any]:
    """The elements of what is known: integers and dims."""
    return [] if known is None else [int(x) if not isinstance(x, sympy.Expr) else x for x in np.asarray(known).flat]


def numbers(known: np.ndarray | None, what: str) -> list[int]:
    """The elements, where they are integers; raises UnsupportedNode for dims."""
    found = items(known)
    if any(isinstance(x, sympy.Expr) for x in found):
        unsupported(f"{what} are dims that only the run tells")
    return found


def axes_given(c: Call, known: np.ndarray | None, rank: int) -> list[int] | None:
    """Axes, counted from the front, of an operand or an attribute; None where there are none."""
    found = numbers(known, "axes") if known is not None else c.attr("axes")
    return None if found is None else [axis_of(int(a), rank) for a in found]


@lowers("Reshape", static=(1,), since=5)
def _reshape(c: Call, x: Any, shape: Any) -> Any:
    wanted = items(shape)
    if not c.attr("allowzero", 0):
        wanted = [x.shape[k] if n == 0 and isinstance(n, int) else n for k, n in enumerate(wanted)]
    if -1 in [n for n in wanted if isinstance(n, int)]:
        at = next(k for k, n in enumerate(wanted) if isinstance(n, int) and n == -1)
        rest = size_of([n for k, n in enumerate(wanted) if k != at])
        whole = size_of(x.shape)
        if rest == 0:
            unsupported("it has no elements, and an open dim")
        found = divide(to_dim(whole), to_dim(rest))
        wanted[at] = floor_div(to_dim(whole), to_dim(rest)) if found is None else found
    return reshaped(x, tuple(wanted))


@lowers("Flatten")
def _flatten(c: Call, x: Any) -> Any:
    axis = c.attr("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return reshaped(x, (size_of(x.shape[:axis]), size_of(x.shape[axis:])))


@lowers("Transpose")
def _transpose(c: Call, x: Any) -> Any:
    return ops.transpose(x, tuple(c.attr("perm", list(reversed(range(x.ndim)))))) if x.ndim > 1 else x


@lowers("Unsqueeze", static=(1,))
def _unsqueeze(c: Call, x: Any, axes: Any = None) -> Any:
    given = numbers(axes, "axes") if axes is not None else c.attr("axes")
    new = sorted(axis_of(a, x.ndim + len(given)) for a in given)
    shape = list(x.shape)
    for a in new:
        shape.insert(a, 1)
    return x.reshape(tuple(shape))


@lowers("Squeeze", static=(1,))
def _squeeze(c: Call, x: Any, axes: Any = None) -> Any:
    gone = axes_given(c, axes, x.ndim)
    if gone is None:
        gone = [k for k, d in enumerate(x.shape) if isinstance(d, int) and d == 1]
    return reshaped(x, tuple(d for k, d in enumerate(x.shape) if k not in gone))


@lowers("Concat", since=4)
def _concat(c: Call, *xs: Any) -> Any:
    axis = axis_of(c.attr("axis"), xs[0].ndim)
    first = xs[0].shape
    return joined([as_shape(x, (*first[:axis], x.shape[axis], *first[axis + 1 :])) for x in xs], axis)


@lowers("Split", static=(1,))
def _split(c: Call, x: Any, sizes: Any = None) -> Any:
    axis = axis_of(c.attr("axis", 0), x.ndim)
    size = x.shape[axis]
    parts = items(sizes) if sizes is not None else c.attr("split")
    if parts is None:
        count = c.attr("num_outputs", c.outputs)
        if not isinstance(size, int):
            part = divide(to_dim(size), sympy.Integer(count))
            parts = [part] * count if part is not None else unsupported("parts of a dim that only the run tells")
        else:
            part = -(-size // count)
            parts = [max(min(part, size - part * k), 0) for k in range(count)]
    ends = list(accumulate(parts))
    return tuple(sliced(x, {axis: (end - n, end)}) for n, end in zip(parts, ends, strict=True))


def _bounded(x: Any, size: Any, low: int, high: Any) -> Dim:
    """A start or an end counted from the front, and cut to the dim."""
    x = to_dim(size) + x if isinstance(x, int) and x < 0 else sympy.sympify(x)
    high = to_dim(size) + high
    if isinstance(size, int) and x.is_Integer:
        return sympy.Integer(min(max(int(x), low), int(high)))
    if x.is_Integer and int(x) >= 2**31 - 1:
        return high
    if x in (high, low):
        return x
    if sympy.expand(high - x).is_Integer:
        return maximum(sympy.Integer(low), x)
    return maximum(sympy.Integer(low), minimum(x, high))


@lowers("Slice", static=(1, 2, 3, 4), since=10)
def _slice(c: Call, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = items(starts), items(ends)
    along = [axis_of(a, x.ndim) for a in (numbers(axes, "axes") if axes is not None else range(len(first)))]
    by = numbers(steps, "steps") if steps is not None else [1] * len(first)
    windows, backwards = {}, []
    for a, low, high, step in zip(along, first, last, by, strict=True):
        size = x.shape[a]
        if step > 0:
            begin, end = _bounded(low, size, 0, 0), _bounded(high, size, 0, 0)
            if begin == 0 and step == 1 and end == to_dim(size):
                continue
            windows[a] = begin, maximum(begin, end), step
            continue
        # from the other end: the elements at start, start + step, ... above the end are those of the reversed dim
        begin, end = _bounded(low, size, -1, -1), _bounded(high, size, -1, -1)
        if (isinstance(high, int) and isinstance(size, int) and high < -size) or (
            isinstance(high, int) and high <= -(2**31) + 1
        ):
            end = sympy.Integer(-1)
        backwards.append(a)
        windows[a] = to_dim(size) - 1 - begin, maximum(to_dim(size) - 1 - begin, to_dim(size) - 1 - end), -step
    if backwards:
        x = array_ops.flip(x, tuple(backwards))
    if not windows:
        return x
    begins, stops, by_ = zip(*windows.values(), strict=True)
    return apply("slice", x, axes=tuple(windows), starts=begins, stops=stops, steps=by_)


@lowers("Expand", static=(1,))
def _expand(c: Call, x: Any, shape: Any) -> Any:
    return fitted(x, broadcast(tuple(items(shape)), x.shape))


@lowers("Tile", static=(1,), since=6)
def _tile(c: Call, x: Any, repeats: Any) -> Any:
    times = items(repeats)
    wide = x.reshape(tuple(v for n, d in zip(times, x.shape, strict=True) for v in (1, d)))
    whole = array_ops.broadcast_to(wide, tuple(v for n, d in zip(times, x.shape, strict=True) for v in (n, d)))
    return whole.reshape(tuple(n * d for n, d in zip(times, x.shape, strict=True)))


@lowers("Pad", static=(1, 3), since=2)
def _pad(c: Call, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    along = axes_given(c, axes, x.ndim) or list(range(x.ndim))
    given = numbers(pads, "pads") if pads is not None else c.attr("pads")
    low, high = [0] * x.ndim, [0] * x.ndim
    for k, a in enumerate(along):
        low[a], high[a] = given[k], given[k + len(along)]
    mode = c.attr("mode", "constant")
    cut = {
        k: (max(-a, 0), x.shape[k] - max(-b, 0))
        for k, (a, b) in enumerate(zip(low, high, strict=True))
        if a < 0 or b < 0
    }
    if cut:
        x = sliced(x, cut)
    low, high = [max(a, 0) for a in low], [max(b, 0) for b in high]
    if mode == "constant":
        return _padded(c, x, low, high, value)
    for k, (a, b) in enumerate(zip(low, high, strict=True)):
        if a or b:
            x = array_ops.take(x, _mirrored(x, k, a, b, mode), k)
    return x


def _padded(c: Call, x: Any, low: list[int], high: list[int], value: Any) -> Any:
    known = c.known(2) if value is not None else np.asarray(c.attr("value", 0))
    if known is not None and x.dtype != "bool" and np.isfinite(known.item()):
        number = known.item()
        return array_ops.pad(x, low, high, number if x.dtype in DTYPES else int(number))
    fill = c.constant(False, x.dtype) if value is None else value.reshape(())
    ones = array_ops.pad(array_ops.full(x.shape, 1, "int32"), low, high, 0)
    wide = array_ops.pad(graph_ops.cast(x, "int32") if x.dtype == "bool" else x, low, high, 0)
    return graph_ops.where(graph_ops.equal(ones, 1), c.cast(wide, x.dtype), fill)


def _mirrored(x: Any, axis: int, low: int, high: int, mode: str) -> Any:
    """The positions along an axis that elements of the padded one have."""
    size = x.shape[axis]
    at = array_ops.arange(0, low + to_dim(size) + high) - low
    last = array_ops.dim_value(size) - 1
    if mode == "edge":
        return apply("elementwise_min", apply("elementwise_max", at, 0), last)
    if mode == "wrap":
        return apply("remainder", at, last + 1)
    if isinstance(size, int) and size == 1:
        return apply("elementwise_min", apply("elementwise_max", at, 0), last)
    turned = apply("remainder", at, last * 2)
    return apply("elementwise_min", turned, last * 2 - turned)


@lowers("DepthToSpace")
def _depth_to_space(c: Call, x: Any) -> Any:
    n, size = c.attr("blocksize"), x.shape
    b, channels, h, w = size
    part = floor_div(to_dim(channels), sympy.Integer(n * n))
    if c.attr("mode", "DCR") == "DCR":
        wide = ops.transpose(x.reshape((b, n, n, part, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        wide = ops.transpose(x.reshape((b, part, n, n, h, w)), (0, 1, 4, 2, 5, 3))
    return wide.reshape((b, part, h * n, w * n))


@lowers("SpaceToDepth")
def _space_to_depth(c: Call, x: Any) -> Any:
    n = c.attr("blocksize")
    b, channels, h, w = x.shape
    rows, columns = (floor_div(to_dim(d), sympy.Integer(n)) for d in (h, w))
    order = (0, 3, 5, 1, 2, 4) if c.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    wide = ops.transpose(reshaped(x, (b, channels, rows, n, columns, n)), order)
    return wide.reshape((b, channels * n * n, rows, columns))


@lowers("Trilu", static=(1,))
def _trilu(c: Call, x: Any, k: Any = None) -> Any:
    offset = 0 if k is None else int(np.asarray(k).item())
    rows, columns = array_ops.arange(x.shape[-2]).reshape((x.shape[-2], 1)), array_ops.arange(x.shape[-1])
    kept = columns >= rows + offset if c.attr("upper", 1) else columns <= rows + offset
    if x.dtype == "bool":
        return graph_ops.logical_and(x, kept)
    return graph_ops.where(kept, x, 0)


@lowers("EyeLike")
def _eye_like(c: Call, x: Any) -> Any:
    rows, columns = array_ops.arange(x.shape[0]).reshape((x.shape[0], 1)), array_ops.arange(x.shape[1])
    return c.cast(graph_ops.equal(columns, rows + c.attr("k", 0)), c.dtype_of("dtype", x.dtype))


@lowers("Range", static=(0, 1, 2))
def _range(c: Call, start: Any, limit: Any, step: Any) -> Any:
    first, last, by = (np.asarray(v).item() for v in (start, limit, step))
    dtype = "int64" if start.dtype == object else start.dtype.name
    if dtype not in ELEMENTS:
        unsupported("of small integers")
    if isinstance(by, int) and by > 0 and isinstance(first, int) and first >= 0:
        return array_ops.arange(first, last, by, dtype)
    if any(isinstance(v, sympy.Expr) for v in (first, last, by)):
        unsupported("it begins or steps by a dim that only the run tells")
    if by == 0 or not np.isfinite((last - first) / by):
        unsupported("it has no step, or no end")
    count = max(math.ceil((last - first) / by), 0)
    if count <= SMALL:
        return (first + np.arange(count) * by).astype(start.dtype)
    # in whole numbers, or else rounded once, at the end
    between = dtype if dtype in INTEGERS else "float64"
    return c.cast(
        c.cast(array_ops.arange(count), between) * c.constant(by, between) + c.constant(first, between), dtype
    )


@lowers("ConstantOfShape", static=(0,))
def _constant_of_shape(c: Call, shape: Any) -> Any:
    value = c.attrs.get("value")
    element = np.zeros(1, np.float32) if value is None else array_of(value)
    if element.dtype.name not in {**DTYPES, "int32": 0, "int64": 0, "bool": 0}:
        unsupported("it is of an element type that is not computed with")
    return array_ops.broadcast_to(c.constant(element.reshape(()), element.dtype.name), tuple(items(shape)))


# positions that tensors hold


@lowers("Gather")
def _gather(c: Call, x: Any, indices: Any) -> Any:
    known = c.known(1)
    axis = axis_of(c.attr("axis", 0), x.ndim)
    if known is not None and known.shape == () and known.dtype != object:
        at = int(known)
        start = to_dim(x.shape[axis]) + at if at < 0 else sympy.Integer(at)
        part = sliced(x, {axis: (start, start + 1)})
        return part.reshape(tuple(d for k, d in enumerate(x.shape) if k != axis))
    return array_ops.take(x, indices, axis)


@lowers("GatherElements")
def _gather_elements(c: Call, x: Any, indices: Any) -> Any:
    axis = axis_of(c.attr("axis", 0), x.ndim)
    window = {k: (0, n) for k, (d, n) in enumerate(zip(x.shape, indices.shape, strict=True)) if k != axis and d != n}
    return array_ops.take_along_axis(sliced(x, window) if window else x, indices, axis)


def _linear(x: Any, indices: Any, first: int) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Positions, among the elements of dims from `first` on, of places whose coordinates are the last dim of `indices`; these
    dims; and the dims of a slice there.
    """
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        unsupported("the number of coordinates is only known at a call")
    dims = x.shape[first : first + depth]
    found: Any = None
    for k, d in enumerate(dims):
        at = sliced(indices, {indices.ndim - 1: (k, k + 1)}).reshape(indices.shape[:-1])
        size = array_ops.dim_value(d)
        at = graph_ops.cast(at, "int64")
        at = graph_ops.where(at < 0, at + size, at)
        found = at if found is None else found * size + at
    if found is None:
        unsupported("it has no coordinates")
    return found, dims, x.shape[first + depth :]


@lowers("GatherND")
def _gather_nd(c: Call, x: Any, indices: Any) -> Any:
    batch = c.attr("batch_dims", 0)
    at, dims, rest = _linear(x, indices, batch)
    lead = x.shape[:batch]
    count = size_of(lead) if batch else 1
    if batch:
        step = array_ops.dim_value(size_of(dims))
        base = array_ops.arange(to_dim(count)) * step
        at = at.reshape((count, *at.shape[batch:])) + base.reshape((count, *(1,) * (at.ndim - batch)))
        at = at.reshape((*lead, *indices.shape[batch:-1]))
    flat = x.reshape((size_of((*lead, *dims)), *rest))
    return array_ops.take(flat, at, 0)


@lowers("ScatterElements", "Scatter")
def _scatter_elements(c: Call, x: Any, indices: Any, updates: Any) -> Any:
    how, axis = c.attr("reduction", "none"), axis_of(c.attr("axis", 0), x.ndim)
    if how not in ("none", "add"):
        unsupported(f"it reduces by {how}")
    if all(k == axis or d == n for k, (d, n) in enumerate(zip(x.shape, indices.shape, strict=True))):
        return array_ops.put_along_axis(x, indices, updates, axis, how == "add")
    # fewer places than there are along other dims: positions among all elements
    coordinates: Any = None
    for k, d in enumerate(x.shape):
        size = array_ops.dim_value(d)
        here = graph_ops.cast(indices, "int64")
        if k == axis:
            here = graph_ops.where(here < 0, here + size, here)
        else:
            own = [1] * x.ndim
            own[k] = indices.shape[k]
            here = array_ops.broadcast_to(array_ops.arange(indices.shape[k]).reshape(tuple(own)), indices.shape)
        coordinates = here if coordinates is None else coordinates * size + here
    flat = array_ops.scatter(x.reshape(-1), coordinates.reshape(-1), updates.reshape(-1), 0, how == "add")
    return flat.reshape(x.shape)


@lowers("ScatterND")
def _scatter_nd(c: Call, x: Any, indices: Any, updates: Any) -> Any:
    how = c.attr("reduction", "none")
    if how not in ("none", "add"):
        unsupported(f"it reduces by {how}")
    at, dims, rest = _linear(x, indices, 0)
    flat = x.reshape((size_of(dims), *rest))
    count = size_of(indices.shape[:-1])
    found = array_ops.scatter(flat, at.reshape((count,)), reshaped(updates, (count, *rest)), 0, how == "add")
    return found.reshape(x.shape)


@lowers("OneHot", static=(1,))
def _one_hot(c: Call, indices: Any, depth: Any, values: Any) -> Any:
    (size,) = items(np.trunc(depth).astype(np.int64) if depth.dtype != object else depth)
    axis = c.attr("axis", -1)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    at = graph_ops.cast(indices, "int64")
    at = graph_ops.where(at < 0, at + array_ops.dim_value(size), at)
    own = [1] * (indices.ndim + 1)
    own[axis] = size
    here = graph_ops.equal(array_ops.expand_dims(at, axis), array_ops.arange(size).reshape(tuple(own)))
    off, on = (sliced(values, {0: (k, k + 1)}).reshape(()) for k in (0, 1))
    return graph_ops.where(here, on, off)


@lowers("NonZero")
def _nonzero(c: Call, x: Any) -> Any:
    found = as_shape(graph_ops.nonzero(x), (fresh_dim(c.trace), x.ndim))
    return found.swapaxes(0, 1)


@lowers("Compress")
def _compress(c: Call, x: Any, condition: Any) -> Any:
    axis = c.attr("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(axis, x.ndim)
    places = as_shape(graph_ops.nonzero(condition), (fresh_dim(c.trace), 1))
    return array_ops.take(x, places.reshape(places.shape[:1]), axis)


@lowers("TensorScatter")
def _tensor_scatter(c: Call, x: Any, update: Any, starts: Any = None) -> Any:
    axis = axis_of(c.attr("axis", -2), x.ndim)
    at = array_ops.arange(update.shape[axis]).reshape(
        (1, *(update.shape[axis] if k == axis else 1 for k in range(1, x.ndim)))
    )
    if starts is not None:
        at = at + graph_ops.cast(starts, "int64").reshape((starts.shape[0], *(1,) * (x.ndim - 1)))
    if c.attr("mode", "linear") == "circular":
        at = apply("remainder", at, array_ops.dim_value(x.shape[axis]))
    return array_ops.put_along_axis(x, array_ops.broadcast_to(at, update.shape), update, axis)


@lowers("ReverseSequence")
def _reverse_sequence(c: Call, x: Any, lengths: Any) -> Any:
    batch, time = c.attr("batch_axis", 1), c.attr("time_axis", 0)
    own, wide = [1] * x.ndim, [1] * x.ndim
    own[time], wide[batch] = x.shape[time], x.shape[batch]
    at, end = array_ops.arange(x.shape[time]).reshape(tuple(own)), lengths.reshape(tuple(wide))
    end = graph_ops.cast(end, "int64")
    places = graph_ops.where(at < end, end - 1 - at, at)
    return array_ops.take_along_axis(x, array_ops.broadcast_to(places, x.shape), time)
