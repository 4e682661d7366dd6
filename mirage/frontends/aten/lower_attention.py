"""Lowerings of attention."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import torch

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.products import product
from mirage.frontends.shapes import as_broadcast


def scores_of(c: Call, q: Any, k: Any, scale: float | None) -> Any:
    """The products of queries with keys, by default over the root of their width."""
    width = q.shape[-1]
    factor: Any = scale
    if factor is None:
        factor = (1 / sqrt(width) if width else 1.0) if isinstance(width, int) else ops.rsqrt(c.tensor(width))
    return product(q * factor, k.swapaxes(-1, -2))


def masked(c: Call, scores: Any, mask: Any, causal: bool) -> tuple[Any, Any]:
    """The scores under a mask, and 1 for rows that attend to anything, 0 for others; None where all do.

    Masks are added, as torch does it, so that attention is a sum of products of tensors over axes, which can be searched. What is
    hidden gets half of the lowest number instead of -inf: its share is exactly 0 beside any other, and a row of nothing else has
    finite shares, for the 0 to be applied to.
    """
    lowest = torch.finfo(getattr(torch, c.dtype)).min / 2
    if causal:
        # the first query is at the place of the first key
        rows, columns = scores.shape[-2:]
        seen = array_ops.arange(0, columns) <= array_ops.arange(0, rows).reshape(rows, 1)
        return scores + graph_ops.where(seen, c.tensor(0.0), c.tensor(lowest)), None
    if mask is None:
        return scores, None
    mask = as_broadcast(mask, scores.shape)
    if mask.dtype == "bool":
        seen, added = mask, graph_ops.where(mask, c.tensor(0.0), c.tensor(lowest))
    else:
        mask = c.tensor(mask)
        seen, added = graph_ops.not_equal(mask, c.tensor(-inf)), ops.maximum(mask, lowest)
    return scores + added, c.tensor(graph_ops.any(seen, -1, keepdims=True))


def mixed(c: Call, shares: Any, v: Any, kept: Any) -> Any:
    """The values in these shares; 0 for rows that attend to nothing."""
    found = product(shares, v)
    return found if kept is None else found * kept


def grouped(q: Any, k: Any) -> Any:
    """Keys or values of fewer heads than the queries, each repeated for those that share it."""
    if q.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return k
    wide = ops.repeat(k, q.shape[-3] // k.shape[-3], k.ndim - 3)
    return as_broadcast(wide, (*wide.shape[:-3], q.shape[-3], *wide.shape[-2:]))


@lowers("scaled_dot_product_attention")
def _attention(
    c: Call, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout:
        unsupported("dropout is random")
    if enable_gqa:
        k, v = grouped(q, k), grouped(q, v)
    scores, kept = masked(c, scores_of(c, q, k, scale), mask, causal)
    return mixed(c, ops.softmax(scores), v, kept)


@lowers("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    c: Call, q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False,
    *, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout:
        unsupported("dropout is random")
    if attn_mask is not None and attn_mask.dtype == "bool":
        unsupported("its mask is of booleans")
    scores, kept = masked(c, scores_of(c, q, k, scale), attn_mask, causal)
    greatest = graph_ops.max(scores, -1, keepdims=True)
    total = ops.log(ops.exp(scores - greatest).sum(-1, keepdims=True)) + greatest
    rows = c.tensor(total.reshape(total.shape[:-1]), c.results[1].dtype)
    return mixed(c, ops.softmax(scores), v, kept), rows


@lowers("_scaled_dot_product_attention_math")
def _math(
    c: Call, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, dropout_mask: Any = None,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout or dropout_mask is not None:
        unsupported("dropout is random")
    if enable_gqa:
        k, v = grouped(q, k), grouped(q, v)
    # booleans, too, are added
    added = mask if mask is None else c.tensor(mask)
    scores, kept = masked(c, scores_of(c, q, k, scale), added, causal)
    shares = ops.softmax(scores)
    return mixed(c, shares, v, kept), shares if kept is None else shares * kept
