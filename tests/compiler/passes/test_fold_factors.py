"""Constant factors of what products make become a part of their weights and biases."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import collect_constraints, dead_code, fold_factors, lift_constants
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

SIGNATURE = (
    "x: float32[b, 6, 4], w: float32[4, 5], e: float32[3, 6], d: float32[5], g: float32[5], h: float32[3, 1], "
    "k: float32[b, 5, 2], y: float32[5]"
)
SHAPES = [(2, 6, 4), (4, 5), (3, 6), (5,), (5,), (3, 1), (2, 5, 2), (5,)]
CONSTANTS = ("w", "e", "d", "g", "h")
HALF = "s = constant(value=1/2)\n"


def folded(body: str, constants: tuple[str, ...] = CONSTANTS, signature: str = SIGNATURE) -> Module:
    context = Context(constants=constants)
    passes = collect_constraints.run, fold_factors.run, dead_code.run
    return after(main_text(body, signature), *passes, context=context)


def lifted(module: Module) -> Module:
    return after(module, lift_constants.run, dead_code.run, context=Context(constants=CONSTANTS))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"p = matmul(x, w)\n{HALF}r = mul(p, s)", ["matmul"]),
        (f"p = matmul(x, w)\n{HALF}r = div(p, s)", ["matmul"]),
        ("p = matmul(x, w)\nr = mul(g, p)", ["matmul"]),
        (f"p = matmul(x, w)\n{HALF}q = mul(p, s)\nr = mul(q, g)", ["matmul"]),
        (f"p = matmul(x, w)\nq = add(d, p)\n{HALF}r = mul(q, s)", ["matmul", "add"]),
        ("p = matmul(x, w)\nq = add(p, d)\nr = mul(q, g)", ["matmul", "add"]),
        ("p = matmul(x, w)\nq = add(p, d)\nr = div(q, g)", ["matmul", "add"]),
        ("p = matmul(x, w)\nq = sub(p, d)\nr = mul(q, g)", ["matmul", "sub"]),
        # weights on the left
        ("p = matmul(e, x)\nr = mul(p, h)", ["matmul"]),
        # attention: behind a product of what is no weight, and views
        (
            f"p = matmul(x, w)\nq = add(p, d)\nt = transpose(q, perm=(0, 1, 2))\na = matmul(t, k)\n{HALF}r = mul(a, s)",
            ["matmul", "add", "transpose", "matmul"],
        ),
        (
            "l = transpose(k, perm=(0, 2, 1))\np = matmul(x, w)\n"
            f"t = transpose(p, perm=(0, 2, 1))\na = matmul(l, t)\n{HALF}r = mul(a, s)",
            ["transpose", "matmul", "transpose", "matmul"],
        ),
    ],
)
def test_factors_become_weights(body: str, left: list[str]) -> None:
    module = folded(body)
    arrays = random_arrays(0, *SHAPES)
    exact = run_module(parse_module(main_text(body, SIGNATURE)), arrays, wide=True)
    found = evaluate(module, *arrays)
    assert_equal(found, np.asarray(exact, found.dtype), 2e-6)
    assert ops(lifted(module)) == left


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        # a factor, weights or a bias that change
        ("p = matmul(x, w)\nr = mul(p, y)", CONSTANTS),
        (f"p = matmul(x, w)\n{HALF}r = mul(p, s)", ("e",)),
        (f"p = matmul(x, w)\nq = add(p, y)\n{HALF}r = mul(q, s)", CONSTANTS),
        # others read the product, or what is on the way
        (f"p = matmul(x, w)\n{HALF}q = mul(p, s)\nr = add(p, q)", CONSTANTS),
        (f"p = matmul(x, w)\nq = add(p, d)\n{HALF}o = mul(q, s)\nr = (o, q)", CONSTANTS),
        # a function between; a divided one; along another dim; columns behind a view, rows with a bias of columns
        (f"p = matmul(x, w)\nq = relu(p)\n{HALF}r = mul(q, s)", CONSTANTS),
        (f"p = matmul(x, w)\n{HALF}r = div(s, p)", CONSTANTS),
        ("p = matmul(x, w)\nq = transpose(p, perm=(1, 0, 2))\nr = mul(q, g)", CONSTANTS),
        ("p = matmul(x, w)\nq = matmul(p, k)\nu = slice(h, axes=(0,), starts=(0,), stops=(2,))\n"
         "v = reshape(u, shape=(2,))\nr = mul(q, v)", CONSTANTS),
        # weights that another product reads as they are
        (f"p = matmul(x, w)\n{HALF}q = mul(p, s)\no = relu(x)\nt = matmul(o, w)\nr = add(q, t)", CONSTANTS),
    ],
)  # fmt: skip
def test_what_stays(body: str, constants: tuple[str, ...]) -> None:
    before = after(main_text(body, SIGNATURE), dead_code.run)
    assert str(folded(body, constants)) == str(before)


def test_float16_stays() -> None:
    signature = "x: float16[b, 4], w: float16[4, 5]"
    assert ops(folded(f"p = matmul(x, w)\n{HALF}r = mul(p, s)", ("w",), signature)) == ["matmul", "constant", "mul"]
