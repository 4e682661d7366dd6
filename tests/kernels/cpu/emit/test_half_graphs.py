"""Graphs of several kernels over 16-bit tensors: what is stored in 16 bits, and what is kept in float32 between kernels."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.degree import analyze
from tests.kernels.cpu.emit.test_mixed import MANY, compare, many_outputs
from tests.kernels.kernels import bound, cut, error, random_cut, random_inputs, tiles
from tests.mugraph.graphs import flash_decoding
from tests.programs import SMALL, program, retyped
from tests.sampled import crossed, thinned

HALF = ("float16", "bfloat16")


# those of which the other half is computed in several types
@pytest.mark.parametrize(("name", "dtype"), thinned(zip(SMALL, itertools.cycle(HALF), strict=False), start=1))
def test_random_kernels(name: str, dtype: str) -> None:
    p = retyped(program(name), dtype)
    graph = random_cut(p, random.Random(f"{name} {dtype}"))
    compare(p, graph, CpuExecutable(graph, tiles(graph, 16), analyze(graph)))


@pytest.mark.parametrize(("parts", "dtype"), crossed(MANY, HALF))
def test_outputs_of_any_kernel_in_arrays_of_any_strides(parts: tuple[tuple[int, ...], ...], dtype: str) -> None:
    p = retyped(many_outputs(), dtype)
    graph = cut(p, *parts)
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    sizes = {"m": 7, "k": 18}
    inputs = random_inputs(p, sizes)
    want = run_reference(p, inputs, sizes, "float64")
    assert error(exe(inputs, sizes), want) < bound(dtype)
    # strided, reversed, unaligned
    raw = np.zeros(inputs[1].nbytes + 1, np.uint8)[1:].view(inputs[1].dtype).reshape(inputs[1].shape)
    raw[...] = inputs[1]
    assert not raw.flags.aligned
    given = [np.asfortranarray(inputs[0])[::-1, ::-1][::-1, ::-1], raw]
    out = [np.full((*w.shape[:-1], 2 * w.shape[-1]), np.nan, inputs[0].dtype)[..., ::2] for w in want]
    assert exe(given, sizes, out)[0] is out[0]
    assert error(out, want) < bound(dtype)


def norm_of_products(dtype: str) -> Program:
    """Three operators whose results may each be a tensor between kernels: a product, its squares, their sum."""
    b = ProgramBuilder("norm_of_products")
    x, w = b.input("x", tensor("m", 64, dtype=dtype)), b.input("w", tensor(64, "n", dtype=dtype))
    product = b.op("matmul", x, w)
    total = b.op("sum", b.op("square", product), axes=(1,), keepdims=True)
    return b.finish([b.op("div", product, b.op("sqrt", total))])


@pytest.mark.parametrize(("dtype", "between"), [("float16", "float32"), ("bfloat16", "bfloat16")])
def test_what_kernels_hand_on(dtype: str, between: str) -> None:
    p = norm_of_products(dtype)
    graph = cut(p, (2,), (3, 4), (5, 6))
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    assert [t.name for t in exe.emitted.dtypes] == [dtype, dtype, between, between, dtype]
    library = CpuExecutable(cut(p, (5, 6)), tiles(cut(p, (5, 6)), 16), analyze(graph))
    sizes = {"m": 5, "n": 19}
    inputs = random_inputs(p, sizes)
    # squares of 10^4 and more, far beyond float16
    inputs[0] *= inputs[0].dtype.type(30)
    want = run_reference(p, inputs, sizes, "float64")
    for run in (exe, library):
        assert error(run(inputs, sizes), want) < 2 * bound(dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_partial_results_and_maxima_are_not_rounded(dtype: str) -> None:
    case = flash_decoding()
    graph = replace(case.graph, dtype=dtype)
    exe = CpuExecutable(graph, case.schedule, analyze(graph), case.sizes)
    kept = {axes: t.name for axes, t in zip(exe.emitted.tensors, exe.emitted.dtypes, strict=True)}
    partial = {t for axes, t in kept.items() if not graph.axes.keys() >= set(axes)}
    assert partial == {"float32"} and exe.emitted.dtypes[0].name == dtype
    assert len(exe.emitted.dtypes) - [t.name for t in exe.emitted.dtypes].count(dtype) >= 3
    p = retyped(case.program, dtype)
    for scale in (1, 100):
        inputs = random_inputs(p, case.sizes)
        inputs[0] *= inputs[0].dtype.type(scale)
        found = error(exe(inputs, case.sizes), run_reference(p, inputs, case.sizes, "float64"))
        # of one rounding, at the end
        assert found < bound(dtype) / 2


@pytest.mark.parametrize("dtype", HALF)
def test_sums_are_not_accumulated_in_16_bits(dtype: str) -> None:
    """4096 ones: beyond 256 (or 2048) a sum in 16 bits would not grow."""
    b = ProgramBuilder("total")
    x, w = b.input("x", tensor("m", "k", dtype=dtype)), b.input("w", tensor("k", "n", dtype=dtype))
    p = b.finish([b.op("matmul", x, w), b.op("sum", x, axes=(1,))])
    sizes = {"m": 3, "k": 4096, "n": 5}
    ones = [np.ones(t.bind(sizes), random_inputs(p, sizes)[0].dtype) for t in p.input_types]
    for graph in (cut(p, (2,), (3,), loop=["k"]), cut(p, (2, 3), loop=["k"]), cut(p)):
        for tile in (16, 512):
            exe = CpuExecutable(graph, tiles(graph, tile), analyze(graph))
            for f in exe(ones, sizes):
                assert (f.astype(np.float32) == 4096).all()


@pytest.mark.parametrize("dtype", HALF)
def test_schedules_of_half_kernels_run(dtype: str) -> None:
    p = retyped(program("softmax matmul"), dtype)
    graph = cut(p, tuple(i for i in range(2, 6)))
    sizes = {"b": 40, "n": 70}
    found = schedules(graph, sizes, 1 << 20, 2)
    assert found
    for s in found:
        exe = CpuExecutable(graph, s, analyze(graph), sizes)
        inputs = random_inputs(p, sizes)
        assert error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64")) < bound(dtype)
