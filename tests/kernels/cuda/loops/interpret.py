"""Kernels of loop programs run on NumPy arrays by Triton's interpreter: for tests, and machines without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.ir.dim_values import value_at
from mirage.ir.types import ELEMENTS
from mirage.kernels.cuda.arguments import grid
from mirage.kernels.cuda.emitted import ArgumentKind
from mirage.kernels.cuda.loops.emit import EmittedLoops
from mirage.kernels.cuda.loops.frame import FAILURES


def interpret(
    interpreter: Interpreter, emitted: EmittedLoops, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]
) -> tuple[list[np.ndarray], np.ndarray]:
    """What the kernels of a loop program write at these sizes of the dim symbols: the outputs, and the words of failed checks.

    Raises MirageError where the interpreter fails.
    """
    arrays = list(inputs)
    # not zeros, but for the words
    for t in emitted.tensors[len(arrays) :]:
        shape = tuple(value_at(d, sizes) for d in t.shape)
        arrays.append(np.full(shape, 0 if t.name == FAILURES else 77, ELEMENTS[t.dtype]))
    dtypes = ["int8" if t.dtype == "bool" else t.dtype for t in emitted.tensors]
    for step in emitted.kernels:
        programs = grid(step, sizes)
        if all(programs):
            values = {a.name: value_at(a.value, sizes) for a in step.arguments if a.kind is ArgumentKind.SIZE}
            interpreter.launch(emitted.source, step, programs, values, arrays, dtypes)
    failures = arrays.pop() if emitted.checks else np.zeros(0, np.int64)
    return arrays[len(inputs) : len(arrays) - emitted.workspace], failures
