"""Lowerings of operators that move, make and pick elements."""

from __future__ import annotations

from math import inf
from typing import Any

import sympy

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, add, lowers, unsupported
from mirage.frontends.proxy import apply
from mirage.ir.types import DTYPES

#: a stop beyond every size
_END = 2**63 - 1


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis


add(
    {
        "view": lambda c, x, shape: x.reshape(c.shape),
        "reshape": lambda c, x, shape: x.reshape(c.shape),
        "_unsafe_view": lambda c, x, shape: x.reshape(c.shape),
        "unsqueeze": lambda c, x, dim: x.reshape(c.shape),
        "squeeze": lambda c, x: x.reshape(c.shape),
        "squeeze.dim": lambda c, x, dim: x.reshape(c.shape),
        "squeeze.dims": lambda c, x, dims: x.reshape(c.shape),
        "flatten.using_ints": lambda c, x, *_: x.reshape(c.shape),
        "expand": lambda c, x, shape, implicit=False: expanded(c, x),
        "permute": lambda c, x, dims: ops.transpose(x, tuple(axis_of(d, x.ndim) for d in dims)),
        "transpose.int": lambda c, x, a, b: x.swapaxes(a, b) if x.ndim else x,
        "t": lambda c, x: x.swapaxes(0, 1) if x.ndim == 2 else x,
        "cat": lambda c, xs, dim=0: _cat(c, xs, dim),
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
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if c.dtype in DTYPES else int(value)
        return array_ops.full(c.shape, number, c.dtype)
    return array_ops.broadcast_to(c.tensor(value), c.shape)


def expanded(c: Call, x: Any) -> Any:
    """The tensor repeated along dims of size 1 to the result's shape."""
    return x if x.type.shape == c.result.shape else array_ops.broadcast_to(x, c.shape)


def _cat(c: Call, xs: Any, dim: int) -> Any:
    # torch leaves out what it calls legacy empty tensors, whatever the others' rank
    xs = [c.tensor(x) for x in xs if not (x.ndim == 1 and x.shape[0] == 0 and len(c.shape) != 1)]
    if not xs:
        unsupported("nothing is joined")
    return xs[0] if len(xs) == 1 else ops.concat(xs, axis_of(dim, xs[0].ndim))


def position(size: Any, k: Any, default: Any) -> Any:
    """A start or stop of a slice as a dim within `size`; raises UnsupportedNode where only the run tells whether it is."""
    if k is None:
        return default
    if isinstance(k, sympy.Expr) and not k.is_Integer:
        return k
    k = int(k)
    if k < 0:
        return max(size + k, 0) if isinstance(size, int) else size + k
    if k >= _END:
        return size
    return min(k, size) if isinstance(size, int) else k


@lowers("slice.Tensor")
def _slice(c: Call, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dim = axis_of(dim, x.ndim)
    size, wanted = x.shape[dim], c.shape[dim]
    first = position(size, start, 0)
    if wanted == size and step == 1:
        return x
    if step == 1:
        # what torch says of the result tells how it cut the window to the size
        last = first + wanted
    else:
        last = position(size, end, size)
        if isinstance(first, int) and isinstance(last, int):
            last = max(first, last)
    return apply("slice", x, axes=(dim,), starts=(first,), stops=(last,), steps=(step,))


@lowers("select.int")
def _select(c: Call, x: Any, dim: int, index: Any) -> Any:
    dim = axis_of(dim, x.ndim)
    first = position(x.shape[dim], index, 0)
    return apply("slice", x, axes=(dim,), starts=(first,), stops=(first + 1,), steps=(1,)).reshape(c.shape)


@lowers("split_with_sizes", "split.Tensor", "unsafe_split.Tensor", "chunk", "unbind.int", "split_with_sizes_copy")
def _split(c: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    unbound = c.name == "aten.unbind.int"
    dim = axis_of(kwargs.get("dim", args[0 if unbound else 1] if len(args) > (0 if unbound else 1) else 0), x.ndim)
    parts, first = [], 0
    for t in c.results:
        size = 1 if unbound else t.shape[dim]
        part = apply("slice", x, axes=(dim,), starts=(first,), stops=(first + size,), steps=(1,))
        parts.append(part.reshape(t.shape) if unbound else part)
        first = first + size
    return tuple(parts)


@lowers("arange.start_step", "arange.start", "arange")
def _arange(c: Call, *args: Any, **_: Any) -> Any:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) == 3 else 1)
    counted = array_ops.arange(0, c.shape[0])
    if all(isinstance(v, int | sympy.Expr) for v in (start, step)) and c.dtype not in DTYPES:
        return c.tensor(counted * step + start if step != 1 or start != 0 else counted)
    return c.tensor(counted) * step + start


@lowers("repeat")
def _repeat(c: Call, x: Any, repeats: Any) -> Any:
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    x = x.reshape(shape)
    for axis, times in enumerate(repeats):
        if times != 1:
            x = _tiled(x, axis, times)
    return x


def _tiled(x: Any, axis: int, times: Any) -> Any:
    shape = x.shape
    wide = array_ops.broadcast_to(x.reshape(*shape[:axis], 1, *shape[axis:]), (*shape[:axis], times, *shape[axis:]))
    return wide.reshape(*shape[:axis], times * shape[axis], *shape[axis + 1 :])


@lowers("constant_pad_nd")
def _pad(c: Call, x: Any, pad: Any, value: Any = 0) -> Any:
    low, high = [0] * x.ndim, [0] * x.ndim
    for k in range(len(pad) // 2):
        low[x.ndim - 1 - k], high[x.ndim - 1 - k] = pad[2 * k], pad[2 * k + 1]
    if any(isinstance(p, int) and p < 0 for p in (*low, *high)):
        unsupported("it cuts elements off")
    if value in (inf, -inf):
        unsupported("it pads with infinity")
    return array_ops.pad(x, tuple(low), tuple(high), value)


@lowers("embedding")
def _embedding(c: Call, weight: Any, indices: Any, *_: Any, **__: Any) -> Any:
    return array_ops.take(weight, indices, 0)


@lowers("index_select")
def _index_select(c: Call, x: Any, dim: int, index: Any) -> Any:
    if not x.ndim or not index.ndim:
        return array_ops.take(x.reshape(1) if not x.ndim else x, index.reshape(1), dim).reshape(c.shape)
    return array_ops.take(x, index, axis_of(dim, x.ndim))


@lowers("gather")
def _gather(c: Call, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    if not x.ndim or x.shape[:dim] != index.shape[:dim]:
        unsupported("the index has other dims than the tensor")
    return array_ops.take_along_axis(x, index, axis_of(dim, x.ndim))


@lowers("tril", "triu")
def _triangle(c: Call, x: Any, diagonal: int = 0) -> Any:
    rows, columns = x.shape[-2:]
    across = array_ops.arange(0, columns) - array_ops.arange(0, rows).reshape(rows, 1)
    kept = across <= diagonal if c.name.startswith("aten.tril") else across >= diagonal
    return graph_ops.where(kept, x, c.tensor(0))
