"""The layers of `benchmarks/graphs/attention_models.py` as users of PyTorch write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.graphs.models import frequencies
from benchmarks.graphs.programs import GEMMA, GPT2, T5_BASE, WHISPER_SMALL
from benchmarks.peers.in_torch import EPS

Linear = Callable[..., Tensor]
_SDPA = F.scaled_dot_product_attention


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def plain(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product with weights [in, out]."""
    return x @ w if bias is None else x @ w + bias


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def gpt2(linear: Linear) -> Callable[..., Any]:
    """One new token, which sees all that is cached."""

    def run(x: Tensor, k_cache: Tensor, v_cache: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g1, c1, wqkv, bqkv, wo, bo, g2, c2, w1, b1, w2, b2 = weights
        q, k, v = (_split(part, GPT2.heads) for part in linear(norm(x, g1, c1), wqkv, bqkv).chunk(3, -1))
        k, v = torch.cat([k_cache, k], 2), torch.cat([v_cache, v], 2)
        x = x + linear(_joined(_SDPA(q, k, v)), wo, bo)
        return x + linear(F.gelu(linear(norm(x, g2, c2), w1, b1), approximate="tanh"), w2, b2), k, v

    return run


def t5(linear: Linear) -> Callable[..., Any]:
    def run(x: Tensor, distances: Tensor, *weights: Tensor) -> Tensor:
        norm1, wq, wk, wv, wo, bias, norm2, w1, w2 = weights
        y = rms(x, norm1)
        q, k, v = (_split(linear(y, w), T5_BASE.heads) for w in (wq, wk, wv))
        mixed = _SDPA(q, k, v, attn_mask=bias[distances].permute(2, 0, 1)[None], scale=1.0)
        x = x + linear(_joined(mixed), wo)
        return x + linear(F.relu(linear(rms(x, norm2), w1)), w2)

    return run


def whisper(linear: Linear) -> Callable[..., Any]:
    """One new token, which sees all that is cached, and the whole sound."""
    heads = WHISPER_SMALL.heads

    def run(
        x: Tensor, k_cache: Tensor, v_cache: Tensor, k_sound: Tensor, v_sound: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        g1, c1, wq, bq, wk, wv, bv, wo, bo, g2, c2, wcq, bcq, wco, bco, g3, c3, w1, b1, w2, b2 = weights
        y = norm(x, g1, c1)
        q, k, v = (_split(part, heads) for part in (linear(y, wq, bq), linear(y, wk), linear(y, wv, bv)))
        k, v = torch.cat([k_cache, k], 2), torch.cat([v_cache, v], 2)
        x = x + linear(_joined(_SDPA(q, k, v)), wo, bo)
        q = _split(linear(norm(x, g2, c2), wcq, bcq), heads)
        x = x + linear(_joined(_SDPA(q, k_sound, v_sound)), wco, bco)
        return x + linear(F.gelu(linear(norm(x, g3, c3), w1, b1)), w2, b2), k, v

    return run


def gemma(device: torch.device, linear: Linear, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    turns = torch.from_numpy(frequencies(GEMMA.head)).to(device)

    def run(
        x: Tensor, positions: Tensor, k_cache: Tensor, v_cache: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        norm1, wq, wk, wv, wo, norm2, norm3, w1, w3, w2, norm4 = weights
        angles = positions[:, None] * turns
        cos, sin = angles.cos(), angles.sin()
        y = rms(x, 1 + norm1)
        q = rotate(_split(linear(y, wq), GEMMA.heads), cos, sin)
        k, v = rotate(_split(linear(y, wk), GEMMA.shared), cos, sin), _split(linear(y, wv), GEMMA.shared)
        k, v = torch.cat([k_cache, k], 2), torch.cat([v_cache, v], 2)
        x = x + rms(linear(_joined(attend(q, k, v)), wo), 1 + norm2)
        y = rms(x, 1 + norm3)
        gated = F.gelu(linear(y, w1), approximate="tanh") * linear(y, w3)
        return x + rms(linear(gated, w2), 1 + norm4), k, v

    return run


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Gemma's attention as Transformers has it, of keys that some query sees."""
    s = q.shape[2]
    k, v = k[:, :, -(GEMMA.window + s - 1) :], v[:, :, -(GEMMA.window + s - 1) :]
    t = k.shape[2]
    i, j = torch.arange(t - s, t, device=q.device)[:, None], torch.arange(t, device=q.device)
    # the queries that share keys are rows of one head
    grouped = q.unflatten(1, (GEMMA.shared, -1)).flatten(2, 3)
    scores = GEMMA.cap * torch.tanh(grouped @ k.mT * (GEMMA.head**-0.5 / GEMMA.cap))
    scores = scores.unflatten(2, (-1, s)).masked_fill((j > i) | (i - j >= GEMMA.window), -torch.inf)
    return (scores.softmax(-1).flatten(2, 3) @ v).unflatten(2, (-1, s)).flatten(1, 2)


def flexible(tokens: int, keys: int, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Gemma's attention of so many tokens by FlexAttention, which passes over blocks of keys that no query sees.

    The blocks are found once, before any call, as those of all layers of a model are.
    """

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        at = i + (keys - tokens)
        return (j <= at) & (at - j < GEMMA.window)

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return GEMMA.cap * torch.tanh(score / GEMMA.cap)

    blocks = create_block_mask(seen, None, None, tokens, keys, device=str(device))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = flex_attention(q, k, v, score_mod=capped, block_mask=blocks, scale=GEMMA.head**-0.5, enable_gqa=True)
        assert isinstance(found, Tensor)
        return found

    return attend
