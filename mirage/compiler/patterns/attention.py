"""The pairs of the processor's own attention: what the search has left of a softmax of products, times values."""

from __future__ import annotations

from math import inf
from typing import Any

from mirage.compiler.patterns.language import Match, Pattern, number, op, optional, value, view
from mirage.compiler.patterns.registry import register_pattern
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Constant
from mirage.ir.types import IN_FLOAT32, TensorType, is_one


def _attention(shared: bool) -> Pattern:
    """What `cpu.attention` computes, of which tensors may be read in another order; with `shared` keys, heads of queries are rows
    of one head, which are told apart where the bias is added.
    """
    q, k, v = (value(name, dtype=IN_FLOAT32, rank=4) for name in "qkv")
    scores = op("matmul", view("transpose", q, name="left") | q, view("transpose", k, name="right"), name="scores")
    apart, factor = op("reshape", scores, name="apart") if shared else scores, number(name="scale")
    scaled = op("mul", apart, factor, commutative=True) | op("div", apart, factor, name="divided") | apart
    biased = optional(scaled, lambda s: op("add", s, value("bias", dtype=IN_FLOAT32), commutative=True, name="sum"))
    shares = op("softmax", biased, where=lambda call: dict(call.attrs)["axis"] in (-1, 3))
    rows = op("reshape", shares, name="together") if shared else shares
    return op("matmul", rows, view("transpose", v, name="values") | v, name="product")


def _is_attention(m: Match) -> bool:
    """Whether the operands are those of one batch, elements of a head side by side, and the bias one that broadcasts to the
    scores.
    """
    shapes = {}
    for name, order in (("q", "left"), ("k", "right"), ("v", "values")):
        t, perm = m.type(name), m.attr(order, "perm", (0, 1, 2, 3))
        if not isinstance(t, TensorType) or perm[2 if name == "k" else 3] != 3:
            return False
        shapes[name] = tuple(t.shape[p] for p in perm)
    q, k, v = (shapes[name] for name in "qkv")
    if not q[:2] == k[:2] == v[:2] or q[3] != k[2] or k[3] != v[2]:
        return False
    factor = m.operands.get("scale")
    if isinstance(factor, Constant) and not 0 < abs(factor.array.item()) < inf:
        return False
    scores = deduce(m.calls["apart" if "apart" in m.calls else "scores"], {})
    return _groups(m) is not None and isinstance(scores, TensorType) and _broadcasts(m, scores)


def _groups(m: Match) -> int | None:
    """How many heads of queries are rows of one head; None where that is not what the scores are reshaped to."""
    if "apart" not in m.calls:
        return 1
    scores, apart, together = (deduce(m.calls[name], {}) for name in ("scores", "apart", "together"))
    if not isinstance(scores, TensorType) or not isinstance(apart, TensorType) or together != scores or apart.rank != 4:
        return None
    (b, h, _, t), (b_apart, h_apart, _, t_apart) = scores.shape, apart.shape
    if (b, t) != (b_apart, t_apart) or not h.is_Integer or not h_apart.is_Integer or not h or h_apart % h:
        return None
    return int(h_apart / h)


def _broadcasts(m: Match, scores: TensorType) -> bool:
    bias = m.operands.get("bias")
    if bias is None:
        return True
    added = bias.annotation
    if not isinstance(added, TensorType) or added.dtype != scores.dtype or added.rank not in (2, 4):
        return False
    return all(is_one(a) or a == b for a, b in zip(added.shape, scores.shape[-added.rank :], strict=True))


def _attributes(m: Match) -> dict[str, Any]:
    found: dict[str, Any] = {name: tuple(m.attr(name, "perm")) for name in ("left", "right", "values") if name in m.calls}
    factor, groups = m.operands.get("scale"), _groups(m)
    if isinstance(factor, Constant):
        number = factor.array.item()
        found["scale"] = 1 / number if "divided" in m.calls else number
    return found | ({"bias": True} if "bias" in m.operands else {}) | ({} if groups == 1 else {"groups": groups})


for _name, _shared in (("cpu_attention", False), ("cpu_attention_shared", True)):
    register_pattern(
        _name,
        _attention(_shared),
        "cpu.attention",
        _is_attention,
        inputs=("q", "k", "v", "bias"),
        attributes=_attributes,
        package="cpu",
        late=True,
    )
