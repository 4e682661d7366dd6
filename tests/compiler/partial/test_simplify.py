"""Compiled programs have no functions as values, references and data but those that something unknown decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.partial import simplify
from mirage.compiler.partial.simplify import BINDINGS, simplified
from mirage.ir.graph.check import check
from mirage.ir.graph.functional import functional
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from tests.compiler.test_functional import same
from tests.frontends.graph.functional_programs import MODELS
from tests.ir.graph import functional as texts

VECTOR = mi.tensor("n")
ONES = np.ones(3, np.float32)
SPECS = {"x": VECTOR, "y": VECTOR}


def called(x: Any, y: Any) -> Any:
    f = mi.closure(lambda v: mi.tanh(v * y), VECTOR)
    return f(f(x)), mi.loop(100, lambda i, s: f(s), x)


def places(x: Any, y: Any) -> Any:
    r = mi.ref(x)
    add = mi.closure(lambda v: mi.read(mi.write(r, mi.read(r) + v)), VECTOR)
    add(y)
    add(x)
    return mi.read(r)


def literal(x: Any, y: Any) -> Any:
    return mi.fold(lambda s, v: s * y + v, x, [x, y, x + y])


def optional(x: Any, y: Any) -> Any:
    return mi.match(mi.Some(x), {mi.Some: lambda v: v + y, mi.Nothing: lambda: y})


@pytest.mark.parametrize("program", [called, places, literal, optional])
def test_what_a_program_makes_itself_vanishes(program: Any) -> None:
    module = mi.trace_module(program, SPECS)
    assert functional(module)
    made = simplified(module)
    check(made)
    assert not functional(made)
    args = [ONES, 2 * ONES]
    wanted = run_module(module, args)
    same(run_module(made, args), wanted)
    run = mi.compile(module, without=("superoptimize", "fuse"))
    same(run(*args), wanted)
    assert not any(word in run.explain() for word in ("closures", "calls of values", "references", "constructors", "matches"))


def test_what_is_left_is_an_ordinary_program() -> None:
    def program(x: Any, w: Any) -> Any:
        layer = mi.closure(lambda v: mi.softmax(mi.rms_norm(v) @ w), mi.tensor("b", 16))
        return layer(layer(x))

    module = mi.trace_module(program, {"x": mi.tensor("b", 16), "w": mi.tensor(16, 16)})
    run = mi.compile(module, bounds={"b": 16}, without=("superoptimize",))
    # bounds are of use, and memory is planned
    assert "b <= 16" in run.explain() and {b.name for b in run.program} == {"program"}
    x, w = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)
    same(run(x, w), run_module(module, [x, w]), 1e-4)


def test_programs_that_it_cannot_make_simpler_stay_as_they_are() -> None:
    for name, (fn, specs, _) in MODELS.items():
        module = mi.trace_module(fn, specs)
        assert simplified(module) is module, name
    for text in (texts.SUM, texts.COUNT, texts.EVEN, texts.CHOSEN):
        module = parse_module(text)
        assert simplified(module) is module


def test_programs_of_tensors_alone_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise AssertionError("it is evaluated")

    monkeypatch.setattr(simplify, "specialize_module", refused)
    run = mi.compile(lambda x, y: mi.loop(3, lambda i, s: s + y, x), SPECS, without=("superoptimize", "fuse"))
    same(run(ONES, ONES), 4 * ONES)


def test_programs_stay_small() -> None:
    def program(x: Any, y: Any) -> Any:
        return mi.loop(3_000, lambda i, s: mi.match(mi.Some(s + y), {mi.Some: lambda v: v, mi.Nothing: lambda: y}), x)

    def unrolled(x: Any, y: Any) -> Any:
        return mi.fold(lambda s, v: mi.loop(100, lambda i, t: mi.tanh(t), s) + v, x, [x] * 300)

    for fn in (program, unrolled):
        made = simplified(mi.trace_module(fn, SPECS))
        assert sum(len(f.bindings) for f in made) < BINDINGS + 1_000


def test_what_fails_is_left_to_the_run() -> None:
    text = """
def main(p: bool[()], x: float32[3]):
    with dataflow():
        v = Some(float32[2](1, 2))
        r = match[Some(y): both, Nothing(): neither](v, x)
    return r

def both(y: float32[_], x: float32[3]):
    with dataflow():
        z = match_cast[float32[3]](y)
        r = add(z, x)
    return r

def neither(x: float32[3]):
    return x
"""
    module = parse_module(text)
    assert simplified(module) is module
    with pytest.raises(mi.MirageError, match="2"):
        mi.compile(module, without=("superoptimize", "fuse"))(np.asarray(True), ONES)
