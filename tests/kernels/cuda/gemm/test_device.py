"""CUTLASS kernels on a device, compared with float64.

Where their compiler is not installed they come from the cache folder: `python -m tests.kernels.cuda.gemm.test_device` compiles
them for an H200, without a device, into `MIRAGE_CACHE_DIR`, which is then carried along.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import CompilerError
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.compile.kernels import compile_all
from mirage.kernels.cuda.device import DEVICES, present_device
from mirage.kernels.cuda.gemm.gemm import CONFIGS, Gemm, GemmConfig
from mirage.kernels.cuda.gemm.operator import CutlassCalls, GemmRequest, Gemms
from mirage.kernels.cuda.library.program import CudaLibraryProgram
from mirage.kernels.library_calls import NUMPY
from tests.kernels.cuda.gemm.cases import ALL_OPERANDS, EPILOGUES, SILU_RESIDUAL, Example
from tests.kernels.cuda.lab import from_gpu
from tests.kernels.cuda.memory import TOLERANCE

pytestmark = pytest.mark.gpu
#: the caller's cache folder: that of the tests is empty
_CARRIED = os.environ.get("MIRAGE_CACHE_DIR")


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    if _CARRIED is not None:
        monkeypatch.setenv("MIRAGE_CACHE_DIR", _CARRIED)


def _tailed(config: GemmConfig, a_by_depth: bool, b_by_depth: bool) -> Gemm:
    return Gemm("float16", "float16", a_by_depth, b_by_depth, SILU_RESIDUAL, config)


def _batched(config: GemmConfig) -> Gemm:
    return Gemm("bfloat16", "float32", True, False, ALL_OPERANDS, config)


def _with_epilogue(name: str) -> Gemm:
    return Gemm("float16", "float32", True, False, EPILOGUES[name], CONFIGS[0])


@cache
def _gemms() -> Gemms:
    device = present_device()
    assert device is not None
    return Gemms(device)


def _on_device(cupy: Any, x: np.ndarray) -> Any:
    return cupy.asarray(x.view(f"u{x.itemsize}")).view(x.dtype)


def _run(cupy: Any, gemm: Gemm, sizes: tuple[int, int, int, int]) -> None:
    example = Example(gemm, sizes)
    arrays = [_on_device(cupy, x) for x in example.arrays]
    call = example.call([a.data.ptr for a in arrays])
    assert call.fits(gemm)
    if not _gemms().launch(gemm, call, arrays):
        pytest.skip("the kernel is neither in the cache nor to be compiled here")
    example.check(from_gpu(arrays[2]))


@pytest.mark.parametrize("b_by_depth", [False, True])
@pytest.mark.parametrize("a_by_depth", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_products_over_tails(cupy: Any, config: GemmConfig, a_by_depth: bool, b_by_depth: bool) -> None:
    m, n, _ = config.tile
    _run(cupy, _tailed(config, a_by_depth, b_by_depth), (1, 3 * m + (3 if a_by_depth else 8), 2 * n + 8, 1992))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_batches(cupy: Any, config: GemmConfig) -> None:
    m, n, _ = config.tile
    _run(cupy, _batched(config), (3, m + 1, 5 * n - 8, 136))


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(cupy: Any, name: str) -> None:
    _run(cupy, _with_epilogue(name), (1, 37, 200, 328))


def _block(dtype: str) -> Program:
    """Products with the SiLU, the gate and the residual of a block, and another that no kernel takes."""

    @mi.program(
        x=mi.tensor("b", 256, dtype=dtype), w=mi.tensor(256, 512, dtype=dtype), v=mi.tensor(256, 512, dtype=dtype),
        o=mi.tensor(512, 256, dtype=dtype), c=mi.tensor(256, 5, dtype=dtype),
    )  # fmt: skip
    def block(x: Any, w: Any, v: Any, o: Any, c: Any) -> Any:
        y = (mi.silu(x @ w) * (x @ v)) @ o + x
        return y, x @ c

    return block.trace()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_program(cupy: Any, dtype: str) -> None:
    pytest.importorskip("nvmath", reason="needs nvmath-python")
    program, sizes = _block(dtype), {"b": 33}
    rng = np.random.default_rng(1)
    host = [(rng.standard_normal(t.bind(sizes)) / 4).astype(DTYPES[dtype]) for t in program.input_types]
    run = CudaLibraryProgram(to_axes(program), calls=partial(CutlassCalls, gemms=_gemms()))
    found = run([_on_device(cupy, x) for x in host], sizes)
    wanted = run_reference(program, [x.astype(np.float64) for x in host], sizes, "float64")
    for w, f in zip(wanted, found, strict=True):
        np.testing.assert_allclose(from_gpu(f), w, rtol=0, atol=TOLERANCE[dtype] * np.abs(w).max())


if __name__ == "__main__":
    wanted = [_tailed(c, a, b) for c in CONFIGS for a in (False, True) for b in (False, True)]
    wanted += [_batched(c) for c in CONFIGS] + [_with_epilogue(name) for name in EPILOGUES]
    for gemm, kernel in zip(wanted, compile_all([GemmRequest(g, "sm_90") for g in wanted]), strict=True):
        print(gemm.config, gemm.epilogue, kernel if isinstance(kernel, CompilerError) else "compiled", sep="; ")
    for each in ("float16", "bfloat16"):
        plan = partial(CutlassCalls, gemms=Gemms(DEVICES["sm_90"]))
        CudaLibraryProgram(to_axes(_block(each)), NUMPY, plan).prepare({"b": 33})
