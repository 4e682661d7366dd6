"""Libraries of predefined operators among the versions of a program: offered where they can be compiled, kept, given up again."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.compiler.fused_graph import fused_graphs
from mirage.errors import CompilerError, NoCompilerError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.gemm import operator
from mirage.kernels.cuda.gemm.operator import GemmRequest, why_not
from mirage.kernels.cuda.library.libraries import CUBLASLT
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.kernels.cuda.target import CudaTarget
from mirage.kernels.target import Made, Scheduled
from mirage.mugraph.degree import analyze
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.candidates import Candidate
from mirage.search.rank import Ranked, Ranker, library_candidate
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


def _superoptimized() -> CudaSuperoptimized:
    found = mi.superoptimize(_program(), target="cuda:sm_90", sizes=SIZES, budget=2.0, cache=False)
    assert isinstance(found, CudaSuperoptimized)
    return found


def _ranked() -> Ranked:
    """A graph of one kernel and the program itself, ranked without a deadline."""
    verifier = Verifier(_program())
    graph = next(iter(fused_graphs(verifier.axis_program)))
    fused = Candidate(graph, verifier.check(graph), analyze(graph), 0.0)
    library = library_candidate(verifier, [fused])
    assert library is not None
    return Ranker(_program(), [SIZES], CudaTarget(DEVICES["sm_90"]), budget=600.0).run([fused, library])


def _row(result: CudaSuperoptimized, name: str) -> str:
    return dict(zip(*(c.cells for c in result.report().columns), strict=True))[name]


def test_versions_with_cutlass_kernels(compiler: list[GemmRequest]) -> None:
    """They are compiled beside generated kernels, which they are not compared with before a device measures both."""
    decision = _ranked().decision
    libraries = {v.schedule.library for v in decision.versions if not v.executable.kernels}
    assert libraries == {CUBLASLT, "cutlass"} and decision.versions[0].executable.kernels
    (gemm,) = {r.gemm for r in compiler}
    assert gemm.epilogue.steps == (("sigmoid", 0), ("multiply", 0, 2), ("add", 3, 1)) and gemm.config.tile[0] == 16


def test_elsewhere_the_library_computes_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler and what it made, schedules are as they were kept."""

    def missing(wanted: Sequence[GemmRequest]) -> list[CompiledKernel | CompilerError]:
        raise NoCompilerError("not installed")

    monkeypatch.setattr(operator, "compile_all", missing)
    library = library_candidate(Verifier(_program()), [])
    assert library is not None
    work = Scheduled(library.graph, library.maximum, CudaSchedule((), "cutlass"), SIZES)
    (made,) = CudaTarget(DEVICES["sm_90"]).made([work], ())
    assert isinstance(made, Made) and made.make().emitted.library == "cutlass"


def test_a_kernel_that_is_rejected(compiler: list[GemmRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "compile_all", lambda wanted: [CompilerError("CUTLASS rejected it")] * len(wanted))
    ranked = _ranked()
    assert any("CUTLASS rejected it" in r for r in ranked.rejected)
    assert all(v.schedule.library == CUBLASLT for v in ranked.decision.versions)


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "check_installed", _missing)
    result = _superoptimized()
    assert all(v.schedule.library == CUBLASLT for v in result.decision.versions)
    assert _row(result, "library cutlass") == "not offered: nvidia-cutlass-dsl is not installed"


def test_the_version_is_that_of_the_extra() -> None:
    project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["cutlass"] == [f"nvidia-cutlass-dsl=={operator.VERSION}"]
