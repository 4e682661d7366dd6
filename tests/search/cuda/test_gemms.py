"""CUTLASS kernels among the versions of a program: offered where they can be compiled, modelled, kept, and given up again."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.errors import CompilerError, NoCompilerError
from mirage.ir.program import Program
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.gemm import compile as cutlass_compile
from mirage.kernels.cuda.gemm.gemm import Gemm, configs
from mirage.kernels.cuda.model.cost import CudaModel
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.results.cuda.rank import rank_for_device
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.results.work import Work
from mirage.search.candidates import Candidates
from mirage.search.cuda import gemms
from mirage.search.cuda.gemms import GemmModel, build_gemms, library_candidate, why_none
from mirage.verify.equivalence import Verifier
from tests.kernels.cuda.gemm.test_gemm import compiled

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton")
H200 = DEVICES["sm_90"]


def _program(dtype: str = "float16") -> Program:
    @mi.program(
        x=mi.tensor("b", 64, dtype=dtype), w=mi.tensor(64, "n", dtype=dtype), r=mi.tensor("b", "n", dtype=dtype)
    )
    def act(x: Any, w: Any, r: Any) -> Any:
        return mi.silu(x @ w) + r

    return act.trace()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Gemm]:
    """nvidia-cutlass-dsl, which compiles nothing; what it was asked for."""
    asked: list[Gemm] = []

    def compile(wanted: Sequence[Gemm], device: Any) -> list[CompiledKernel | CompilerError]:
        asked.extend(wanted)
        return [compiled(tmp_path, g) for g in wanted]

    monkeypatch.setattr(gemms, "check_installed", lambda: None)
    monkeypatch.setattr(gemms, "compile_gemms", compile)
    return asked


def test_who_is_offered_kernels(compiler: list[Gemm], monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_none(_program()) == "" and why_none(_program("bfloat16")) == ""
    assert why_none(_program("float32")) == "factors of float32"

    @mi.program(x=mi.tensor("b", 64, dtype="float16"))
    def norm(x: Any) -> Any:
        return mi.softmax(x)

    assert why_none(norm.trace()) == "no product of matrices"

    def missing() -> None:
        raise NoCompilerError("not installed")

    monkeypatch.setattr(gemms, "check_installed", missing)
    assert why_none(_program()) == "not installed"


def test_the_program_itself_is_a_candidate() -> None:
    verifier = Verifier(_program())
    found = library_candidate(verifier, [])
    assert found is not None and found.certificate.equal and not found.graph.kernels
    assert library_candidate(verifier, [found]) is None


def test_configurations_are_modelled(compiler: list[Gemm]) -> None:
    found = library_candidate(Verifier(_program()), [])
    assert found is not None
    model = GemmModel(CudaModel(H200))
    choices = model.choices(found, CudaSchedule(()), {"b": 8, "n": 512})
    assert len(choices) == gemms.CONFIGS and choices[0][1] <= choices[1][1] < math.inf
    (schedule, us), _ = choices
    emitted = emit(found.graph, schedule, found.maximum)
    (kernels,) = build_gemms([(found, emitted)], H200)
    assert isinstance(kernels, dict) and [g.config for g in kernels] == [schedule.gemm]
    modelled = model.us(found, schedule, emitted, (), kernels, {"b": 8, "n": 512})
    assert modelled == pytest.approx(us, rel=0.2)
    assert not model.choices(found, CudaSchedule(()), {"b": 8, "n": 511})


def test_kernels_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is in the cache is used, and the others say why they are not."""
    found = library_candidate(Verifier(_program()), [])
    assert found is not None
    known, other = configs(H200)[:2]

    def compile(wanted: Sequence[Gemm], device: Any) -> list[CompiledKernel | CompilerError]:
        if any(g.config != known for g in wanted):
            raise NoCompilerError("not installed")
        return [compiled(tmp_path, g) for g in wanted]

    monkeypatch.setattr(gemms, "compile_gemms", compile)
    emitted = [emit(found.graph, CudaSchedule((), c), found.maximum) for c in (known, other, None)]
    first, second, third = build_gemms([(found, e) for e in emitted], H200)
    assert isinstance(first, dict) and len(first) == 1
    assert isinstance(second, NoCompilerError)
    assert third == {}


def _ranked(sizes: dict[str, int]) -> CudaSuperoptimized:
    """The result of a search that found the program itself only."""
    verifier = Verifier(_program())
    library = library_candidate(verifier, [])
    assert library is not None
    work = Work(verifier, [sizes], Candidates.of(verifier, [library]))
    return rank_for_device(work, H200, budget=60.0, memory=None, progress=lambda _: None)


def test_versions_with_cutlass_kernels(compiler: list[Gemm], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = _ranked({"b": 8, "n": 64})
    ours = [k for k, v in enumerate(result.decision.versions) if v.schedule.gemm is not None]
    assert ours and compiler
    assert all(result.decision.points[0].times[k] < math.inf for k in ours)
    version = result.decision.versions[ours[0]]
    assert (
        "CUTLASS" in str(version) and "add(multiply(sum, sigmoid(sum)), operand 0 of elements)" in version.built.source
    )
    assert all(v.built.source == v.built.emitted.source for v in result.decision.versions if not v.built.gemms)
    table = result.report()
    rows = dict(zip(*(c.cells for c in table.columns), strict=True))
    assert rows["CUTLASS kernels"] == "offered"
    result.save(tmp_path / "result.json")

    loaded = mi.load(tmp_path / "result.json")
    assert isinstance(loaded, CudaSuperoptimized)
    assert [v.schedule for v in loaded.decision.versions] == [v.schedule for v in result.decision.versions]

    def missing(wanted: Sequence[Gemm], device: Any) -> list[CompiledKernel | CompilerError]:
        if wanted:
            raise NoCompilerError("not installed")
        return []

    # elsewhere, without the compiler and what it made, the library computes the products
    monkeypatch.setattr(gemms, "compile_gemms", missing)
    loaded = mi.load(tmp_path / "result.json")
    assert isinstance(loaded, CudaSuperoptimized)
    assert len(loaded.decision.versions) == len(result.decision.versions)
    assert all(v.schedule.gemm is None for v in loaded.decision.versions)


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NoCompilerError("nvidia-cutlass-dsl is not installed")

    monkeypatch.setattr(gemms, "check_installed", missing)
    result = mi.superoptimize(_program(), target="cuda:sm_90", sizes={"b": 8, "n": 64}, budget=2.0, seed=0, cache=False)
    assert isinstance(result, CudaSuperoptimized)
    assert all(v.schedule.gemm is None for v in result.decision.versions)
    rows = dict(zip(*(c.cells for c in result.report().columns), strict=True))
    assert rows["CUTLASS kernels"] == "not offered: nvidia-cutlass-dsl is not installed"


def test_the_version_is_that_of_the_extra() -> None:
    project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["cutlass"] == [f"nvidia-cutlass-dsl=={cutlass_compile.VERSION}"]
