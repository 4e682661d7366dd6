"""Emitted muGraphs through compilation, planning and launching on a fake device, whose kernels Triton's interpreter runs.

It gets the bytes of the arguments alone: addresses, sizes and strides must be those that the kernels mean.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import ptx
from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.ir.interpret import run_reference
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.arguments import typical
from mirage.kernels.cuda.compile.functions import request
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.launch import executable as launching
from mirage.kernels.cuda.launch.executable import CudaExecutable
from tests.kernels.cuda.interpreted import Interpreted
from tests.kernels.cuda.lab import Lab
from tests.kernels.cuda.memory import MemoryArrays
from tests.kernels.cuda.simple import arguments, simple_schedule
from tests.mugraph.graphs import CASES, flash_attention
from tests.mugraph.loops import CASES as LOOPS
from tests.mugraph.split import twice_split

HAND: dict[str, Any] = {**{name: make() for name, make in CASES.items()}, **LOOPS, "twice_split": twice_split()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", HAND)
def test_graphs_run_on_a_device(
    lab: Lab, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    monkeypatch.setattr(launching, "CupyArrays", MemoryArrays)
    case = HAND[name]
    graph = replace(case.graph, dtype=dtype)
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    run = CudaExecutable(graph, emit(graph, simple_schedule(graph, case.sizes)), DEVICES["sm_90"], case.sizes)
    for copies in (lambda a: a, _scattered):
        host = [a.astype(DTYPES[dtype]) for a in arguments(case.program, case.sizes, 0.5)]
        given = [lab.cupy.asarray(copies(a)) for a in host]
        results = run(given, case.sizes)
        wanted = run_reference(case.program, [a.astype(np.float64) for a in host], case.sizes, "float64")
        for w, y in zip(wanted, results, strict=True):
            assert y.shape == w.shape and y.dtype == DTYPES[dtype]
            bound = (1e-5 if dtype == "float32" else 2e-2) * max(1.0, float(np.abs(w).max(initial=0)))
            assert np.abs(np.asarray(y, np.float64) - w).max(initial=0) < bound


def _scattered(a: np.ndarray) -> np.ndarray:
    """The same contents at an odd address, with gaps between rows; and, but for vectors, the last dim in the middle of memory."""
    if a.ndim == 0:
        return a
    wide = np.zeros((*a.shape[:-1], a.shape[-1] + 3), a.dtype)
    wide[..., 1:-2] = a
    found = wide[..., 1:-2]
    if a.ndim >= 2 and a.shape[0] % 2:
        turned = np.ascontiguousarray(np.moveaxis(a, -1, 0))
        found = np.moveaxis(turned, 0, -1)
    return found


@pytest.mark.slow
def test_every_graph_compiles_for_every_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="kernels are compiled by Triton, which is not installed (pip install triton)")
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    requests, names = [], []
    for name, case in HAND.items():
        graph = replace(case.graph, dtype="float16")
        emitted = emit(graph, simple_schedule(graph, case.sizes))
        for kernel, divisible in zip(emitted.kernels, typical(emitted, case.sizes), strict=True):
            for device in DEVICES.values():
                requests.append(request(emitted, kernel, device, divisible))
                names.append(f"{name}, {kernel.name}, {device.arch}")
    compiled = compile_all(requests)
    assert [f"{n}: {c}" for n, c in zip(names, compiled, strict=True) if not isinstance(c, CompiledKernel)] == []
    assert sum(isinstance(c, CompiledKernel) and c.spill_bytes == 0 for c in compiled) >= 0.95 * len(compiled)
    monkeypatch.setattr("subprocess.run", None)
    assert compile_all(requests) == compiled, "of the cache"


def test_attention_has_tensor_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="kernels are compiled by Triton, which is not installed (pip install triton)")
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    case = flash_attention()
    graph = replace(case.graph, dtype="bfloat16")
    emitted = emit(graph, simple_schedule(graph, case.sizes))
    (divisible,) = typical(emitted, case.sizes)
    (kernel,) = compile_all([request(emitted, emitted.kernels[0], DEVICES["sm_90"], divisible)])
    assert isinstance(kernel, CompiledKernel)
    assert ptx.matrix_instruction(kernel.ptx) in ("mma.sync", "wgmma.mma_async") and kernel.spill_bytes == 0
