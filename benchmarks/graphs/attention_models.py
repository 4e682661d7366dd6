"""More layers of language models, whose attention differs from that of Llama and BERT: GPT-2, T5, Gemma and Whisper's decoder.

As in `models.py`, weights are [in, out], what a model fixes is literal, and what callers vary are symbols: batch `b`, new tokens
`s`, tokens in the cache `t`, frames that a sound has `f`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mirage as mi
from benchmarks.graphs.models import (
    appended,
    causal_attention,
    gelu,
    heads,
    join_heads,
    never,
    norm,
    rms,
    rotate,
    rotated,
    softmax,
    split_heads,
)

_NEVER = never("float32")


def gelu_tanh(x: Any) -> Any:
    """GELU by its approximation with tanh, as GPT-2 and Gemma have it."""
    return 0.5 * x * (1 + mi.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@dataclass(frozen=True)
class Gpt2:
    """A decoder layer as in GPT-2: joined projections with biases, LayerNorm before each half, GELU by tanh."""

    hidden: int
    heads: int
    ffn: int

    weights = ("g1", "c1", "wqkv", "bqkv", "wo", "bo", "g2", "c2", "w1", "b1", "w2", "b2")

    def specs(self) -> Mapping[str, Any]:
        h, f = self.hidden, self.ffn
        cache = mi.tensor("b", self.heads, "t", h // self.heads)
        row = mi.tensor(h)
        return {
            "x": mi.tensor("b", "s", h), "k_cache": cache, "v_cache": cache,
            "g1": row, "c1": row, "wqkv": mi.tensor(h, 3 * h), "bqkv": mi.tensor(3 * h), "wo": mi.tensor(h, h), "bo": row,
            "g2": row, "c2": row, "w1": mi.tensor(h, f), "b1": mi.tensor(f), "w2": mi.tensor(f, h), "b2": row,
        }  # fmt: skip

    def decode(
        self, x: Any, k_cache: Any, v_cache: Any, g1: Any, c1: Any, wqkv: Any, bqkv: Any, wo: Any, bo: Any, g2: Any, c2: Any,
        w1: Any, b1: Any, w2: Any, b2: Any,
    ) -> Any:  # fmt: skip
        """A layer over new tokens, with keys and values of earlier ones: its result, and those of all tokens."""
        q, k, v = (
            split_heads(part, self.heads) for part in mi.split(mi.layer_norm(x, g1, c1) @ wqkv + bqkv, 3, axis=-1)
        )
        k, v = appended(k_cache, v_cache, k, v)
        s, t = q.shape[2], k.shape[2]
        seen = mi.arange(t) <= mi.arange(t - s, t)[:, None]
        scores = mi.where(seen, q @ k.mT * (self.hidden // self.heads) ** -0.5, _NEVER)
        x = x + join_heads(mi.softmax(scores) @ v) @ wo + bo
        return x + gelu_tanh(mi.layer_norm(x, g2, c2) @ w1 + b1) @ w2 + b2, k, v

    def yardstick(
        self, x: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, *weights: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        g1, c1, wqkv, bqkv, wo, bo, g2, c2, w1, b1, w2, b2 = weights
        q, k, v = (heads(part, self.heads) for part in np.split(norm(x, g1, c1) @ wqkv + bqkv, 3, -1))
        k, v = np.concatenate([k_cache, k], 2), np.concatenate([v_cache, v], 2)
        x = x + causal_attention(q, k, v) @ wo + bo
        return x + _gelu_tanh(norm(x, g2, c2) @ w1 + b1) @ w2 + b2, k, v


@dataclass(frozen=True)
class T5:
    """An encoder layer as in T5: RMSNorm, scores without a scale and with a bias by how far keys are away, a ReLU."""

    hidden: int
    heads: int
    ffn: int
    #: how many distances have a bias of their own, and the one from which all have the same
    buckets: int = 32
    farthest: int = 128

    weights = ("norm1", "wq", "wk", "wv", "wo", "bias", "norm2", "w1", "w2")

    def specs(self) -> Mapping[str, Any]:
        h, f = self.hidden, self.ffn
        square = mi.tensor(h, h)
        return {
            "x": mi.tensor("b", "s", h), "distances": mi.tensor("s", "s", dtype="int64"),
            "norm1": mi.tensor(h), "wq": square, "wk": square, "wv": square, "wo": square,
            "bias": mi.tensor(self.buckets, self.heads), "norm2": mi.tensor(h), "w1": mi.tensor(h, f), "w2": mi.tensor(f, h),
        }  # fmt: skip

    def distances(self, s: int) -> np.ndarray:
        """The number of the bias [query, key] of a sequence of s tokens, which all layers of a model share."""
        away = np.arange(s) - np.arange(s)[:, None]
        half = self.buckets // 2
        exact = half // 2
        share = np.log(np.maximum(np.abs(away), 1) / exact) / math.log(self.farthest / exact)
        far = np.minimum(exact + (share * (half - exact)).astype(np.int64), half - 1)
        return np.where(away > 0, half, 0) + np.where(np.abs(away) < exact, np.abs(away), far)

    def query_weights(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """They are as small as models learn them, for scores that have no scale."""
        return rng.standard_normal(shape) * (shape[0] * self.hidden / self.heads) ** -0.5

    def encoder(
        self, x: Any, distances: Any, norm1: Any, wq: Any, wk: Any, wv: Any, wo: Any, bias: Any, norm2: Any, w1: Any, w2: Any
    ) -> Any:  # fmt: skip
        y = mi.rms_norm(x, norm1)
        q, k, v = (split_heads(y @ w, self.heads) for w in (wq, wk, wv))
        scores = q @ k.mT + mi.take(bias, distances, axis=0).transpose(2, 0, 1)
        x = x + join_heads(mi.softmax(scores) @ v) @ wo
        return x + mi.relu(mi.rms_norm(x, norm2) @ w1) @ w2

    def yardstick(self, x: np.ndarray, distances: np.ndarray, *weights: np.ndarray) -> np.ndarray:
        norm1, wq, wk, wv, wo, bias, norm2, w1, w2 = weights
        y = rms(x, norm1)
        q, k, v = (heads(y @ w, self.heads) for w in (wq, wk, wv))
        scores = np.einsum("bhsd,bhtd->bhst", q, k) + np.moveaxis(bias[distances], 2, 0)
        x = x + np.einsum("bhst,bhtd->bshd", softmax(scores), v).reshape(x.shape) @ wo
        return x + np.maximum(rms(x, norm2) @ w1, 0) @ w2


@dataclass(frozen=True)
class Gemma:
    """A decoder layer as in Gemma 2: norms before and after each half, soft-capped scores, a sliding window, a gated MLP.

    `shared` are the heads of keys and values. A token sees the last `window` ones, itself included.
    """

    hidden: int
    heads: int
    shared: int
    head: int
    ffn: int
    window: int
    cap: float = 50.0

    weights = ("norm1", "wq", "wk", "wv", "wo", "norm2", "norm3", "w1", "w3", "w2", "norm4")

    def specs(self) -> Mapping[str, Any]:
        h, wide, kv, f = self.hidden, self.heads * self.head, self.shared * self.head, self.ffn
        cache, row = mi.tensor("b", self.shared, "t", self.head), mi.tensor(h)
        return {
            "x": mi.tensor("b", "s", h), "positions": mi.tensor("s", dtype="int64"), "k_cache": cache, "v_cache": cache,
            "norm1": row, "wq": mi.tensor(h, wide), "wk": mi.tensor(h, kv), "wv": mi.tensor(h, kv), "wo": mi.tensor(wide, h),
            "norm2": row, "norm3": row, "w1": mi.tensor(h, f), "w3": mi.tensor(h, f), "w2": mi.tensor(f, h), "norm4": row,
        }  # fmt: skip

    def decode(
        self, x: Any, positions: Any, k_cache: Any, v_cache: Any, norm1: Any, wq: Any, wk: Any, wv: Any, wo: Any, norm2: Any,
        norm3: Any, w1: Any, w3: Any, w2: Any, norm4: Any,
    ) -> Any:  # fmt: skip
        """A layer over new tokens, with keys and values of earlier ones: its result, and those of all tokens."""
        y = mi.rms_norm(x, norm1 + 1)
        q = rotate(split_heads(y @ wq, self.heads), positions)
        k, v = rotate(split_heads(y @ wk, self.shared), positions), split_heads(y @ wv, self.shared)
        k, v = appended(k_cache, v_cache, k, v)
        s, t = q.shape[2], k.shape[2]
        i, j = mi.arange(t - s, t)[:, None], mi.arange(t)
        seen = (j <= i) & (i - j < self.window)
        groups = self.heads // self.shared
        scores = q @ mi.repeat(k, groups, axis=1).mT * self.head**-0.5
        scores = mi.where(seen, mi.tanh(scores / self.cap) * self.cap, _NEVER)
        mixed = join_heads(mi.softmax(scores) @ mi.repeat(v, groups, axis=1)) @ wo
        x = x + mi.rms_norm(mixed, norm2 + 1)
        y = mi.rms_norm(x, norm3 + 1)
        return x + mi.rms_norm((gelu_tanh(y @ w1) * (y @ w3)) @ w2, norm4 + 1), k, v

    def yardstick(
        self, x: np.ndarray, positions: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, *weights: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        norm1, wq, wk, wv, wo, norm2, norm3, w1, w3, w2, norm4 = weights
        y = rms(x, norm1 + 1)
        q = rotated(heads(y @ wq, self.heads), positions)
        k = np.concatenate([k_cache, rotated(heads(y @ wk, self.shared), positions)], 2)
        v = np.concatenate([v_cache, heads(y @ wv, self.shared)], 2)
        x = x + rms(causal_attention(q, k, v, self.window, self.cap) @ wo, norm2 + 1)
        y = rms(x, norm3 + 1)
        return x + rms((_gelu_tanh(y @ w1) * (y @ w3)) @ w2, norm4 + 1), k, v


@dataclass(frozen=True)
class Whisper:
    """A layer of Whisper's decoder: causal attention with a cache, attention to the keys and values of a sound, GELU."""

    hidden: int
    heads: int
    ffn: int

    weights = (
        "g1", "c1", "wq", "bq", "wk", "wv", "bv", "wo", "bo", "g2", "c2", "wcq", "bcq", "wco", "bco", "g3", "c3",
        "w1", "b1", "w2", "b2",
    )  # fmt: skip

    def specs(self) -> Mapping[str, Any]:
        h, f = self.hidden, self.ffn
        cache, sound = (mi.tensor("b", self.heads, n, h // self.heads) for n in "tf")
        square, row = mi.tensor(h, h), mi.tensor(h)
        kinds = {"w1": mi.tensor(h, f), "b1": mi.tensor(f), "w2": mi.tensor(f, h)}
        weights = {name: kinds.get(name, square if name.startswith("w") else row) for name in self.weights}
        given = {"x": mi.tensor("b", "s", h), "k_cache": cache, "v_cache": cache, "k_sound": sound, "v_sound": sound}
        return {**given, **weights}

    def decode(
        self, x: Any, k_cache: Any, v_cache: Any, k_sound: Any, v_sound: Any, g1: Any, c1: Any, wq: Any, bq: Any, wk: Any,
        wv: Any, bv: Any, wo: Any, bo: Any, g2: Any, c2: Any, wcq: Any, bcq: Any, wco: Any, bco: Any, g3: Any, c3: Any,
        w1: Any, b1: Any, w2: Any, b2: Any,
    ) -> Any:  # fmt: skip
        """A layer over new tokens, with keys and values of earlier ones: its result, and those of all tokens."""
        scale = (self.hidden // self.heads) ** -0.5
        y = mi.layer_norm(x, g1, c1)
        q, k, v = (split_heads(part, self.heads) for part in (y @ wq + bq, y @ wk, y @ wv + bv))
        k, v = appended(k_cache, v_cache, k, v)
        s, t = q.shape[2], k.shape[2]
        seen = mi.arange(t) <= mi.arange(t - s, t)[:, None]
        x = x + join_heads(mi.softmax(mi.where(seen, q @ k.mT * scale, _NEVER)) @ v) @ wo + bo
        q = split_heads(mi.layer_norm(x, g2, c2) @ wcq + bcq, self.heads)
        x = x + join_heads(mi.softmax(q @ k_sound.mT * scale) @ v_sound) @ wco + bco
        return x + mi.gelu(mi.layer_norm(x, g3, c3) @ w1 + b1) @ w2 + b2, k, v

    def yardstick(
        self, x: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, k_sound: np.ndarray, v_sound: np.ndarray,
        *weights: np.ndarray,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        w = dict(zip(self.weights, weights, strict=True))
        y = norm(x, w["g1"], w["c1"])
        q, k, v = (heads(part, self.heads) for part in (y @ w["wq"] + w["bq"], y @ w["wk"], y @ w["wv"] + w["bv"]))
        k, v = np.concatenate([k_cache, k], 2), np.concatenate([v_cache, v], 2)
        x = x + causal_attention(q, k, v) @ w["wo"] + w["bo"]
        q = heads(norm(x, w["g2"], w["c2"]) @ w["wcq"] + w["bcq"], self.heads)
        scores = np.einsum("bhsd,bhtd->bhst", q, k_sound) / math.sqrt(self.hidden // self.heads)
        mixed = np.einsum("bhst,bhtd->bshd", softmax(scores), v_sound).reshape(x.shape)
        x = x + mixed @ w["wco"] + w["bco"]
        return x + gelu(norm(x, w["g3"], w["c3"]) @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"], k, v
