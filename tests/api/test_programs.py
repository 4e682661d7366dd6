"""The measured programs end to end: their kernels against float64, at sizes they were not tuned at."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.results.cpu.result import Superoptimized
from tests.api.small import arrays, check
from tests.modelled import modelled
from tests.programs import retyped
from tests.sampled import crossed, thinned

#: sizes that are tuned at: small, and no multiples of a tile
SMALL = {"b": 2, "e": 2, "f": 29, "h": 2, "m": 6, "n": 23, "s": 3, "t": 37}
ATTENTION = ("gqa_decode", "mha_decode", "mqa_decode", "qknorm_attention")
SOFTMAX = (*ATTENTION, "softmax")
#: of logits in float32, times epsilon, where logits of 10^4 leave 10^-3 of an exponent uncertain
LARGE_LOGITS = 1e5


@functools.cache
def result(name: str, dtype: str = "float32") -> Superoptimized:
    program = retyped(PROGRAMS[name].trace(), dtype)
    sizes = {s: SMALL[s] for s in program.symbols()}
    # of one program, a complete search takes a minute
    limit: dict[str, Any] = {"max_kernels": 1} if name == "qknorm_attention" else {}
    return modelled(program, sizes, kernels=2, **limit)


def kernels(r: Superoptimized, count: int) -> Iterator[tuple[str, CpuExecutable]]:
    """The measured kernels, and the cheapest graphs of one and of two kernels, in `count` schedules if not measured."""
    measured = [c for c in r.graphs if c.executable is not None]
    for c in measured:
        assert c.executable is not None
        yield f"measured: {c.graph.origin}", c.executable
    for n in (1, 2):
        if count == 1 and any(len(c.graph.kernels) == n for c in measured):
            continue
        same = sorted((c for c in r.graphs if len(c.graph.kernels) == n), key=lambda c: c.cost)
        for c in same[:1]:
            for s in schedules(c.graph, r.sizes, r.target.l2_bytes, r.target.cores)[:count]:
                yield f"{c.graph.origin}, {s}", CpuExecutable(c.graph, s, c.maximum, r.sizes)


def sizes_not_given(program: Program, seed: int) -> list[dict[str, int]]:
    """Two draws of odd sizes, one of them with a large last dim, and ones."""
    rng = Random(seed)
    symbols = program.symbols()
    small, large = ({s: rng.randrange(1, top, 2) for s in symbols} for top in (16, 8))
    return [small, {**large, symbols[-1]: rng.randrange(65, 140, 2)}, dict.fromkeys(symbols, 1)]


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_search_finds_another_graph_and_it_is_verified(name: str) -> None:
    r = result(name)
    reference = reference_graph(r.verifier.axis_program)
    others = [c for c in r.graphs if c.graph.kernel != reference.kernel]
    assert others
    assert all(c.certificate.equal and not c.certificate.counterexample for c in others)
    assert any(c.certificate.proof == "proved" for c in others)


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_kernels_equal_the_program_at_sizes_that_were_not_given(name: str) -> None:
    r = result(name)
    tested = 0
    for what, kernel in kernels(r, 1):
        for i, sizes in enumerate(sizes_not_given(r.program, seed=len(name))):
            inputs = arrays(r.program, sizes, seed=i)
            print(name, what, sizes)
            check(r.program, kernel(inputs, sizes), inputs, sizes)
            tested += 1
    assert tested >= 3


@pytest.mark.parametrize("name", SOFTMAX)
def test_large_logits_neither_overflow_nor_give_nan(name: str) -> None:
    r = result(name)
    for what, kernel in kernels(r, 1):
        for i, sizes in enumerate(sizes_not_given(r.program, seed=len(name))):
            first, *rest = arrays(r.program, sizes, seed=i)
            inputs = [(first * 1e4).astype(first.dtype), *rest]
            print(name, what, sizes)
            check(r.program, kernel(inputs, sizes), inputs, sizes, floor=LARGE_LOGITS)


@pytest.mark.parametrize("name", ["softmax", "adapter_mlp"])
def test_float64_kernels_are_as_exact_as_float64(name: str) -> None:
    r = result(name, "float64")
    tested = 0
    for what, kernel in kernels(r, 1):
        for i, sizes in enumerate(sizes_not_given(r.program, seed=1)):
            inputs = arrays(r.program, sizes, seed=i)
            print(name, what, sizes)
            found = kernel(inputs, sizes)
            assert [f.dtype for f in found] == [np.float64]
            check(r.program, found, inputs, sizes)
            tested += 1
    assert tested >= 3


@pytest.mark.parametrize(("name", "dtype"), crossed(PROGRAMS, ["float16", "bfloat16"], step=2))
def test_kernels_of_16_bit_types(name: str, dtype: str) -> None:
    """The graphs that were found, over tensors of another type: kernels and their schedules are right for it too."""
    r = result(name)
    program = retyped(r.program, dtype)
    for what, kernel in kernels(r, 1):
        own = CpuExecutable(replace(kernel.mugraph, dtype=dtype), kernel.schedule, analyze(kernel.mugraph), r.sizes)
        for i, sizes in enumerate(sizes_not_given(program, seed=len(name))):
            inputs = arrays(program, sizes, seed=i)
            print(name, what, sizes)
            found = own(inputs, sizes)
            assert all(f.dtype == DTYPES[dtype] for f in found)
            check(program, found, inputs, sizes, floor=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_many_schedules_at_many_sizes(name: str) -> None:
    program = PROGRAMS[name].trace()
    sizes = {s: SMALL[s] for s in program.symbols()}
    r = mi.superoptimize(program, sizes=sizes, budget=25, cache=False)
    for what, kernel in kernels(r, 6):
        for seed in range(4):
            for i, at in enumerate(sizes_not_given(program, seed)):
                inputs = arrays(program, at, seed=i)
                print(name, what, at)
                check(program, kernel(inputs, at), inputs, at)
