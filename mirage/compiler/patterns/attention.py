"""The pairs of the processor's own attention: what the search has left of a softmax of products, times values."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from mirage.compiler.patterns.language import Match, Pattern, number, op, optional, value, view
from mirage.compiler.patterns.registry import register_pattern
from mirage.ir.dims import Dim, to_dim
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Constant, OpCall
from mirage.ir.types import ELEMENTS, IN_FLOAT32, TensorType, is_one


def _attention(shared: bool) -> Pattern:
    """What `cpu.attention` computes, of which tensors may be read in another order; with `shared` keys, heads of queries are rows
    of one head, which are told apart where the bias is added.
    """
    q, k, v = (value(name, dtype=IN_FLOAT32, rank=4) for name in "qkv")
    k, v = (_first(t, name) | _of_pages(t, name) | t for t, name in ((k, "k"), (v, "v")))
    scores = op("matmul", view("transpose", q, name="left") | q, view("transpose", k, name="right"), name="scores")
    apart, factor = op("reshape", scores, name="apart") if shared else scores, number(name="scale")
    scaled = op("mul", apart, factor, commutative=True) | op("div", apart, factor, name="divided") | apart
    capped = optional(scaled, _capped)
    biased = optional(capped, lambda s: op("add", s, value("bias", dtype=IN_FLOAT32), commutative=True, name="sum"))
    masked = optional(biased, _masked)
    shares = op("softmax", masked, where=_of_keys) | _without_sink(masked)
    rows = op("reshape", shares, name="together") if shared else shares
    return op("matmul", rows, view("transpose", v, name="values") | v, name="product")


def _first(keys: Pattern, name: str) -> Pattern:
    """Some first keys, or values."""
    return view("slice", keys, axes=(2,), starts=(0,), steps=(1,), name=f"first_{name}")


def _of_pages(pool: Pattern, name: str) -> Pattern:
    """The keys, or values, of pages of a pool one behind the other: in a page, either heads come first or keys."""
    taken = view("take", pool, value("pages", dtype="int64"), axis=0, name=f"taken_{name}")
    turned = view("transpose", taken, perm=(1, 0, 2, 3)) | view("transpose", taken, perm=(0, 2, 1, 3, 4))
    return view("reshape", turned, name=f"turned_{name}") | view("reshape", taken, name=f"joined_{name}")


def _capped(scores: Pattern) -> Pattern:
    """`c * tanh(scores / c)`, as Gemma 2 has it; any two factors will do."""
    inner = op("mul", scores, number(name="inner"), commutative=True) | op("div", scores, number(name="inner"), name="lessened")
    return op("mul", op("tanh", inner), number(name="cap"), commutative=True)


def _masked(scores: Pattern) -> Pattern:
    """The scores for which a condition holds, or those for which it does not, and a number for the others."""
    mask, hidden = value("mask", dtype="bool"), number(name="hidden")
    return op("where", mask, scores, hidden) | op("where", mask, hidden, scores, name="hiding")


def _of_keys(call: OpCall) -> bool:
    return dict(call.attrs)["axis"] in (-1, 3)


def _without_sink(scores: Pattern) -> Pattern:
    """The shares of keys beside a sink, as GPT-OSS has it: it is the last score of each row."""
    sink = value("sink", dtype=IN_FLOAT32)
    joined = op("concat", scores, op("broadcast_to", sink) | sink, where=_of_keys)
    shifted = op("sub", joined, op("max", joined, axes=(3,), keepdims=True))
    return op("slice", op("softmax", shifted | joined, where=_of_keys), axes=(3,), starts=(0,), steps=(1,), name="keys")


def _is_attention(m: Match) -> bool:
    """Whether the operands are those of one batch, elements of a head side by side, and the bias one that broadcasts to the
    scores.
    """
    shapes = {}
    for name, order in (("q", "left"), ("k", "right"), ("v", "values")):
        t, perm = _type(m, name), m.attr(order, "perm", (0, 1, 2, 3))
        if not isinstance(t, TensorType) or perm[2 if name == "k" else 3] != 3:
            return False
        shapes[name] = tuple(t.shape[p] for p in perm)
    if ("taken_k" in m.calls) != ("taken_v" in m.calls):
        return False
    q, k, v = (shapes[name] for name in "qkv")
    if not q[:2] == k[:2] == v[:2] or q[3] != k[2] or k[3] != v[2]:
        return False
    if not 0 < abs(_factor(m, "scale", "divided") * _factor(m, "inner", "lessened") * _factor(m, "cap")) < inf:
        return False
    scores = deduce(m.calls["apart" if "apart" in m.calls else "scores"], {})
    if _groups(m) is None or not isinstance(scores, TensorType):
        return False
    if not _broadcasts(m, "bias", scores.shape, scores.dtype) or not _broadcasts(m, "mask", scores.shape, "bool"):
        return False
    if "keys" in m.calls and deduce(m.calls["keys"], {}) != scores:
        return False
    return _broadcasts(m, "sink", (*scores.shape[:3], to_dim(1)), scores.dtype)


def _type(m: Match, name: str) -> Any:
    """The type of an operand, of which the first keys may be a part, or that may be in pages; None for others of these."""
    t = m.type(name)
    for part in ("first", "turned", "joined"):
        if f"{part}_{name}" in m.calls:
            given, t = t, deduce(m.calls[f"{part}_{name}"], {})
            if part != "first" and not _is_of_pages(m, given, t, part == "turned"):
                return None
    return t


def _is_of_pages(m: Match, pool: Any, keys: Any, heads_first: bool) -> bool:
    """Whether these are keys in the pages of a pool, one behind the other; pages have the order of the keys' dims."""
    pages = m.type("pages")
    if not isinstance(pages, TensorType) or not isinstance(pool, TensorType) or not isinstance(keys, TensorType):
        return False
    if keys.rank != 4 or pages.rank not in (1, 2):
        return False
    wanted = list(pool.shape)
    wanted[0] = to_dim(1) if pages.rank == 1 else pages.shape[0]
    wanted[2 if heads_first else 1] *= pages.shape[-1]
    return list(keys.shape) == wanted


def _groups(m: Match) -> int | None:
    """How many heads of queries are rows of one head; None where that is not what the scores are reshaped to."""
    if "apart" not in m.calls:
        return 1
    scores, apart, together = (deduce(m.calls[name], {}) for name in ("scores", "apart", "together"))
    if not isinstance(scores, TensorType) or not isinstance(apart, TensorType) or together != scores or apart.rank != 4:
        return None
    (b, h, _, t), (b_apart, h_apart, _, t_apart) = scores.shape, apart.shape
    if (b, t) != (b_apart, t_apart) or not h or not (groups := h_apart / h).is_Integer:
        return None
    return int(groups)


def _broadcasts(m: Match, name: str, shape: Sequence[Dim], dtype: str) -> bool:
    if name not in m.operands:
        return True
    given = m.type(name)
    if not isinstance(given, TensorType) or given.dtype != dtype or given.rank > len(shape):
        return False
    return all(is_one(a) or a == b for a, b in zip(given.shape, shape[len(shape) - given.rank :], strict=True))


def _attributes(m: Match) -> dict[str, Any]:
    found: dict[str, Any] = {name: tuple(m.attr(name, "perm")) for name in ("left", "right", "values") if name in m.calls}
    scale, groups = _factor(m, "scale", "divided") * _factor(m, "inner", "lessened"), _groups(m)
    found |= {"scale": scale} if scale != 1 else {}
    found |= {"cap": _factor(m, "cap")} if "cap" in m.operands else {}
    first = next((m.attr(part, "stops")[0] for part in ("first_k", "first_v") if part in m.calls), None)
    found |= {"keys": first} if first is not None else {}
    found |= {"hidden": _hidden(m)} if "mask" in m.operands else {}
    found |= {name: True for name in ("bias", "mask", "sink", "pages") if name in m.operands}
    found |= {"hiding": True} if "hiding" in m.calls else {}
    return found | ({} if groups == 1 else {"groups": groups})


def _hidden(m: Match) -> float:
    """The score of what a mask hides, as a number of the scores' type."""
    q = m.type("q")
    assert isinstance(q, TensorType)
    with np.errstate(over="ignore"):
        return float(np.float64(_factor(m, "hidden")).astype(ELEMENTS[q.dtype]))


def _factor(m: Match, name: str, divided: str = "") -> float:
    """The number under a name, of which the reciprocal is meant where it divides; 1 where there is none, 0 for no such number."""
    factor = m.operands.get(name)
    found: float = factor.array.item() if isinstance(factor, Constant) else 1.0
    if divided not in m.calls:
        return found
    return 1 / found if found else 0.0


for _name, _shared in (("cpu_attention", False), ("cpu_attention_shared", True)):
    register_pattern(
        _name,
        _attention(_shared),
        "cpu.attention",
        _is_attention,
        inputs=("q", "k", "v", "bias", "mask", "sink", "pages"),
        attributes=_attributes,
        package="cpu",
        late=True,
    )
