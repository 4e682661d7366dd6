"""Conditions of whole numbers as sums and clamps: exact, at any size, and only where vectors are compared."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import add_masks, partition
from mirage.compiler.passes.indicators import ROWS
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import FunctionCall
from mirage.ir.graph.parse import parse_module
from mirage.ir.types import TensorType, is_one
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays

Q, K, V = "q: float32[b, h, s, 4]", "k: float32[b, h, 4, t]", "v: float32[b, h, t, 4]"
POSITIONS = """j = arange(stop=t)
i0 = arange(stop=s)
i = reshape(i0, shape=(s, 1))"""
CONDITIONS = {
    "causal": "m = less_equal(j, i)",
    "before": "m = less(j, i)",
    "after": "m = greater_equal(j, i)",
    "behind": "m = greater(i, j)",
    "window": "m0 = less_equal(j, i)\nd = sub(i, j)\nw = constant(value=3)\nm1 = less(d, w)\nm = logical_and(m0, m1)",
    "prefix": "m0 = less_equal(j, i)\np = constant(value=2)\nm1 = less(j, p)\nm = logical_or(m0, m1)",
    "not": "m0 = less_equal(j, i)\nm = logical_not(m0)",
    "the diagonal": "m = equal(j, i)",
    "not the diagonal": "m = not_equal(j, i)",
    "the last rows": "o = size(dim=t)\ni1 = add(i, o)\no1 = size(dim=s)\ni2 = sub(i1, o1)\nm = less_equal(j, i2)",
    "later": "o = constant(value=-2)\ni1 = add(i, o)\nm = less_equal(j, i1)",
}


def masked(condition: str, c: str = "c = constant(value=-1000)", more: str = "", where: str = "m, x, c") -> str:
    body = f"x = matmul(q, k)\n{c}\n{POSITIONS}\n{condition}\nw9 = where({where})\ny = softmax(w9, axis=-1)\nr = matmul(y, v)"
    return main_text(body, ", ".join([Q, K, V, *([more] if more else [])]))


def arguments(s: int, t: int) -> list[Any]:
    return random_arrays(s, (2, 3, s, 4), (2, 3, 4, t), (2, 3, t, 4))


@pytest.mark.parametrize("where", ["m, x, c", "m, c, x"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_masks_of_positions_are_computed_from_vectors(name: str, where: str) -> None:
    text = masked(CONDITIONS[name], where=where)
    m = after(text, add_masks.run)
    for s, t in ((5, 6), (6, 5), (1, 1), (3, 0)):
        assert_equal(evaluate(m, *arguments(s, t)), evaluate(parse_module(text), *arguments(s, t)), 0)
    (called,) = [e for e in expressions(after(m, partition.run)) if isinstance(e, FunctionCall)]
    types = [a.annotation for a in called.args]
    ranks = {sum(not is_one(d) for d in t.shape) for t in types if isinstance(t, TensorType)}
    assert ranks == {1, 4}, "vectors, beside queries, keys and values"


@pytest.mark.parametrize("dtype", ["int32", "int64", "int16", "bool"])
def test_numbers_of_any_type_are_compared(dtype: str) -> None:
    text = masked("m = equal(d, e)", more=f"d: {dtype}[t], e: {dtype}[s, 1]")
    m = after(text, add_masks.run)
    numbers = [0, 1, 1, 0, 1] if dtype == "bool" else [np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).max - 1, 0, 1]
    d = np.array(numbers, dtype)
    assert "clamp" in ops(m)
    args = [*arguments(5, 5), d, d[::-1].reshape(5, 1)]
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 0)


def test_positions_of_more_bits_than_a_number_has_are_told_apart() -> None:
    """Of what a mask of 2^24 and more positions would be, a few."""
    text = main_text(
        "x = matmul(q, k)\nc = constant(value=-1000)\ne = reshape(d, shape=(t, 1))\nm = less(d, e)\nw = where(m, x, c)\n"
        "y = softmax(w, axis=-1)\nr = matmul(y, v)",
        "q: float32[h, t, 4], k: float32[h, 4, t], v: float32[h, t, 4], d: int64[t]",
    )
    near = [0, 1, -1, 2**20, 2**24, 2**40, 2**62, -(2**24), -(2**40), -(2**63)]
    numbers = sorted({min(max(a + b, -(2**63)), 2**63 - 1) for a, b in product(near, (-1, 0, 1))})
    d = np.array(numbers, np.int64)
    m, n = after(text, add_masks.run), len(numbers)
    # scores that are all the same: a row is the share of what it sees
    args = [np.zeros((1, n, 4), np.float32), np.zeros((1, 4, n), np.float32), *random_arrays(0, (1, n, 4)), d]
    assert_equal(run_module(m, args), run_module(parse_module(text), args), 0)
    assert "clamp" in ops(m)


REFUSED = {
    "a tensor as large as the mask": ("m0 = less_equal(j, i)\nm = logical_and(m0, more)", "more: bool[s, t]"),
    "a row for all queries": ("m = less(j, more)", "more: int64[1]"),
    "numbers in floating point": ("e = cast(i, dtype='float32')\nf = cast(j, dtype='float32')\nm = less(f, e)", ""),
    "sums that may leave their type": ("b = add(more, more)\nm = less(j, b)", "more: int64[s, 1]"),
    "sums of two that may": ("b = add(more, other)\nm = less(j, b)", "more: int64[s, 1], other: int64[s, 1]"),
    "too far apart": ("o = constant(value=2000000)\ni1 = add(i, o)\nm = less(j, i1)", ""),
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_masks_are_tensors(why: str) -> None:
    condition, more = REFUSED[why]
    m = after(masked(condition, more=more), add_masks.run)
    assert "clamp" not in ops(m) and "cast" in ops(m)


def test_masks_of_few_rows_are_tensors() -> None:
    text = masked(CONDITIONS["causal"])
    for rows, computed in (([1], False), ([ROWS - 1, 1], False), ([ROWS], True), ([1, 512], True)):
        m = after(text, add_masks.run, context=Context(sizes=tuple({"b": 1, "h": 2, "s": s, "t": 600} for s in rows)))
        assert ("clamp" in ops(m)) == computed


def test_types_in_which_parts_are_not_exact_have_tensors() -> None:
    text = masked(CONDITIONS["causal"]).replace("float32", "float16")
    assert "clamp" not in ops(after(text, add_masks.run))


def test_what_is_compared_twice_is_divided_once() -> None:
    m = after(masked(CONDITIONS["window"]), add_masks.run)
    assert ops(m).count("floor_divide") == ops(m).count("remainder") == 2
