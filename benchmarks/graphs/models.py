"""Layers of language models, as their users write them, each with a yardstick in NumPy.

Weights are [in, out]. Dims that a model fixes (hidden size, heads) are literal, what callers vary are symbols: batch `b`, new
tokens `s`, tokens in the cache `t`, tokens of all sequences `n`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import mirage as mi

#: what is added to the scores of tokens that must not be seen, by element type
_NEVER = {"float16": -6e4}


def never(dtype: str) -> float:
    return _NEVER.get(dtype, -1e9)


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last dim."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """With the error function, not its approximation."""
    return x * (0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)))


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * weight + bias


def frequencies(head: int) -> np.ndarray:
    """Angle per position of each pair of elements of a head, in radians, as rotary embeddings have it."""
    return (10000.0 ** (-np.arange(0, head, 2) / head)).astype(np.float32)


def split_heads(x: Any, count: int) -> Any:
    """[b, s, count * head] as [b, count, s, head]."""
    b, s, width = x.shape
    return x.reshape(b, s, count, width // count).transpose(0, 2, 1, 3)


def join_heads(x: Any) -> Any:
    """The opposite of `split_heads`."""
    b, count, s, head = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, s, count * head)


def appended(k_cache: Any, v_cache: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Keys and values of all tokens."""
    return mi.concat([k_cache, k], axis=2), mi.concat([v_cache, v], axis=2)


def rotate(x: Any, positions: Any, dtype: str = "float32") -> Any:
    """Rotary embedding of x[b, heads, s, head]: the two halves of a head are turned by the positions' angles."""
    half = x.shape[-1] // 2
    angles = positions.astype("float32")[:, None] * frequencies(2 * int(half))
    cos, sin = (mi.cast(turn, dtype) for turn in (mi.cos(angles), mi.sin(angles)))
    first, second = x[..., :half], x[..., half:]
    return mi.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The yardstick of `rotate`: a pair of elements is a complex number, and a position turns it."""
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(
        1j * positions[:, None] * frequencies(2 * half).astype(np.float64)
    )
    return np.concatenate([pairs.real, pairs.imag], -1)


def causal_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int = 2**31, cap: float = math.inf
) -> np.ndarray:
    """Yardstick of causal attention of the last tokens, token by token, heads joined. Scores are capped where `cap` is finite."""
    b, heads, s, head = q.shape
    t = k.shape[2]
    mixed = np.empty((b, s, heads, head))
    for h in range(heads):
        shared = h * k.shape[1] // heads
        for i in range(s):
            end = t - s + i + 1
            start = max(0, end - window)
            scores = np.einsum("bd,btd->bt", q[:, h, i], k[:, shared, start:end]) / math.sqrt(head)
            if math.isfinite(cap):
                scores = cap * np.tanh(scores / cap)
            mixed[:, i, h] = np.einsum("bt,btd->bd", softmax(scores), v[:, shared, start:end])
    return mixed.reshape(b, s, heads * head)


def heads(x: np.ndarray, count: int) -> np.ndarray:
    """[b, s, count * head] as [b, count, s, head]."""
    return np.moveaxis(x.reshape(*x.shape[:2], count, -1), 2, 1)


@dataclass(frozen=True)
class Llama:
    """A decoder layer as in Llama: RMSNorm, grouped queries with rotary positions, a gated MLP.

    `shared` are the heads of keys and values, each of which `heads / shared` query heads share; `head` is the size of a head.
    """

    hidden: int
    heads: int
    shared: int
    head: int
    ffn: int
    dtype: str = "float32"

    weights = ("norm1", "wq", "wk", "wv", "wo", "norm2", "w1", "w3", "w2")

    def _specs(self, **others: Any) -> dict[str, Any]:
        h, kv, f = self.hidden, self.shared * self.head, self.ffn
        tensor = partial(mi.tensor, dtype=self.dtype)
        return {
            "x": tensor("b", "s", h),
            "positions": mi.tensor("s", dtype="int64"),
            **others,
            "norm1": tensor(h),
            "wq": tensor(h, self.heads * self.head),
            "wk": tensor(h, kv),
            "wv": tensor(h, kv),
            "wo": tensor(self.heads * self.head, h),
            "norm2": tensor(h),
            "w1": tensor(h, f),
            "w3": tensor(h, f),
            "w2": tensor(f, h),
        }

    def prefill_specs(self) -> Mapping[str, Any]:
        return self._specs()

    def decode_specs(self) -> Mapping[str, Any]:
        cache = mi.tensor("b", self.shared, "t", self.head, dtype=self.dtype)
        return self._specs(k_cache=cache, v_cache=cache)

    def _attend(self, q: Any, k: Any, v: Any) -> Any:
        """Attention of the last tokens to all before them."""
        s, t = q.shape[2], k.shape[2]
        seen = mi.arange(t) <= mi.arange(t - s, t)[:, None]
        mask = mi.where(seen, mi.zeros((), self.dtype), never(self.dtype))
        groups = self.heads // self.shared
        scores = q @ mi.repeat(k, groups, axis=1).mT * self.head**-0.5
        return mi.softmax(scores + mask) @ mi.repeat(v, groups, axis=1)

    def prefill(
        self,
        x: Any,
        positions: Any,
        norm1: Any,
        wq: Any,
        wk: Any,
        wv: Any,
        wo: Any,
        norm2: Any,
        w1: Any,
        w3: Any,
        w2: Any,
    ) -> Any:
        """A layer over a prompt: its result, and the keys and values for the cache."""
        return self._layer(x, positions, (), norm1, wq, wk, wv, wo, norm2, w1, w3, w2)

    def decode(
        self, x: Any, positions: Any, k_cache: Any, v_cache: Any, norm1: Any, wq: Any, wk: Any, wv: Any, wo: Any,
        norm2: Any, w1: Any, w3: Any, w2: Any,
    ) -> Any:  # fmt: skip
        """A layer over new tokens, with keys and values of earlier ones: its result, and those of all tokens."""
        return self._layer(x, positions, (k_cache, v_cache), norm1, wq, wk, wv, wo, norm2, w1, w3, w2)

    def _layer(self, x: Any, positions: Any, cache: tuple[Any, ...], *weights: Any) -> Any:
        norm1, wq, wk, wv, wo, norm2, w1, w3, w2 = weights
        y = mi.rms_norm(x, norm1)
        q = rotate(split_heads(y @ wq, self.heads), positions, self.dtype)
        k = rotate(split_heads(y @ wk, self.shared), positions, self.dtype)
        v = split_heads(y @ wv, self.shared)
        if cache:
            k, v = appended(cache[0], cache[1], k, v)
        mixed = join_heads(self._attend(q, k, v))
        x = x + mixed @ wo
        y = mi.rms_norm(x, norm2)
        return x + (mi.silu(y @ w1) * (y @ w3)) @ w2, k, v

    def decode_yardstick(
        self, x: np.ndarray, positions: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, *weights: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        norm1, wq, wk, wv, wo, norm2, w1, w3, w2 = weights
        y = rms(x, norm1)
        q = rotated(heads(y @ wq, self.heads), positions)
        k = np.concatenate([k_cache, rotated(heads(y @ wk, self.shared), positions)], 2)
        v = np.concatenate([v_cache, heads(y @ wv, self.shared)], 2)
        x = x + causal_attention(q, k, v) @ wo
        y = rms(x, norm2)
        return x + (silu(y @ w1) * (y @ w3)) @ w2, k, v

    def prefill_yardstick(self, x: np.ndarray, positions: np.ndarray, *weights: np.ndarray) -> tuple[np.ndarray, ...]:
        empty = np.zeros((x.shape[0], self.shared, 0, self.head))
        return self.decode_yardstick(x, positions, empty, empty, *weights)


@dataclass(frozen=True)
class Bert:
    """An encoder layer as in BERT: attention over what is no padding, GELU, LayerNorm after each half."""

    hidden: int
    heads: int
    ffn: int
    dtype: str = "float32"

    weights = ("wq", "bq", "wk", "bk", "wv", "bv", "wo", "bo", "g1", "c1", "w1", "b1", "w2", "b2", "g2", "c2")

    def specs(self) -> Mapping[str, Any]:
        h, f = self.hidden, self.ffn
        tensor = partial(mi.tensor, dtype=self.dtype)
        square, row = tensor(h, h), tensor(h)
        kinds = {"w1": tensor(h, f), "b1": tensor(f), "w2": tensor(f, h)}
        weights = {name: kinds.get(name, square if name.startswith("w") else row) for name in self.weights}
        return {"x": tensor("b", "s", h), "valid": mi.tensor("b", "s", dtype="bool"), **weights}

    def encoder(
        self, x: Any, valid: Any, wq: Any, bq: Any, wk: Any, bk: Any, wv: Any, bv: Any, wo: Any, bo: Any, g1: Any, c1: Any,
        w1: Any, b1: Any, w2: Any, b2: Any, g2: Any, c2: Any,
    ) -> Any:  # fmt: skip
        q, k, v = (split_heads(x @ w + bias, self.heads) for w, bias in ((wq, bq), (wk, bk), (wv, bv)))
        mask = mi.where(valid, mi.zeros((), self.dtype), never(self.dtype))[:, None, None, :]
        scores = q @ k.mT * (self.hidden // self.heads) ** -0.5
        mixed = join_heads(mi.softmax(scores + mask) @ v)
        x = mi.layer_norm(x + mixed @ wo + bo, g1, c1)
        return mi.layer_norm(x + mi.gelu(x @ w1 + b1) @ w2 + b2, g2, c2)

    def yardstick(self, x: np.ndarray, valid: np.ndarray, *weights: np.ndarray) -> np.ndarray:
        w = dict(zip(self.weights, weights, strict=True))
        b, s, _ = x.shape
        q, k, v = ((x @ w[f"w{i}"] + w[f"b{i}"]).reshape(b, s, self.heads, -1) for i in "qkv")
        mixed = np.zeros_like(q)
        for i in range(b):
            seen = valid[i]
            scores = np.einsum("shd,thd->hst", q[i], k[i][seen]) / math.sqrt(self.hidden // self.heads)
            mixed[i] = np.einsum("hst,thd->shd", softmax(scores), v[i][seen])
        x = norm(x + mixed.reshape(b, s, -1) @ w["wo"] + w["bo"], w["g1"], w["c1"])
        return norm(x + gelu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"], w["g2"], w["c2"])


@dataclass(frozen=True)
class Mixtral:
    """A mixture of experts as in Mixtral: each token goes to the two gated MLPs that the router prefers."""

    hidden: int
    experts: int
    ffn: int
    dtype: str = "float32"

    weights = ("router", "w1", "w3", "w2")

    def specs(self) -> Mapping[str, Any]:
        e, h, f = self.experts, self.hidden, self.ffn
        tensor = partial(mi.tensor, dtype=self.dtype)
        return {
            "x": tensor("n", h),
            "router": tensor(h, e),
            "w1": tensor(e, h, f),
            "w3": tensor(e, h, f),
            "w2": tensor(e, f, h),
        }

    def block(self, x: Any, router: Any, w1: Any, w3: Any, w2: Any) -> Any:
        best, chosen = mi.topk(x @ router, 2)
        shares = mi.put_along_axis(mi.zeros((x.shape[0], self.experts), self.dtype), chosen, mi.softmax(best))
        tokens = x[None]
        found = (mi.silu(tokens @ w1) * (tokens @ w3)) @ w2
        return (found * shares.T[:, :, None]).sum(0)

    def routed(self, x: Any, router: Any, w1: Any, w3: Any, w2: Any) -> Any:
        """As `block`, where an expert computes its own tokens only: they are sorted by expert, and put back."""
        best, chosen = mi.topk(x @ router, 2)
        chosen = chosen.reshape(2 * x.shape[0])
        order = mi.argsort(chosen)
        ends = mi.cumsum(mi.cast(chosen == mi.arange(0, self.experts)[:, None], "int64").sum(1), 0)
        tokens = mi.take(x, mi.floor_divide(order, 2), 0)
        gated = mi.silu(mi.grouped_matmul(tokens, w1, ends)) * mi.grouped_matmul(tokens, w3, ends)
        found = mi.take(mi.grouped_matmul(gated, w2, ends), mi.argsort(order), 0)
        return (found.reshape(x.shape[0], 2, self.hidden) * mi.softmax(best)[:, :, None]).sum(1)

    def yardstick(
        self, x: np.ndarray, router: np.ndarray, w1: np.ndarray, w3: np.ndarray, w2: np.ndarray
    ) -> np.ndarray:
        found = np.zeros_like(x)
        logits = x @ router
        chosen = np.argsort(-logits, axis=1)[:, :2]
        shares = softmax(np.take_along_axis(logits, chosen, 1))
        for e in range(self.experts):
            # each expert sees its own tokens only
            tokens, rank = np.nonzero(chosen == e)
            y = x[tokens]
            found[tokens] += shares[tokens, rank, None] * ((silu(y @ w1[e]) * (y @ w3[e])) @ w2[e])
        return found
