"""Graphs that compute float32 and read inputs that are stored in 8 or 16 bits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mirage.errors import DTypeError, InputError, UnknownOperator
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import WIDENED, tensor
from mirage.kernels.cpu.emit.mugraph import emit
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.packing import packed_variants
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.parse import parse_mugraph
from mirage.mugraph.reference import reference_graph
from tests.kernels.cpu.check import check
from tests.kernels.cpu.emit.test_mixed import compare
from tests.kernels.kernels import bound, cut, error, random_cut, random_inputs, tiles
from tests.mugraph.graphs import CASES, Case
from tests.mugraph.loops import CASES as LOOPS
from tests.programs import SMALL, program, widened
from tests.sampled import thinned

HAND: dict[str, Case] = {**{name: make() for name, make in CASES.items()}, **LOOPS}


def stored(graph: MuGraph, p: Program) -> MuGraph:
    """The graph with inputs that are stored as the program's are."""
    own = {x.argument: x.dtype for x in to_axes(p).inputs}
    return replace(graph, inputs=tuple(replace(x, dtype=own[x.argument]) for x in graph.inputs))


def some(p: Program, seed: str) -> list[int]:
    """At least one of a program's inputs."""
    rng = random.Random(seed)
    return rng.sample(range(len(p.inputs)), rng.randint(1, len(p.inputs)))


@pytest.mark.parametrize(("name", "dtype"), thinned(zip(HAND, itertools.cycle(WIDENED), strict=False), 3))
def test_hand_made_graphs(name: str, dtype: str) -> None:
    case = HAND[name]
    for inputs in (None, some(case.program, name)):
        p = widened(case.program, dtype, inputs)
        graph = stored(case.graph, p)
        assert str(parse_mugraph(str(graph))) == str(graph)
        given = random_inputs(p, case.sizes)
        # exponents of programs stay within what float32 holds
        given = [a if a.dtype.kind == "f" else (a // 64).astype(a.dtype) for a in given]
        check(p, graph, case.schedule, case.sizes, given)


@pytest.mark.parametrize(("name", "dtype"), thinned(zip(SMALL, itertools.cycle(WIDENED), strict=False)))
def test_random_kernels(name: str, dtype: str) -> None:
    p = widened(program(name), dtype, some(program(name), name))
    if dtype in ("int8", "uint8") and {"exp", "softmax"} & {n.op for n in p.nodes}:
        dtype = "bfloat16"
        p = widened(program(name), dtype)
    graph = random_cut(p, random.Random(f"{name} {dtype}"))
    compare(p, graph, CpuExecutable(graph, tiles(graph, 16), analyze(graph)))
    alone = reference_graph(to_axes(p))
    compare(p, alone, CpuExecutable(alone, tiles(alone, 16), analyze(alone)))


def product(dtype: str, transposed: bool = True, rows: str = "") -> Program:
    """A product of two stored matrices, the second with its terms side by side or not, and a scale."""
    b = ProgramBuilder("product")
    x = b.op("cast", b.input("x", tensor("m", "k", dtype=rows or dtype)), dtype="float32")
    w = b.input("w", tensor(*(("n", "k") if transposed else ("k", "n")), dtype=dtype))
    w = b.op("cast", b.op("transpose", w, perm=(1, 0)) if transposed else w, dtype="float32")
    return b.finish([b.op("mul", b.op("matmul", x, w), b.input("s", tensor("n")))])


@pytest.mark.parametrize("rows", ("int8", "uint8"))
@pytest.mark.parametrize("dtype", ("int8", "uint8"))
@pytest.mark.parametrize("transposed", (True, False))
def test_bytes_are_multiplied_as_such(dtype: str, transposed: bool, rows: str) -> None:
    """Where the terms of both lie side by side, and sums are exact."""
    p = product(dtype, transposed, rows)
    graph = cut(p, (3, 4))
    schedule = tiles(graph, 16)
    source = emit(graph, schedule, analyze(graph), {"m": 16, "n": 48, "k": 64})
    assert ("mi_gemm_dot_bytes" in source) is transposed
    sizes = {"m": 19, "n": 37, "k": 131}
    exe = CpuExecutable(graph, schedule, analyze(graph), sizes)
    x, w, s = random_inputs(p, sizes)
    whole = x.astype(np.int64) @ (w.T if transposed else w).astype(np.int64)
    np.testing.assert_array_equal(exe([x, w, s], sizes)[0], whole.astype(np.float32) * s)


@pytest.mark.parametrize(("dtype", "rows"), [*((t, t) for t in WIDENED), ("int8", "bfloat16"), ("float16", "uint8")])
def test_arrays_of_any_strides(dtype: str, rows: str) -> None:
    p = product(dtype, rows=rows)
    graph = cut(p, (3, 4))
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    sizes = {"m": 7, "n": 18, "k": 21}
    x, w, s = random_inputs(p, sizes)
    want = run_reference(p, [x, w, s], sizes, "float64")
    raw = np.zeros(w.nbytes + 1, np.uint8)[1:].view(w.dtype).reshape(w.shape)
    raw[...] = w
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    for given in ([x, raw, s], [wide, w, s], [np.asfortranarray(x), w[::-1][::-1], s]):
        assert error(exe(given, sizes), want) < bound("float32")
    with pytest.raises(InputError, match=f"input w has dtype float32, not {dtype}; convert it with astype"):
        exe([x, w.astype(np.float32), s], sizes)


@pytest.mark.parametrize("dtype", ("int8", "float16"))
def test_schedules_and_packed_constants(dtype: str) -> None:
    p = product(dtype, transposed=False)
    graph, sizes = cut(p, (3, 4)), {"m": 5, "n": 300, "k": 70}
    given = random_inputs(p, sizes)
    want = run_reference(p, given, sizes, "float64")
    found = schedules(graph, sizes, 1 << 20, 2)
    packed = packed_variants(graph, found[0], ["w"], sizes)
    assert found and packed
    for s in (*found, *packed):
        exe = CpuExecutable(graph, s, analyze(graph), sizes, ["w"])
        for _ in range(2):
            assert error(exe(given, sizes), want) < bound("float32")
        assert all(copy.dtype == given[1].dtype for copy in exe.packed())


def renamed(graph: MuGraph, change: Callable[[str], str]) -> MuGraph:
    return replace(graph, inputs=tuple(replace(x, dtype=change(x.name)) for x in graph.inputs))


def test_what_graphs_must_not_store() -> None:
    graph = cut(program("matmul"))
    for change, message in (
        (lambda name: "int16", "inputs are stored in int16, and it computes float32; only int8, uint8"),
        (lambda name: "float32", "inputs are stored in float32"),
    ):
        with pytest.raises(DTypeError, match=message):
            renamed(graph, change).check_stored()
    with pytest.raises(DTypeError, match="it computes float64"):
        replace(renamed(graph, lambda name: "int8"), dtype="float64").check_stored()
    text = str(renamed(graph, lambda name: "int8")).replace("int8.cast", "int8.float")
    with pytest.raises(UnknownOperator, match="line 1: operator 'float' is not registered"):
        parse_mugraph(text)
    with pytest.raises(DTypeError, match=r"line 1: dtype 'int7' is not supported"):
        parse_mugraph(str(renamed(graph, lambda name: "int8")).replace("int8", "int7"))
