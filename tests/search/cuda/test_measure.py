"""Versions checked and timed on a device: a stand-in for CuPy whose kernels Python runs, with a clock of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.kernels.cuda.compile.functions import Request
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.search.cuda import measure
from mirage.search.cuda.measure import DeviceRuns
from tests.kernels.cuda import examples
from tests.kernels.cuda.fake_cupy import KERNELS, Launched, memory
from tests.kernels.cuda.lab import Lab
from tests.kernels.cuda.lab import lab as lab

PROGRAM = mi.trace(lambda x, y: x @ y, x=mi.tensor("m", "k"), y=mi.tensor("k", "n"))
SIZES = {"m": 16, "k": 32, "n": 48}
#: tiles of the versions that are right, wrong by half, and slow, and the milliseconds that a launch of each takes
RIGHT, WRONG, SLOW = 16, 32, 64
MILLISECONDS = {RIGHT: 0.25, WRONG: 0.5, SLOW: 1.0}


class Version:
    """Stands for a `Version`: a tile, and the most rows that it serves."""

    def __init__(self, tile: int, most: int = 1 << 20) -> None:
        self.tile, self.most = tile, most

    def serves(self, sizes: Mapping[str, int]) -> bool:
        return sizes["m"] <= self.most


@pytest.fixture
def runs(lab: Lab) -> DeviceRuns:
    made: dict[int, CudaExecutable] = {}

    def executable(version: Any) -> CudaExecutable:
        if version.tile not in made:
            made[version.tile] = lab.executable(examples.matmul("float32", version.tile), "float32", **SIZES)
        return made[version.tile]

    def runner(launched: Launched, request: Request) -> None:
        KERNELS[request.function](launched.values, request)
        tile = request.constexprs["BM"]
        lab.cupy.clock += MILLISECONDS[tile]
        if tile == WRONG:
            v = launched.values
            memory(v["z"], (v["m"], v["n"]), (v["n"], 1), "*fp32")[...] += 0.5

    lab.cupy.milliseconds, lab.cupy.runner = 0.0, runner
    return DeviceRuns(
        lab.cupy, PROGRAM, to_axes(PROGRAM), SIZES, DEVICES["sm_90"], executable, budget=0.05, points=1, seed=0
    )


def versions(*tiles: int) -> list[Any]:
    return [Version(t) for t in tiles]


def test_results_are_compared_with_float64(runs: DeviceRuns) -> None:
    right, wrong = versions(RIGHT, WRONG)
    assert runs.check(right) == ""
    assert "its results differ from the program's at the given sizes" in runs.check(wrong)


def test_a_kernel_that_fails_says_why(runs: DeviceRuns, lab: Lab) -> None:
    lab.cupy.fails = RuntimeError("cudaErrorIllegalAddress")
    assert "cudaErrorIllegalAddress" in runs.check(versions(RIGHT)[0])
    assert runs.times(versions(RIGHT), SIZES) == [math.inf]


def test_sizes_that_a_version_does_not_serve_are_not_checked(runs: DeviceRuns) -> None:
    wrong: Any = Version(WRONG, most=0)
    assert runs.check(wrong) == ""
    assert runs.times([wrong], SIZES) == [math.inf]


def test_times_are_those_of_one_call(runs: DeviceRuns) -> None:
    assert runs.times(versions(RIGHT, WRONG, SLOW), SIZES) == pytest.approx([250.0, 500.0, 1000.0])
    assert runs.times([], SIZES) == []


def test_slow_versions_have_no_turns(runs: DeviceRuns, lab: Lab) -> None:
    """They are called twice: the kernel is loaded, and timed."""
    found = runs.times(versions(RIGHT, SLOW), SIZES)
    assert found == pytest.approx([250.0, 1000.0])
    tiles = [lab.cupy.compiled[one.kernel.folder][1].constexprs["BM"] for one in lab.cupy.launches]
    assert tiles.count(SLOW) == 2 and tiles.count(RIGHT) > 5 * measure.COPIES


def test_calls_that_cannot_be_recorded_are_timed_one_by_one(runs: DeviceRuns, lab: Lab) -> None:
    both = versions(RIGHT, SLOW)
    assert all(runs.check(v) == "" for v in both), "their kernels are loaded now"
    lab.cupy.fails = RuntimeError("cudaErrorStreamCaptureInvalidated")
    assert runs.times(both, SIZES) == pytest.approx([250.0, 1000.0])


def test_every_call_reads_other_copies_than_the_last(runs: DeviceRuns, lab: Lab) -> None:
    runs.times(versions(RIGHT), SIZES)
    read = [one.values["x"] for one in lab.cupy.launches]
    count = len(set(read))
    assert count == measure.COPIES
    assert all(a != b for a, b in itertools.pairwise(read))


def test_copies_are_as_many_as_fit(runs: DeviceRuns, lab: Lab) -> None:
    moved = 4 * (16 * 32 + 32 * 48 + 16 * 48)
    lab.cupy.free = 7 * moved
    assert runs.times(versions(RIGHT), SIZES) == pytest.approx([250.0])
    assert len({one.values["x"] for one in lab.cupy.launches}) == 3, "half of the memory"
    lab.cupy.free = moved
    assert runs.times(versions(RIGHT), SIZES) == [math.inf]


def test_other_programs_see_nothing_of_the_stream(runs: DeviceRuns, lab: Lab) -> None:
    runs.times(versions(RIGHT), SIZES)
    assert lab.cupy.stream == 0
    assert {one.stream for one in lab.cupy.launches} == {1000}
