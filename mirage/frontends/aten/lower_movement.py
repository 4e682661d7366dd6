"""Lowerings of operators that move and make elements."""

from __future__ import annotations

from math import isfinite
from typing import Any

import sympy
import torch

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, add, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, axis_of, fitted, joined, reshaped, size_of, sliced
from mirage.ir.types import DTYPES, ELEMENTS

#: a stop beyond every size
_END = 2**63 - 1


add(
    {
        "view": lambda c, x, shape: reshaped(x, c.shape),
        "reshape": lambda c, x, shape: reshaped(x, c.shape),
        "_unsafe_view": lambda c, x, shape: reshaped(x, c.shape),
        "unsqueeze": lambda c, x, dim: reshaped(x, c.shape),
        "squeeze": lambda c, x: reshaped(x, c.shape),
        "squeeze.dim": lambda c, x, dim: reshaped(x, c.shape),
        "squeeze.dims": lambda c, x, dims: reshaped(x, c.shape),
        "flatten.using_ints": lambda c, x, *_: reshaped(x, c.shape),
        "unflatten.int": lambda c, x, dim, sizes: reshaped(x, c.shape),
        "expand": lambda c, x, shape, implicit=False: fitted(x, c.shape),
        "permute": lambda c, x, dims: ops.transpose(x, tuple(axis_of(d, x.ndim) for d in dims)),
        "transpose.int": lambda c, x, a, b: x.swapaxes(a, b) if x.ndim else x,
        "t": lambda c, x: x.swapaxes(0, 1) if x.ndim == 2 else x,
        "full": lambda c, shape, value, **_: filled(c, value),
        "full_like": lambda c, x, value, **_: filled(c, value),
        "new_full": lambda c, x, shape, value, **_: filled(c, value),
        "zeros": lambda c, shape, **_: filled(c, 0),
        "zeros_like": lambda c, x, **_: filled(c, 0),
        "new_zeros": lambda c, x, shape, **_: filled(c, 0),
        "ones": lambda c, shape, **_: filled(c, 1),
        "ones_like": lambda c, x, **_: filled(c, 1),
        "new_ones": lambda c, x, shape, **_: filled(c, 1),
        "flip": lambda c, x, dims: array_ops.flip(x, tuple(axis_of(d, x.ndim) for d in dims)) if dims and x.ndim else x,
    }
)


def filled(c: Call, value: Any) -> Any:
    """The result's type filled with a number."""
    # attributes are finite; what is not is a constant
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        number = float(value) if c.dtype in DTYPES else int(bool(value)) if c.dtype == "bool" else int(value)
        return array_ops.full(c.shape, number, c.dtype)
    return array_ops.broadcast_to(c.tensor(value), c.shape)


@lowers("cat")
def _cat(c: Call, xs: Any, dim: int = 0) -> Any:
    # torch leaves out what it calls legacy empty tensors, whatever the others' rank
    xs = [c.tensor(x) for x in xs if not (x.ndim == 1 and x.shape[0] == 0)]
    if not xs:
        return array_ops.full(c.shape, 0, c.dtype)
    axis = axis_of(dim, xs[0].ndim)
    return joined([as_shape(x, (*c.shape[:axis], x.shape[axis], *c.shape[axis + 1 :])) for x in xs], axis)


@lowers("diff")
def _diff(c: Call, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along a dim, so many times, with other elements before and behind."""
    if c.dtype == "bool" or not isinstance(n, int):
        unsupported("differences of booleans, or as many as only the run tells")
    dim, parts = axis_of(dim, x.ndim), [p for p in (prepend, x, append) if p is not None]
    x = joined(parts, dim) if len(parts) > 1 else x
    for _ in range(n):
        size = x.shape[dim]
        x = sliced(x, {dim: (1, size)}) - sliced(x, {dim: (0, size - 1)})
    return reshaped(x, c.shape)


def position(size: Any, k: Any) -> Any:
    """A position as a dim, counted from the start, and within `size` where that is a number."""
    if isinstance(k, sympy.Expr) and not k.is_Integer:
        return k
    k = int(k)
    if not isinstance(size, int):
        return size + k if k < 0 else k
    return max(size + k, 0) if k < 0 else min(k, size)


def window_start(size: Any, start: Any, end: Any, step: int, wanted: Any) -> Any:
    """The position at which a slice of `wanted` elements begins.

    torch cuts the bounds to the size; where only the run tells how, the number of elements does.
    """
    if (
        step == 1
        and not isinstance(size, int)
        and (end is None or end == _END or (isinstance(start, int) and start < 0))
    ):
        # what ends at the end of the dim, or at a place counted from there
        if end is None or end == _END:
            return size - wanted
        if isinstance(end, int) and end < 0:
            return size + end - wanted
    return 0 if start is None else position(size, start)


@lowers("slice.Tensor", "slice_copy.Tensor")
def _slice(c: Call, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dim = axis_of(dim, x.ndim)
    size, wanted = x.shape[dim], c.shape[dim]
    if wanted == size and step == 1:
        return x
    first = window_start(size, start, end, step, wanted)
    if step == 1:
        return sliced(x, {dim: (first, first + wanted)})
    if isinstance(first, int) and isinstance(wanted, int):
        stop = first + (wanted - 1) * step + 1 if wanted else first
        return apply("slice", x, axes=(dim,), starts=(first,), stops=(stop,), steps=(step,))
    return array_ops.take(x, array_ops.arange(0, wanted) * step + first, dim)


@lowers("select.int", "select_copy.int")
def _select(c: Call, x: Any, dim: int, index: Any) -> Any:
    dim = axis_of(dim, x.ndim)
    first = position(x.shape[dim], index)
    return reshaped(sliced(x, {dim: (first, first + 1)}), c.shape)


@lowers(
    "split_with_sizes",
    "split.Tensor",
    "split.sizes",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes",
    "chunk",
    "split_with_sizes_copy",
)
def _split(c: Call, x: Any, parts: Any, dim: int = 0) -> Any:
    dim = axis_of(dim, x.ndim)
    found, first = [], 0
    for t in c.results:
        size = t.shape[dim]
        found.append(x if size == x.type.shape[dim] else sliced(x, {dim: (first, first + size)}))
        first = first + size
    return tuple(found)


@lowers("unbind.int", "unbind_copy.int")
def _unbind(c: Call, x: Any, dim: int = 0) -> Any:
    dim = axis_of(dim, x.ndim)
    return tuple(reshaped(sliced(x, {dim: (k, k + 1)}), t.shape) for k, t in enumerate(c.results))


@lowers("repeat")
def _repeat(c: Call, x: Any, repeats: Any) -> Any:
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    if all(isinstance(d, int) and d == 1 for d in shape):
        return fitted(x.reshape(shape), c.shape)
    wide = [v for times, d in zip(repeats, shape, strict=True) for v in (times, d)]
    apart = x.reshape([v for d in shape for v in (1, d)])
    return array_ops.broadcast_to(apart, wide).reshape([t * d for t, d in zip(repeats, shape, strict=True)])


@lowers("constant_pad_nd")
def _pad(c: Call, x: Any, pad: Any, value: Any = 0) -> Any:
    low, high = [0] * x.ndim, [0] * x.ndim
    cut: dict[int, tuple[Any, Any]] = {}
    for k in range(len(pad) // 2):
        axis = x.ndim - 1 - k
        before, behind = pad[2 * k], pad[2 * k + 1]
        low[axis], high[axis] = (max(p, 0) if isinstance(p, int) else p for p in (before, behind))
        first, last = (-p if isinstance(p, int) and p < 0 else 0 for p in (before, behind))
        if first or last:
            cut[axis] = (first, x.shape[axis] - last)
    if cut:
        x = sliced(x, cut)
    if c.dtype not in DTYPES:
        value = int(bool(value)) if c.dtype == "bool" else int(value)
    if c.dtype in DTYPES and not isfinite(value):
        # no attribute of an operator is infinite
        inside = array_ops.pad(array_ops.full(x.shape, 1, "bool"), low, high, 0)
        return graph_ops.where(inside, array_ops.pad(x, low, high, 0), c.tensor(value))
    return array_ops.pad(x, low, high, value)


@lowers("roll")
def _roll(c: Call, x: Any, shifts: Any, dims: Any = ()) -> Any:
    if not x.ndim:
        return x
    shifts = shifts if isinstance(shifts, list | tuple) else [shifts]
    dims = dims if isinstance(dims, list | tuple) else [dims]
    if not dims:
        return _rolled(x.reshape(size_of(x.shape)), shifts[0], 0).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(x, shift, axis_of(dim, x.ndim))
    return x


def _rolled(x: Any, shift: Any, axis: int) -> Any:
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(shift, int):
        at = shift % size if size else 0
        parts = [sliced(x, {axis: (size - at, size)}), sliced(x, {axis: (0, size - at)})]
        return ops.concat(parts, axis) if at else x
    return array_ops.take(x, (array_ops.arange(0, size) - shift) % size, axis)


@lowers("unfold", "unfold_copy")
def _unfold(c: Call, x: Any, dim: int, size: Any, step: Any) -> Any:
    if not x.ndim:
        return x.reshape(1) if c.shape == (1,) else unsupported("a tensor without dims has one window")
    axis = axis_of(dim, x.ndim)
    starts = array_ops.arange(0, c.shape[axis]) * step
    found = array_ops.take(x, starts.reshape(c.shape[axis], 1) + array_ops.arange(0, size), axis)
    # the places within a window are the last dim
    order = [k for k in range(x.ndim + 1) if k != axis + 1]
    return ops.transpose(found, (*order, axis + 1))


def _strided(c: Call, shape: Any, stride: Any, offset: Any) -> Any:
    """The places in memory of the elements of a view."""
    index = array_ops.full((), 0, "int64")
    for k, (n, s) in enumerate(zip(shape, stride, strict=True)):
        index = index + (array_ops.arange(0, n) * s).reshape(n, *(1,) * (len(shape) - 1 - k))
    return fitted(index if offset is None else index + offset, shape)


@lowers("as_strided", "as_strided_copy")
def _as_strided(c: Call, x: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    return array_ops.take(x.reshape(size_of(x.shape)), _strided(c, c.shape, stride, offset))


@lowers("as_strided_scatter")
def _as_strided_scatter(c: Call, x: Any, source: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    index = _strided(c, source.shape, stride, offset)
    return array_ops.scatter(x.reshape(size_of(x.shape)), index, c.tensor(source), 0).reshape(x.shape)


@lowers("tril", "triu")
def _triangle(c: Call, x: Any, diagonal: int = 0) -> Any:
    if x.ndim < 2:
        unsupported("a tensor with fewer than two dims")
    rows, columns = x.shape[-2:]
    across = array_ops.arange(0, columns) - array_ops.arange(0, rows).reshape(rows, 1)
    kept = across <= diagonal if c.name.startswith("aten.tril") else across >= diagonal
    return graph_ops.where(kept, x, c.tensor(0))


@lowers("tril_indices", "triu_indices")
def _triangle_indices(c: Call, rows: Any, columns: Any, offset: int = 0, **_: Any) -> Any:
    if not isinstance(rows, int) or not isinstance(columns, int):
        unsupported("the number of positions depends on sizes")
    found = getattr(torch, c.name.split(".")[1])(rows, columns, offset)
    return c.trace.wrap(c.trace.array(c.name, found.numpy().astype(ELEMENTS[c.dtype])))
