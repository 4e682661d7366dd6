"""A place to launch kernels at: a fake device whose kernels are compiled by nobody; and arrays on the real one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage.ir.axes import AxisInput, AxisOutput
from mirage.ir.operator import Level
from mirage.ir.types import DTYPES
from mirage.kernels.cuda import device as devices
from mirage.kernels.cuda.compile import functions
from mirage.kernels.cuda.compile.functions import Request
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import DEVICES, cuda_device
from mirage.kernels.cuda.emitted import EmittedTriton
from mirage.kernels.cuda.launch import executable as launching
from mirage.kernels.cuda.launch import graphs, loaded, profile
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.loops import together
from mirage.mugraph.graph import Graph, MuGraph
from tests.kernels.cuda.fake_cupy import FakeCupy


def mugraph(emitted: EmittedTriton, dtype: str = "float32", name: str = "example") -> MuGraph:
    """A muGraph with the inputs and results of an emitted one: all that launching looks at."""
    inputs = tuple(AxisInput(t.name, t.axes) for t in emitted.tensors[: emitted.inputs])
    outputs = tuple(AxisOutput(o.tensor, o.dims) for o in emitted.outputs)
    return MuGraph(name, emitted.axes, inputs, Graph(Level.KERNEL, (), ()), outputs, dtype)


class Lab:
    """A fake device, and kernels that were compiled for it by nobody."""

    def __init__(self, folder: Path) -> None:
        self.cupy = FakeCupy()
        self.folder = folder
        self.metadata: dict[str, int] = {}
        self.requests: list[Request] = []

    def compile_all(self, requests: Sequence[Request]) -> list[CompiledKernel]:
        self.requests += requests
        return [self._compile(r) for r in requests]

    def _compile(self, r: Request) -> CompiledKernel:
        names = "-".join(sorted(r.divisible))
        source = zlib.crc32(repr((r.source, r.constexprs)).encode())
        folder = self.folder / f"{r.function}-{r.signature.get('x', '')[1:]}-{names}-{source:x}"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "kernel.cubin").touch(mode=0o600)
        fields = {
            "shared": 0,
            "num_warps": r.num_warps,
            "num_ctas": 1,
            "global_scratch_size": 0,
            "global_scratch_align": 1,
            "profile_scratch_size": 0,
            "profile_scratch_align": 1,
            "registers": 32,
            "spill_bytes": 0,
        }
        kernel = CompiledKernel(folder, r.function, **{**fields, **self.metadata})
        self.cupy.compiled[folder] = kernel, r
        return kernel

    def executable(self, emitted: EmittedTriton, dtype: str = "float32", **hints: int) -> CudaExecutable:
        return CudaExecutable(mugraph(emitted, dtype), emitted, DEVICES["sm_90"], hints or {"m": 3, "n": 20})

    def random(self, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        values = np.random.default_rng(seed).standard_normal(shape)
        made = self.cupy.empty(shape, DTYPES[dtype])
        made[...] = values
        return made


def real(emitted: EmittedTriton, dtype: str, **hints: int) -> CudaExecutable:
    return CudaExecutable(mugraph(emitted, dtype), emitted, cuda_device("cuda"), hints)


def on_gpu(cupy: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])
    return cupy.asarray(values.view(f"u{values.itemsize}")).view(DTYPES[dtype])


def from_gpu(x: Any) -> np.ndarray:
    dtype = np.dtype(x.dtype)
    found: np.ndarray = x.view(f"u{dtype.itemsize}").get().view(dtype).astype(np.float64)
    return found


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path)
    for module in (devices, loaded, graphs, profile):
        monkeypatch.setattr(module, "find_cupy", lambda: made.cupy)
    for module in (functions, launching, together):
        monkeypatch.setattr(module, "compile_all", made.compile_all)
    yield made


@pytest.fixture
def cupy() -> Any:
    """CuPy with a device, for tests that are marked `gpu`."""
    found = devices.find_cupy()
    if found is None:
        pytest.skip("no CUDA device, or CuPy is not installed")
    return found
