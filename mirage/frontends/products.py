"""Products of matrices and vectors whose dims a source knows to be equal but writes otherwise."""

from __future__ import annotations

from typing import Any

from mirage.frontends import ops
from mirage.frontends.shapes import as_broadcast, as_shape, broadcast
from mirage.ir.types import DTYPES


def product(x: Any, y: Any) -> Any:
    """A product of matrices, whose first dims broadcast; of integers the sums of products."""
    batch = broadcast(x.shape[:-2], y.shape[:-2])
    x = as_broadcast(x, (*batch, *x.shape[-2:]))
    y = as_broadcast(y, (*batch, *y.shape[-2:]))
    y = as_shape(y, (*y.shape[:-2], x.shape[-1], y.shape[-1]))
    if x.dtype in DTYPES:
        return ops.matmul(x, y)
    return (x.reshape(*x.shape, 1) * y.reshape(*y.shape[:-2], 1, *y.shape[-2:])).sum(-2)


def with_vector(x: Any, v: Any) -> Any:
    """A product of a matrix, or several, with a vector."""
    y = product(x, v.reshape(-1, 1))
    return y.reshape(y.shape[:-1])


def matmul(x: Any, y: Any) -> Any:
    """The product of operands of any rank but 0, as `numpy.matmul`."""
    if y.ndim == 1:
        return inner(x, y) if x.ndim == 1 else with_vector(x, y)
    if x.ndim == 1:
        found = product(x.reshape(1, -1), y)
        return found.reshape(*found.shape[:-2], found.shape[-1])
    return product(x, y)


def inner(x: Any, y: Any) -> Any:
    """The sum of the products of two vectors."""
    return (x * as_shape(y, x.shape)).sum()
