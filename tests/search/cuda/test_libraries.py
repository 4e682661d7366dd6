"""Libraries of predefined operators among the versions of a program: offered where they can be compiled, kept, given up again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.errors import CompilerError, NoCompilerError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.gemm import operator
from mirage.kernels.cuda.gemm.operator import GemmRequest, why_not
from mirage.kernels.cuda.library.libraries import CUBLASLT
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.cuda.versions import library_candidate
from mirage.verify.equivalence import Verifier
from tests.kernels.cuda.gemm.test_gemm import compiled

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton")
SIZES = {"b": 8, "n": 64}


def _program(dtype: str = "float16") -> Program:
    @mi.program(
        x=mi.tensor("b", 64, dtype=dtype), w=mi.tensor(64, "n", dtype=dtype), r=mi.tensor("b", "n", dtype=dtype)
    )
    def act(x: Any, w: Any, r: Any) -> Any:
        return mi.silu(x @ w) + r

    return act.trace()


def _missing() -> None:
    raise NoCompilerError("nvidia-cutlass-dsl is not installed")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GemmRequest]:
    """nvidia-cutlass-dsl, which compiles nothing; what it was asked for."""
    asked: list[GemmRequest] = []

    def compile(wanted: Sequence[GemmRequest]) -> list[CompiledKernel | CompilerError]:
        asked.extend(wanted)
        return [compiled(tmp_path, r.gemm) for r in wanted]

    monkeypatch.setattr(operator, "check_installed", lambda: None)
    monkeypatch.setattr(operator, "compile_all", compile)
    return asked


def _why_not(program: Program) -> str:
    return why_not(to_axes(program))


def test_who_is_offered_kernels(compiler: list[GemmRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _why_not(_program()) == "" and _why_not(_program("bfloat16")) == ""
    assert _why_not(_program("float32")) == "factors of float32"

    @mi.program(x=mi.tensor("b", 64, dtype="float16"))
    def norm(x: Any) -> Any:
        return mi.softmax(x)

    assert _why_not(norm.trace()) == "no product of matrices"
    monkeypatch.setattr(operator, "check_installed", _missing)
    assert _why_not(_program()) == "nvidia-cutlass-dsl is not installed"


def test_the_program_itself_is_a_candidate() -> None:
    verifier = Verifier(_program())
    found = library_candidate(verifier, [])
    assert found is not None and found.certificate.equal and not found.graph.kernels
    assert library_candidate(verifier, [found]) is None


def _superoptimized(seed: int = 0) -> CudaSuperoptimized:
    found = mi.superoptimize(_program(), target="cuda:sm_90", sizes=SIZES, budget=2.0, seed=seed, cache=False)
    assert isinstance(found, CudaSuperoptimized)
    return found


def _row(result: CudaSuperoptimized, name: str) -> str:
    return dict(zip(*(c.cells for c in result.report().columns), strict=True))[name]


def test_versions_with_cutlass_kernels(
    compiler: list[GemmRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are compiled beside generated kernels, which they are not compared with before a device measures both."""
    result = _superoptimized()
    libraries = {v.schedule.library for v in result.decision.versions if not v.candidate.graph.kernels}
    assert libraries == {CUBLASLT, "cutlass"} and result.best.candidate.graph.kernels
    (gemm,) = {r.gemm for r in compiler}
    assert gemm.epilogue.steps == (("sigmoid", 0), ("multiply", 0, 2), ("add", 3, 1)) and gemm.config.tile[0] == 16
    assert _row(result, "library cutlass") == "offered"
    (version,) = (v for v in result.decision.versions if v.schedule.library != CUBLASLT)
    assert "cutlass" in str(version)
    result.save(tmp_path / "result.json")
    # elsewhere, without the compiler and what it made, calls of cuBLASLt compute the products

    def missing(wanted: Sequence[GemmRequest]) -> list[CompiledKernel | CompilerError]:
        raise NoCompilerError("not installed")

    monkeypatch.setattr(operator, "compile_all", missing)
    loaded = mi.load(tmp_path / "result.json")
    assert isinstance(loaded, CudaSuperoptimized)
    assert [v.schedule for v in loaded.decision.versions] == [v.schedule for v in result.decision.versions]


def test_a_kernel_that_is_rejected(compiler: list[GemmRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "compile_all", lambda wanted: [CompilerError("CUTLASS rejected it")] * len(wanted))
    result = _superoptimized()
    assert any("CUTLASS rejected it" in r for r in result.rejected)
    assert all(v.schedule.library == CUBLASLT for v in result.decision.versions)


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "check_installed", _missing)
    result = _superoptimized()
    assert all(v.schedule.library == CUBLASLT for v in result.decision.versions)
    assert _row(result, "library cutlass") == "not offered: nvidia-cutlass-dsl is not installed"


def test_the_version_is_that_of_the_extra() -> None:
    project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["cutlass"] == [f"nvidia-cutlass-dsl=={operator.VERSION}"]
