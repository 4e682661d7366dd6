"""Masks of scores become factors and terms, where that is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.passes import add_masks, partition
from mirage.frontends.functions import trace_module
from mirage.ir.graph.nodes import FunctionCall, Module
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, expressions, main_text, ops, random_arrays

Q, K, V = "q: float32[b, h, s, 4]", "k: float32[b, h, 4, t]", "v: float32[b, h, t, 4]"


def masked(
    where: str = "m, x, c", scores: str = "x = matmul(q, k)", mask: str = "m: bool[s, t]", c: str = "constant(value=-1000)",
    read: str = "y = softmax(w, axis=-1)",
) -> str:  # fmt: skip
    body = f"{scores}\nc = {c}\nw = where({where})\n{read}\nr = matmul(y, v)"
    return main_text(body, f"{Q}, {K}, {V}, {mask}")


def arguments(*mask: int) -> list[object]:
    rng = np.random.default_rng(3)
    m = rng.random(mask) < 0.5
    # a row that hides everything, and one that hides nothing
    m.reshape(-1, mask[-1])[0], m.reshape(-1, mask[-1])[-1] = False, True
    return [*random_arrays(0, (2, 3, 5, 4), (2, 3, 4, 6), (2, 3, 6, 4)), m]


MASKS = {
    "over all heads": ("m: bool[s, t]", (5, 6)),
    "of each batch": ("m: bool[b, 1, s, t]", (2, 1, 5, 6)),
    "of keys": ("m: bool[b, 1, 1, t]", (2, 1, 1, 6)),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("where", ["m, x, c", "m, c, x"])
def test_numbers(kind: str, where: str) -> None:
    mask, shape = MASKS[kind]
    scores = "x0 = matmul(q, k)\nh = constant(value=0.5)\nx1 = mul(x0, h)\nx2 = tanh(x1)\nx = div(x2, h)"
    text = masked(where, scores, mask)
    m = after(text, add_masks.run)
    assert "where" not in ops(m)
    args = arguments(*shape)
    # what is hidden has exactly the number, what is not exactly the score
    assert_equal(evaluate(m, *args), evaluate(parse_module(text), *args), 0)
    lax = after(text, add_masks.run, partition.run)
    assert {*ops(lax)} - {"constant"} == {"cast", "FunctionCall"}, "one subprogram is left to search"


def test_distances_of_positions_are_finite() -> None:
    scores = "x0 = matmul(q, k)\nd = cast(distance, dtype='float32')\nx = add(x0, d)"
    assert "where" not in ops(after(masked(scores=scores, mask="m: bool[s, t], distance: int64[s, t]"), add_masks.run))
    assert "where" in ops(after(masked(scores=scores, mask="m: bool[s, t], distance: float16[s, t]"), add_masks.run))


REFUSED = {
    "another reader": masked(read="z = exp(w)\ny0 = softmax(w, axis=-1)\ny = add(y0, z)"),
    "no softmax": masked(read="y = relu(w)"),
    "no product": masked(
        scores="x0 = constant(value=2)\nx = mul(m2, x0)", mask="m: bool[s, t], m2: float32[b, h, s, t]"
    ),
    "a logarithm": masked(scores="x0 = matmul(q, k)\nx = log(x0)"),
    "a quotient of tensors": masked(scores="x0 = matmul(q, k)\nx1 = add(x0, x0)\nx = div(x0, x1)"),
    "a tensor of values": masked("m, x, c2", mask="m: bool[s, t], c2: float32[t]"),
    "as large as the scores": masked(mask="m: bool[b, h, s, t]"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_stays(why: str) -> None:
    text = REFUSED[why]
    assert str(after(text, add_masks.run)) == str(parse_module(text))


def causal(hidden: object) -> Module:
    """Causal attention that puts this in place of hidden scores."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ mi.transpose(k, (0, 2, 1)) * 0.25
        rows, columns = scores.shape[-2:]
        seen = mi.arange(0, columns) <= mi.reshape(mi.arange(0, rows), (rows, 1))
        return mi.softmax(mi.where(seen, scores, hidden), axis=-1) @ v

    return trace_module(attention, {x: mi.tensor("h", n, 16) for x, n in (("q", "s"), ("k", "t"), ("v", "t"))})


@pytest.mark.parametrize("hidden", [np.full((1,), -np.inf, np.float32), -1e9, -1.5], ids=str)
def test_attention_with_a_mask_is_one_subprogram(hidden: object) -> None:
    module = causal(hidden)
    m = after(module, add_masks.run, partition.run)
    called = [c.function for c in expressions(m, "attention") if isinstance(c, FunctionCall)]
    (lax,) = called
    assert ops(m, lax).count("matmul") == 2 and "where" not in ops(m, lax)
    for rows, columns in ((5, 6), (1, 1), (6, 3)):
        args = random_arrays(rows, (2, rows, 16), (2, columns, 16), (2, columns, 16))
        assert_equal(evaluate(m, *args), evaluate(module, *args), 0)


def test_a_row_without_keys_is_what_it_was() -> None:
    """0 / 0 for -inf, and the mean of the values for a number."""
    for c, nan in ((np.full((1,), -np.inf, np.float32), True), (-1e9, False)):

        def attention(s: Any, k: Any, v: Any, m: Any) -> Any:
            return mi.softmax(mi.where(m, s @ k, c), axis=-1) @ v  # noqa: B023

        types = {
            "s": mi.tensor("h", "s", 4),
            "k": mi.tensor("h", 4, "t"),
            "v": mi.tensor("h", "t", 2),
            "m": mi.tensor("s", "t", dtype="bool"),
        }
        module = trace_module(attention, types)
        args = [*random_arrays(1, (2, 3, 4), (2, 4, 5), (2, 5, 2)), np.zeros((3, 5), bool)]
        m = after(module, add_masks.run)
        assert "mul" in ops(m, "attention") or "add" in ops(m, "attention")
        found = evaluate(m, *args)
        assert np.isnan(found).all() == nan
        assert_equal(found, evaluate(module, *args), 0)
