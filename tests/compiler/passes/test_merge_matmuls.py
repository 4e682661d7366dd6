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


def cells(count: int, rows: str = "1", *, levels: int = 1, chained: bool = False) -> str:
    """Cells tanh(x w), whose results are the inputs of further levels with the same weights, or of the next cell of a chain."""
    lines = []
    for level in range(levels):
        for i in range(count):
            x = f"x{i}" if not level else f"y{level - 1}_{i}"
            if chained and i:
                x = f"y{level}_{i - 1}"
            lines += [f"p{level}_{i} = matmul({x}, w)", f"y{level}_{i} = tanh(p{level}_{i})"]
    lines.append(f"r = ({', '.join(f'y{levels - 1}_{i}' for i in range(count))})")
    return main_text("\n".join(lines), ", ".join(f"x{i}: float32[{rows}, 8]" for i in range(count)) + ", w: float32[8, 8]")


@pytest.mark.parametrize("constants", [(), ("w",)])
@pytest.mark.parametrize(("count", "levels", "products"), [(4, 1, 1), (5, 3, 3), (16, 1, 1), (18, 1, 3), (33, 2, 6)])
def test_rows_of_equal_cells(count: int, levels: int, products: int, constants: tuple[str, ...]) -> None:
    text = cells(count, levels=levels)
    m = after(text, *PASSES, context=Context(constants=constants))
    assert ops(m).count("matmul") == products
    args = random_arrays(0, *[(1, 8)] * count, (8, 8))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-5)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (cells(3), Context()),
        (cells(8, chained=True), Context()),
        (cells(8, rows="b"), Context()),
        (cells(8, rows="b"), Context(bounds=from_bounds({"b": 5}))),
        (cells(8, rows="5"), Context()),
    ],
)
def test_cells_that_stay(text: str, known: Context) -> None:
    assert ops(after(text, *PASSES, context=known)) == ops(parse_module(text))


def test_rows_up_to_a_bound() -> None:
    text = cells(6, rows="b")
    m = after(text, *PASSES, context=Context(bounds=from_bounds({"b": 4})))
    assert ops(m).count("matmul") == 1
    args = random_arrays(1, *[(3, 8)] * 6, (8, 8))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-5)


def test_steps_wait_for_each_other_and_their_inputs_do_not() -> None:
    """An unrolled recurrent network: all inputs take part in one product, the states in one each."""
    lines = []
    for i in range(5):
        lines += [
            f"a{i} = matmul(x{i}, w)", f"b{i} = matmul({f'h{i - 1}' if i else 'h'}, u)", f"s{i} = add(a{i}, b{i})",
            f"h{i} = tanh(s{i})",
        ]  # fmt: skip
    signature = ", ".join(f"x{i}: float32[1, 8]" for i in range(5)) + ", h: float32[1, 4], w: float32[8, 4], u: float32[4, 4]"
    text = main_text("\n".join([*lines, "r = neg(h4)"]), signature)
    m = after(text, *PASSES)
    assert ops(m).count("matmul") == 6 and ops(m).count("concat") == 1
    args = random_arrays(2, *[(1, 8)] * 5, (1, 4), (8, 4), (4, 4))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-5)


def test_groups_of_cells_that_would_wait_for_each_other() -> None:
    """Joining the products with w makes some of those with u wait for others: these stay in levels of their own."""
    lines = []
    for i in range(4):
        lines += [f"a{i} = matmul(x{i}, w)", f"c{i} = tanh(a{i})", f"b{i} = matmul(c{i}, u)", f"d{i} = tanh(b{i})"]
        lines += [f"e{i} = matmul(y{i}, u)", f"f{i} = tanh(e{i})", f"g{i} = matmul(f{i}, w)", f"h{i} = tanh(g{i})"]
    lines.append(f"r = ({', '.join(f'{v}{i}' for i in range(4) for v in 'dh')})")
    signature = ", ".join(f"x{i}: float32[1, 6], y{i}: float32[1, 6]" for i in range(4)) + ", w: float32[6, 6], u: float32[6, 6]"
    text = main_text("\n".join(lines), signature)
    m = after(text, *PASSES)
    args = random_arrays(3, *[(1, 6)] * 8, (6, 6), (6, 6))
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 1e-5)
    assert 2 <= ops(m).count("matmul") <= 4
