"""Shapes within lowerings: dims that a source knows to be equal but writes otherwise, windows, counts that only the run tells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import prod
from typing import Any

import sympy

from mirage.frontends import array_ops, ops
from mirage.frontends.calls import match_cast
from mirage.frontends.calls import shape as shape_value
from mirage.frontends.graph import GraphTrace
from mirage.frontends.proxy import apply
from mirage.ir.dims import Dim, symbol, to_dim
from mirage.ir.types import TensorType, is_one

#: operands of one `concat` of the graph IR
_JOINED = 16


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis


def as_shape(x: Any, shape: Sequence[Any]) -> Any:
    """The tensor under a shape that is its own, whatever its dims are called: checked at run time where they differ."""
    wanted = TensorType(tuple(to_dim(d) for d in shape), x.dtype)
    return x if x.annotation == wanted else match_cast(x, wanted)


def as_broadcast(x: Any, shape: Sequence[Any]) -> Any:
    """The tensor with its dims called as those of a shape that it broadcasts to; dims of size 1 stay."""
    own = x.type.shape
    last = shape[len(shape) - len(own) :]
    return as_shape(x, [d if is_one(d) else to_dim(n) for d, n in zip(own, last, strict=True)])


def broadcast(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that shapes broadcast to, where the source says that they do."""
    found: list[Any] = [1] * max(map(len, shapes))
    for shape in shapes:
        for k, d in enumerate(shape, len(found) - len(shape)):
            if isinstance(found[k], int) and found[k] == 1:
                found[k] = d
    return tuple(found)


def fitted(x: Any, shape: Sequence[Any]) -> Any:
    """The tensor broadcast to a shape of which the source says that it does."""
    x = as_broadcast(x, shape)
    wanted = tuple(to_dim(d) for d in shape)
    return x if x.type.shape == wanted else array_ops.broadcast_to(x, wanted)


def reshaped(x: Any, shape: Sequence[Any]) -> Any:
    """The elements under a shape of as many: the source says so, and where the dims alone do not, the run does."""
    if size_of(x.shape) == size_of(shape):
        return x.reshape(shape)
    return array_ops.reshape_to(x, shape_value(*shape))


def window(x: Any, shape: Sequence[Any]) -> Any:
    """The first elements along each dim: a part of this shape."""
    axes = [k for k, (d, n) in enumerate(zip(x.type.shape, shape, strict=True)) if d != to_dim(n)]
    if not axes:
        return x
    return sliced(x, {k: (0, shape[k]) for k in axes})


def sliced(x: Any, bounds: dict[int, tuple[Any, Any]]) -> Any:
    """The elements from a start to below a stop along axes."""
    starts, stops = zip(*bounds.values(), strict=True)
    return apply("slice", x, axes=tuple(bounds), starts=starts, stops=stops)


def joined(xs: Any, axis: int) -> Any:
    """Tensors joined along an axis, as many as there are."""
    while len(xs) > _JOINED:
        xs = [ops.concat(xs[k : k + _JOINED], axis) for k in range(0, len(xs), _JOINED)]
    return ops.concat(xs, axis)


def fresh_dims(trace: GraphTrace, number: int) -> list[Dim]:
    """Dims that only the run tells, under names that the function does not use yet."""
    names = (name for k in count() if (name := f"found{k}") not in trace.scope)
    return [symbol(next(names)) for _ in range(number)]


def fresh_dim(trace: GraphTrace) -> Dim:
    """A dim that only the run tells, under a name that the function does not use yet."""
    return fresh_dims(trace, 1)[0]


def size_of(shape: Sequence[Any]) -> Any:
    """The number of elements of a shape."""
    found = sympy.expand(prod(to_dim(d) for d in shape))
    return int(found) if found.is_Integer else found
