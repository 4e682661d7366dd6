"""Scores of attention under masks, as the front ends record them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from mirage.frontends import graph_ops, ops
from mirage.frontends.products import product
from mirage.frontends.shapes import as_broadcast
from mirage.ir.types import ELEMENTS, largest


def masked(scores: Any, mask: Any, seen: Any, tensor: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The scores under a mask and where `seen` is true, and 1 for rows that attend to anything, 0 for others; None where all do,
    as they are taken to without a mask. `tensor` makes a number or a tensor one of the scores' element type.

    Masks are added, so that attention is a sum of products of tensors over axes, which can be searched. What is hidden gets half
    of the lowest number instead of -inf: its share is exactly 0 beside any other, and a row of nothing else has finite shares,
    for the 0 to be applied to.
    """
    lowest = -largest(ELEMENTS[scores.dtype]) / 2

    def hidden_but(where: Any) -> Any:
        return graph_ops.where(where, tensor(0.0), tensor(lowest))

    added = None if seen is None else hidden_but(seen)
    if mask is None:
        return (scores if added is None else scores + added), None
    mask = as_broadcast(mask, scores.shape)
    if mask.dtype == "bool":
        some, own = mask, hidden_but(mask)
    else:
        mask = tensor(mask)
        some, own = graph_ops.not_equal(mask, tensor(-inf)), ops.maximum(mask, lowest)
    if added is not None:
        some, own = graph_ops.logical_and(some, seen), own + added
    return scores + own, tensor(graph_ops.any(some, -1, keepdims=True))


def mixed(shares: Any, v: Any, kept: Any) -> Any:
    """The values in these shares; 0 for rows that attend to nothing."""
    found = product(shares, v)
    return found if kept is None else found * kept


def grouped(q: Any, k: Any) -> Any:
    """Keys or values of fewer heads than the queries, each repeated for those that share it."""
    if q.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return k
    wide = ops.repeat(k, q.shape[-3] // k.shape[-3], k.ndim - 3)
    return as_broadcast(wide, (*wide.shape[:-3], q.shape[-3], *wide.shape[-2:]))
