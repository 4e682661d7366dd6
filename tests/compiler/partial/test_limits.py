"""Every evaluation ends: what has no end, or needs too much, is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.partial.specialize import STOPPED
from mirage.errors import GuardError
from mirage.ir.graph import nodes
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from tests.compiler.partial.evaluated import ONES, VECTOR, is_straight, specialized
from tests.compiler.test_functional import same
from tests.ir.graph import functional as texts

FOREVER = """
def main(x: float32[n], p: bool[()]):
    with dataflow():
        y = if_else[never_ends, ends](p, x)
    return y

def never_ends(x: float32[n]) -> float32[n]:
    with dataflow():
        k = int64[()](1)
        y: float32[n] = call[forever](x, k)
    return y

def forever(x: float32[n], k: int64[()]) -> float32[n]:
    with dataflow():
        one = int64[()](1)
        m = add(k, one)
        z = add(x, x)
        p = less(m, one)
        y: float32[n] = if_else[ends_so, on](p, z, m)
    return y

def on(x: float32[n], k: int64[()]) -> float32[n]:
    with dataflow():
        y: float32[n] = call[forever](x, k)
    return y

def ends_so(x: float32[n], k: int64[()]) -> float32[n]:
    return x

def ends(x: float32[n]):
    return x
"""


def test_recursion_without_an_end_is_left() -> None:
    module = parse_module(FOREVER)
    made = specialized(module, limit=500)
    assert "forever is not unrolled further" in str(made.functions["main"].attr[STOPPED])
    assert sum(len(f.bindings) for f in made) <= sum(len(f.bindings) for f in module)
    assert (run_module(made, [ONES, np.asarray(False)]) == 1).all()
    assert "forever is not unrolled further" in mi.compile(made, without=("superoptimize", "fuse")).explain()
    # the rest of the program is evaluated as ever
    assert is_straight(mi.specialize(module, {"p": False}, limit=500))


GROWING = """
def main(x: float32[n], p: bool[()]):
    with dataflow():
        f = closure[one](x)
        y = call[grow](x, p, f)
    return y

def grow(x: float32[k], p: bool[()], f: Callable[[float32[_]], float32[_]]) -> float32[_]:
    with dataflow():
        y: float32[_] = if_else[end, on](p, x, p, f)
    return y

def end(x: float32[k], p: bool[()], f: Callable[[float32[_]], float32[_]]) -> float32[_]:
    with dataflow():
        y: float32[_] = apply[f](x)
    return y

def on(x: float32[k], p: bool[()], f: Callable[[float32[_]], float32[_]]) -> float32[_]:
    with dataflow():
        z = concat(x, x, axis=0)
        q = equal(p, p)
        g = closure[GROWS](f)
        y: float32[_] = call[grow](z, q, g)
    return y

def one(v: float32[_], w: float32[n]) -> float32[_]:
    with dataflow():
        y = tanh(v)
        r: float32[_] = exp(y)
    return r

def same(v: float32[_], f: Callable[[float32[_]], float32[_]]) -> float32[_]:
    with dataflow():
        r: float32[_] = apply[f](v)
    return r
"""


@pytest.mark.parametrize("grows", ["same", ""])
def test_what_grows_under_an_unknown_condition_ends(grows: str) -> None:
    """A tower of functions, and dims that double: there are only so many forms of a branch."""
    text = GROWING.replace("GROWS", grows)
    if not grows:
        text = text.replace("        g = closure[](f)\n", "").replace(", g)", ", f)")
    module = parse_module(text)
    check(module)
    made = specialized(module)
    assert len(made.functions) <= 60 and STOPPED not in made.functions["main"].attr
    for p in (True, False):
        args = [ONES, np.asarray(p)]
        same(run_module(made, args), run_module(module, args))


def test_what_needs_more_than_the_limit_is_left_whole() -> None:
    xs = [ONES] * 100
    for limit, straight in ((20, False), (10_000, True)):
        made = mi.specialize(texts.SUM, {"xs": [mi.tensor("n")] * 100}, limit=limit)
        assert is_straight(made) == straight
        assert (STOPPED in made.functions[made.main].attr) != straight
        assert (run_module(made, [*xs, 0 * ONES]) == 100).all()


def test_loops() -> None:
    def program(x: Any, w: Any) -> Any:
        f = mi.closure(lambda v: mi.tanh(v * w), VECTOR)
        return mi.loop(3, lambda i, s: f(s), x), mi.loop(1_000, lambda i, s: f(s), x)

    module = mi.trace_module(program, {"x": VECTOR, "w": VECTOR})
    made = specialized(module)
    args = [ONES, 2 * ONES]
    same(run_module(made, args), run_module(module, args))
    values = [b.value for f in made for b in f.bindings]
    # short ones are written out, long ones have the function in their body
    assert sum(isinstance(v, nodes.Loop) for v in values) == 1
    assert not any(isinstance(v, nodes.Closure | nodes.CallValue) for v in values)


def test_loops_of_known_counts_check_their_bounds() -> None:
    specs = {"x": VECTOR, "n": mi.tensor(dtype="int64")}
    module = mi.trace_module(lambda x, n: mi.loop(n, lambda i, s: s + x, x, bound=4), specs)
    assert is_straight(mi.specialize(module, {"n": 4}))
    with pytest.raises(GuardError, match="5 rounds, but its bound 4 is 4"):
        run_module(mi.specialize(module, {"n": 5}), [ONES])


def test_deep_data() -> None:
    made = mi.specialize(texts.SUM, {"xs": [np.ones(1, np.float32)] * 2_000})
    assert is_straight(made)
    assert run_module(made, [np.zeros(1, np.float32)]) == 2_000
