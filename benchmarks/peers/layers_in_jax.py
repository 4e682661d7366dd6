"""Layers of `benchmarks/graphs/models.py` as users of JAX write them, compiled by `jax.jit` (XLA) for the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.graphs.models import frequencies
from benchmarks.graphs.programs import BERT_BASE, GEMMA, GPT2, T5_BASE, TINY_LLAMA, WHISPER_SMALL, GraphProgram
from benchmarks.peers.in_jax import EPS

_Layer = Callable[..., Any]


def jax_layers(program: GraphProgram, arguments: Sequence[Any], threads: int) -> Mapping[str, Callable[[], Any]]:
    """By label, compiled forms of a program for these arguments, with weights as arguments and as constants; empty for those that
    have none. Floats but weights are read where they lie; memory that XLA does not read (it has to begin at a cache line) raises
    ValueError. The number of threads is that of the first call in a process.
    """
    os.environ["NPROC"] = str(threads)
    read = {n for n, a in zip(program.specs, arguments, strict=True) if a.dtype == np.float32} - {*program.constants}
    given = {
        n: jnp.from_dlpack(a, copy=False) if n in read else jnp.array(a) for n, a in zip(program.specs, arguments, strict=True)
    }
    changing = {n: a for n, a in given.items() if n not in program.constants}
    fixed = {n: a for n, a in given.items() if n in program.constants}
    found = {}
    for label, layer in _LAYERS.get(program.name, {}).items():
        plain, constant = jax.jit(layer), jax.jit(lambda *others, layer=layer: layer(*others, *fixed.values()))
        found[label] = _ready(plain, *changing.values(), *fixed.values())
        found[f"{label}, constant weights".removeprefix(", ")] = _ready(constant, *changing.values())
    return found


def _ready(run: Callable[..., Any], *given: Array) -> Callable[[], Any]:
    jax.block_until_ready(run(*given))
    return lambda: jax.block_until_ready(run(*given))


def _rms(x: Array, weight: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def _norm(x: Array, weight: Array, bias: Array) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + EPS) * weight + bias


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _llama(cached: bool) -> _Layer:
    """A layer of a decoder over new tokens, of which there is one where keys and values are cached."""
    model = TINY_LLAMA

    def run(x: Array, positions: Array, *rest: Array) -> tuple[Array, Array, Array]:
        cache, (norm1, wq, wk, wv, wo, norm2, w1, w3, w2) = (rest[:2], rest[2:]) if cached else ((), rest)
        b, s, _ = x.shape
        angles = positions[:, None] * frequencies(model.head)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        y = _rms(x, norm1)
        q = _rotate((y @ wq).reshape(b, s, model.heads, -1), cos, sin)
        k = _rotate((y @ wk).reshape(b, s, model.shared, -1), cos, sin)
        v = (y @ wv).reshape(b, s, model.shared, -1)
        kept = k.swapaxes(1, 2), v.swapaxes(1, 2)
        if cache:
            kept = jnp.concatenate([cache[0], kept[0]], 2), jnp.concatenate([cache[1], kept[1]], 2)
            k, v = kept[0].swapaxes(1, 2), kept[1].swapaxes(1, 2)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=not cached)
        x = x + mixed.reshape(b, s, -1) @ wo
        y = _rms(x, norm2)
        return x + (jax.nn.silu(y @ w1) * (y @ w3)) @ w2, *kept

    return run


def _bert(x: Array, valid: Array, *weights: Array) -> Array:
    wq, bq, wk, bk, wv, bv, wo, bo, g1, c1, w1, b1, w2, b2, g2, c2 = weights
    b, s, h = x.shape
    q, k, v = ((x @ w + c).reshape(b, s, BERT_BASE.heads, -1) for w, c in ((wq, bq), (wk, bk), (wv, bv)))
    mixed = jax.nn.dot_product_attention(q, k, v, mask=valid[:, None, None, :])
    x = _norm(x + mixed.reshape(b, s, h) @ wo + bo, g1, c1)
    return _norm(x + jax.nn.gelu(x @ w1 + b1, approximate=False) @ w2 + b2, g2, c2)


def _appended(k_cache: Array, v_cache: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Keys and values [b, heads, tokens, head] of all tokens, of new ones [b, tokens, heads, head]."""
    return jnp.concatenate([k_cache, k.swapaxes(1, 2)], 2), jnp.concatenate([v_cache, v.swapaxes(1, 2)], 2)


def _attend(q: Array, k: Array, v: Array) -> Array:
    """Of queries [b, tokens, heads, head] that see all keys [b, heads, tokens, head]; joins the heads."""
    mixed = jax.nn.dot_product_attention(q, k.swapaxes(1, 2), v.swapaxes(1, 2))
    return mixed.reshape(*q.shape[:2], -1)


def _heads(x: Array, count: int) -> Array:
    return x.reshape(*x.shape[:2], count, -1)


def _gpt2(x: Array, k_cache: Array, v_cache: Array, *weights: Array) -> tuple[Array, Array, Array]:
    g1, c1, wqkv, bqkv, wo, bo, g2, c2, w1, b1, w2, b2 = weights
    q, k, v = (_heads(part, GPT2.heads) for part in jnp.split(_norm(x, g1, c1) @ wqkv + bqkv, 3, -1))
    keys, values = _appended(k_cache, v_cache, k, v)
    x = x + _attend(q, keys, values) @ wo + bo
    return x + jax.nn.gelu(_norm(x, g2, c2) @ w1 + b1, approximate=True) @ w2 + b2, keys, values


def _t5(x: Array, distances: Array, *weights: Array) -> Array:
    norm1, wq, wk, wv, wo, bias, norm2, w1, w2 = weights
    y = _rms(x, norm1)
    q, k, v = (_heads(y @ w, T5_BASE.heads) for w in (wq, wk, wv))
    mixed = jax.nn.dot_product_attention(q, k, v, bias=bias[distances].transpose(2, 0, 1)[None], scale=1.0)
    x = x + mixed.reshape(x.shape) @ wo
    return x + jax.nn.relu(_rms(x, norm2) @ w1) @ w2


def _whisper(
    x: Array, k_cache: Array, v_cache: Array, k_sound: Array, v_sound: Array, *weights: Array
) -> tuple[Array, Array, Array]:
    g1, c1, wq, bq, wk, wv, bv, wo, bo, g2, c2, wcq, bcq, wco, bco, g3, c3, w1, b1, w2, b2 = weights
    y = _norm(x, g1, c1)
    q, k, v = (_heads(part, WHISPER_SMALL.heads) for part in (y @ wq + bq, y @ wk, y @ wv + bv))
    keys, values = _appended(k_cache, v_cache, k, v)
    x = x + _attend(q, keys, values) @ wo + bo
    q = _heads(_norm(x, g2, c2) @ wcq + bcq, WHISPER_SMALL.heads)
    x = x + _attend(q, k_sound, v_sound) @ wco + bco
    return x + jax.nn.gelu(_norm(x, g3, c3) @ w1 + b1, approximate=False) @ w2 + b2, keys, values


def _gemma(x: Array, positions: Array, k_cache: Array, v_cache: Array, *weights: Array) -> tuple[Array, Array, Array]:
    """Attention reads the keys that some query sees; the queries that share keys are rows of one head."""
    norm1, wq, wk, wv, wo, norm2, norm3, w1, w3, w2, norm4 = weights
    b, s, _ = x.shape
    angles = positions[:, None] * frequencies(GEMMA.head)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    y = _rms(x, 1 + norm1)
    q = _rotate(_heads(y @ wq, GEMMA.heads), cos, sin)
    keys, values = _appended(k_cache, v_cache, _rotate(_heads(y @ wk, GEMMA.shared), cos, sin), _heads(y @ wv, GEMMA.shared))
    k, v = (c[:, :, -(GEMMA.window + s - 1) :] for c in (keys, values))
    t = k.shape[2]
    i, j = jnp.arange(t - s, t)[:, None], jnp.arange(t)
    grouped = q.reshape(b, s, GEMMA.shared, -1, GEMMA.head)
    scores = jnp.einsum("bskgd,bktd->bkgst", grouped, k) * GEMMA.head**-0.5
    scores = jnp.where((j <= i) & (i - j < GEMMA.window), GEMMA.cap * jnp.tanh(scores / GEMMA.cap), -jnp.inf)
    mixed = jnp.einsum("bkgst,bktd->bskgd", jax.nn.softmax(scores), v).reshape(b, s, -1)
    x = x + _rms(mixed @ wo, 1 + norm2)
    y = _rms(x, 1 + norm3)
    gated = jax.nn.gelu(y @ w1, approximate=True) * (y @ w3)
    return x + _rms(gated @ w2, 1 + norm4), keys, values


def _mixtral_dense(x: Array, router: Array, w1: Array, w3: Array, w2: Array) -> Array:
    """All experts for all tokens."""
    best, chosen = jax.lax.top_k(x @ router, 2)
    shares = jnp.zeros((x.shape[0], w1.shape[0])).at[jnp.arange(x.shape[0])[:, None], chosen].set(jax.nn.softmax(best))
    found = (jax.nn.silu(x @ w1) * (x @ w3)) @ w2
    return jnp.einsum("enh,ne->nh", found, shares)


def _mixtral_sparse(x: Array, router: Array, w1: Array, w3: Array, w2: Array) -> Array:
    """Every expert for the tokens that are routed to it, sorted by expert."""
    best, chosen = jax.lax.top_k(x @ router, 2)
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=w1.shape[0])
    tokens = x[order // 2]
    gated = jax.nn.silu(jax.lax.ragged_dot(tokens, w1, sizes)) * jax.lax.ragged_dot(tokens, w3, sizes)
    found = jax.lax.ragged_dot(gated, w2, sizes)[jnp.argsort(order)].reshape(x.shape[0], 2, -1)
    return (found * jax.nn.softmax(best)[:, :, None]).sum(1)


_MIXTRAL = {"all experts": _mixtral_dense, "routed tokens": _mixtral_sparse}
#: by program, by label
_LAYERS: Mapping[str, Mapping[str, _Layer]] = {
    "llama_prefill": {"": _llama(False)},
    "llama_decode": {"": _llama(True)},
    "bert_encoder": {"": _bert},
    "gpt2_decode": {"": _gpt2},
    "t5_encoder": {"": _t5},
    "whisper_decode": {"": _whisper},
    "gemma_decode": {"": _gemma},
    "mixtral_moe": _MIXTRAL,
    "mixtral_routed": _MIXTRAL,
}
