"""Groups of operators as fusion meets them, each a program, which tests of fused graphs and kernels share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mirage as mi
from mirage.ir.program import Program

T = mi.tensor


def _attention(q: Any, k: Any, v: Any) -> Any:
    return mi.softmax(q @ mi.transpose(k, (0, 2, 1)) * 0.125) @ v


def _gqa(q: Any, k: Any, v: Any) -> Any:
    return _attention(q, mi.repeat(k, 8, axis=0), mi.repeat(v, 8, axis=0))


def _rope(x: Any, c: Any, s: Any) -> Any:
    halves = mi.reshape(x, ("n", 2, 8))
    turned = mi.concat([mi.neg(mi.sum(halves, axis=1)), mi.sum(halves, axis=1)], axis=1)
    return x * c + turned * s


#: name -> (function, types of its arguments, the axis that the first form loops over)
GROUPS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "softmax": (lambda x: mi.softmax(x), dict(x=T("n", "m")), ""),
    "layer norm": (lambda x, g, b: mi.layer_norm(x, g, b), dict(x=T("n", 96), g=T(96), b=T(96)), ""),
    "rms norm": (lambda x, g: mi.rms_norm(x, g), dict(x=T("n", 96), g=T(96)), ""),
    "gate": (lambda x, y: mi.silu(x) * y, dict(x=T("n", "m"), y=T("n", "m")), ""),
    "linear, gelu": (lambda x, w, b: mi.gelu(x @ w + b), dict(x=T("n", "k"), w=T("k", "m"), b=T("m")), "k"),
    "linear, residual, norm": (
        lambda x, w, r, g: mi.rms_norm(x @ w + r, g),
        dict(x=T("n", "k"), w=T("k", 96), r=T("n", 96), g=T(96)),
        "k",
    ),
    "norm, linear": (lambda x, g, w: mi.rms_norm(x, g) @ w, dict(x=T("n", "k"), g=T("k"), w=T("k", "m")), "k"),
    "layer norm, linear": (lambda x, w: mi.layer_norm(x) @ w, dict(x=T("n", "k"), w=T("k", "m")), ""),
    "gated linear": (
        lambda x, w, u: mi.silu(x @ w) * (x @ u),
        dict(x=T("n", "k"), w=T("k", "m"), u=T("k", "m")),
        "k",
    ),
    "two linears": (lambda x, w, u: mi.gelu(x @ w) @ u, dict(x=T("n", 96), w=T(96, "m"), u=T("m", 96)), "m"),
    "attention": (_attention, dict(q=T("h", "n", 64), k=T("h", "m", 64), v=T("h", "m", 64)), "m"),
    "grouped attention": (_gqa, dict(q=T("8*h", "n", 64), k=T("h", "m", 64), v=T("h", "m", 64)), "m"),
    "low rank": (
        lambda x, w, d, u: x @ w + (x @ d) @ u,
        dict(x=T("n", "k"), w=T("k", "m"), d=T("k", 16), u=T(16, "m")),
        "k",
    ),
    "scalar": (lambda x: mi.sum(mi.square(x)), dict(x=T("n", "m")), ""),
    "rows and sums": (lambda x: (x + 1, mi.sum(x, axis=1)), dict(x=T("n", "m")), ""),
    "columns": (lambda x: x / mi.sum(mi.square(x), axis=0, keepdims=True), dict(x=T("n", "m")), ""),
    "rotation": (_rope, dict(x=T("n", 16), c=T("n", 16), s=T("n", 16)), ""),
    "transposed": (lambda x, y: mi.transpose(x, (1, 0)) + y, dict(x=T("n", "m"), y=T("m", "n")), ""),
    "argument returned": (lambda x, y: (x, x + y), dict(x=T("n", "m"), y=T("n", "m")), ""),
}


@cache
def group(name: str) -> Program:
    fn, types, _ = GROUPS[name]
    return mi.trace(fn, name.replace(" ", "_").replace(",", ""), **types)
