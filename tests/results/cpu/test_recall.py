"""The results store beneath superoptimize: hits, misses, damage, several processes, and one that is killed."""

from __future__ import annotations

import json
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import mirage as mi
from mirage import api
from mirage.cache import CorruptRecordWarning, ResultStore, StoreWarning
from mirage.cache.records import canonical_json, sha256
from mirage.ir.codec import RESULT
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.duel import Duel
from mirage.kernels.profile import Timing
from mirage.mugraph.canonical import structure_key
from mirage.results.cpu.result import Superoptimized
from mirage.search import tune, versions
from mirage.search.explore import Explorer, Pair
from mirage.search.succession import Duels
from tests import forks
from tests.api.small import BUDGET, PATIENCE, adapter, arrays, check, rows

#: superoptimizes `adapter` in a process of its own, and says what was remembered
SCRIPT = """
import json, os, signal, sys, warnings
import numpy as np
import mirage as mi
from mirage.results.cpu import tune as session
from tests.api.small import adapter, arrays, check, limit_tuning

warnings.filterwarnings("error", module="mirage")
limit_tuning(kernels=4)
# the best so far is kept whenever there is a better one
session.KEEP_S = 0.0
told = []

def say(line):
    told.append(line)
    if sys.argv[3] and sys.argv[3] in line:
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

r = mi.superoptimize(adapter, sizes=json.loads(sys.argv[1]), budget=float(sys.argv[2]), progress=say)
inputs = arrays(r.program, {"b": 4, "n": 6})
check(r.program, [r(*inputs)], inputs, {"b": 4, "n": 6})
print(json.dumps({"hit": r.cache_hit, "search": "search" in r.seconds, "tune": "tune" in r.seconds,
                  "versions": len(r.versions), "best": r.best.kind, "told": told}))
"""
SPECS: dict[str, Any] = dict(adapter.specs)


def start(folder: Path, budget: float = BUDGET, url: str = "", at: str = "", **sizes: int) -> forks.Forked:
    env = {**os.environ, "MIRAGE_CACHE_DIR": str(folder), "MIRAGE_CACHE_URL": url}
    return forks.start(SCRIPT, json.dumps(sizes), str(budget), at, env=env)


def finish(process: forks.Forked) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    found: dict[str, Any] = json.loads(stdout)
    return found


def here(folder: Path) -> Superoptimized:
    """What this process finds in a cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_CACHE_DIR", str(folder))
        return mi.superoptimize(adapter, budget=BUDGET)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A cache folder without so much as compiled kernels."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The export of a store that knows `adapter` at its own sizes."""
    folder = tmp_path_factory.mktemp("filled")
    store = ResultStore(f"sqlite:///{folder}/r.sqlite")
    mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert store.export(folder / "export.json") == 2
    yield str(folder / "export.json")


@pytest.fixture
def store(tmp_path: Path, filled: str) -> ResultStore:
    s = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    assert s.import_(filled) == 2
    return s


def right(r: Superoptimized) -> None:
    """Fail unless the result computes adapter, however it is run."""
    runs: list[Any] = [r._run, *(c.executable for c in r.graphs if c.executable is not None)]
    for b, n in ((1, 1), (4, 6), (9, 17)):
        sizes = dict(zip(r.program.symbols(), (b, n), strict=True))
        inputs = arrays(r.program, sizes)
        for run in runs:
            check(r.program, run(inputs, sizes), inputs, sizes)


def searched(r: Superoptimized) -> bool:
    return "search" in r.seconds


# Hits.


def test_a_second_process_neither_searches_nor_tunes(own_cache: Path) -> None:
    first, second = finish(start(own_cache)), finish(start(own_cache))
    assert (first["hit"], first["search"], first["tune"]) == (False, True, True)
    assert (second["hit"], second["search"], second["tune"]) == (True, False, False)
    assert second["told"] == []
    assert (second["versions"], second["best"]) == (first["versions"], first["best"])


def test_a_hit_has_the_graphs_and_figures_of_the_first_run(store: ResultStore) -> None:
    fresh = mi.superoptimize(adapter, budget=BUDGET, cache=False)
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert r.cache_hit
    assert not searched(r)
    assert r.stats.prefixes == fresh.stats.prefixes
    assert r.candidates == fresh.candidates
    # what a call runs is verified, and nothing else is read
    assert {id(v.candidate.graph) for v in r.versions if v.candidate} == {id(c.graph) for c in r.graphs}
    assert {str(c.graph.kernel) for c in r.graphs} <= {str(c.graph.kernel) for c in fresh.graphs}
    assert all(c.certificate.proof == "proved" and not c.certificate.checks for c in r.graphs)
    assert len(r.certificate.checks) == 2
    right(r)


def renamed(up: Any, data: Any, down: Any) -> Any:
    """The adapter with other names, in another order."""
    return mi.relu(data @ down) @ up + data


RENAMED: dict[str, Any] = {"up": mi.tensor("rank", 8), "data": mi.tensor("rows", 8), "down": mi.tensor(8, "rank")}


def test_an_equal_program_of_other_names_and_order_hits_too(store: ResultStore) -> None:
    program = mi.trace(renamed, **RENAMED)
    r = mi.superoptimize(program, sizes={"rows": 3, "rank": 5}, budget=BUDGET, cache=store)
    assert r.cache_hit
    assert not searched(r)
    assert r.program.input_names == ("up", "data", "down")
    runs: list[Any] = [r._run, *(c.executable for c in r.graphs if c.executable is not None)]
    for rows_, rank in ((1, 1), (9, 4)):
        sizes = {"rank": rank, "rows": rows_}
        inputs = arrays(program, sizes)
        for run in runs:
            check(program, run(inputs, sizes), inputs, sizes)
        check(program, [r(*inputs)], inputs, sizes)


def test_records_of_an_older_form_are_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    with monkeypatch.context() as older:
        older.setattr("mirage.results.recall.RESULT", replace(RESULT, schema=RESULT.schema - 1))
        assert not mi.superoptimize(adapter, budget=BUDGET, cache=store).cache_hit
        assert mi.superoptimize(adapter, budget=BUDGET, cache=store).cache_hit
    with warnings.catch_warnings():
        warnings.simplefilter("error", CorruptRecordWarning)
        r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not r.cache_hit and searched(r)


def test_a_different_program_does_not_hit(store: ResultStore) -> None:
    for fn in (lambda x, w, v: mi.silu(x @ w) @ v + x, lambda x, w, v: mi.relu(x @ w) @ v - x):
        r = mi.superoptimize(mi.trace(fn, **SPECS), sizes={"b": 3, "n": 5}, budget=0.3, cache=store)
        assert not r.cache_hit
        assert searched(r)


def test_another_dtype_does_not_hit(store: ResultStore) -> None:
    double = mi.trace(
        adapter.fn,
        x=mi.tensor("b", 8, dtype="float64"),
        w=mi.tensor(8, "n", dtype="float64"),
        v=mi.tensor("n", 8, dtype="float64"),
    )
    r = mi.superoptimize(double, sizes={"b": 3, "n": 5}, budget=0.3, cache=store)
    assert searched(r)
    right(r)


def test_other_sizes_take_the_graphs_and_tune_anew(store: ResultStore) -> None:
    for wanted in (True, False):
        r = mi.superoptimize(adapter, sizes={"b": 16, "n": 64}, budget=BUDGET, cache=store)
        assert r.cache_hit
        assert not searched(r)
        assert ("tune" in r.seconds) == wanted
        right(r)
    assert len(store.list()) == 3


def test_an_answer_without_a_kernel_is_not_recalled(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    for _ in range(2):
        cut = mi.superoptimize(adapter, budget=1e-3, cache=store)
        assert cut.tune_stop.startswith("budget spent before a kernel") and "tune" in cut.seconds
    larger = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert larger.compiled and larger.stats.stop_reason == "complete"
    again = mi.superoptimize(adapter, budget=1e-3, cache=store)
    assert again.recalled and "tune" not in again.seconds


def test_what_was_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    raced: list[set[str]] = []
    learn = Explorer.learn

    def noted(self: Explorer, race: Mapping[Pair, Timing], *shares: Any) -> None:
        raced[-1] |= {f"{self.sizes} {structure_key(self.candidates[i].graph)} {s}" for i, s in race}
        learn(self, race, *shares)

    monkeypatch.setattr(Explorer, "learn", noted)
    monkeypatch.setattr(tune, "MAX_KERNELS", 6)

    def interrupt(line: str) -> None:
        if "4 kernels compiled" in line:
            raise KeyboardInterrupt

    raced.append(set())
    first = mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=interrupt)
    assert first.interrupted and first.compiled and raced[0]
    raced.append(set())
    second = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not second.interrupted and not second.recalled
    # the fastest are raced again, with what is new; nothing else is measured twice at the same sizes
    at_first = {pair for pair in raced[1] if pair.startswith(str(first.sizes))}
    assert at_first - raced[0] and len(at_first & raced[0]) <= second.target.cores
    assert mi.superoptimize(adapter, budget=BUDGET, cache=store).recalled


def test_more_and_improve_go_on_with_what_is_complete(store: ResultStore) -> None:
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert r.recalled
    more = mi.superoptimize(adapter, budget=BUDGET, cache=store, more=True)
    assert not more.recalled and more.compiled
    right(more)
    improved = r.improve(BUDGET)
    assert improved.compiled and not improved.recalled
    right(improved)
    right(improved.improve(BUDGET))
    for budget in (0, -1.0, float("nan"), "1"):
        with pytest.raises(mi.MirageError, match="budget="):
            r.improve(budget)  # type: ignore[arg-type]


def test_a_kernel_stays_where_more_time_compiles_none(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert r.best.kind == "mugraph"
    # as on a machine that is so busy that no compiler ends in time
    monkeypatch.setattr(tune, "COMPILER_S", math.inf)
    for again in (r.improve(BUDGET), mi.superoptimize(adapter, budget=BUDGET, cache=store, more=True)):
        assert not again.recalled and not again.compiled
        assert again.best.kind == "mugraph" and again.best.schedule == r.best.schedule
        right(again)
    kept = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert kept.recalled and kept.best.schedule == r.best.schedule


@pytest.mark.parametrize("won", [False, True])
def test_a_new_kernel_runs_where_it_wins_against_the_one_of_before(
    store: ResultStore, won: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    compared: list[tuple[Any, Any]] = []

    def call(self: Duels, sizes: Any, old: Any, new: Any, given: bool) -> Duel:
        compared.append((old, new))
        return Duel(Timing(2.0, 2.0, 9), Timing(1.0, 1.0, 9) if won else Timing(3.0, 3.0, 9), won)

    monkeypatch.setattr(Duels, "__call__", call)
    # the one of before is by far the slowest of what is measured now, as on a machine that was busy when its turn came
    slow = r.best.executable.source

    def race(calls: Mapping[str, Any], **_: Any) -> dict[str, Timing]:
        return {name: Timing(9.0, 9.0, 9) if _source(call) == slow else Timing(5.0, 5.0, 9) for name, call in calls.items()}

    monkeypatch.setattr(tune, "interleave", race)
    monkeypatch.setattr(versions, "interleave", race)
    monkeypatch.setattr(CpuExecutable, "prepared", lambda self, inputs, sizes: partial(self, inputs, sizes))
    improved = r.improve(BUDGET)
    assert compared and all(old is not new for old, new in compared)
    assert (improved.best.schedule == r.best.schedule) is not won
    right(improved)


def _source(call: Any) -> str:
    return str(getattr(getattr(call, "func", None), "source", ""))


def test_what_is_best_so_far_survives_a_kill(own_cache: Path) -> None:
    killed = start(own_cache, at="3 kernels compiled")
    assert killed.stdout.readline() == "killed\n"
    assert killed.wait(PATIENCE) == -signal.SIGKILL
    store = ResultStore(f"sqlite:///{own_cache}/results.sqlite")
    (tuned,) = [record for record in store.list() if record.best_us is not None]
    kept = store.get(tuned.key)
    assert kept is not None and not kept["complete"]
    assert any(graph["tried"] for graph in kept["graphs"])
    again = finish(start(own_cache))
    assert again["tune"] and again["best"] == "mugraph"


@pytest.mark.parametrize(
    "options", [{"pruner": None}, {"canonical": False}, {"max_kernels": 1}, {"max_operators": 4}], ids=str
)
def test_ablations_neither_read_nor_write(store: ResultStore, options: dict[str, Any]) -> None:
    before = store.list()
    assert searched(mi.superoptimize(adapter, budget=0.1, cache=store, **options))
    assert searched(mi.superoptimize(rows, budget=0.1, cache=store, **options))
    assert store.list() == before


def test_without_a_cache_no_store_is_opened(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(own_cache))

    def fail(*args: object) -> None:
        raise AssertionError("a store was opened")

    monkeypatch.setattr(api, "ResultStore", type("Closed", (ResultStore,), {"__init__": fail}))
    mi.superoptimize(rows, budget=0.3, cache=False)
    assert not (own_cache / "results.sqlite").exists()


def test_another_store_by_url(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/shared.sqlite"
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(own_cache))
    monkeypatch.setenv("MIRAGE_CACHE_URL", url)
    assert [mi.superoptimize(rows, budget=BUDGET).cache_hit for _ in range(2)] == [False, True]
    assert not (own_cache / "results.sqlite").exists()
    assert len(ResultStore(url).list()) == 2


# Damage.


def payloads(store: ResultStore) -> dict[str, Any]:
    found = {}
    for record in store.list():
        payload = store.get(record.key)
        assert payload is not None
        found[record.key] = payload
    return found


def overwrite(store: ResultStore, key: str, text: str, checksum: str | None = None) -> None:
    """The payload's text in place, with its own checksum unless another is given."""
    engine = sa.create_engine(f"sqlite:///{store.place.removeprefix('sqlite:///')}")
    with engine.begin() as connection:
        connection.execute(
            sa.text("update mirage_results set payload = :p, payload_sha256 = :c where key = :k"),
            {"p": text, "c": checksum or sha256(text), "k": key},
        )


def recovers(store: ResultStore) -> None:
    """Fail unless the next run warns and is right, and the one after it finds sound records."""
    with pytest.warns(CorruptRecordWarning):
        r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert "tune" in r.seconds
    right(r)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CorruptRecordWarning)
        again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert again.cache_hit
    assert "tune" not in again.seconds
    right(again)


def both(change: Callable[[Any], Any]) -> Callable[[ResultStore], None]:
    """A change of every record's payload, with checksums that are right again."""

    def apply(store: ResultStore) -> None:
        for key, payload in payloads(store).items():
            overwrite(store, key, canonical_json(change(payload), key))

    return apply


def truncated(store: ResultStore) -> None:
    for key, payload in payloads(store).items():
        overwrite(store, key, canonical_json(payload, key)[:-40])


def one_byte(store: ResultStore) -> None:
    for key, payload in payloads(store).items():
        text = canonical_json(payload, key)
        overwrite(store, key, text.replace("relu", "relv"), sha256(text))


def another_function(payload: Any) -> Any:
    text = json.dumps(payload["graphs"])
    assert '"op": "relu"' in text
    return {**payload, "graphs": json.loads(text.replace('"op": "relu"', '"op": "square"'))}


def exchanged(payload: Any) -> Any:
    return {**payload, "graphs": json.loads(json.dumps(payload["graphs"]).replace('"index": 1', '"index": 2'))}


def with_accuracy(entry: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda payload: {**payload, "graphs": [{**g, "accuracy": [entry]} for g in payload["graphs"]]}


DAMAGE: dict[str, Callable[[ResultStore], None]] = {
    "truncated": truncated,
    "one byte": one_byte,
    "another function": both(another_function),
    "exchanged inputs": both(exchanged),
    "no graphs field": both(lambda p: {k: v for k, v in p.items() if k != "graphs"}),
    "graphs are text": both(lambda p: {**p, "graphs": "x"}),
    "huge cost": both(lambda p: {**p, "graphs": [{**g, "cost": 10**400} for g in p["graphs"]]}),
    "an error below 0": both(with_accuracy({"trial": "small sizes", "kernel": -1.0, "program": 0.0})),
    "an error of another type": both(with_accuracy({"trial": "small sizes", "kernel": "0", "program": 0.0})),
    "an error without its trial": both(with_accuracy({"kernel": 0.0, "program": 0.0})),
    "impossible tiles": both(
        lambda p: {
            **p,
            "graphs": [
                {**g, **{s: {"kernels": [{**k, "tiles": []} for k in g[s]["kernels"]]} for s in g if s == "schedule"}}
                for g in p["graphs"]
            ],
            "stats": 5,
        }
    ),
}


SLOW = ("truncated", "one byte", "exchanged inputs", "graphs are text", "huge cost")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in DAMAGE])
def test_damaged_records_warn_and_are_replaced(store: ResultStore, kind: str) -> None:
    DAMAGE[kind](store)
    recovers(store)


def test_a_damaged_tuned_record_alone_does_not_search(store: ResultStore) -> None:
    (key,) = (r.key for r in store.list() if r.best_us is not None)
    overwrite(store, key, "{}")
    with pytest.warns(CorruptRecordWarning):
        r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not searched(r)
    assert "tune" in r.seconds
    right(r)


def test_a_record_of_another_program_under_this_key_is_not_used(store: ResultStore, tmp_path: Path) -> None:
    other = ResultStore(f"sqlite:///{tmp_path}/other.sqlite")
    wrong = mi.trace(lambda x, w, v: mi.relu(x @ w) @ v - x, **SPECS)
    mi.superoptimize(wrong, sizes={"b": 3, "n": 5}, budget=0.5, cache=other)
    foreign = {r.best_us is None: other.get(r.key) for r in other.list()}
    for record in store.list():
        payload = foreign[record.best_us is None]
        assert payload is not None
        overwrite(store, record.key, canonical_json({**payload, "cut_at": None}, record.key))
    recovers(store)


def test_a_store_that_is_no_database_is_set_aside(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(own_cache))
    (own_cache / "results.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.warns(StoreWarning, match="damaged-1"):
        assert mi.superoptimize(rows, budget=BUDGET).best
    assert len(ResultStore().list()) == 2


# Several processes.


def test_two_processes_at_once_on_an_empty_store(own_cache: Path) -> None:
    found = [finish(p) for p in [start(own_cache), start(own_cache)]]
    assert all(f["versions"] > 0 for f in found)
    third = here(own_cache)
    assert third.cache_hit
    assert "tune" not in third.seconds


@pytest.mark.parametrize(
    "delay", [1.5, *(pytest.param(d, marks=pytest.mark.slow) for d in (0.6, 0.9, 1.2, 1.8, 2.1, 2.4, 3, 4))]
)
def test_a_killed_process_leaves_a_usable_cache(empty: Path, delay: float) -> None:
    process = start(empty, budget=5)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = finish(start(empty))
    assert done["versions"] >= 1
    assert here(empty).cache_hit
