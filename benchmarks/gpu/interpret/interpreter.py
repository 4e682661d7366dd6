"""Emitted Triton source run on NumPy arrays by Triton's interpreter: for tests, and machines without a GPU.

It checks what kernels compute, not layouts, races, or limits of shared memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mirage.errors import InputError, MirageError
from mirage.ir.axes import read_arguments
from mirage.ir.dims import evaluate
from mirage.ir.moves import moved
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cuda.arguments import contiguous, described, shapes
from mirage.kernels.cuda.emitted import ArgumentKind, DeviceTensor, EmittedTriton, TritonKernel
from mirage.kernels.cuda.launch.packing import copy_packed
from mirage.kernels.cuda.library.predefined import PredefinedOperators
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph


class Interpreter:
    """A process with Triton's interpreter, which runs kernels one after the other; a context manager.

    Raises MirageError where triton is not installed.
    """

    def __init__(self) -> None:
        if find_spec("triton") is None:
            raise MirageError("the Triton interpreter needs triton; install it: pip install 'triton>=3.5'")
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
        program = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def run(
        self,
        emitted: EmittedTriton,
        mugraph: MuGraph,
        arguments: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        maximum: RunningMaximum | None = None,
    ) -> list[np.ndarray]:
        """The results of a muGraph for its arguments, at these sizes of the dim symbols.

        Predefined operators are computed by NumPy. Where tensor descriptors cannot describe contiguous arrays of these sizes,
        kernels without them run, as on a device. Raises InputError for sizes that the schedule has no room for, and MirageError
        where the interpreter fails.
        """
        everything = range(len(emitted.tensors))
        if emitted.fallback and not described(emitted, sizes, [contiguous(s) for s in shapes(emitted, sizes)], everything):
            emitted = emitted.fallback
        for limit in emitted.limits:
            if (size := evaluate(limit.value, sizes)) > limit.most:
                raise InputError(
                    f"{mugraph.name}: axis {limit.axis} has size {size}; this schedule has room for {limit.most} elements"
                )
        read = read_arguments(mugraph.name, mugraph.inputs, arguments, lambda moves, a: moved(moves, a, sizes))
        arrays = [_input(a, t, sizes) for a, t in zip(read, emitted.tensors, strict=False)]
        arrays += [np.zeros(*_shape(t, sizes)) for t in emitted.tensors[emitted.inputs :]]
        for p in emitted.packed:
            copy_packed(emitted, p, sizes, arrays[p.input], arrays[p.tensor])
        for run in emitted.runs:
            if isinstance(run, TritonKernel):
                self._launch(emitted, run, arrays, sizes)
            else:
                operators = PredefinedOperators(mugraph, emitted, run, maximum or analyze(mugraph))
                operators.bind({t: arrays[t] for t in operators.tensors}, sizes)()
        return [_output(emitted, k, arrays, sizes) for k in range(len(emitted.outputs))]

    def _launch(
        self, emitted: EmittedTriton, step: TritonKernel, arrays: list[np.ndarray], sizes: Mapping[str, int]
    ) -> None:
        grid = [evaluate(n, sizes) for n in step.grid]
        if not all(grid):
            return
        values = {}
        for a in step.arguments:
            if a.kind is ArgumentKind.SIZE:
                values[a.name] = evaluate(a.value, sizes)
            elif a.kind is ArgumentKind.STRIDE:
                stride = arrays[a.tensor].strides[a.dim] // arrays[a.tensor].itemsize
                values[a.name] = stride * evaluate(a.value, sizes)
        self.launch(emitted.source, step, grid, values, arrays, [t.dtype for t in emitted.tensors])

    def launch(
        self,
        source: str,
        step: TritonKernel,
        grid: Sequence[int],
        values: Mapping[str, int],
        arrays: list[np.ndarray],
        dtypes: Sequence[str],
    ) -> None:
        """Run one kernel of a source. `values` are those of its sizes and strides by name, `arrays` all tensors, of element types
        `dtypes` in Triton; those that it writes are replaced.

        Raises MirageError where the interpreter fails.
        """
        used = list(dict.fromkeys((*step.reads, *step.writes)))
        given = [
            ("pointer", used.index(a.tensor)) if a.kind is ArgumentKind.POINTER else (a.kind.value, values[a.name])
            for a in step.arguments
        ]
        sent = [_bits(arrays[t]) for t in used]
        request = {
            "arrays": [[a.dtype.str, a.shape] for a in sent],
            "source": source,
            "dtypes": [dtypes[t] for t in used],
            "launches": [
                {"name": step.name, "grid": list(grid), "arguments": given, "constexprs": dict(step.constexprs)},
            ],
        }
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        for array in sent:
            process.stdin.write(array.tobytes())
        process.stdin.flush()
        reply: Any = json.loads(process.stdout.readline() or '{"error": "the process ended"}')
        if reply["error"]:
            raise MirageError(f"Triton's interpreter failed in {step.name}: {reply['error']}")
        for t, array in zip(used, sent, strict=True):
            data = process.stdout.read(array.nbytes)
            if t in step.writes:
                arrays[t] = np.frombuffer(data, arrays[t].dtype).reshape(array.shape)


def _bits(a: np.ndarray) -> np.ndarray:
    """The array as NumPy's own format has it: contiguous, and without types of others; booleans as bytes."""
    kinds = {DTYPES["bfloat16"]: np.uint16, np.dtype(bool): np.int8}
    # of rank 0, too
    array = np.ascontiguousarray(a).reshape(a.shape)
    return array.view(kinds[a.dtype]) if a.dtype in kinds else array


def _shape(t: DeviceTensor, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], np.dtype]:
    return tuple(evaluate(d, sizes) for d in t.shape), ELEMENTS[t.dtype]


def _input(array: np.ndarray, t: DeviceTensor, sizes: Mapping[str, int]) -> np.ndarray:
    shape, dtype = _shape(t, sizes)
    if array.shape != shape or array.dtype != dtype:
        raise InputError(f"{t.name}: expected {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}")
    return np.ascontiguousarray(array)


def _output(emitted: EmittedTriton, k: int, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
    out = emitted.outputs[k]
    t = emitted.tensors[out.tensor]
    extents = {a: evaluate(d, sizes) for a, d in emitted.axes.items()}
    own = [a for d in t.axes for a in d]
    axes = [a for d in out.dims for a in d]
    value = arrays[out.tensor].reshape([extents[a] for a in own])
    value = value.transpose([own.index(a) for a in axes if a in own])
    value = value.reshape([extents[a] if a in own else 1 for a in axes])
    return np.broadcast_to(value, [extents[a] for a in axes]).reshape([evaluate(d, sizes) for d in out.shape])
