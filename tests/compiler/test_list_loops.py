"""Functions over lists as loops: which are, and what is computed of all items before the first round."""

from __future__ import annotations

from typing import Any

import mirage as mi
from mirage.compiler.list_loops import ListLoop, list_loop
from mirage.frontends.functions import trace_module
from mirage.ir.graph.functional import functional
from mirage.ir.graph.nodes import Function, OpCall
from tests.frontends.graph.functional_programs import MODELS

VECTORS = {"xs": mi.List(mi.tensor(1, "n")), "h": mi.tensor(1, "n"), "w": mi.tensor("n", "n")}


def loops(fn: Any, specs: Any) -> list[ListLoop]:
    module = trace_module(fn, specs)
    stacked = functional(module)
    found = (list_loop(module.functions[name], module.functions, stacked) for name in sorted(stacked))
    return [loop for loop in found if loop is not None]


def products(f: Function) -> int:
    return sum(isinstance(b.value, OpCall) and b.value.op == "matmul" for b in f.bindings)


def test_models_are_loops() -> None:
    for name in ("rnn", "gru", "lstm", "mlp", "char_rnn"):
        (loop,) = loops(*MODELS[name][:2])
        assert loop.scan == (name == "char_rnn")
    # a step that recurs is none
    assert not loops(MODELS["tree_lstm"][0], None)


def test_products_of_items_are_computed_before_the_first_round() -> None:
    (loop,) = loops(lambda xs, h, w: mi.fold(lambda h, x: mi.tanh(x @ w + h @ w), h, xs), VECTORS)
    many, (rest,) = loop.ahead, loop.called
    assert many is not None and products(many) == products(rest) == 1 and not products(loop.round)
    # the left operand has a row for each item
    (product,) = (b for b in many.bindings if isinstance(b.value, OpCall) and b.value.op == "matmul")
    assert str(product.var.annotation) == "float32[cells, n]"


def test_what_needs_the_state_is_not() -> None:
    (loop,) = loops(lambda xs, h, w: mi.fold(lambda h, x: mi.tanh((x + h) @ w), h, xs), VECTORS)
    assert loop.ahead is None and not loop.called
    # without a product it is not worth the memory
    (loop,) = loops(lambda xs, h, w: mi.fold(lambda h, x: mi.tanh(x) + h @ w, h, xs), VECTORS)
    assert loop.ahead is None and not loop.called


def test_states_of_other_types_are_no_loops() -> None:
    assert not loops(lambda xs, h, w: mi.fold(lambda h, x: mi.concat([h, x], 0), h, xs), VECTORS)
    assert not loops(lambda xs, h, w: mi.map(lambda x: x @ w, xs), VECTORS)
