"""Lowerings of products, and of attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, add, lowers, unsupported
from mirage.frontends.proxy import apply
from mirage.ir.types import DTYPES


def product(c: Call, x: Any, y: Any) -> Any:
    """A matrix product of floating-point tensors."""
    return ops.matmul(x, y) if x.dtype in DTYPES else unsupported("it is a product of integers")


def added(c: Call, x: Any, y: Any, beta: Any, alpha: Any) -> Any:
    """beta * x + alpha * y."""
    y = y if alpha == 1 else y * alpha
    return y if beta == 0 else (x if beta == 1 else x * beta) + y


add(
    {
        "mm": product,
        "bmm": product,
        "addmm": lambda c, x, a, b, beta=1, alpha=1: added(c, x, product(c, a, b), beta, alpha),
        "baddbmm": lambda c, x, a, b, beta=1, alpha=1: added(c, x, product(c, a, b), beta, alpha),
        "mv": lambda c, x, v: product(c, x, v.reshape(-1, 1)).reshape(c.shape),
        "dot": lambda c, x, y: (x * y).sum() if x.dtype in DTYPES else apply("sum", x * y, axes=(0,)),
    }
)


@lowers("matmul")
def _matmul(c: Call, x: Any, y: Any) -> Any:
    if x.ndim == 1 and y.ndim == 1:
        return (x * y).sum()
    if x.ndim == 1:
        return product(c, x.reshape(1, -1), y).reshape(c.shape)
    if y.ndim == 1:
        return product(c, x, y.reshape(-1, 1)).reshape(c.shape)
    return product(c, x, y)


@lowers("linear")
def _linear(c: Call, x: Any, weight: Any, bias: Any = None) -> Any:
    if x.ndim == 1 or weight.ndim == 1:
        unsupported("it is a product with a vector")
    y = product(c, x, weight.swapaxes(0, 1))
    return y if bias is None else y + bias


@lowers("scaled_dot_product_attention")
def _attention(
    c: Call, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout:
        unsupported("dropout is random")
    if q.ndim != k.ndim:
        unsupported("the operands have unequal ranks")
    if enable_gqa and q.shape[-3] != k.shape[-3]:
        groups = q.shape[-3] // k.shape[-3]
        k, v = (ops.repeat(t, t.ndim - 3, groups) for t in (k, v))
    if scale is None:
        width = q.shape[-1]
        if not isinstance(width, int):
            unsupported("the width of a head is symbolic")
        scale = 1 / sqrt(width) if width else 1.0
    scores = ops.matmul(q * scale, k.swapaxes(-1, -2))
    if causal:
        rows, columns = q.shape[-2], k.shape[-2]
        mask = array_ops.arange(0, columns) <= array_ops.arange(0, rows).reshape(rows, 1)
    if mask is None:
        return ops.matmul(ops.softmax(scores), v)
    if mask.dtype != "bool":
        return ops.matmul(ops.softmax(scores + c.tensor(mask)), v)
    shares = ops.softmax(graph_ops.where(mask, scores, c.tensor(float("-inf"))))
    # rows in which nothing is attended to are 0
    kept = graph_ops.any(mask, -1, keepdims=True)
    return ops.matmul(graph_ops.where(kept, shares, c.tensor(0.0)), v)
