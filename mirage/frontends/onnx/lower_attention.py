"""The lowering of attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

import sympy

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.imported import unsupported
from mirage.frontends.masked import grouped, masked, mixed
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.products import product
from mirage.frontends.shapes import as_shape
from mirage.frontends.tensors import GraphTensor

#: the attributes that are computed with; the precision of a softmax is at least that of the scores
_KNOWN = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}
#: the opset in which a mask is added behind the soft cap, before which it was added in front of it
_MASK_BEHIND_CAP = 24


@lowers("Attention")
def _attention(
    c: Call, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, valid: Any = None
) -> Any:  # fmt: skip
    """Other forms are what the operator's body says: counts of valid keys, windows, scores as a result, and 16 bits, whose body
    rounds.
    """
    if valid is not None or c.wants(3) or not q.dtype == k.dtype == v.dtype or q.dtype not in ("float32", "float64"):
        unsupported("it is computed by its body")
    if c.attrs.keys() - _KNOWN:
        unsupported(f"it is computed by its body with {', '.join(sorted(c.attrs.keys() - _KNOWN))}")
    cap = c.attr("softcap", 0.0)
    if cap and mask is not None and c.version < _MASK_BEHIND_CAP:
        unsupported("it is computed by its body")
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(c, t, name) for t, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads")))
    past: Any = 0
    if past_k is not None:
        past = past_k.shape[2]
        k, v = (ops.concat([before, t], 2) for before, t in ((past_k, k), (past_v, v)))
    present = k, v
    rows, keys, width = q.shape[2], k.shape[2], q.shape[3]
    scale = c.attr("scale")
    if scale is None:
        if not isinstance(width, int):
            unsupported("of queries of an open width it is computed by its body")
        scale = 1 / sqrt(width) if width else 1.0
    k, v = grouped(q, k), grouped(q, v)
    scores = product(q, k.swapaxes(2, 3)) * scale
    if cap:
        scores = ops.tanh(scores / cap) * cap
    columns, seen = array_ops.arange(0, keys), None
    if c.attr("is_causal", 0):
        seen = columns <= (array_ops.arange(0, rows) + past).reshape(rows, 1)
    if mask is not None and mask.shape[-1] != keys:
        # keys that a mask does not reach are hidden, and it reaches no further than them
        reach = mask.shape[-1]
        columns = as_shape(as_shape(columns, [sympy.Max(keys, reach)]), [keys])
        mask = ops.concat([mask, array_ops.zeros((*mask.shape[:-1], keys - reach), mask.dtype)], -1)
        reached = columns < reach
        seen = reached if seen is None else graph_ops.logical_and(seen, reached)

    def tensor(x: Any) -> GraphTensor:
        return c.cast(x, q.dtype) if isinstance(x, GraphTensor) else c.constant(x, q.dtype)

    scores, kept = masked(scores, mask, seen, tensor)
    found = mixed(ops.softmax(scores), v, kept)
    if flat:
        found = found.swapaxes(1, 2)
        found = found.reshape((*found.shape[:2], found.shape[2] * found.shape[3]))
    return (found, *present)[: c.outputs]


def _heads(c: Call, x: Any, name: str) -> Any:
    """Rows of all heads, one beside the other, as heads of rows."""
    count = c.attr(name)
    return x.reshape((*x.shape[:2], count, x.shape[2] // count)).swapaxes(1, 2)
