"""CUTLASS kernels as data: parameters, what a launch may be, configurations, the cache's key, launches on a stand-in."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage.errors import CompilerError, NoCompilerError
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.compile.worker import METADATA
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.gemm import compile as cutlass_compile
from mirage.kernels.cuda.gemm import launch as cutlass_launch
from mirage.kernels.cuda.gemm.compile import GemmRequest, check_installed, compile_gemms
from mirage.kernels.cuda.gemm.gemm import Gemm, GemmCall, Operand, configs
from mirage.kernels.cuda.gemm.launch import Gemms
from mirage.kernels.cuda.launch import loaded
from tests.kernels.cuda.gemm.cases import ALL_OPERANDS, EPILOGUES, PLAIN, SILU_RESIDUAL

H200 = DEVICES["sm_90"]
SMALL = configs(H200)[0]
GEMM = Gemm("float16", "float16", True, False, SILU_RESIDUAL, SMALL)
CALL = GemmCall(5, 48, 64, 2, (256, 64, 320), (512, 48, 0), (1024, 48, 240), (Operand(2048, 48, 240),))


def test_parameters_and_arguments() -> None:
    names = [n for n, _ in GEMM.parameters()]
    assert names[:4] == ["a", "b", "d", "operand_0"] and names[4:7] == ["rows", "columns", "depth"]
    assert names[7:] == ["lda", "ldb", "ldd", "batch_a", "batch_b", "batch_d", "step_0", "batch_0"]
    types = {"pointer": np.uint64, "i32": np.int32, "i64": np.int64}
    assert [type(a) for a in CALL.arguments()] == [types[t] for _, t in GEMM.parameters()]
    assert [int(a) for a in CALL.arguments()] == [256, 512, 1024, 2048, 5, 48, 64, 64, 48, 48, 320, 0, 240, 48, 240]
    assert CALL.grid(SMALL) == (1, 2, 2)


def test_what_fits() -> None:
    assert CALL.fits(GEMM)
    assert replace(CALL, operands=(Operand(2048, 48, 0),)).fits(GEMM)
    # rows that are not contiguous are any number
    assert not replace(CALL, rows=13).fits(replace(GEMM, a_by_depth=False))
    assert replace(CALL, rows=16).fits(replace(GEMM, a_by_depth=False))


@pytest.mark.parametrize(
    "change",
    [
        {"columns": 44},
        {"depth": 60},
        {"columns": 0},
        {"rows": 0},
        {"batch": 0},
        {"batch": 1 << 17},
        {"depth": 1 << 30},
        {"a": (264, 64, 320)},
        {"b": (512, 50, 0)},
        {"d": (1024, 48, 241)},
        {"operands": (Operand(2056, 48, 240),)},
        {"operands": (Operand(2048, 44, 240),)},
    ],
    ids=str,
)
def test_what_does_not_fit(change: dict[str, Any]) -> None:
    assert not replace(CALL, **change).fits(GEMM)


def test_operands_of_rows_and_columns_are_anywhere() -> None:
    gemm = replace(GEMM, epilogue=ALL_OPERANDS)
    operands = (Operand(2048, 48, 240), Operand(4, 3, 5), Operand(6, 0, 0), Operand(12, 0, 1))
    assert replace(CALL, operands=operands).fits(gemm)


def test_configurations() -> None:
    for device in DEVICES.values():
        found = configs(device)
        assert found and all(device.resident_blocks(c.num_warps, c.shared_bytes, 64) for c in found)
        assert any(c.wgmma for c in found) == (device.arch == "sm_90")
        for c in found:
            # each warp, or warpgroup, has whole instructions
            least = (64, 8) if c.wgmma else (16, 8)
            assert all(n % (w * m) == 0 for n, w, m in zip(c.tile, c.warps, least, strict=False))


def test_epilogues_as_text() -> None:
    assert str(PLAIN) == "sum"
    assert str(SILU_RESIDUAL) == "add(multiply(sum, sigmoid(sum)), operand 0 of elements)"
    assert str(EPILOGUES["limits"]) == "maximum(clamp(sum, -0.5, 1.5), 0.25)"


def test_keys_tell_kernels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    # a machine that only launches has no compiler
    monkeypatch.setattr(importlib.metadata, "version", missing)
    changes: list[dict[str, Any]] = [
        {},
        {"dtype": "bfloat16"},
        {"result": "float32"},
        {"a_by_depth": False},
        {"b_by_depth": True},
        {"epilogue": PLAIN},
        {"config": configs(H200)[1]},
    ]
    keys = [GemmRequest(replace(GEMM, **c), "sm_90a").key() for c in changes]
    keys.append(GemmRequest(GEMM, "sm_80").key())
    monkeypatch.setattr(cutlass_compile, "_texts", lambda: ["another kernel"])
    keys.append(GemmRequest(GEMM, "sm_90a").key())
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("version", "message"), [("", "which is not installed"), ("4.0.0", "and 4.0.0 is installed")])
def test_another_version_or_none(monkeypatch: pytest.MonkeyPatch, version: str, message: str) -> None:
    def found(name: str) -> str:
        if not version:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    with pytest.raises(NoCompilerError, match=rf"{message}; ?.*pip install -e '.\[cutlass\]'"):
        check_installed()
    with pytest.raises(NoCompilerError, match=message):
        GemmRequest(GEMM, "sm_90a").job()


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker says why, for each kernel."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "def compile_kernel(gemm, arch, folder):\n    raise ValueError(f'{arch}: no {gemm[\"dtype\"]}')\n"
    )
    monkeypatch.setattr(cutlass_compile, "KERNEL", kernel)
    monkeypatch.setattr(cutlass_compile, "_texts", lambda: ["a compiler that fails"])
    monkeypatch.setattr(cutlass_compile, "check_installed", lambda: None)
    other = replace(GEMM, dtype="bfloat16")
    for found, name in zip(compile_gemms([GEMM, other], H200), ("float16", "bfloat16"), strict=True):
        assert isinstance(found, CompilerError)
        assert str(found) == f"CUTLASS rejected kernel 'cutlass_gemm_{name}'\nValueError: sm_90a: no {name}"


def test_metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the worker reads of ptxas and of the PTX."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(_COMPILES)
    monkeypatch.setattr(cutlass_compile, "KERNEL", kernel)
    monkeypatch.setattr(cutlass_compile, "_texts", lambda: ["a compiler of nothing"])
    monkeypatch.setattr(cutlass_compile, "check_installed", lambda: None)
    (found,) = compile_gemms([GEMM], DEVICES["sm_80"])
    assert isinstance(found, CompiledKernel)
    assert (found.name, found.registers, found.spill_bytes) == ("product", 40, 12)
    assert (found.shared, found.num_warps, found.num_ctas) == (SMALL.shared_bytes, 4, 1)
    assert found.ptx == ".visible .entry product(" and found.cubin.read_bytes() == b"sm_80"


_COMPILES = """
import pathlib, sys

def compile_kernel(gemm, arch, folder):
    pathlib.Path(folder, "any.ptx").write_text(".visible .entry product(")
    pathlib.Path(folder, "any.cubin").write_bytes(arch.encode())
    print("0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads", file=sys.stderr)
    print("Used 40 registers, used 1 barriers", file=sys.stderr)
"""


def compiled(folder: Path, gemm: Gemm) -> CompiledKernel:
    """A kernel that nobody has compiled."""
    meta = dict.fromkeys(METADATA[1:], 0) | {
        "shared": gemm.config.shared_bytes,
        "num_warps": gemm.config.num_warps,
        "num_ctas": 1,
    }
    return CompiledKernel(folder, "kernel", **meta, registers=64, spill_bytes=0)


class _Driver:
    """Functions of one kernel that note how they are launched."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.most = 0

    def __call__(self, grid: Any, block: Any, arguments: Any, *, shared_mem: int) -> None:
        self.launches.append((grid, block, arguments, shared_mem))


def _driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    driver = _Driver()
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0)))
    monkeypatch.setattr(cutlass_launch, "find_cupy", lambda: cupy)
    monkeypatch.setattr(loaded, "_load", lambda cupy, kernel: driver)
    return driver


def test_a_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = _driver(monkeypatch)
    asked: list[Sequence[Gemm]] = []

    def compile(gemms: Sequence[Gemm], device: Any) -> list[CompiledKernel]:
        asked.append(gemms)
        return [compiled(tmp_path, g) for g in gemms]

    monkeypatch.setattr(cutlass_launch, "compile_gemms", compile)
    gemms = Gemms(SMALL, H200)
    for _ in range(2):
        assert gemms.launch(GEMM, CALL, [np.zeros(1)])
    assert asked == [[GEMM]]
    (first, second) = driver.launches
    assert first == second == ((1, 2, 2), (128, 1, 1), CALL.arguments(), SMALL.shared_bytes)


@pytest.mark.parametrize("error", [NoCompilerError("not installed"), CompilerError("rejected")])
def test_no_kernel(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    driver = _driver(monkeypatch)
    asked: list[Sequence[Gemm]] = []

    def compile(gemms: Sequence[Gemm], device: Any) -> list[Any]:
        asked.append(gemms)
        if isinstance(error, NoCompilerError):
            raise error
        return [error]

    monkeypatch.setattr(cutlass_launch, "compile_gemms", compile)
    gemms = Gemms(SMALL, H200)
    assert not gemms.launch(GEMM, CALL, [np.zeros(1)]) and not gemms.launch(GEMM, CALL, [np.zeros(1)])
    assert len(asked) == 1 and not driver.launches
