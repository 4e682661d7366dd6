"""Programs that use an argument under several axes, which tests of the lowering and of the whole path share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mirage as mi
from mirage.ir.program import Program

T = mi.tensor


def _t(x: Any) -> Any:
    return mi.transpose(x, (1, 0))


def _pairwise(x: Any) -> Any:
    return mi.exp(mi.neg(mi.square(mi.reshape(x, ("m", 1)) - mi.reshape(x, (1, "m")))))


def _factorizations(x: Any) -> Any:
    parts = [mi.reshape(x, shape) for shape in (("m", 2, 3), ("m", 3, 2))]
    a, b = (mi.sum(mi.square(mi.sum(p, axis=1)), axis=1) for p in parts)
    return a + b


def _joined(x: Any, y: Any) -> Any:
    joined = mi.sum(mi.concat([x, y], axis=1), axis=1)
    return joined * mi.sum(mi.square(mi.sum(mi.reshape(x, ("m", 2, 2)), axis=1)), axis=1)


def _block(x: Any, q: Any, k: Any, v: Any) -> Any:
    return x + mi.softmax((x @ q) @ _t(x @ k)) @ (x @ v)


SHARED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gram": (lambda x: x @ _t(x), dict(x=T("m", "k"))),
    "covariance": (lambda x: _t(x) @ x, dict(x=T("m", "k"))),
    "self attention": (lambda x: mi.softmax(x @ _t(x)) @ x, dict(x=T("m", "k"))),
    "square": (lambda a: a @ a, dict(a=T("n", "n"))),
    "times transpose": (lambda a: a @ _t(a), dict(a=T("n", "n"))),
    "symmetric": (lambda a: a + _t(a), dict(a=T("n", "n"))),
    "pairwise": (_pairwise, dict(x=T("m"))),
    "rows and columns": (lambda x, y: x @ _t(x) + y, dict(x=T("m", "k"), y=T("m", "m"))),
    "two factorizations": (_factorizations, dict(x=T("m", 6))),
    "shared rows": (lambda x, w, v: (x @ w) @ _t(x @ v), dict(x=T("m", "k"), w=T("k", "j"), v=T("k", "j"))),
    "gram squared": (lambda x: (x @ _t(x)) @ (x @ _t(x)), dict(x=T("m", "k"))),
    "cube": (lambda a: a @ a @ a, dict(a=T("n", "n"))),
    "several outputs": (lambda x: (x @ _t(x), _t(x) @ x), dict(x=T("m", "k"))),
    "joined and split": (_joined, dict(x=T("m", 4), y=T("m", 3))),
    "attention block": (_block, dict(x=T("m", "k"), q=T("k", 16), k=T("k", 16), v=T("k", "k"))),
}


@cache
def shared(name: str) -> Program:
    fn, types = SHARED[name]
    return mi.trace(fn, name.replace(" ", "_"), **types)
