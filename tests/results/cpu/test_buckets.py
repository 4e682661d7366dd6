"""One compile for all shapes: versions for buckets of sizes, end to end, in files, in the store, and bit for bit."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import mirage as mi
from mirage.cache import CallStore, ResultStore
from mirage.errors import DimError, FormatError, MirageError
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.target import CpuTarget
from mirage.kernels.decision import Split, decide, leaves
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.results.cpu.result import Superoptimized
from mirage.results.recall import Chosen, Memory
from mirage.results.records import VersionRecord
from mirage.search.decision import MAX_VERSIONS, Decision, Point, Version
from mirage.search.versions import VersionTuner
from tests import forks
from tests.api.small import BUDGET, PATIENCE, adapter, arrays, check, loaded, rows

SHAPES = {
    "adapter": [{"b": b, "n": n} for b in (1, 2, 7, 33) for n in (1, 3, 16, 65, 130)],
    "rows": [{"m": m, "n": n} for m in (1, 2, 9, 64) for n in (1, 5, 31, 256, 1000)],
}


@functools.cache
def result(name: str = "adapter") -> Superoptimized:
    return mi.superoptimize({"adapter": adapter, "rows": rows}[name], budget=2 * BUDGET, cache=False)


@functools.cache
def bucketed() -> Superoptimized:
    """A result whose three versions are chosen by a tree of both dims, whatever was measured."""
    r = result()
    compiled = [c for c in r.graphs if c.executable is not None]
    timing = Timing(1.0, 1.0, 1)
    other = replace(compiled[0], sizes={"b": 64, "n": 64}, timing=timing)
    other = other.with_kernels(CpuExecutable(other.graph, other.schedule, other.maximum, other.sizes))
    versions = [Version("mugraph", timing, replace(compiled[0], timing=timing)), Version("mugraph", timing, other)]
    tree = Split(("b",), 4, 0, Split(("b", "n"), 200, 1, 2))
    point = Point({"b": 3, "n": 5}, (1.5, float("inf"), 7.0))
    return replace(r, decision=Decision((*versions, Version("library", timing)), tree, (point,)))


# One compile, all shapes.


@pytest.mark.parametrize(("name", "sizes"), [(name, s) for name in SHAPES for s in SHAPES[name]])
def test_every_shape_is_right_from_one_compile(name: str, sizes: dict[str, int]) -> None:
    r = result(name)
    inputs = arrays(r.program, sizes, seed=sum(sizes.values()))
    check(r.program, [r(*inputs)], inputs, sizes)


@pytest.mark.parametrize("sizes", SHAPES["adapter"])
def test_every_version_is_right_at_every_shape(sizes: dict[str, int]) -> None:
    r = bucketed()
    inputs = arrays(r.program, sizes, seed=1)
    for run in r._runners:
        assert run is not None
        check(r.program, run(inputs, sizes), inputs, sizes)
    check(r.program, [r(*inputs)], inputs, sizes)


def test_the_choice_is_the_trees() -> None:
    r = bucketed()
    called: list[int] = []
    spied = replace(r)

    def spy(number: int, inputs: Any, sizes: Any) -> Any:
        called.append(number)
        return r._run_of(r.versions[number])(inputs, sizes)

    spied._runners = [functools.partial(spy, i) for i in range(3)]
    for sizes in SHAPES["adapter"]:
        number = decide(r.decision.tree, sizes)
        assert r.choice(sizes) is r.versions[number]
        spied(*arrays(r.program, sizes))
        assert called[-1] == number
    assert set(called) == {0, 1, 2}
    assert r.best is r.choice({"n": 5, "b": 3}) is r.versions[0]


def test_sizes_that_are_missing_are_named() -> None:
    with pytest.raises(DimError, match="adapter: no size for n"):
        bucketed().choice({"b": 3})


def test_versions_are_few_and_checked_twice() -> None:
    for r in (result(), result("rows"), bucketed()):
        assert 0 < len(r.versions) <= MAX_VERSIONS
        assert {v for _, v in leaves(r.decision.tree)} == set(range(len(r.versions)))
        for v in r.versions:
            assert (v.candidate is None) == (v.kind in ("library", "reference")) == (v.graph is None)
            if v.candidate is not None:
                assert len(v.candidate.certificate.checks) == 2
                assert v.candidate.executable is not None
                assert v.candidate.schedule is not None and set(v.candidate.sizes) == set(r.sizes)
                assert any(v.candidate.graph is c.graph for c in r.graphs)


def test_the_report_says_what_runs_where() -> None:
    file = io.StringIO()
    Console(width=200, file=file).print(bucketed().report())
    lines = [line.strip("│ \n") for line in file.getvalue().splitlines()]

    def figure(start: str) -> str:
        return next(line.removeprefix(start).strip("│ ") for line in lines if line.startswith(start))

    assert figure("compiled versions") == f"2 of at most 8, tuned with {bucketed().threads} threads"
    assert figure("at b <= 4").startswith("version 0: ")
    assert figure("at b > 4, b * n <= 200").endswith("for b=64, n=64")
    assert figure("at b > 4, b * n > 200") == "version 2: library (NumPy)"


def test_a_program_of_fixed_sizes_has_one_version() -> None:
    r = mi.superoptimize(mi.trace(lambda x: mi.softmax(x), x=mi.tensor(4, 8)), budget=0.5, cache=False)
    assert (r.anchors, len(r.versions), r.decision.tree) == ([{}], 1, 0)
    assert r.choice({}) is r.best


def test_the_library_version_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    plain = LibraryProgram.__init__

    def count(self: LibraryProgram, *args: Any) -> None:
        built.append(self)
        plain(self, *args)

    monkeypatch.setattr(LibraryProgram, "__init__", count)
    r = mi.superoptimize(rows, budget=0.5, cache=False)
    assert r._library is built[0]
    assert len(built) == 1


# Several sets of sizes.


def test_several_sets_of_sizes_are_tuned_for() -> None:
    sets = [{"b": 3, "n": 5}, {"b": 64, "n": 64}, {"b": 3, "n": 5}, {"b": 1}]
    r = mi.superoptimize(adapter, sizes=sets, budget=2 * BUDGET, cache=False)
    assert r.anchors == [{"b": 3, "n": 5}, {"b": 64, "n": 64}, {"b": 1, "n": 5}]
    assert r.sizes == r.anchors[0]
    assert [dict(p.sizes) for p in r.decision.points[:3]] == r.anchors
    for point in r.decision.points[:3]:
        assert point.times[decide(r.decision.tree, point.sizes)] == min(point.times)


@pytest.mark.parametrize("sizes", [[], [{"b": 1, "n": n} for n in range(1, 11)]])
def test_no_set_and_too_many_are_errors(sizes: list[dict[str, int]]) -> None:
    with pytest.raises(DimError, match=rf"{len(sizes)} sets; pass 1 to 8"):
        mi.superoptimize(adapter, sizes=sizes)


def test_wrong_sets_are_named() -> None:
    with pytest.raises(DimError, match="is not a mapping"):
        mi.superoptimize(adapter, sizes=[{"b": 1}, 3])  # type: ignore[list-item]
    with pytest.raises(DimError, match="'q' is not a dim"):
        mi.superoptimize(adapter, sizes=[{"b": 1}, {"q": 3}])


# Files.


def test_a_file_keeps_the_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = bucketed()
    r.save(tmp_path / "r.json")
    # nothing is measured or chosen again
    monkeypatch.setattr(VersionTuner, "run", None)
    again = loaded(tmp_path / "r.json")
    assert (again.anchors, again.threads) == (r.anchors, r.threads)
    assert again.decision.tree == r.decision.tree
    assert again.decision.points == r.decision.points
    for a, b in zip(again.versions, r.versions, strict=True):
        assert (a.kind, a.timing) == (b.kind, b.timing)
        if a.candidate is not None and b.candidate is not None:
            assert a.candidate.sizes == b.candidate.sizes
            assert a.candidate.executable is not None and b.candidate.executable is not None
            assert a.candidate.executable.source == b.candidate.executable.source
    assert again.to_json() == r.to_json()


ALTERED: dict[str, Callable[[Any], None]] = {
    "no versions": lambda d: d.update(versions=[]),
    "versions are text": lambda d: d.update(versions="abc"),
    "too many versions": lambda d: d.update(versions=d["versions"] * 4),
    "a version too many": lambda d: d["versions"].append(d["versions"][0]),
    "a version too few": lambda d: d["versions"].pop(),
    "no such graph": lambda d: d["versions"][0].update(graph=10**6),
    "graph of -1": lambda d: d["versions"][0].update(graph=-1),
    "graph is text": lambda d: d["versions"][0].update(graph="0"),
    "graph is true": lambda d: d["versions"][0].update(graph=True),
    "a library's graph": lambda d: d["versions"][2].update(graph=0),
    "unknown kind": lambda d: d["versions"][2].update(kind="os.system"),
    "kind is a list": lambda d: d["versions"][2].update(kind=["library"]),
    "a graph's kind is a baseline": lambda d: d["versions"][0].update(kind="library"),
    "no schedule": lambda d: d["versions"][0].update(schedule=None),
    "no sizes": lambda d: d["versions"][0].update(sizes={}),
    "sizes of other dims": lambda d: d["versions"][0].update(sizes={"b": 1, "q": 1}),
    "sizes of 0": lambda d: d["versions"][0].update(sizes={"b": 0, "n": 1}),
    "huge sizes": lambda d: d["versions"][0].update(sizes={"b": 10**400, "n": 1}),
    "no timing": lambda d: d["versions"][0].update(timing=None),
    "one field more": lambda d: d["versions"][0].update(code="import os"),
    "tree of another version": lambda d: d.update(tree=3),
    "tree without a version": lambda d: d.update(tree=0),
    "tree of another dim": lambda d: d["tree"].update(dims=["q"]),
    "endless threshold": lambda d: d["tree"].update(at_most=float("inf")),
    "threshold is code": lambda d: d["tree"].update(at_most='4L) || system("id"'),
    "no points field": lambda d: d.pop("points"),
    "points are a number": lambda d: d.update(points=3),
    "times of other versions": lambda d: d["points"][0].update(times=[1.0]),
    "negative times": lambda d: d["points"][0].update(times=[1.0, -1.0, 1.0]),
    "times are text": lambda d: d["points"][0].update(times=["1", None, None]),
    "a point of no sizes": lambda d: d["points"][0].update(sizes={}),
}


@pytest.mark.parametrize("name", ALTERED)
def test_altered_decisions_are_format_errors(tmp_path: Path, name: str) -> None:
    obj = json.loads(json.dumps(bucketed().to_json()))
    ALTERED[name](obj["decision"])
    (tmp_path / "x.json").write_text(json.dumps(obj))
    with pytest.raises(FormatError):
        mi.load(tmp_path / "x.json")


@pytest.mark.parametrize("threads", [None, 0, -2, True, 2.0, "2", 10**400])
def test_altered_thread_counts_are_format_errors(tmp_path: Path, threads: Any) -> None:
    obj = {**bucketed().to_json(), "threads": threads}
    (tmp_path / "x.json").write_text(json.dumps(obj))
    with pytest.raises(FormatError):
        mi.load(tmp_path / "x.json")


@pytest.mark.parametrize(
    "sizes", [None, [], "b=3", {"b": 3}, [{"b": 3}], [{"b": 3, "n": 0}], [[1]], [{"b": 3, "n": 10**12}]]
)
def test_altered_sizes_are_mirage_errors(tmp_path: Path, sizes: Any) -> None:
    obj = {**bucketed().to_json(), "sizes": sizes}
    (tmp_path / "x.json").write_text(json.dumps(obj))
    with pytest.raises(MirageError):
        mi.load(tmp_path / "x.json")


# The results store.


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path}/r.sqlite")


def fill(store: ResultStore) -> Superoptimized:
    """Keep `bucketed` as what was tuned."""
    first = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    target = CpuTarget(first.target)
    memory = Memory(CallStore(store), first.verifier.axis_program, target)
    r = bucketed()
    measured = [c for c in r.graphs if c.timing is not None or c.tried]
    memory.tuned(r.anchors)
    chosen = Chosen(r.decision, measured, "complete", r.baselines)
    memory.keep_tuned(r.anchors, chosen, target.machines[0], r.stats, BUDGET)
    return r


def test_the_store_keeps_the_decision(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    r = fill(store)
    monkeypatch.setattr(VersionTuner, "run", None)
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert again.cache_hit and "tune" not in again.seconds
    assert again.decision.tree == r.decision.tree
    assert again.decision.points == r.decision.points
    for sizes in SHAPES["adapter"]:
        inputs = arrays(r.program, sizes)
        assert again(*inputs).tobytes() == r(*inputs).tobytes()


def test_versions_are_verified_when_they_are_first_run(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    r = fill(store)
    checked: list[VersionRecord] = []
    check_version = VersionRecord.check

    def noted(self: VersionRecord, *given: Any) -> None:
        checked.append(self)
        check_version(self, *given)

    monkeypatch.setattr(VersionRecord, "check", noted)
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert len(again.versions) == 3 and len(checked) == 1, "the one of the first sizes"
    for sizes, count in (({"b": 4, "n": 2}, 1), ({"b": 64, "n": 3}, 2), ({"b": 64, "n": 3}, 2), ({"b": 64, "n": 64}, 3)):
        inputs = arrays(r.program, sizes)
        assert again(*inputs).tobytes() == r(*inputs).tobytes()
        assert len(checked) == count


def test_a_version_that_was_altered_does_not_run(store: ResultStore) -> None:
    r = fill(store)
    (record,) = (found for found in store.list() if found.best_us is not None)
    payload = store.get(record.key)
    assert payload is not None
    # of a graph with fewer kernels
    payload["decision"]["versions"][1]["schedule"]["kernels"] = []
    store.discard(record.key)
    store.put(record.key, payload, program="adapter", target="cpu", dtype="float32", best_us=1.0)
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert again.recalled
    check(r.program, [again(*arrays(r.program, {"b": 2, "n": 2}))], arrays(r.program, {"b": 2, "n": 2}), {"b": 2, "n": 2})
    sizes = {"b": 64, "n": 3}
    inputs = arrays(r.program, sizes)
    with pytest.warns(mi.errors.DegradedWarning, match="version 1 cannot be made, NumPy runs"):
        found = again(*inputs)
    check(r.program, [found], inputs, sizes)
    with pytest.raises(MirageError):
        again.versions[1]


def test_an_equal_program_of_other_names_gets_its_own_dims(store: ResultStore) -> None:
    r = fill(store)
    program = mi.trace(
        lambda up, data, down: mi.relu(data @ down) @ up + data,
        up=mi.tensor("rank", 8), data=mi.tensor("rows", 8), down=mi.tensor(8, "rank"),
    )  # fmt: skip
    again = mi.superoptimize(program, sizes={"rows": 3, "rank": 5}, budget=BUDGET, cache=store)
    assert again.cache_hit and "tune" not in again.seconds
    assert again.decision.tree == Split(("rows",), 4, 0, Split(("rows", "rank"), 200, 1, 2))
    assert again.decision.points == tuple(
        Point({"rows": p.sizes["b"], "rank": p.sizes["n"]}, p.times) for p in r.decision.points
    )
    x, w, v = arrays(r.program, {"b": 40, "n": 3})
    assert again(v, x, w).tobytes() == r(x, w, v).tobytes()


@pytest.mark.parametrize(
    "name",
    [
        "no such graph",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("tree of another version", "endless threshold", "no points field")
        ),
    ],
)
def test_altered_records_warn_and_are_replaced(store: ResultStore, name: str) -> None:
    mi.superoptimize(adapter, budget=BUDGET, cache=store)
    (record,) = (r for r in store.list() if r.best_us is not None)
    payload = store.get(record.key)
    assert payload is not None
    if name == "endless threshold":
        payload["decision"]["tree"] = {"dims": ["b"], "at_most": 10**30, "then": 0, "else": 0}
    elif name == "no such graph":
        payload["decision"]["versions"] = [{**payload["decision"]["versions"][0], "kind": "mugraph", "graph": 99}]
    else:
        ALTERED[name](payload["decision"])
    store.discard(record.key)
    store.put(record.key, payload, program="adapter", target="cpu", dtype="float32", best_us=1.0)
    with pytest.warns(mi.cache.CorruptRecordWarning):
        r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert "tune" in r.seconds
    assert mi.superoptimize(adapter, budget=BUDGET, cache=store).cache_hit


def test_other_sets_of_sizes_are_other_records(store: ResultStore) -> None:
    sets = ({"b": 3, "n": 5}, [{"b": 3, "n": 5}, {"b": 9, "n": 5}], [{"b": 9, "n": 5}, {"b": 3, "n": 5}])
    for sizes in sets:
        assert "tune" in mi.superoptimize(adapter, sizes=sizes, budget=BUDGET, cache=store).seconds
    for sizes in sets:
        r = mi.superoptimize(adapter, sizes=sizes, budget=BUDGET, cache=store)
        assert "tune" not in r.seconds
        assert r.anchors == (sizes if isinstance(sizes, list) else [sizes])


# The same bits in every process and under load.

BITS = """
import hashlib, sys, threading, time
import numpy as np
import mirage as mi
from tests.api.small import adapter, arrays
from tests.results.cpu.test_buckets import SHAPES

if sys.argv[1] == "load":
    r = mi.load(sys.argv[2])
else:
    r = mi.superoptimize(adapter, budget=float(sys.argv[3]), cache=mi.cache.ResultStore(sys.argv[2]))
    assert "tune" not in r.seconds
busy = True
def spin():
    while busy:
        np.sort(np.random.default_rng(0).standard_normal(1000))
threads = [threading.Thread(target=spin, daemon=True) for _ in range(int(sys.argv[4]))]
for t in threads:
    t.start()
h = hashlib.sha256()
for sizes in SHAPES["adapter"]:
    inputs = arrays(r.program, sizes)
    bits = {r(*inputs).tobytes() for _ in range(5)}
    assert len(bits) == 1, sizes
    h.update(bits.pop())
busy = False
print(h.hexdigest())
"""


def digest(r: Superoptimized) -> str:
    h = hashlib.sha256()
    for sizes in SHAPES["adapter"]:
        h.update(r(*arrays(r.program, sizes)).tobytes())
    return h.hexdigest()


def processes(*argv: str, loads: tuple[int, ...] = (0, 4)) -> set[str]:
    """What processes print, with as many busy threads beside the calls."""
    started = [forks.start(BITS, *argv, str(load)) for load in loads]
    found = set()
    for process in started:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        found.add(out.strip())
    return found


def test_a_file_gives_the_same_bits_everywhere(tmp_path: Path) -> None:
    bucketed().save(tmp_path / "r.json")
    assert processes("load", str(tmp_path / "r.json"), "") == {digest(bucketed())}


def test_the_store_gives_the_same_bits_everywhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    fill(ResultStore(url))
    assert processes("store", url, str(BUDGET)) == {digest(bucketed())}


def test_several_threads_get_the_same_bits() -> None:
    r = bucketed()
    wanted = digest(r)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(digest(r))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [wanted] * 4


def test_splits_do_not_depend_on_the_threads_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels give the same bits with any number of threads; what BLAS computes is left out."""
    r = bucketed()
    r.save(tmp_path / "r.json")
    compiled = [i for i, v in enumerate(r.versions) if v.candidate is not None and v.candidate.graph.kernels]
    sizes = {"b": 33, "n": 65}
    inputs = arrays(r.program, sizes)
    for threads in ("1", "3"):
        monkeypatch.setenv("MIRAGE_NUM_THREADS", threads)
        again = loaded(tmp_path / "r.json")
        assert again.threads == r.threads
        for i in compiled:
            (a,), (b,) = again._run_of(again.versions[i])(inputs, sizes), r._run_of(r.versions[i])(inputs, sizes)
            assert a.tobytes() == b.tobytes()
