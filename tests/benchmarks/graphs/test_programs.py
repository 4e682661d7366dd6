"""The programs of the graph compiler: well-formed, and equal to their yardsticks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.graphs.programs import MEASURED, SMALL, GraphProgram
from mirage.ir.graph.check import check_module
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import FunctionCall, If, Loop, MatchCast, OpCall, PackedCall
from mirage.ir.graph.parse import parse_module
from mirage.ir.operator import get_operator
from mirage.ir.operators.in_place import EFFECTS


def results(program: GraphProgram, arguments: list[Any]) -> tuple[np.ndarray, ...]:
    found = run_module(program.trace(), arguments, packed=EFFECTS)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", SMALL)
def test_results_are_those_of_the_yardstick(name: str) -> None:
    program = SMALL[name]
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(20):
        sizes = program.random_sizes(rng)
        arguments = program.arguments(sizes, rng)
        expected = program.expected(arguments)
        found = results(program, arguments)
        for f, e in zip(found, expected, strict=True):
            assert np.shape(f) == np.shape(e)
            np.testing.assert_allclose(f, e, rtol=2e-5, atol=2e-5)
        seen.add(tuple(sizes.values()))
    assert len(seen) > 10


@pytest.mark.parametrize("name", SMALL)
def test_modules_are_well_formed_and_read_back(name: str) -> None:
    module = SMALL[name].trace()
    check_module(module)
    assert str(parse_module(str(module))) == str(module)


@pytest.mark.parametrize("name", MEASURED)
def test_measured_programs_trace_and_have_sizes(name: str) -> None:
    program = MEASURED[name]
    check_module(program.trace())
    assert program.measured
    for sizes in program.measured.values():
        assert sizes.keys() == program.ranges.keys()
        assert all(size <= program.bounds[symbol] for symbol, size in sizes.items())
    # the same program but for its literal dims
    assert [type(b.value) for f in program.trace() for b in f.bindings] == [
        type(b.value) for f in SMALL[name].trace() for b in f.bindings
    ]


def test_arguments_are_written_in_place() -> None:
    program = SMALL["cache_update"]
    rng = np.random.default_rng(1)
    sizes = {"b": 2, "h": 1, "s": 2, "t": 3, "rest": 1}
    arguments = program.arguments(sizes, rng)
    given = [np.copy(a) for a in arguments]
    expected = program.expected(arguments)
    for a, b in zip(arguments, given, strict=True):
        np.testing.assert_array_equal(a, b)
    results(program, arguments)
    for name, a, b in zip(program.specs, arguments, given, strict=True):
        if name in program.written:
            assert not np.array_equal(a, b)
            np.testing.assert_array_equal(a, expected[1 if name == "k_cache" else 2].astype(np.float32))
        else:
            np.testing.assert_array_equal(a, b)


def test_each_ability_is_shown() -> None:
    shown = {name: {type(b.value) for f in program.trace() for b in f.bindings} for name, program in SMALL.items()}
    assert FunctionCall in shown["two_functions"]
    assert {MatchCast} <= shown["select_rows"] & shown["unique_tokens"]
    assert {If, Loop} <= shown["refinement"]
    assert PackedCall in shown["cache_update"]
    # an expression in a signature is passed as a shape argument
    assert SMALL["two_functions"].trace().functions["halved"].dims == ("n",)


@pytest.mark.parametrize("name", ["llama_prefill", "llama_decode", "bert_encoder", "mixtral_moe"])
def test_the_cores_of_models_can_be_superoptimized(name: str) -> None:
    operators = [b.value.op for f in SMALL[name].trace() for b in f.bindings if isinstance(b.value, OpCall)]
    for core in ("matmul", "softmax"):
        assert core in operators and get_operator(core).lax
    lax = [op for op in operators if get_operator(op).lax]
    assert len(lax) >= 0.7 * len(operators)
