"""Constants that are added and subtracted one after the other become one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.context import Context
from mirage.compiler.passes import dead_code, join_offsets, lift_constants
from mirage.ir.graph.nodes import Module
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes.running import after, assert_equal, evaluate, main_text, ops, random_arrays

SIGNATURE = "x: float32[b, 4, 6], c: float32[6], d: float32[1, 6], e: float32[6], f: float32[4, 1], y: float32[6]"
SHAPES = [(2, 4, 6), (6,), (1, 6), (6,), (4, 1), (6,)]
CONSTANTS = ("c", "d", "e", "f")


def joined(body: str) -> Module:
    passes = join_offsets.run, dead_code.run
    return after(main_text(body, SIGNATURE), *passes, context=Context(constants=CONSTANTS))


@pytest.mark.parametrize("first", ["add(x, c)", "add(c, x)", "sub(x, c)"])
@pytest.mark.parametrize("second", ["add(p, d)", "add(d, p)", "sub(p, d)"])
@pytest.mark.parametrize("third", ["add(q, e)", "sub(q, e)"])
def test_three_become_one(first: str, second: str, third: str) -> None:
    body = f"p = {first}\nq = {second}\nr = {third}"
    module = joined(body)
    arrays = random_arrays(0, *SHAPES)
    assert_equal(evaluate(module, *arrays), evaluate(parse_module(main_text(body, SIGNATURE)), *arrays), 1e-6)
    left = ops(after(module, lift_constants.run, dead_code.run, context=Context(constants=CONSTANTS)))
    assert left in (["add"], ["sub"])


@pytest.mark.parametrize(
    "body",
    [
        # one that changes, along other dims, less the value, and with a reader of what is between
        "p = add(x, c)\nr = add(p, y)",
        "p = add(x, c)\nr = add(p, f)",
        "p = add(x, c)\nr = sub(d, p)",
        "p = add(x, c)\nq = add(p, d)\nr = mul(p, q)",
    ],
)
def test_what_stays(body: str) -> None:
    assert str(joined(body)) == str(after(main_text(body, SIGNATURE), dead_code.run))


@pytest.mark.parametrize("biased", [False, True])
def test_a_batch_normalization_becomes_weights_and_a_bias(biased: bool) -> None:
    """Behind a product; `fold_scales` has those behind convolutions."""

    def layer(x: Any, w: Any, b: Any, m: Any, s: Any, g: Any, o: Any) -> Any:
        y = x @ w + b if biased else x @ w
        return (y - m) * (g / mi.sqrt(s * s + 1e-5)) + o

    names = ("w", "b", "m", "s", "g", "o")
    specs = {"x": mi.tensor("n", 16), "w": mi.tensor(16, 24), **{n: mi.tensor(24) for n in names[1:]}}
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in [(3, 16), (16, 24), *[(24,)] * 5]]
    run = mi.compile(layer, specs, constants=names, without=("superoptimize", "libraries", "fuse"), cache=False)
    x, w, b, m, s, g, o = (a.astype(np.float64) for a in arrays)
    wanted = (x @ w + b * biased - m) * (g / np.sqrt(s * s + 1e-5)) + o
    assert np.abs(run(*arrays) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    every_call = next(f for f in str(run.program).split("\nfunction ")[1:] if not f.startswith("prepare("))
    assert every_call.count("CallOperator") - every_call.count("'reshape'") == 2
