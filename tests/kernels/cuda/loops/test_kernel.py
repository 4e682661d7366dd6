"""Loop programs through compilation and launching on a fake device, whose kernels Triton's interpreter runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.interpret import Interpreter
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from tests.ir.loops.programs import inputs, programs
from tests.kernels.cuda.interpreted import Interpreted
from tests.kernels.cuda.lab import Lab

SIZES = {"b": 2, "n": 5, "m": 21, "k": 3}


def call(lab: Lab, kernel: CudaLoopKernel, arrays: list[np.ndarray], sizes: Mapping[str, int]) -> list[Any]:
    """The results on the fake device; raises what it reports."""
    out = [lab.cupy.empty(t.bind(sizes), ELEMENTS[t.dtype]) for t in kernel.output_types]
    failures = kernel([lab.cupy.asarray(a) for a in arrays], sizes, out)
    assert (failures is not None) == kernel.checked
    if failures is not None:
        kernel.raise_failures(failures)
    return out


@pytest.mark.parametrize("name", ["masked_softmax", "embedding", "merged_heads", "counts", "halves", "conversions"])
def test_programs_run_on_a_device(lab: Lab, interpreter: Interpreter, name: str) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()[name]
    own = {s: SIZES[s] for s in program.symbols}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    arrays = inputs(program, own)
    for found, wanted in zip(call(lab, kernel, arrays, own), run_loops(program, arrays, own, "float64"), strict=True):
        tolerance = 1e-2 if found.dtype.itemsize == 2 else 2e-6 if found.dtype.name in DTYPES else 0
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance)


def test_an_index_that_is_out_of_range_is_reported(lab: Lab, interpreter: Interpreter) -> None:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    program = programs()["embedding"]
    own = {s: SIZES[s] for s in program.symbols}
    kernel = CudaLoopKernel(program, DEVICES["sm_90"], own)
    table, ids = inputs(program, own)
    for wrong in (3, -4):
        ids[1, 2] = wrong
        message = f"embedding: gather, axis 0: index {wrong} is out of range for a dim of 3 elements; use -3 to 2"
        with pytest.raises(InputError, match=message):
            call(lab, kernel, [table, ids], own)
