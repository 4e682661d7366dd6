"""Predefined operators of a muGraph: library calls between kernels, by NumPy and on a fake device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import LibraryError
from mirage.ir.axes import argument_places, to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.device import DEVICES, cuda_device
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.emitted import TritonKernel
from mirage.kernels.cuda.gemm import operator
from mirage.kernels.cuda.launch import executable as launching
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.launch.graphs import CudaGraph
from mirage.kernels.cuda.library.predefined import PredefinedOperators, library_operators
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from tests.kernels.cuda.gemm.gemms import MemoryGemms
from tests.kernels.cuda.lab import Lab, from_gpu
from tests.kernels.cuda.library.programs import heads, norm
from tests.kernels.cuda.memory import TOLERANCE, MemoryArrays
from tests.kernels.cuda.simple import arguments

SIZES = {"b": 3, "s": 2, "t": 5}


def library(program: Program, sizes: Mapping[str, int], arch: str = "sm_90") -> CudaExecutable:
    """A program operator by operator, without a kernel."""
    graph = reference_graph(to_axes(program))
    device = DEVICES[arch] if arch else cuda_device("cuda")
    return CudaExecutable(graph, emit(graph, CudaSchedule(())), device, sizes)


def check(program: Program, found: list[Any], inputs: list[Any], sizes: Mapping[str, int]) -> None:
    wanted = run_reference(program, [np.asarray(x, np.float64) for x in inputs], sizes, "float64")
    dtype = program.input_types[0].dtype
    for w, f in zip(wanted, found, strict=True):
        assert f.size == w.size
        np.testing.assert_allclose(f.reshape(w.shape), w, atol=TOLERANCE[dtype] * max(1, np.abs(w).max()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("make", [norm, heads], ids=lambda f: f.__name__)
def test_library_operators_on_a_device(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Program], dtype: str
) -> None:
    monkeypatch.setattr(launching, "CupyArrays", MemoryArrays)
    program = make(dtype)
    sizes = {s: SIZES[s] for s in program.symbols()}
    inputs = [lab.cupy.asarray(x) for x in arguments(program, sizes, 0.3)]
    run = library(program, sizes)
    results = run(inputs, sizes)
    check(program, [np.asarray(y, np.float64) for y in results], inputs, sizes)
    assert lab.cupy.launches == [] and all(y.dtype == DTYPES[dtype] for y in results)


def test_a_bound_operator_reads_new_contents(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "CupyArrays", MemoryArrays)
    program = norm("float32")
    sizes = {"b": 3}
    inputs = [lab.cupy.asarray(x) for x in arguments(program, sizes)]
    bound = library(program, sizes).bind(inputs, sizes)
    for factor in (1.0, -0.5):
        inputs[0][...] = factor * inputs[0]
        bound.launch()
        check(program, [np.asarray(y, np.float64) for y in bound.results], inputs, sizes)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("make", [norm, heads], ids=lambda f: f.__name__)
def test_numpy_operators(make: Callable[[str], Program], dtype: str, together: bool) -> None:
    """Each operator by itself, or all as one plan, on arrays in main memory, with axes in any order."""
    program = make(dtype)
    sizes = {s: SIZES[s] for s in program.symbols()}
    graph = reference_graph(to_axes(program))
    emitted = emit(graph, CudaSchedule(()))
    inputs = arguments(program, sizes, 0.3)
    arrays = [inputs[p] for p in argument_places(graph.inputs)]
    arrays += [
        np.zeros(t, DTYPES[d.dtype]) for d, t in ((d, _shape(d.shape, sizes)) for d in emitted.tensors[len(arrays) :])
    ]
    steps = emitted.runs[0]
    assert len(emitted.runs) == 1 and not isinstance(steps, TritonKernel)
    for run in [steps] if together else [(s,) for s in steps]:
        operators = PredefinedOperators(graph, emitted, run, analyze(graph))
        assert operators.writes <= set(operators.tensors)
        operators.bind({t: arrays[t] for t in operators.tensors}, sizes)()
    found = [np.asarray(arrays[o.tensor], np.float64) for o in emitted.outputs]
    check(program, found, inputs, sizes)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [norm, heads], ids=lambda f: f.__name__)
def test_operators_with_cutlass_kernels(
    make: Callable[[str], Program], dtype: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What operators leave for one another may be wider than the program's type."""
    program = make(dtype)
    sizes = {"b": 3, "s": 2, "t": 8}
    sizes = {s: sizes[s] for s in program.symbols()}
    graph = reference_graph(to_axes(program))
    emitted = emit(graph, CudaSchedule((), "cutlass"))
    inputs = arguments(program, sizes, 0.3)
    arrays = [inputs[p] for p in argument_places(graph.inputs)]
    arrays += [np.zeros(_shape(d.shape, sizes), DTYPES[d.dtype]) for d in emitted.tensors[len(arrays) :]]
    gemms, memory = MemoryGemms(), MemoryArrays()
    monkeypatch.setattr(operator, "Gemms", lambda device: gemms)
    steps = emitted.runs[0]
    assert not isinstance(steps, TritonKernel)
    for run in [steps] if together else [(s,) for s in steps]:
        operators = library_operators(graph, emitted, run, analyze(graph), DEVICES["sm_90"], memory)
        operators.bind({t: arrays[t] for t in operators.tensors}, sizes)()
    assert len(gemms.launched) == 2 or make is norm
    check(program, [np.asarray(arrays[o.tensor], np.float64) for o in emitted.outputs], inputs, sizes)


def test_an_executable_with_cutlass_kernels(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    gemms = MemoryGemms()
    monkeypatch.setattr(launching, "CupyArrays", MemoryArrays)
    monkeypatch.setattr(operator, "Gemms", lambda device: gemms)

    @mi.program(x=mi.tensor("b", 24, dtype="float16"), w=mi.tensor(24, 16, dtype="float16"))
    def act(x: Any, w: Any) -> Any:
        return mi.silu(x @ w)

    program, sizes = act.trace(), {"b": 3}
    graph = reference_graph(to_axes(program))
    run = CudaExecutable(graph, emit(graph, CudaSchedule((), "cutlass")), DEVICES["sm_90"], sizes)
    inputs = [lab.cupy.asarray(x) for x in arguments(program, sizes, 0.3)]
    check(program, [np.asarray(y, np.float64) for y in run(inputs, sizes)], inputs, sizes)
    ((gemm, call),) = gemms.launched
    assert gemm.epilogue.steps == (("sigmoid", 0), ("multiply", 0, 1)) and (call.rows, call.columns, call.depth) == (3, 16, 24)


def _shape(shape: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return mi.ir.types.TensorType(shape).bind(sizes)


def test_a_library_that_is_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise LibraryError("CuPy: not installed")

    monkeypatch.setattr(launching, "CupyArrays", missing)
    program = norm("float32")
    run = library(program, {"b": 3})
    with pytest.raises(LibraryError, match="not installed"):
        run([lab.cupy.asarray(x) for x in arguments(program, {"b": 3})], {"b": 3})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("make", [norm, heads], ids=lambda f: f.__name__)
def test_library_operators_on_the_device(cupy: Any, make: Callable[[str], Program], dtype: str) -> None:
    pytest.importorskip("nvmath", reason="needs nvmath-python")
    program = make(dtype)
    sizes = {s: SIZES[s] for s in program.symbols()}
    host = arguments(program, sizes, 0.3)
    inputs = [cupy.asarray(x.view(f"u{x.itemsize}")).view(x.dtype) for x in host]
    run = library(program, sizes, arch="")
    check(program, [from_gpu(y) for y in run(inputs, sizes)], host, sizes)
    graph = CudaGraph([run.bind(inputs, sizes)])
    graph.launch()
    check(program, [from_gpu(y) for y in graph.results[0]], host, sizes)
