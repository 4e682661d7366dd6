"""Products of equal cells become one, where that pays."""

from __future__ import annotations

import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.passes import collect_constraints, merge_matmuls
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

PASSES = (collect_constraints.run, merge_matmuls.run)


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
