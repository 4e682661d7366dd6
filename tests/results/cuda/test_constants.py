"""Constants of programs for CUDA: packed copies compete, results say which inputs are constant, and forget their copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.errors import ScheduleError
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.emit.mugraph import emit, with_descriptors
from mirage.kernels.cuda.target import CudaTarget
from mirage.mugraph.degree import analyze
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.decision import Version
from mirage.search.rank import Ranker
from tests.results.cuda.small import found

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")

PROGRAM = mi.trace(
    lambda x, w: mi.relu(x @ w), x=mi.tensor("m", 1024, dtype="float16"), w=mi.tensor(1024, "n", dtype="float16")
)
#: rows of w are 2002 bytes
SIZES = {"m": 256, "n": 1001}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path_factory.mktemp('constants')}/store.sqlite")


@pytest.fixture(scope="module")
def result(store: ResultStore) -> CudaSuperoptimized:
    return ask(store, "w")


def ask(store: ResultStore, *constants: str) -> CudaSuperoptimized:
    return found(
        mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, constants=constants, budget=8.0, cache=store)
    )


def packed(r: CudaSuperoptimized) -> list[Version]:
    return [v for v in r.decision.versions if any(k.packed for k in v.schedule.kernels)]


def test_packed_copies_compete(result: CudaSuperoptimized) -> None:
    assert result.constants == ("w",)
    assert packed(result)
    for v in packed(result):
        assert {v.executable.mugraph.inputs[p.input].argument for p in v.executable.emitted.packed} == {"w"}
        assert "packed along" in v.executable.emitted.source
        result.executable(v)
    result.forget()
    for constants, expected in ((("w",), {True, False}), ((), {False})):
        ranker = Ranker(PROGRAM, [SIZES], CudaTarget(DEVICES["sm_90"]), budget=1.0, constants=constants)
        rivals = ranker._at(result.graphs, SIZES)
        assert {any(k.packed for k in r.schedule.kernels) for r in rivals} == expected
        assert [r.us for r in rivals] == sorted(r.us for r in rivals)


def test_other_constants_are_another_record(result: CudaSuperoptimized, store: ResultStore) -> None:
    # what follows from constants alone is computed once, so that their graphs are others, too
    without = ask(store)
    assert not without.cache_hit
    assert not packed(without)
    again = ask(store, "w")
    assert again.tune_stop == "from the cache"
    assert [v.schedule for v in again.decision.versions] == [v.schedule for v in result.decision.versions]
    for r in (without, again):
        for v in r.decision.versions:
            r.executable(v)


def test_constants_are_saved(result: CudaSuperoptimized, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    result.save(file)
    loaded = found(mi.load(file))
    assert loaded.constants == ("w",)
    assert [v.schedule for v in loaded.decision.versions] == [v.schedule for v in result.decision.versions]
    loaded.executable(packed(loaded)[0])
    altered = json.loads(file.read_text())
    altered["constants"] = []
    file.write_text(json.dumps(altered))
    with pytest.raises(ScheduleError, match="which is not constant; name it in constants"):
        mi.load(file)
    altered["constants"] = ["q"]
    file.write_text(json.dumps(altered))
    with pytest.raises(mi.MirageError, match="constants"):
        mi.load(file)


def test_compiled_schedules_have_the_descriptors_that_they_name(result: CudaSuperoptimized) -> None:
    for v in result.decision.versions:
        graph = v.executable.mugraph
        most = with_descriptors(graph, v.schedule, analyze(graph))
        for k, able in zip(v.schedule.kernels, most.kernels, strict=True):
            assert set(k.descriptors) <= set(able.descriptors)
        count = sum(len(k.descriptors) for k in v.schedule.kernels)
        assert emit(graph, v.schedule).source.count("make_tensor_descriptor") == count
