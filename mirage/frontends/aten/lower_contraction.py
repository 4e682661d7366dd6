"""Lowerings of products of tensors."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, add, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.products import inner, matmul, product, with_vector
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_broadcast, as_shape, broadcast
from mirage.ir.types import DTYPES


def added(c: Call, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * y; x broadcasts to y. To integers the factors are integers, too."""
    if c.dtype not in DTYPES:
        alpha, beta = int(alpha), int(beta)
    y = y if alpha == 1 else y * alpha
    if beta == 0:
        return y
    x = as_broadcast(c.tensor(x), y.shape)
    return (x if beta == 1 else x * beta) + y


add(
    {
        "mm": lambda c, x, y: product(x, y),
        "bmm": lambda c, x, y: product(x, y),
        "mv": lambda c, x, v: with_vector(x, v),
        "dot": lambda c, x, y: inner(x, y),
        "vdot": lambda c, x, y: inner(x, y),
        "matmul": lambda c, x, y: matmul(x, y),
        "addmm": lambda c, x, a, b, *, beta=1, alpha=1: added(c, x, product(a, b), beta, alpha),
        "addmv": lambda c, x, a, v, *, beta=1, alpha=1: added(c, x, with_vector(a, v), beta, alpha),
        "baddbmm": lambda c, x, a, b, *, beta=1, alpha=1: added(c, x, product(a, b), beta, alpha),
        "addbmm": lambda c, x, a, b, *, beta=1, alpha=1: added(c, x, product(a, b).sum(0), beta, alpha),
        "_int_mm": lambda c, x, y: product(c.tensor(x), c.tensor(y)),
    }
)


@lowers("linear")
def _linear(c: Call, x: Any, weight: Any, bias: Any = None) -> Any:
    y = matmul(x, weight.swapaxes(0, 1) if weight.ndim == 2 else weight)
    return y if bias is None else y + as_broadcast(bias, y.shape)


@lowers("_trilinear")
def _trilinear(
    c: Call, x: Any, y: Any, z: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1
) -> Any:
    def wide(t: Any, new: Any) -> Any:
        shape = list(t.shape)
        for k in sorted(new):
            shape.insert(k, 1)
        return t.reshape(shape)

    factors = [wide(t, new) for t, new in ((x, expand1), (y, expand2), (z, expand3))]
    shape = broadcast(*(t.shape for t in factors))
    first, second, third = (as_broadcast(t, shape) for t in factors)
    return apply("sum", first * second * third, axes=tuple(sumdim), keepdims=False)


@lowers("_cdist_forward")
def _cdist(c: Call, x: Any, y: Any, p: float, mode: int | None = None) -> Any:
    batch = broadcast(x.shape[:-2], y.shape[:-2])
    x = as_broadcast(x, (*batch, *x.shape[-2:]))
    y = as_broadcast(y, (*batch, y.shape[-2], x.shape[-1]))
    apart = x.reshape(*x.shape[:-1], 1, x.shape[-1]) - y.reshape(*y.shape[:-2], 1, *y.shape[-2:])
    return _distance(c, apart, p)


@lowers("_pdist_forward")
def _pdist(c: Call, x: Any, p: float = 2) -> Any:
    count = x.shape[0]
    if not isinstance(count, int):
        unsupported("the number of rows is symbolic")
    first, second = (c.trace.wrap(c.trace.array(c.name, rows)) for rows in torch.triu_indices(count, count, 1).numpy())
    return _distance(c, array_ops.take(x, first) - array_ops.take(x, second), p)


def _distance(c: Call, apart: Any, p: float) -> Any:
    """The p-norms along the last dim."""
    if p == 2:
        return ops.sqrt(ops.square(apart).sum(-1))
    if p == inf:
        # of no elements the distance is 0
        return ops.maximum(graph_ops.max(ops.abs(apart), -1), 0)
    if p == 0:
        return c.tensor(graph_ops.not_equal(apart, 0)).sum(-1)
    far = ops.abs(apart)
    return far.sum(-1) if p == 1 else ops.pow(ops.pow(far, p).sum(-1), 1 / p)


@lowers("_grouped_mm", "transformers.grouped_mm_fallback")
def _grouped(c: Call, x: Any, weights: Any, ends: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    if x.ndim != 2 or weights.ndim != 3 or ends is None or bias is not None or c.dtype != x.dtype:
        unsupported("it is not one matrix in groups of rows, each with a matrix of its own")
    return graph_ops.grouped_matmul(x, as_shape(weights, (weights.shape[0], x.shape[1], weights.shape[2])), ends)
