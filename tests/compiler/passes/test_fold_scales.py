"""Constant factors of convolutions become a part of their weights."""

from __future__ import annotations

from typing import Any

import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import dead_code, fold_scales, join_offsets, lift_constants, lower_packages
from mirage.ir.graph.nodes import LibraryCall
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays

SIGNATURE = (
    "x: float32[b, 4, 9, 7], w: float32[6, 4, 3, 3], g: float32[6, 2, 3, 3], p: float32[6, 4, 1, 1], s: float32[6], "
    "c: float32[6], f: float32[7], y: float32[1, 6, 1, 1]"
)
SHAPES = [(2, 4, 9, 7), (6, 4, 3, 3), (6, 2, 3, 3), (6, 4, 1, 1), (6,), (6,), (7,), (1, 6, 1, 1)]
CONSTANTS = ("w", "g", "p", "s", "c", "f")
SUM = "v = convolution(x, w, strides=(1, 2), dilations=(1, 1))\n"
FACTOR, OFFSET = "t = reshape(s, shape=(1, 6, 1, 1))\n", "k = reshape(c, shape=(1, 6, 1, 1))\n"
POINT = """q = reshape(p, shape=(6, 4))
e = reshape(x, shape=(b, 4, 63))
m = matmul(q, e)
v = reshape(m, shape=(b, 6, 9, 7))
"""


@pytest.mark.parametrize(
    "body",
    [
        f"{SUM}{FACTOR}r = mul(v, t)",
        f"{SUM}{FACTOR}{OFFSET}a = mul(t, v)\nr = add(a, k)",
        f"{SUM}{FACTOR}{OFFSET}a = add(k, v)\nr = mul(a, t)",
        # a bias, and a batch normalization
        f"{SUM}{FACTOR}{OFFSET}a = add(k, v)\nh = mul(a, t)\nr = add(k, h)",
        f"{SUM}{FACTOR}{OFFSET}a = add(k, v)\nm = sub(a, t)\nh = mul(m, t)\nr = add(k, h)",
        f"v = convolution(x, g, strides=(1, 1), dilations=(2, 1), groups=2)\n{FACTOR}r = mul(v, t)",
        f"{POINT}{FACTOR}r = mul(v, t)",
        f"{POINT}{FACTOR}{OFFSET}a = add(v, k)\nr = mul(a, t)",
    ],
)
def test_factors_become_weights(body: str) -> None:
    before = parse_module(main_text(body, SIGNATURE))
    passes = join_offsets.run, dead_code.run, fold_scales.run, dead_code.run, join_offsets.run, dead_code.run
    folded = after(before, *passes, context=Context(constants=CONSTANTS))
    arrays = random_arrays(0, *SHAPES)
    assert_equal(evaluate(folded, *arrays), evaluate(before, *arrays), 1e-5)
    context = Context(constants=CONSTANTS)
    lowered = after(folded, lift_constants.run, lower_packages.run, dead_code.run, context=context)
    assert len(ops(lowered)) - ops(lowered).count("reshape") == 1
    (call,) = [e for e in expressions(lowered) if isinstance(e, LibraryCall)]
    assert call.function == "cpu.convolution" and dict(call.attrs).get("bias", False) == ("k = " in body)
    assert "mul" not in ops(lowered) and "mul" in ops(lowered, "prepare")


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        # factors along another dim, those that change, weights that do, and sums that others read
        (f"{SUM}u = reshape(f, shape=(1, 1, 7, 1))\nr = mul(v, u)", CONSTANTS),
        (f"{SUM}r = mul(v, y)", CONSTANTS),
        (f"{SUM}{FACTOR}r = mul(v, t)", ("s",)),
        (f"{SUM}{FACTOR}a = mul(v, t)\nr = add(a, v)", CONSTANTS),
        (f"{SUM}{FACTOR}a = relu(v)\nr = mul(a, t)", CONSTANTS),
        (f"{SUM}{FACTOR}a = add(v, y)\nr = mul(a, t)", CONSTANTS),
    ],
)
def test_what_stays(body: str, constants: tuple[str, ...]) -> None:
    before: Any = parse_module(main_text(body, SIGNATURE))
    folded = after(before, fold_scales.run, dead_code.run, context=Context(constants=constants))
    assert ops(folded) == ops(before)
