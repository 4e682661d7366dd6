"""Results for CUDA in the results store and in files: hits compile nothing, damage is found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.cache import CorruptRecordWarning, Recalled, ResultStore
from mirage.errors import (
    FormatError,
    MirageError,
    ScheduleError,
    UnknownTarget,
)
from mirage.kernels.cuda.compile import kernels as compiler
from mirage.kernels.cuda.device import DEVICES
from mirage.results.cuda.result import CudaSuperoptimized
from tests.results.cuda.small import PROGRAM, SIZES, found, text
from tests.results.cuda.small import result as result
from tests.results.cuda.small import saved as saved
from tests.results.cuda.small import store as store

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")


def compiled_again(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is compiled from now on."""
    jobs: list[object] = []
    work = compiler._work

    def noted(several: list[dict[str, Any]], scratch: Path) -> None:
        jobs.extend(several)
        work(several, scratch)

    monkeypatch.setattr(compiler, "_work", noted)
    return jobs


def test_a_hit_neither_searches_nor_compiles(
    result: CudaSuperoptimized, store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = compiled_again(monkeypatch)
    again = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=3.0, cache=store))
    assert again.cache_hit
    assert again.tune_stop == "from the cache"
    assert not jobs
    assert again.decision.points == result.decision.points
    assert again.decision.tree == result.decision.tree
    assert [v.schedule for v in again.decision.versions] == [v.schedule for v in result.decision.versions]
    assert again.source == result.source
    assert "from the cache" in text(again)


def test_equal_programs_share_a_record(result: CudaSuperoptimized, store: ResultStore) -> None:
    """Under other names of the program, the inputs and the dims."""

    def other(p: Any, q: Any, r: Any) -> Any:
        return mi.silu(p @ q) * (p @ r)

    def tensor(*dims: Any) -> Any:
        return mi.tensor(*dims, dtype="float16")

    program = mi.trace(other, p=tensor("rows", 64), q=tensor(64, "width"), r=tensor(64, "width"))
    r = found(mi.superoptimize(program, target="cuda:sm_90", sizes={"rows": 16, "width": 64}, budget=3.0, cache=store))
    assert r.cache_hit and r.tune_stop == "from the cache"
    assert [p.times for p in r.decision.points] == [p.times for p in result.decision.points]
    assert set(r.sizes) == {"rows", "width"} == set(r.decision.points[-1].sizes)


@pytest.mark.usefixtures("result")
def test_another_target_is_a_miss(store: ResultStore) -> None:
    r = found(mi.superoptimize(PROGRAM, target="cuda:sm_80", sizes=SIZES, budget=2.0, cache=store))
    assert not r.cache_hit
    assert r.device == DEVICES["sm_80"]
    targets = {record.target for record in store.list()}
    assert {"cuda:sm_80", "cuda:sm_90"} <= targets
    cpu = mi.superoptimize(PROGRAM, sizes=SIZES, budget=0.5, cache=store)
    assert not cpu.cache_hit
    assert not isinstance(cpu, CudaSuperoptimized)


def test_a_damaged_record_is_a_miss(
    store: ResultStore, result: CudaSuperoptimized, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall = store.recall

    def damaged(key: str) -> Recalled | None:
        found = recall(key)
        if found and "decision" in found.payload:
            found.payload["decision"]["versions"][0]["schedule"]["kernels"][0]["num_warps"] = 3
        return found

    monkeypatch.setattr(store, "recall", damaged)
    with pytest.warns(CorruptRecordWarning, match="num_warps is 3"):
        r = found(mi.superoptimize(PROGRAM, target="cuda:sm_90", sizes=SIZES, budget=2.0, cache=store))
    assert r.tune_stop != "from the cache"
    assert r.best_us < math.inf


def test_save_and_load(result: CudaSuperoptimized, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = compiled_again(monkeypatch)
    loaded = found(mi.load(saved))
    assert not jobs
    assert loaded.to_json() == result.to_json()
    assert loaded.source == result.source
    assert loaded.ranked_by_model
    assert loaded.choice({"b": 1, "n": 8}).schedule == result.choice({"b": 1, "n": 8}).schedule


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda obj: obj["decision"].pop(key)


def put(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(obj: Any) -> None:
        for key in path[:-1]:
            obj = obj[key]
        obj[path[-1]] = value

    return change


BAD: dict[str, tuple[type[MirageError], str, Callable[[dict[str, Any]], None]]] = {
    "no tree": (FormatError, "expected an object of versions, tree", drop("tree")),
    "no versions": (FormatError, "there must be 1 to", put([], "decision", "versions")),
    "a version that is none": (FormatError, "tree: version", put(99, "decision", "tree")),
    "a graph that is none": (FormatError, "of graph 99 is no version", put(99, "decision", "versions", 0, "graph")),
    "a schedule that is none": (FormatError, "schedule: expected an object of k", put({}, "decision", "versions", 0, "schedule")),
    "a tile of 3": (
        ScheduleError,
        "powers of two",
        put([["b", 3], ["n", 16], ["d64", 16]], "decision", "versions", 0, "schedule", "kernels", 0, "tiles"),
    ),
    "no tiles": (ScheduleError, "needs a positive tile", put([], "decision", "versions", 0, "schedule", "kernels", 0, "tiles")),
    "times": (FormatError, "times", put([-1.0], "decision", "points", 0, "times")),
    "device": (FormatError, "measured_on", put(5, "decision", "measured_on")),
    "sizes": (FormatError, "sizes", put({"b": -1, "n": 2}, "decision", "versions", 0, "sizes")),
    "target": (UnknownTarget, "cuda:sm_12", put("cuda:sm_12", "target")),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_are_no_results(what: str, saved: Path) -> None:
    error, message, change = BAD[what]
    obj = json.loads(saved.read_text())
    change(obj)
    saved.write_text(json.dumps(obj))
    with pytest.raises(error, match=message):
        mi.load(saved)
