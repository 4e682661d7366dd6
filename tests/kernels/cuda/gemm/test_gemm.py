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
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all
from mirage.kernels.cuda.compile.worker import METADATA
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.gemm import operator
from mirage.kernels.cuda.gemm.gemm import CONFIGS, Gemm, GemmCall, config_for
from mirage.kernels.cuda.gemm.operator import GemmRequest, Gemms, check_installed
from mirage.kernels.cuda.launch import loaded
from tests.kernels.cuda.gemm.cases import PLAIN, SILU_RESIDUAL

H200 = DEVICES["sm_90"]
SMALL = CONFIGS[0]
GEMM = Gemm("float16", "float16", True, False, SILU_RESIDUAL, SMALL)
CALL = GemmCall(5, 48, 64, 2, (256, 64, 320), (512, 48, 0), (1024, 48, 240), ((2048, 48, 1, 240),))


def test_parameters_and_arguments() -> None:
    names = [n for n, _ in GEMM.parameters()]
    assert names[:4] == ["a", "b", "d", "operand_0"] and names[4:7] == ["rows", "columns", "depth"]
    assert names[7:] == ["lda", "ldb", "ldd", "batch_a", "batch_b", "batch_d", "row_0", "column_0", "batch_0"]
    types = {"pointer": np.uint64, "i32": np.int32, "i64": np.int64}
    assert [type(a) for a in CALL.arguments()] == [types[t] for _, t in GEMM.parameters()]
    assert [int(a) for a in CALL.arguments()] == [256, 512, 1024, 2048, 5, 48, 64, 64, 48, 48, 320, 0, 240, 48, 1, 240]
    assert CALL.grid(SMALL) == (1, 2, 2)


def test_what_fits() -> None:
    assert CALL.fits(GEMM)
    assert replace(CALL, operands=((2046, 3, 1, 0),)).fits(GEMM)
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
    ],
    ids=str,
)
def test_what_does_not_fit(change: dict[str, Any]) -> None:
    assert not replace(CALL, **change).fits(GEMM)


def test_configurations() -> None:
    assert [config_for(n).tile[0] for n in (1, 16, 17, 64, 4096)] == [16, 16, 32, 64, 128]
    for device in DEVICES.values():
        assert all(device.resident_blocks(c.num_warps, c.shared_bytes, 64) for c in CONFIGS)
    # each warp has whole instructions
    assert all(n % (w * m) == 0 for c in CONFIGS for n, w, m in zip(c.tile, c.warps, (16, 8), strict=False))


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
        {"config": CONFIGS[1]},
    ]
    keys = [GemmRequest(replace(GEMM, **c), "sm_90").key() for c in changes]
    keys.append(GemmRequest(GEMM, "sm_80").key())
    monkeypatch.setattr(operator, "_texts", lambda: ["another kernel"])
    keys.append(GemmRequest(GEMM, "sm_90").key())
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
        GemmRequest(GEMM, "sm_90").job()


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker says why, for each kernel."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(_FAILS)
    monkeypatch.setattr(operator, "KERNEL", kernel)
    monkeypatch.setattr(operator, "_texts", lambda: ["a compiler that fails"])
    monkeypatch.setattr(operator, "check_installed", lambda: None)
    requests = [GemmRequest(g, "sm_90") for g in (GEMM, replace(GEMM, dtype="bfloat16"))]
    for found, name in zip(compile_all(requests), ("float16", "bfloat16"), strict=True):
        assert isinstance(found, CompilerError)
        assert str(found) == f"CUTLASS rejected kernel 'cutlass_gemm_{name}'\nValueError: sm_90: no {name}"


_FAILS = """
def compile_one(request, with_usage):
    raise ValueError(f"\\x1b[31m{request['arch']}\\x1b[0m: no {request['gemm']['dtype']}")
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
    monkeypatch.setattr(operator, "find_cupy", lambda: cupy)
    monkeypatch.setattr(loaded, "_load", lambda cupy, kernel: driver)
    return driver


def test_a_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = _driver(monkeypatch)
    asked: list[Sequence[Gemm]] = []

    def compile(requests: Sequence[GemmRequest]) -> list[CompiledKernel]:
        asked.append([r.gemm for r in requests])
        return [compiled(tmp_path, r.gemm) for r in requests]

    monkeypatch.setattr(operator, "compile_all", compile)
    gemms = Gemms(H200)
    for _ in range(2):
        assert gemms.launch(GEMM, CALL, [np.zeros(1)])
    assert asked == [[GEMM]]
    (first, second) = driver.launches
    assert first == second == ((1, 2, 2), (128, 1, 1), CALL.arguments(), SMALL.shared_bytes)


@pytest.mark.parametrize("error", [NoCompilerError("not installed"), CompilerError("rejected")])
def test_no_kernel(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    driver = _driver(monkeypatch)
    asked: list[int] = []

    def compile(requests: Sequence[GemmRequest]) -> list[Any]:
        asked.append(len(requests))
        if isinstance(error, NoCompilerError):
            raise error
        return [error] * len(requests)

    monkeypatch.setattr(operator, "compile_all", compile)
    gemms = Gemms(H200)
    assert not gemms.launch(GEMM, CALL, [np.zeros(1)]) and not gemms.launch(GEMM, CALL, [np.zeros(1)])
    assert asked == [1] and not driver.launches
    # of several, some may be in the cache: each is asked for when it is launched
    others = [replace(GEMM, config=c) for c in CONFIGS[1:3]]
    if isinstance(error, NoCompilerError):
        gemms.compile(others)
        assert not gemms.launch(others[0], CALL, [np.zeros(1)]) and asked == [1, 2, 1]
    else:
        with pytest.raises(CompilerError, match="rejected"):
            gemms.compile(others)
