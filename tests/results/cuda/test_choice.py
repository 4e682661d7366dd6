"""Schedules of products for CUDA are chosen by shape at run time (BladeDISC, section 5.2), on what stands for a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.kernels.cuda.device import DEVICES
from mirage.results.cuda import result as cuda_result
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.decision import Version
from mirage.search.rank import MAX_RIVALS, is_generated
from tests.api.small import BUDGET
from tests.results.cuda.small import found

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")

PROGRAM = mi.trace(
    lambda x, w: mi.relu(x @ w), x=mi.tensor("m", "k", dtype="float16"), w=mi.tensor("k", "n", dtype="float16")
)
SIZES = {"m": 256, "n": 1024, "k": 1024}
HERE = replace(DEVICES["sm_90"], name="Some H200", present=True)


def tall(version: Version) -> bool:
    """Whether a tile of every product has many rows."""
    return all(k.tile.get("m", 0) >= 64 for k in version.schedule.kernels)


class Timer:
    """Stands for `DeviceRuns`: schedules of many rows are fast for large arrays, others for small ones."""

    asked: ClassVar[list[tuple[int, dict[str, int]]]] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        Timer.asked = []

    def check(self, version: Version) -> str:
        return ""

    def times(self, versions: list[Version], sizes: dict[str, int]) -> list[float]:
        Timer.asked.append((len(versions), dict(sizes)))
        large = sizes["m"] >= 128
        return [
            (10.0 if tall(v) is large else 90.0) + k if v.serves(sizes) else math.inf for k, v in enumerate(versions)
        ]


@pytest.fixture(scope="module")
def few_kernels() -> Iterator[None]:
    """Kernels are compiled for three sizes of each dim, and for ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirage.search.buckets.MAX_POINTS", 7)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path_factory.mktemp('choice')}/store.sqlite")


@pytest.fixture(scope="module")
def modelled(store: ResultStore) -> CudaSuperoptimized:
    return found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=BUDGET, cache=store))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cuda_result, "present_device", lambda: HERE)
    monkeypatch.setattr("mirage.kernels.cuda.device.present_device", lambda: HERE)
    monkeypatch.setattr(cuda_result, "DeviceRuns", Timer)
    yield


def test_several_schedules_of_one_graph_at_several_sizes(modelled: CudaSuperoptimized) -> None:
    own = [v for v in modelled.decision.versions if is_generated(v.executable.mugraph)]
    schedules: dict[int, set[Any]] = {}
    for v in own:
        schedules.setdefault(id(v.executable.mugraph), set()).add(v.schedule)
    assert max(map(len, schedules.values())) >= 3
    assert len(modelled.decision.versions) <= MAX_RIVALS
    kernels = [k for v in own for k in v.schedule.kernels]
    assert {bool(k.descriptors) for k in kernels} == {True, False}, "a device compares both kinds of loads"
    for dim in SIZES:
        assert len({p.sizes[dim] for p in modelled.decision.points}) >= 3, dim


@pytest.mark.slow
@pytest.mark.usefixtures("device")
def test_the_tree_of_measurements_is_kept_and_used(
    modelled: CudaSuperoptimized, store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(map(tall, modelled.decision.versions)) and not all(map(tall, modelled.decision.versions))
    measured = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=BUDGET, cache=store))
    assert measured.cache_hit and measured.ranked_by_model
    measured.profile()
    count = len(modelled.decision.versions)
    assert Timer.asked == [(count, dict(p.sizes)) for p in modelled.decision.points], "every version at every point"
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=BUDGET, cache=store))
    assert again.decision.measured_on == HERE.name
    assert again.decision.tree == measured.decision.tree
    small, large = {**SIZES, "m": 16}, {**SIZES, "m": 1024}
    assert not tall(again.choice(small)) and tall(again.choice(large))
    run: list[Version] = []

    def executable(version: Version) -> Any:
        run.append(version)
        return lambda arrays, sizes, outs, stream: [sizes]

    monkeypatch.setattr(again, "executable", executable)
    for sizes in (small, large):
        m, n, k = (sizes[s] for s in ("m", "n", "k"))
        assert again(np.zeros((m, k), np.float16), np.zeros((k, n), np.float16)) == sizes
    assert [tall(v) for v in run] == [False, True]
