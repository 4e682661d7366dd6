"""Common subexpressions of a function."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compiler.passes import cse
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays


def shared(body: str, signature: str = "x: float32[n, 4], y: float32[n, 4]") -> list[str]:
    return ops(after(main_text(body, signature), cse.run))


def test_equal_expressions_are_one() -> None:
    assert shared("a = exp(x)\nb = exp(x)\nc = exp(a)\nd = exp(b)\nr = add(c, d)") == ["exp", "exp", "add"]
    assert shared("a = sum(x, axes=(1,))\nb = sum(x, axes=(1,))\nr = add(a, b)") == ["sum", "add"]


def test_constants_are_equal_by_content() -> None:
    assert shared("a = add(x, float32[4](1, 2, 3, 4))\nb = add(x, float32[4](1, 2, 3, 4))\nr = add(a, b)") == [
        "add",
        "add",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "a = exp(x)\nb = exp(y)\nr = add(a, b)",
        "a = sum(x, axes=(1,), keepdims=True)\nb = sum(x, axes=(0,), keepdims=True)\nr = add(a, b)",
        "a = add(x, float32[4](1, 2, 3, 4))\nb = add(x, float32[4](1, 2, 3, 5))\nr = add(a, b)",
        # equal bytes of another shape, equal values of another sign
        "a = mul(x, float32[4](1, 2, 3, 4))\nb = mul(x, float32[1, 4](1, 2, 3, 4))\nr = add(a, b)",
        "a = mul(x, float32[()](0.0))\nb = mul(x, float32[()](-0.0))\nr = add(a, b)",
    ],
)
def test_what_differs_stays(body: str) -> None:
    assert len(shared(body)) == 3


def test_a_check_is_made_once() -> None:
    two = "a = match_cast[float32[m]](x)\nb = match_cast[float32[m]](x)\nr = add(a, b)"
    assert shared(two, "x: float32[n], y: float32[m]") == ["MatchCast", "add"]


EFFECT = """
def main(x: float32[n]) -> float32[n]:
    with dataflow():
        a = exp(x)
        b = exp(x)
    e = packed["clear", Object, in_place[0]]({written})
    with dataflow():
        c = exp(x)
        d = add(a, b)
        r = add(c, d)
    return r
"""


@pytest.mark.parametrize("written", ["x", "b"])
def test_what_is_written_to_stays_apart(written: str) -> None:
    def clear(array: np.ndarray) -> None:
        array[...] = 0

    text = EFFECT.format(written=written)
    (x,) = random_arrays(0, (5,))
    wanted = evaluate(parse_module(text), x.copy(), clear=clear)
    m = after(text, cse.run)
    assert ops(m).count("exp") == (3 if written == "x" else 2)
    assert_equal(evaluate(m, x.copy(), clear=clear), wanted)


def test_sharing_across_effects() -> None:
    """Of what no effect writes to; numbers stay in the block that reads them."""
    text = EFFECT.format(written="x").replace(", in_place[0]", "")
    m = after(text, cse.run)
    assert ops(m).count("exp") == 1
    (x,) = random_arrays(0, (5,))
    assert_equal(evaluate(m, x, clear=lambda array: None), evaluate(parse_module(text), x, clear=lambda array: None))
    scaled = text.replace("a = exp(x)", "k = constant(value=1/3)\n        a = mul(x, k)")
    scaled = scaled.replace("c = exp(x)", "l = constant(value=1/3)\n        c = mul(x, l)")
    assert ops(after(scaled, cse.run)).count("mul") == 1
    # read by two blocks, it is there twice
    again = text.replace("a = exp(x)", "k = constant(value=1/3)\n        a = mul(x, k)").replace("c = exp(x)", "c = add(x, k)")
    found = after(again, cse.run)
    assert ops(found).count("constant") == 2
    assert_equal(evaluate(found, x, clear=lambda array: None), evaluate(parse_module(again), x, clear=lambda array: None))
