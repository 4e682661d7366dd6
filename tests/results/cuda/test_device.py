"""Results for CUDA on a device, or what stands for one: versions are measured and decided among again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from mirage.cache import ResultStore
from mirage.errors import (
    BudgetError,
    DeviceError,
    InputError,
    VerificationError,
)
from mirage.kernels.cuda.compile import kernels
from mirage.kernels.cuda.compile.kernels import CompiledKernel, compile_all
from mirage.kernels.cuda.device import DEVICES, present_device
from mirage.results.cuda import result as cuda_result
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.accuracy import Trial
from mirage.search.decision import Decision, Version
from mirage.search.inputs import random_inputs
from tests.programs import retyped, sizes
from tests.results.cuda.small import PROGRAM, SIZES, found, text
from tests.results.cuda.small import result as result
from tests.results.cuda.small import saved as saved
from tests.results.cuda.small import store as store

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")


class Timer:
    """Stands for `DeviceRuns`: the versions that were fastest by the model are slow, and some are wrong."""

    wrong = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.order: list[Version] = []

    def check(self, version: Version) -> str:
        self.order.append(version)
        return "its results differ" if len(self.order) <= Timer.wrong else ""

    def times(self, versions: list[Version], sizes: dict[str, int]) -> list[float]:
        return [100.0 - self.order.index(v) if v.serves(sizes) else math.inf for v in versions]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    here = replace(DEVICES["sm_90"], name="Some H200", present=True)
    monkeypatch.setattr(cuda_result, "present_device", lambda: here)
    monkeypatch.setattr(cuda_result, "DeviceRuns", Timer)
    monkeypatch.setattr(Timer, "wrong", 0)
    yield here.name


def test_a_device_measures_and_decides_again(result: CudaSuperoptimized, saved: Path, device: str) -> None:
    r = found(mi.load(saved))
    kept: list[Decision] = []
    r.keep = kept.append
    slowest_by_model = r.decision.versions[-1].schedule
    r.profile()
    assert not r.ranked_by_model
    assert r.decision.measured_on == device
    assert kept == [r.decision]
    assert len(r.decision.versions) == len(result.decision.versions)
    assert r.best.schedule == slowest_by_model or not r.decision.versions[-1].serves(SIZES)
    assert r.best_us == min(r.decision.points[0].times) <= 100.0
    assert f"measured on {device}" in text(r)
    assert found(mi.load(saved)).ranked_by_model, "the file is as it was"


@pytest.mark.usefixtures("result")
def test_measurements_are_kept_under_the_name_of_the_device(
    store: ResultStore, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert again.ranked_by_model
    modelled = again.decision
    again.profile()
    here = replace(DEVICES["sm_90"], name=device, present=True)
    monkeypatch.setattr("mirage.kernels.cuda.device.present_device", lambda: here)
    measured = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert measured.decision.measured_on == device
    assert measured.decision.points == again.decision.points
    monkeypatch.setattr("mirage.kernels.cuda.device.present_device", lambda: None)
    without = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert without.ranked_by_model
    assert without.decision.points == modelled.points


def test_what_is_measured_is_compiled_at_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = found(mi.load(saved))
    r.prepare()
    monkeypatch.setattr(kernels, "_build", lambda *_: pytest.fail("compiled again"))
    for v in r.decision.versions:
        for at in (*(p.sizes for p in r.decision.points), {s: 1 for s in SIZES}):
            if v.serves(at):
                assert all(isinstance(k, CompiledKernel) for k in compile_all(r.executable(v).requests(at)))


def test_wrong_versions_are_left_out(saved: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    r = found(mi.load(saved))
    count = len(r.decision.versions)
    monkeypatch.setattr(Timer, "wrong", 1)
    r.profile()
    assert len(r.decision.versions) == count - 1
    assert "its results differ" in r.rejected[-1]
    monkeypatch.setattr(Timer, "wrong", count)
    with pytest.raises(VerificationError, match=f"no version runs on {device} and gives the program's results"):
        found(mi.load(saved)).profile()


def test_another_architecture_at_hand(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_result, "present_device", lambda: replace(DEVICES["sm_80"], present=True))
    with pytest.raises(
        DeviceError, match=r"the kernels are for cuda:sm_90, and A100 is sm_80; superoptimize with target='cuda:sm_80'"
    ):
        found(mi.load(saved)).profile()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("seconds", [0, -1, math.inf, "3", True])
def test_bad_seconds(result: CudaSuperoptimized, seconds: Any) -> None:
    with pytest.raises(BudgetError, match="seconds="):
        result.profile(seconds)


@pytest.mark.usefixtures("device")
def test_arrays_that_do_not_fit(saved: Path) -> None:
    r = found(mi.load(saved))
    x = np.zeros((16, 64), np.float16)
    with pytest.raises(InputError, match=r"takes 3 arrays \(x, w, v\), got 2"):
        r(x, x)
    with pytest.raises(InputError, match="input 'w' must be an array on the device"):
        r(x, [1.0], x)
    with pytest.raises(InputError, match="input 'v'"):
        r(x, x.T, np.zeros(3, np.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["gqa_decode", "rmsnorm_linear", "gated_mlp", "softmax"])
def test_on_a_device(name: str, dtype: str) -> None:
    """The first call measures; results at other sizes are about as near to float64 as NumPy's."""
    cupy = pytest.importorskip("cupy", reason="kernels are launched by CuPy; pip install cupy-cuda13x")
    program = retyped(PROGRAMS[name].trace(), dtype)
    r = found(mi.superoptimize(program, target="cuda", sizes=sizes(name), budget=15.0, cache=False))
    for bound in (sizes(name), {s: (3, 5, 2, 7)[i] for i, s in enumerate(sizes(name))}):
        inputs = random_inputs(program, bound, 0)
        trial = Trial.of("device", program, inputs, bound)
        given = [cupy.asarray(x.view(f"u{x.itemsize}")).view(x.dtype) for x in inputs]
        y = r(*given)
        out = cupy.empty_like(y)
        assert r(*given, out=out) is out
        results = [cupy.asnumpy(cupy.ascontiguousarray(a).view(f"u{y.itemsize}")).view(y.dtype) for a in (y, out)]
        assert trial.measure(lambda *_, a=results[0]: [a])[1]
        assert np.array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
    device = present_device()
    assert device is not None
    assert r.decision.measured_on == device.name
    assert r.best_us < math.inf
