"""A model as one exported program for all sizes, and what our compiler and other runtimes make of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.stepwise import stepwise
from mirage.runtime import program as vm
from mirage.runtime.executable import Executable
from mirage.runtime.frame import Frame
from mirage.runtime.steps import Step, Steps
from mirage.torch.compiled import CompiledGraph
from mirage.torch.model import CompiledModel, compile
from mirage.torch.program import Program

#: arguments of a model -> its results
Model = Callable[[Sequence[Any]], Any]
#: what runs a graph's own part of a call, whose seconds a profile has
_TIMED = ("kernel", "library", "operator", "packed", "call", "branch", "loop")


def exported(model: nn.Module, example: Sequence[Any]) -> Any:
    """The program of a model for every size of every dim, from one example."""
    dims = pytree.tree_map(lambda t: {i: torch.export.Dim.AUTO for i in range(t.ndim)}, tuple(example))
    return torch.export.export(model, tuple(example), dynamic_shapes=dims, strict=False)


@dataclass(frozen=True)
class Ours:
    """A model that `mirage.torch.compile` has compiled for all sizes, in so many `seconds` from the first call on."""

    model: CompiledModel
    seconds: float

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.model(*inputs)

    @property
    def _program(self) -> Program:
        return self.model.programs[0]

    @property
    def _executable(self) -> Executable:
        return self._program.graph.executable

    @property
    def programs(self) -> int:
        """How many programs all calls so far came to."""
        return len(self.model.programs)

    @property
    def counts(self) -> tuple[int, int]:
        """Kernels and library functions of a call."""
        main = self._executable.program.functions[self._executable.program.main]
        kinds = vm.CallKernel, vm.CallLibrary
        kernels, libraries = (sum(isinstance(i, kind) for i in main.code) for kind in kinds)
        return kernels, libraries

    @property
    def fallbacks(self) -> dict[str, int]:
        """How often a call runs each operator of ATen's own that has no lowering."""
        return dict(self._program.imported.fallback)

    def activation_bytes(self, inputs: Sequence[Any]) -> int:
        """Bytes that a call at these sizes takes for intermediate tensors."""
        self._executable.release()
        self(inputs)
        return self._executable.idle_bytes

    def profile(self, inputs: Sequence[Any], calls: int = 3) -> dict[str, float]:
        """Milliseconds of a call in each kernel and function, the longest first, those of one name together."""
        e, graph = self._executable, self._program.graph
        spent: dict[str, float] = {}
        again = stepwise(e, _timing(e, spent))
        self._program.swap(CompiledGraph(graph.imported, again, graph.constants))
        try:
            self(inputs)
            spent.clear()
            for _ in range(calls):
                self(inputs)
        finally:
            self._program.swap(graph)
        ordered = sorted(spent.items(), key=lambda item: -item[1])
        return {name: round(1e3 * seconds / calls, 4) for name, seconds in ordered}


def ours(model: Any, example: Sequence[Any], **options: Any) -> Ours:
    """The model compiled at once, by a first call with these arguments; `options` are those of `mirage.torch.compile`."""
    compiled = compile(model, background=False, strict=True, **options)
    start = time.perf_counter()
    compiled(*example)
    return Ours(compiled, time.perf_counter() - start)


def _timing(executable: Executable, spent: dict[str, float]) -> type[Steps]:
    """Steps that add the seconds of each kernel and function to `spent`."""

    class Timing(Steps):
        def __getattribute__(self, name: str) -> Any:
            make = super().__getattribute__(name)
            return (lambda i: _timed(make(i), _label(i, executable), spent)) if name in _TIMED else make

    return Timing


def _timed(run: Step, label: str, spent: dict[str, float]) -> Step:
    def step(registers: list[Any], frame: Frame) -> None:
        start = time.perf_counter()
        run(registers, frame)
        spent[label] = spent.get(label, 0.0) + time.perf_counter() - start

    return step


def _label(i: Any, executable: Executable) -> str:
    match i:
        case vm.CallKernel():
            name = executable.program.kernels[i.kernel]
            return f"{name}: {executable.facts.kernels[name]}"
        case vm.CallLibrary() | vm.CallPacked():
            attrs = ", ".join(f"{k}={v}" for k, v in i.attrs if k != "call")
            return f"{i.function}({attrs})"
        case vm.CallOperator():
            return f"NumPy's {i.operator}"
    return type(i).__name__


def onnx_file(program: Any, folder: Path) -> Path:
    """An exported program as an ONNX file, its weights beside it."""
    path = folder / "model.onnx"
    torch.onnx.export(program, dynamo=True, external_data=True, verbose=False).save(str(path), external_data=True)
    return path


def in_onnx_runtime(path: Path, threads: int) -> Model:
    """An ONNX file in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, _arrays(inputs), strict=True)))


def in_openvino(path: Path, threads: int, precision: str = "f32") -> Model:
    """An ONNX file in OpenVINO, computed in that precision."""
    import openvino

    core = openvino.Core()
    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    request = core.compile_model(core.read_model(str(path)), "CPU", hints).create_infer_request()
    return lambda inputs: list(request.infer(_arrays(inputs), share_inputs=True).values())


def in_runtimes(path: Path, threads: int, say: Callable[[str], None]) -> dict[str, Model]:
    """An ONNX file in every runtime that is installed and takes it; `say` is told of the others."""
    found: dict[str, Model] = {}
    for name, load in (("ONNX Runtime", in_onnx_runtime), ("OpenVINO", in_openvino)):
        try:
            found[name] = load(path, threads)
        except Exception as e:  # of packages that are no part of this project: anything
            say(f"{name} is left out: {first_line(e)}")
    return found


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def cast(inputs: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """The inputs, floats among them of another type."""
    return pytree.tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, list(inputs))


def first_result(results: Any) -> np.ndarray:
    """The first of a model's results, in float64."""
    first = pytree.tree_leaves(results)[0]
    return np.asarray(first.double() if isinstance(first, torch.Tensor) else first, np.float64)


def _arrays(inputs: Sequence[Any]) -> list[np.ndarray]:
    return [t.numpy() for t in pytree.tree_leaves(inputs)]
