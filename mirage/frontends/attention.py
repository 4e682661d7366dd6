"""Attention programs that ship with the package: the demonstration's, and part of the measured ones."""

from __future__ import annotations

from typing import Any

from mirage.frontends import ops
from mirage.frontends.spec import program
from mirage.ir.types import tensor

# 4096 keys and values; one new token, 32 drafted tokens, 512 tokens of a prompt (paper, section 7.2)
_PHASES = {"decode": {"b": 1, "s": 1}, "speculative": {"b": 1, "s": 32}, "prefill": {"b": 1, "s": 512}}


def attention_sizes(**sizes: int) -> dict[str, dict[str, int]]:
    """The three sets of sizes of an attention program, with further dims."""
    return {name: {**s, "t": 4096, **sizes} for name, s in _PHASES.items()}


def attention(q: Any, k: Any, v: Any) -> Any:
    """Scaled dot-product attention of q[..., s, d] over k and v[..., t, d]."""
    return ops.softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v


@program(
    q=tensor("b", "8*h", "s", 128),
    k=tensor("b", "h", "t", 128),
    v=tensor("b", "h", "t", 128),
    sizes=attention_sizes(h=8),
)
def gqa_decode(q: Any, k: Any, v: Any) -> Any:
    """Grouped-query attention: 8 query heads share each key-value head."""
    return attention(q, ops.repeat(k, 8, axis=1), ops.repeat(v, 8, axis=1))


@program(
    q=tensor("b", "h", "s", 64),
    k=tensor("b", "h", "t", 64),
    v=tensor("b", "h", "t", 64),
    sizes=attention_sizes(h=8),
)
def qknorm_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention over normalised queries and keys."""
    return attention(ops.rms_norm(q), ops.rms_norm(k), v)
