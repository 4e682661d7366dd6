"""Programs with products whose factors and results a library's epilogues take in."""

from __future__ import annotations

from typing import Any

import mirage as mi
from mirage.frontends.attention import attention
from mirage.ir.program import Program


def norm(dtype: str) -> Program:
    @mi.program(x=mi.tensor("b", 24, dtype=dtype), g=mi.tensor(24, dtype=dtype), w=mi.tensor(24, 16, dtype=dtype))
    def norm(x: Any, g: Any, w: Any) -> Any:
        return mi.silu(mi.rms_norm(x, g) @ w), x @ w

    return norm.trace()


def heads(dtype: str) -> Program:
    q, k = mi.tensor("b", 4, "s", 8, dtype=dtype), mi.tensor("b", 2, "t", 8, dtype=dtype)

    @mi.program(q=q, k=k, v=k)
    def heads(q: Any, k: Any, v: Any) -> Any:
        return attention(q, mi.repeat(k, 2, axis=1), mi.repeat(v, 2, axis=1))

    return heads.trace()
