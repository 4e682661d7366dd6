"""Lowerings of attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.masked import grouped, masked, mixed
from mirage.frontends.products import product


def scores_of(c: Call, q: Any, k: Any, scale: float | None) -> Any:
    """The products of queries with keys, by default over the root of their width."""
    width = q.shape[-1]
    factor: Any = scale
    if factor is None:
        factor = (1 / sqrt(width) if width else 1.0) if isinstance(width, int) else ops.rsqrt(c.tensor(width))
    if isinstance(factor, float | int):
        # functions for attention have it as an attribute
        return product(q, k.swapaxes(-1, -2)) * factor
    return product(q * factor, k.swapaxes(-1, -2))


def _masked(c: Call, scores: Any, mask: Any, causal: bool) -> tuple[Any, Any]:
    """The scores under a mask, or a causal one, whose first query is at the place of the first key."""
    rows, columns = scores.shape[-2:]
    seen = array_ops.arange(0, columns) <= array_ops.arange(0, rows).reshape(rows, 1) if causal else None
    return masked(scores, mask, seen, c.tensor)


@lowers("scaled_dot_product_attention")
def _attention(
    c: Call, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout:
        unsupported("dropout is random")
    if enable_gqa:
        k, v = grouped(q, k), grouped(q, v)
    scores, kept = _masked(c, scores_of(c, q, k, scale), mask, causal)
    return mixed(ops.softmax(scores), v, kept)


@lowers("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    c: Call, q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False,
    *, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout:
        unsupported("dropout is random")
    if attn_mask is not None and attn_mask.dtype == "bool":
        unsupported("its mask is of booleans")
    scores, kept = _masked(c, scores_of(c, q, k, scale), attn_mask, causal)
    greatest = graph_ops.max(scores, -1, keepdims=True)
    total = ops.log(ops.exp(scores - greatest).sum(-1, keepdims=True)) + greatest
    rows = c.tensor(total.reshape(total.shape[:-1]), c.results[1].dtype)
    return mixed(ops.softmax(scores), v, kept), rows


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
    scores, kept = _masked(c, scores_of(c, q, k, scale), added, causal)
    shares = ops.softmax(scores)
    return mixed(shares, v, kept), shares if kept is None else shares * kept
