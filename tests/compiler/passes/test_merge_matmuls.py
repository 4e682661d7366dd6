"""Products that share an operand become one, where that pays."""

from __future__ import annotations

import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.passes import collect_constraints, lift_constants, merge_matmuls
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays
from tests.compiler.passes.test_lift_constants import prepared, run_prepared

QKV = """
def main(x: float32[b, 64], q: float32[64, 32], k: float32[64, n], v: float32[64, n]):
    with dataflow():
        xq = matmul(x, q)
        kt = tanh(k)
        xk = matmul(x, kt)
        xv = matmul(x, v)
        a = sigmoid(xq)
        c = tanh(xk)
        d = neg(xv)
        r = (a, c, d)
    return r
"""
PASSES = (collect_constraints.run, merge_matmuls.run)


def context(**bounds: int) -> Context:
    return Context(constants=("q", "k", "v", "w", "u"), bounds=from_bounds(bounds))


def test_a_shared_left_operand() -> None:
    known = context(n=48)
    m = after(QKV, *PASSES, context=known)
    assert ops(m).count("matmul") == 1 and ops(m).count("concat") == 1 and ops(m).count("slice") == 3
    args = random_arrays(0, (5, 64), (64, 32), (64, 7), (64, 7))
    wanted = evaluate(parse_module(QKV), *args)
    assert_equal(evaluate(m, *args), wanted, 1e-6)
    # the weights are joined once
    lifted = after(m, lift_constants.run, context=known)
    assert prepared(lifted) == ["tanh", "concat", "MakeTuple"]
    assert_equal(run_prepared(lifted, *args), wanted, 1e-6)


def test_a_shared_right_operand() -> None:
    text = """
def main(x: float32[k, b], w: float32[8, k], u: float32[4, k]):
    with dataflow():
        y = matmul(w, x)
        z = matmul(u, x)
        a = tanh(y)
        c = tanh(z)
        r = (a, c)
    return r
"""
    m = after(text, *PASSES, context=context(k=64))
    assert ops(m).count("matmul") == 1
    args = random_arrays(1, (6, 5), (8, 6), (4, 6))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-6)


def products(
    body: str, known: Context, signature: str = "x: float32[b, 64], w: float32[64, n], u: float32[64, n]"
) -> int:
    return ops(after(main_text(body, signature), *PASSES, context=known)).count("matmul")


APART = "y = matmul(x, w)\nz = matmul(x, u)\na = exp(y)\nc = exp(z)\nr = (a, c)"


def test_what_pays() -> None:
    assert products(APART, context(n=64)) == 1
    assert products(APART, context(n=64, b=128)) == 1


@pytest.mark.parametrize(
    ("body", "known"),
    [
        # too large, or perhaps
        (APART, context(n=4096)),
        (APART, context()),
        # weights that may change
        (APART, Context(bounds=from_bounds({"n": 64}))),
        # too few rows
        (APART, context(n=64, b=64)),
        # a library call computes these with its product
        ("y = matmul(x, w)\nz = matmul(x, u)\na = relu(y)\nc = relu(z)\nr = (a, c)", context(n=64)),
        # slices would be copied
        ("y = matmul(x, w)\nz = matmul(x, u)\nr = (y, z)", context(n=64)),
        # a search makes one kernel of these
        ("y = matmul(x, w)\nz = matmul(x, u)\ns = silu(y)\nr = mul(s, z)", context(n=64)),
        # no operand in common
        ("t = exp(x)\ny = matmul(x, w)\nz = matmul(t, u)\na = exp(y)\nc = exp(z)\nr = (a, c)", context(n=64)),
    ],
)
def test_what_does_not_pay(body: str, known: Context) -> None:
    assert products(body, known) == 2


def test_weights_of_other_types_or_depths_stay_apart() -> None:
    signature = "x: float32[b, 64], w: float32[64, n], u: float32[2, 64, n]"
    assert products(APART, context(n=64), signature) == 2
