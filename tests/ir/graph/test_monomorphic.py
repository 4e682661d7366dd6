"""Functions with type variables in text: one for each of the types that they are used at, and no type variable left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GraphError
from mirage.ir.graph.check import check
from mirage.ir.graph.functional import functional
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.monomorphic import monomorphic, variables_in
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_module
from tests.ir.graph import functional as texts
from tests.ir.graph.unannotated import without_annotations

ONES = np.ones(3, np.float32)

#: a function of the module at two types
TWO_TYPES = (
    texts.MAP.replace(
        "ys = call[map](f, xs)",
        "zs = call[map](f, xs)\n        g = closure[count](w)\n        ys = call[map](g, zs)",
    )
    + """

def count(x: float32[n], w: float32[n]):
    with dataflow():
        y = sum(x, axes=(0,), keepdims=False)
    return y
"""
)

SAME = """
def main(x: float32[n], y: float32[n, 4]):
    with dataflow():
        a = call[second](x, y)
        b = call[second](y, x)
        c = mul(a, a)
        r = (b, c)
    return r

def second(x, y):
    return y
"""


def specialized(text: str) -> Module:
    module = monomorphic(parse_module(text))
    check(module)
    assert not any(variables_in(p.annotation) for f in module for p in f.parameters)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def test_two_types(golden: Callable[[str, str], None]) -> None:
    module = specialized(TWO_TYPES)
    golden("monomorphic.txt", print_module(module))
    for found in (run_module(module, [[ONES], 2 * ONES]), mi.compile(TWO_TYPES, without=("fuse", "libraries"))([ONES], 2 * ONES)):
        assert [float(v) for v in found] == [6]


def test_inferred_types() -> None:
    module = specialized(without_annotations(TWO_TYPES))
    assert {n for n in module.functions if n.startswith("map")} == {"map", "map_0"}


def test_what_is_used_at_tensors_needs_no_stack() -> None:
    assert functional(parse_module(SAME)) and not functional(specialized(SAME))
    x, y = ONES, np.ones((3, 4), np.float32)
    b, c = mi.compile(SAME, without=("superoptimize",))(x, 2 * y)
    assert (b == x).all() and (c == 4).all()


def test_modules_of_known_types_stay() -> None:
    module = parse_module(texts.SUM)
    assert monomorphic(module) is module


@pytest.mark.parametrize("name", ["MAP", "SHOWCASE"])
def test_texts(name: str) -> None:
    specialized(getattr(texts, name))


def test_types_that_grow_are_refused() -> None:
    text = """
def main(x: float32[n], c: bool[()]):
    with dataflow():
        r = call[f](x, c)
    return r

def f(x: a, c: bool[()]) -> bool[()]:
    with dataflow():
        r = if_else[done, again](c, x, c)
    return r

def done(x: a, c: bool[()]) -> bool[()]:
    return c

def again(x: a, c: bool[()]) -> bool[()]:
    with dataflow():
        s = Some(x)
        r = call[f](s, c)
    return r
"""
    message = r"line 18: call of f: within f for a = float32\[n\], it is called for a = Option\[float32\[n\]\], so that .* end"
    with pytest.raises(GraphError, match=message):
        monomorphic(parse_module(text))
    # to and fro, they do not grow
    both = text.replace("s = Some(x)\n        r = call[f](s, c)", "r = call[f](c, c)")
    assert {n for n in specialized(both).functions if n.startswith("f")} == {"f", "f_0"}
