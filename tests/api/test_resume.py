"""A search that is killed or interrupted goes on where it was; one that is complete leaves no checkpoint."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.ir.axes import to_axes
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.degree import program_is_stable
from mirage.results.recall import search_key
from mirage.search import jobs, tune
from mirage.search.checkpoint import Checkpoint, checkpoint_path
from mirage.search.generate import undominated
from mirage.search.options import SearchOptions
from mirage.search.stream import Search
from mirage.search.units import Found, Units
from tests import forks
from tests.api.small import BUDGET, adapter, rows

#: seconds after which a process has failed to end, on any machine
PATIENCE = 600.0

# Finished units are written at once. The search waits for a signal as soon as it has finished so many units as the first argument
# says; with a second one, also whenever it has found so many graphs, in the middle of a unit.
COMMAND = """
import json, sys, time
import mirage as mi
from mirage.mugraph.degree import SafetyCheck
from mirage.search import jobs
from mirage.search.stream import Search
from tests.api.small import adapter

units, graphs = int(sys.argv[1]), int(sys.argv[2])
safe, advance, found = SafetyCheck.safe, Search.advance, 0

def wait():
    print("waiting", flush=True)
    # in short sleeps: a signal that comes just before a sleep begins waits for its end
    for _ in range(60_000):
        time.sleep(0.01)

def counted(self, graph):
    global found
    found += 1
    if found == graphs:
        wait()
    return safe(self, graph)

def advanced(self, seconds):
    found = advance(self, seconds)
    if units and len(self.finished) == units:
        wait()
    return found

jobs.PATIENCE_S = 0
SafetyCheck.safe = counted
Search.advance = advanced
r = mi.superoptimize(adapter, budget=600)
print(json.dumps({"stop": r.stats.stop_reason, "interrupted": r.interrupted, "verified": len(r.graphs)}))
"""


@pytest.fixture
def cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(own_cache))
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)
    # one kernel is compiled
    monkeypatch.setattr(tune, "MAX_KERNELS", 1)
    monkeypatch.setattr(tune, "FINAL_SECONDS", 0.1)
    return own_cache


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The units that searches of this process run from here on."""
    whole()
    ran: list[str] = []
    run = Units.run

    def noted(self: Units, unit: str, *most: float) -> Iterator[Found | None]:
        ran.append(unit)
        return run(self, unit, *most)

    monkeypatch.setattr(Units, "run", noted)
    return ran


@contextmanager
def waiting(units: int = 0, graphs: int = 0) -> Iterator[forks.Forked]:
    """A process that waits in the middle of its search; in a group of its own, as a terminal would have it."""
    with forks.start(COMMAND, str(units), str(graphs), group=True) as child:
        try:
            assert child.stdout.readline() == "waiting\n", child.communicate()[1]
            yield child
        finally:
            child.kill()


def checkpoints(cache: Path) -> list[Path]:
    return list((cache / "checkpoints").glob("*"))


def finished(file: Path) -> list[str]:
    """The units of a checkpoint."""
    return [json.loads(line)["unit"] for line in file.read_text().splitlines()]


@functools.cache
def whole() -> Search:
    """The search that nothing stops."""
    program = adapter.trace()
    search = Search(to_axes(program), adapter.sizes["default"], safe=program_is_stable(program))
    while not search.done:
        search.advance(math.inf)
    return search


def same(r: mi.Superoptimized) -> None:
    """Fail unless the result is that of a search that nothing stopped."""
    assert r.stats.stop_reason == whole().stop_reason == "complete"
    best = {structure_key(g) for found in undominated(whole().found) for g in found.graphs}
    assert best <= {structure_key(c.graph) for c in r.graphs}


def test_a_killed_search_goes_on(cache: Path, units: list[str]) -> None:
    with waiting(2) as child:
        child.kill()
    (file,) = checkpoints(cache)
    before = finished(file)
    assert before == whole().units[:2]
    r = mi.superoptimize(adapter, budget=BUDGET)
    assert not r.cache_hit
    same(r)
    assert {*units} == {*whole().units} - {*before}
    assert checkpoints(cache) == []


@pytest.mark.slow
def test_ctrl_c_between_units_gives_what_was_found(cache: Path, units: list[str]) -> None:
    with waiting(2) as child:
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE)
    interrupted(child, out, err)
    (file,) = checkpoints(cache)
    before = finished(file)
    assert before == whole().units[:2]
    same(mi.superoptimize(adapter, budget=BUDGET))
    assert {*units} == {*whole().units} - {*before}
    assert checkpoints(cache) == []


def test_ctrl_c_within_a_unit_gives_what_was_found(cache: Path, units: list[str]) -> None:
    """The unit that was cut short is not taken for finished."""
    with waiting(graphs=whole().stats.candidates // 2) as child:
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE)
    interrupted(child, out, err)
    (file,) = checkpoints(cache)
    before = finished(file)
    same(mi.superoptimize(adapter, budget=BUDGET))
    assert before
    assert {*units} == {*whole().units} - {*before}
    assert checkpoints(cache) == []


def interrupted(child: forks.Forked, out: str, err: str) -> None:
    """Fail unless a search that was interrupted gave something, which is kept as such."""
    assert child.returncode == 0, err
    found = json.loads(out)
    assert "interrupted (" in found["stop"]
    assert found["interrupted"] is True
    assert 0 < found["verified"] < whole().stats.candidates
    records = map(ResultStore().get, [record.key for record in ResultStore().list()])
    assert [record is not None and record["complete"] for record in records] == [False, False]


@pytest.mark.slow
def test_a_search_that_is_complete_leaves_no_checkpoint(cache: Path) -> None:
    for kernels in (5, 2):
        r = mi.superoptimize(adapter, budget=BUDGET, max_kernels=kernels)
        assert r.stats.stop_reason == "complete"
        assert checkpoints(cache) == []


def test_without_a_store_nothing_is_kept(cache: Path) -> None:
    mi.superoptimize(rows, budget=BUDGET, cache=False)
    assert checkpoints(cache) == []


def test_a_checkpoint_is_of_one_program_and_its_options() -> None:
    program, other = adapter.trace(), rows.trace()
    options = SearchOptions()
    key = search_key(program, {"b": 3, "n": 5}, options)
    assert key == search_key(adapter.trace(), {"n": 5, "b": 3}, SearchOptions(budget=7))
    others = {
        search_key(other, {"b": 3, "n": 5}, options),
        search_key(program, {"b": 4, "n": 5}, options),
        search_key(program, {"b": 3, "n": 5}, SearchOptions(max_kernels=1)),
        search_key(program, {"b": 3, "n": 5}, SearchOptions(pruner=None)),
    }
    assert len(others) == 4
    assert key not in others


def test_a_damaged_checkpoint_is_searched_again(cache: Path) -> None:
    key = search_key(adapter.trace(), {"b": 3, "n": 5}, SearchOptions())
    file = checkpoint_path(key)
    Checkpoint(file, key).put("not a unit of this search", {"graphs": []})
    file.write_bytes(file.read_bytes() * 2 + b'{"torn')
    r = mi.superoptimize(adapter, budget=BUDGET)
    same(r)
    assert checkpoints(cache) == []
