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
from benchmarks.graphs.programs import BERT_BASE, TINY_LLAMA, GraphProgram
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
    "mixtral_moe": _MIXTRAL,
    "mixtral_routed": _MIXTRAL,
}
