"""Attention that writes the keys and values which it reads, behind those of a cache."""

from __future__ import annotations

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.context import Context
from mirage.compiler.passes import append_keys, dead_code, lower_libraries
from mirage.ir.graph.nodes import LibraryCall, Module
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, evaluate, expressions, main_text, ops, random_arrays

SIGNATURE = ", ".join(
    f"{name}: float32[b, 2, {keys}, {width}]"
    for name, keys, width in (("q", "s", 8), ("kc", "t", 8), ("k", "s", 8), ("vc", "t", 6), ("v", "s", 6))
)
KEYS = "keys = concat(kc, k, axis=2)\n"
VALUES = "values = concat(vc, v, axis=2)\n"
ATTENTION = """kt = transpose(keys, perm=(0, 1, 3, 2))
scores = matmul(q, kt)
shares = softmax(scores, axis=-1)
a = matmul(shares, values)
"""
BODY = f"{KEYS}{VALUES}{ATTENTION}r = (a, keys, values)"


def appended(body: str) -> Module:
    passes = (lower_libraries.run, dead_code.run, append_keys.run)
    return after(main_text(body, SIGNATURE), *passes, context=Context(packages=("cpu",)))


def calls(module: Module) -> list[LibraryCall]:
    return [e for e in expressions(module) if isinstance(e, LibraryCall)]


def test_a_cache_is_read_once() -> None:
    m = appended(BODY)
    (call,) = calls(m)
    assert dict(call.attrs)["appended"] is True and len(call.args) == 5 and len(call.out) == 3
    assert "concat" not in ops(m)


#: values in another order, tokens before heads
TURNED = """f = transpose(vc, perm=(0, 2, 1, 3))
g = transpose(v, perm=(0, 2, 1, 3))
turned = concat(f, g, axis=1)
values = transpose(turned, perm=(0, 2, 1, 3))
"""


@pytest.mark.parametrize(
    "body",
    [
        f"{KEYS}{VALUES}e = exp(keys)\n{ATTENTION}r = (a, e, values)",
        f"keys = concat(k, k, k, axis=2)\nvalues = concat(v, v, v, axis=2)\n{ATTENTION}r = (a, keys, values)",
        f"keys = concat(k, k, axis=2)\nvalues = repeat(v, times=2, axis=2)\n{ATTENTION}r = (a, keys)",
        f"{KEYS}{TURNED}{ATTENTION}r = (a, keys)",
    ],
    ids=["read before", "three parts", "one joined", "turned"],
)
def test_what_stays(body: str) -> None:
    assert not any("appended" in dict(c.attrs) for c in calls(appended(body)))


def test_keys_that_are_read_afterwards() -> None:
    m = appended(f"{KEYS}{VALUES}{ATTENTION}e = exp(keys)\nr = (a, e, values)")
    assert "appended" in dict(calls(m)[0].attrs) and "exp" in ops(m)


@pytest.mark.parametrize("sizes", [(1, 1, 0), (1, 1, 700), (3, 5, 20), (2, 1, 3000), (0, 2, 4), (2, 0, 4)])
def test_compiled(sizes: tuple[int, int, int]) -> None:
    b, s, t = sizes
    run = mi.compile(parse_module(main_text(BODY, SIGNATURE)), without=("superoptimize",), cache=False)
    assert "appended" in str(run.program)
    shapes = (b, 2, s, 8), (b, 2, t, 8), (b, 2, s, 8), (b, 2, t, 6), (b, 2, s, 6)
    arrays = random_arrays(4, *shapes)
    exactly = parse_module(main_text(BODY, SIGNATURE.replace("float32", "float64")))
    wanted = evaluate(exactly, *(a.astype(np.float64) for a in arrays))
    for _ in range(2):
        for found, exact in zip(run(*arrays), wanted, strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
