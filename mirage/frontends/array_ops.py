"""Operators on places that only graphs have, as functions for `mirage.compile`: `mirage.take(table, ids)`.

Indices, windows, arrangement, creation. Their meaning is NumPy's unless said otherwise. Shapes, starts and sizes are dims:
integers, text such as "4*n", or expressions of `x.shape`. Errors are those of `mirage.frontends.ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import sympy

from mirage.frontends.graph_ops import cast, equal, greater_equal
from mirage.frontends.ops import concat
from mirage.frontends.proxy import Axes, Operand, Proxy, Scalar, apply, axes_of, fail, located, tensor_operand
from mirage.ir.dims import Dim, DimLike, divide, to_dim

Shape = DimLike | Sequence[DimLike]


def _axis(name: str, axis: int, rank: int) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__") or not -rank <= axis < rank:
        fail(f"{name}: axis {axis!r} is out of range; use {-rank} to {rank - 1}")
    return int(axis) % rank


def _dim(name: str, what: str, value: DimLike) -> Dim:
    with located():
        return to_dim(value, f"{name}: {what}")


# positions that tensors hold


def _indices(indices: Operand) -> Operand:
    """An integer as a tensor of indices."""
    whole = hasattr(indices, "__index__") and not isinstance(indices, Proxy | bool)
    return full((), indices, "int64") if whole else indices


def take(x: Proxy, indices: Operand, axis: int = 0) -> Proxy:
    """The slices of `x` at integer positions along `axis`: rows of an embedding table, say.

    `axis` is replaced by the dims of `indices`. Negative positions count from the end; one outside of the dim is an InputError
    at run time.
    """
    return apply("take", x, _indices(indices), axis=axis)


def take_along_axis(x: Proxy, indices: Operand, axis: int = -1) -> Proxy:
    """Element j along `axis` is the one at position `indices[j]`, for each place of the other dims, which broadcast."""
    return apply("take_along_axis", x, indices, axis=axis)


def scatter(x: Proxy, indices: Operand, values: Operand, axis: int = 0, add: bool = False) -> Proxy:
    """A copy of `x` in which `values` are written to `take(x, indices, axis)`, or added to it."""
    return apply("scatter", x, _indices(indices), values, axis=axis, add=add)


def put_along_axis(x: Proxy, indices: Operand, values: Operand, axis: int = -1, add: bool = False) -> Proxy:
    """A copy of `x` in which `values` are written to `take_along_axis(x, indices, axis)`, or added to it."""
    return apply("put_along_axis", x, indices, values, axis=axis, add=add)


def one_hot(indices: Proxy, depth: DimLike, dtype: object = "float32") -> Proxy:
    """A new last dim of size `depth` that is 1 at the position that `indices` holds, else 0."""
    t = tensor_operand("one_hot", indices)
    return cast(equal(expand_dims(t, -1), arange(depth, dtype=t.dtype)), dtype)


# windows and dims


def pad(x: Proxy, low: Shape, high: Shape, value: Scalar = 0) -> Proxy:
    """`low[k]` elements `value` before and `high[k]` behind along each dim k."""
    return apply("pad", x, low=low, high=high, value=value)


def update_slice(x: Proxy, window: Proxy, starts: Shape) -> Proxy:
    """A copy of `x` in which the window that begins at `starts`, one per dim, holds `window`."""
    return apply("update_slice", x, window, starts=starts)


def split(x: Proxy, parts: int, axis: int = 0) -> tuple[Proxy, ...]:
    """`parts` slices of equal size along `axis`; raises TraceError unless `parts` divides the dim at every size."""
    t = tensor_operand("split", x)
    at = _axis("split", axis, t.ndim)
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        fail(f"split: parts={parts!r} is not a positive integer")
    size = t.type.shape[at]
    part = divide(size, sympy.Integer(parts))
    if part is None:
        fail(f"split: {parts} does not divide dim {at} of {t!r} for every size; name the dim {parts}*m")
    bounds = [sympy.expand(part * k) for k in range(parts + 1)]
    return tuple(apply("slice", t, axes=(at,), starts=(a,), stops=(b,)) for a, b in pairwise(bounds))


def expand_dims(x: Proxy, axis: int) -> Proxy:
    """A new dim of size 1 that is dim `axis` of the result."""
    t = tensor_operand("expand_dims", x)
    at = _axis("expand_dims", axis, t.ndim + 1)
    return t.reshape(*t.shape[:at], 1, *t.shape[at:])


def squeeze(x: Proxy, axis: int) -> Proxy:
    """Without dim `axis`, which has to be 1."""
    t = tensor_operand("squeeze", x)
    at = _axis("squeeze", axis, t.ndim)
    if t.shape[at] != 1:
        fail(f"squeeze: dim {at} of {t!r} is not 1; reduce it, or index it with x[..., 0]")
    return t.reshape(*t.shape[:at], *t.shape[at + 1 :])


def stack(xs: Sequence[Proxy], axis: int = 0) -> Proxy:
    """Tensors of one shape along a new dim, which is dim `axis` of the result."""
    if isinstance(xs, Proxy) or not xs:
        fail("stack: pass a list of at least one tensor")
    at = _axis("stack", axis, tensor_operand("stack", xs[0]).ndim + 1)
    for x in xs:
        if tensor_operand("stack", x).shape != xs[0].shape:
            fail(f"stack: {x!r} and {xs[0]!r} differ in shape; reshape one of them")
    return concat([expand_dims(x, at) for x in xs], at)


def broadcast_to(x: Proxy, shape: Shape) -> Proxy:
    """`x` under a shape that its dims broadcast to."""
    return apply("broadcast_to", x, shape=shape)


def flip(x: Proxy, axis: Axes = None) -> Proxy:
    """The elements in reverse order along `axis`: an int, a tuple, or None for all dims."""
    t = tensor_operand("flip", x)
    return apply("flip", t, axes=axes_of("flip", axis, t.ndim))


# creation


def full(shape: Shape, value: Scalar, dtype: object = "float32") -> Proxy:
    """A tensor of a shape, every element `value`."""
    return apply("full", shape=shape, value=int(value) if isinstance(value, bool) else value, dtype=dtype)


def zeros(shape: Shape, dtype: object = "float32") -> Proxy:
    """A tensor of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Shape, dtype: object = "float32") -> Proxy:
    """A tensor of ones."""
    return full(shape, 1, dtype)


def arange(start: DimLike, stop: DimLike | None = None, step: int = 1, dtype: object = "int64") -> Proxy:
    """start, start + step, ... below `stop`, as a tensor of rank 1; `arange(n)` is 0, 1, ... below n."""
    first, last = (0, start) if stop is None else (start, stop)
    return apply("arange", stop=last, start=first, step=step, dtype=dtype)


def dim_value(dim: DimLike) -> Proxy:
    """The size of a dim as an int64 tensor of rank 0, to compute with as data."""
    return apply("dim_value", dim=dim)


def causal_mask(queries: DimLike, keys: DimLike) -> Proxy:
    """Booleans `[queries, keys]`: which keys a query attends to, if the last query is at the position of the last key."""
    rows, columns = _dim("causal_mask", "queries", queries), _dim("causal_mask", "keys", keys)
    positions = arange(sympy.expand(columns - rows), columns)
    return greater_equal(expand_dims(positions, 1), arange(columns))


# shapes that are values


def reshape_to(x: Proxy, shape: Operand) -> Proxy:
    """The elements under a shape that is a value (`shape_of`, `call_shape`); checked at run time."""
    return apply("reshape_to", x, shape)


def broadcast_to_shape(x: Proxy, shape: Operand) -> Proxy:
    """`x` under a shape that is a value and that its dims broadcast to; checked at run time."""
    return apply("broadcast_to_shape", x, shape)


def full_of(shape: Operand, value: Scalar, dtype: object = "float32") -> Proxy:
    """A tensor of a shape that is a value, every element `value`."""
    return apply("full_of", shape, value=value, dtype=dtype)
