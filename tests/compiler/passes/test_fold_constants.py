"""Constants are folded, but not what is large, fails, or depends on a size."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compiler.passes import dead_code, fold_constants
from mirage.errors import InputError
from mirage.ir.graph.nodes import Constant, MakeTuple
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays


def folded(body: str, signature: str = "x: float32[n]") -> list[str]:
    return ops(after(main_text(body, signature), fold_constants.run, dead_code.run))


def test_chains_of_constants() -> None:
    text = """
def main(x: float32[n, 2]) -> float32[n, 2]:
    with dataflow():
        two = constant(value=2)
        a = mul(float32[2, 2](1, 2, 3, 4), two)
        b = transpose(a, perm=(1, 0))
        c = sum(b, axes=(0,))
        r = add(x, c)
    return r
"""
    m = after(text, fold_constants.run, dead_code.run)
    assert ops(m) == ["add"]
    (x,) = random_arrays(0, (3, 2))
    assert_equal(evaluate(m, x), evaluate(parse_module(text), x))
    assert_equal(evaluate(m, x), x + np.array([6, 14], np.float32))


def test_results_of_several_tensors() -> None:
    m = after(main_text("t = topk(float32[3](5, 7, 6), k=2)\nr = item[0](t)", "x: float32[n]"), fold_constants.run)
    made = expressions(m)[0]
    assert isinstance(made, MakeTuple)
    values, places = made.args
    assert isinstance(values, Constant) and isinstance(places, Constant)
    assert values.array.tolist() == [7, 6] and places.array.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("r = add(x, float32[()](1))", ["add"]),
        # kernels make these elements faster than they read them
        ("r = full(shape=(4,), value=1)", ["full"]),
        ("a = dim_value(dim=4)\nb = dim_value(dim=n)\nr = sub(b, a)", ["dim_value", "sub"]),
        ("a = size(dim=n)\nr = mul(float32[2](1, 2), a)", ["size", "mul"]),
        ("r = broadcast_to(float32[1](1), shape=(n,))", ["broadcast_to"]),
        ("r = unique(float32[2](1, 1))", ["unique"]),
        # 1 MiB out of 4 bytes
        ("r = broadcast_to(float32[1](1), shape=(262144,))", ["broadcast_to"]),
        ("r = broadcast_to(float32[1](1), shape=(64,))", []),
    ],
)
def test_what_stays(body: str, left: list[str]) -> None:
    assert folded(body) == left


def test_what_fails_is_left_to_the_run() -> None:
    m = after(main_text("r = take(float32[2](1, 2), int64[1](5))", "x: float32[n]"), fold_constants.run)
    assert ops(m) == ["take"]
    with pytest.raises(InputError, match="take"):
        evaluate(m, np.zeros(1, np.float32))


def test_arrays_that_are_written_to_are_made_anew() -> None:
    text = """
def main(x: float32[n]):
    with dataflow():
        a = add(float32[2](1, 2), float32[2](1, 2))
    e = packed["clear", Object, in_place[0]](a)
    return a
"""
    assert ops(after(text, fold_constants.run)) == ["add", "PackedCall"]
