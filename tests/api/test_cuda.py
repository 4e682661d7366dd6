"""superoptimize for CUDA targets where there is no device: search, compilation, ranking by model, bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage.api import CudaTarget, verify
from mirage.errors import (
    DeviceError,
    DimError,
    InputError,
    MirageError,
    NoCompilerError,
    ScheduleError,
    UnknownTarget,
)
from mirage.ir.interpret import run_reference
from mirage.kernels.cuda import device
from mirage.kernels.cuda import target as cuda_target
from mirage.kernels.cuda.compile import functions as compiler
from mirage.kernels.cuda.device import DEVICES, present_device
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.decision import Decision, Point, Version
from tests.api.small import BUDGET, Run
from tests.programs import retyped, sizes
from tests.results.cuda.small import PROGRAM, SIZES, found, gated, text
from tests.results.cuda.small import result as result
from tests.results.cuda.small import saved as saved
from tests.results.cuda.small import store as store

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")

without_device = pytest.mark.skipif(present_device() is not None, reason="a CUDA device is at hand")

TARGETS = ("cuda:sm_90", "cuda:sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["gqa_decode", "rmsnorm_linear", "gated_mlp", "softmax"])
def test_programs_have_verified_graphs_with_compiled_kernels(name: str, target: str) -> None:
    program = retyped(PROGRAMS[name].trace(), "float16")
    r = found(mi.superoptimize(program, target=target, sizes=sizes(name), budget=3.0, cache=False))
    assert r.target == target
    best = r.best
    assert r.certificate.equal
    assert len(best.executable.kernels) == len(best.executable.mugraph.kernels)
    for k in best.executable.kernels:
        assert k.cubin.stat().st_size > 0
        assert k.spill_bytes == 0
        assert k.shared <= r.device.block_shared_bytes
    assert r.source.count("@triton.jit") >= len(best.executable.kernels)
    assert r.floor_us < r.best_us < 1e3


def test_what_a_result_says(result: CudaSuperoptimized) -> None:
    assert result.ranked_by_model
    assert (result.target, result.sizes, result.device) == ("cuda:sm_90", SIZES, DEVICES["sm_90"])
    shown = text(result)
    for part in (
        "gated at b=16, n=64 on cuda:sm_90",
        "ranked by model: no device",
        "us modelled",
        "registers",
        "no sm_90 device",
    ):
        assert part in shown
    first = result.decision.points[0]
    assert first.sizes == SIZES
    assert result.best_us == min(first.times), "at the given sizes the fastest version runs"
    assert result.best is result.choice(SIZES)
    assert "<svg" in (result._repr_svg_() or "")
    assert verify(result, result).equal


def test_choices_serve_their_sizes(result: CudaSuperoptimized) -> None:
    for p in result.decision.points:
        version = result.choice(p.sizes)
        assert version.serves(p.sizes)
        assert version in result.decision.versions
        modelled = p.times[result.decision.number(p.sizes)]
        assert modelled < math.inf


@pytest.mark.slow
def test_the_same_search_gives_the_same_versions(result: CudaSuperoptimized) -> None:
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=BUDGET, cache=False))
    assert again.best.schedule == result.best.schedule
    assert again.source == result.source


@without_device
def test_a_call_without_a_device_says_what_to_do(result: CudaSuperoptimized) -> None:
    arrays = [np.zeros(t.bind(SIZES), np.float16) for t in PROGRAM.input_types]
    for call in (lambda: result(*arrays), result.profile):
        with pytest.raises(
            DeviceError, match=r"no CUDA device is at hand.*cuda:sm_90 cannot run.*reference\(\*arrays\)"
        ):
            call()


def test_the_program_itself_runs_with_numpy(result: CudaSuperoptimized) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.bind({"b": 3, "n": 5})).astype(np.float16) for t in PROGRAM.input_types]
    (wanted,) = run_reference(PROGRAM, arrays, {"b": 3, "n": 5})
    assert np.array_equal(result.reference(*arrays), wanted)
    with pytest.raises(InputError, match="takes 3 arrays"):
        result.reference(*arrays[:2])


def test_a_decision_prefers_versions_that_serve(result: CudaSuperoptimized) -> None:
    v = result.decision.versions[0]
    points = [Point({"b": 16, "n": 64}, (2.0, 1.0)), Point({"b": 16, "n": 4096}, (2.0, math.inf))]
    decision = Decision.learnt([v, v], points, 1)
    assert decision.points[0].times == (1.0, 2.0), "the version of the given sizes comes first"
    assert decision.used == 2
    never = [*points, Point({"b": 1, "n": 1}, (math.inf, math.inf))]
    assert Decision.learnt([v, v], never, 1).tree == decision.tree


def test_a_decorated_function_takes_the_sizes_of_its_first_call() -> None:
    spec = {
        name: mi.tensor(*dims, dtype="float16") for name, dims in (("x", ("b", 64)), ("w", (64, "n")), ("v", (64, "n")))
    }
    lazy = mi.superoptimized(options={"target": "cuda:sm_90", "budget": BUDGET, "cache": False}, **spec)(gated)
    with pytest.raises(InputError, match="takes 3 arrays"):
        lazy(np.zeros((16, 64), np.float16))
    if present_device() is None:
        with pytest.raises(DeviceError, match="no CUDA device is at hand"):
            lazy(*(np.zeros(t.bind(SIZES), np.float16) for t in PROGRAM.input_types))
        assert found(lazy.result).sizes == SIZES


# Bad input.


@pytest.mark.parametrize("target", ["cuda:sm_1", "cuda:", "cuda:90", "CUDA", "cuda sm_90"])
def test_unknown_targets(target: str) -> None:
    with pytest.raises(UnknownTarget, match="choose one of"):
        mi.superoptimize(PROGRAM, target=target, sizes=SIZES, budget=0.1, cache=False)


@pytest.mark.parametrize("sizes", [{"b": 0, "n": 64}, {"b": 16}, {"b": 16, "n": 64, "q": 1}])
def test_bad_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(DimError):
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=sizes, budget=0.1, cache=False)


def test_a_choice_needs_all_sizes(result: CudaSuperoptimized) -> None:
    with pytest.raises(DimError, match="no size for n"):
        result.choice({"b": 3})


def test_sizes_that_no_version_serves(result: CudaSuperoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Version, "serves", lambda self, sizes: False)
    with pytest.raises(DimError, match=r"no compiled version serves b=16, n=64; superoptimize with these sizes"):
        result.choice(SIZES)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise NoCompilerError("Triton is not installed; pip install triton")

    monkeypatch.setattr(compiler, "triton_version", missing)
    with pytest.raises(NoCompilerError, match="pip install triton"):
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=0.5, cache=False)


def test_when_nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise ScheduleError("refused by this test")

    monkeypatch.setattr(cuda_target, "emit", refused)
    with pytest.raises(
        MirageError, match=r"no kernel compiles for cuda:sm_90: .*refused by this test; use target='cpu'"
    ):
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=0.5, cache=False)


def test_the_command_line(command: Run, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "import mirage as mi\n\n\n"
        "@mi.program(x=mi.tensor('m', 64, dtype='float16'), w=mi.tensor(64, 'n', dtype='float16'), sizes={'m': 16, 'n': 64})\n"
        "def scaled(x, w):\n    return mi.relu(x @ w)\n"
    )
    base = ("superoptimize", "user.py:scaled", "--budget", str(BUDGET), "--target", "cuda:sm_90")
    code, out, err = command(*base, "--json", "--save", "r.json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["target"] == "cuda:sm_90"
    assert figures["measured_on"] is None
    assert figures["limit_us"] < figures["best_us"]
    assert figures["certificate"]["equal"]
    code, out, _ = command(*base)
    assert code == 0 and "ranked by model: no device" in out
    code, out, _ = command("show", "r.json", "--source", "--svg", "r.svg")
    assert code == 0 and "@triton.jit" in out
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    code, out, err = command("verify", "user.py:scaled", "r.json")
    assert code == 0, err


def test_the_types_know_every_target() -> None:
    assert get_args(CudaTarget) == device.TARGETS
