"""Sizes of the dims of every function, from those of the main one."""

from __future__ import annotations

from mirage.compiler.sizes import DEFAULT_SIZE, sizes_of_functions
from mirage.ir.graph.parse import parse_module


def test_sizes_follow_calls() -> None:
    module = parse_module("""
@main
def top(x: float32[n, 4], k: Shape[m]) -> float32[2*n, 4]:
    with dataflow():
        a = concat(x, x, axis=0)
        b = call[inner](a)
    return b

def inner(y: float32[p, q]) -> float32[p, q]:
    with dataflow():
        z = exp(y)
    return z
""")
    assert sizes_of_functions(module, [{"n": 3, "m": 5}, {"n": 7, "m": 5}]) == {
        "top": [{"n": 3, "m": 5}, {"n": 7, "m": 5}],
        "inner": [{"p": 6, "q": 4}, {"p": 14, "q": 4}],
    }


def test_dims_of_data_have_a_default() -> None:
    module = parse_module("""
def main(x: float32[n]):
    with dataflow():
        u = unique(x)
        v = match_cast[float32[k]](u)
        w = exp(v)
    return w
""")
    assert sizes_of_functions(module, [{"n": 3}]) == {"main": [{"n": 3, "k": DEFAULT_SIZE}]}
