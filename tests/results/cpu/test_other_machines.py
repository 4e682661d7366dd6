"""What was chosen on one processor is tried first on another one, measured there again, and said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.kernels.cpu import target
from mirage.kernels.cpu.processor import processor
from mirage.mugraph.canonical import structure_key
from mirage.search import buckets, tune
from mirage.search.candidates import Candidate
from mirage.search.tune import Tuner
from tests.api.small import BUDGET, adapter, arrays, check, limit_tuning


@pytest.fixture(autouse=True)
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """At no other sizes than the given ones: a kernel that is scheduled for others may win there, and is no hint."""
    limit_tuning(monkeypatch.setattr)
    monkeypatch.setattr(buckets, "MAX_POINTS", 0)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`on(name)`: from here on, this machine's processor has that name."""
    here = processor()

    def move(name: str) -> None:
        monkeypatch.setattr(target, "processor", lambda: replace(here, cpu=name))

    return move


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The graphs with schedules that are compiled from here on."""
    found: list[tuple[str, Any]] = []
    compile_ = Tuner.compile

    def noted(self: Tuner, work: Sequence[tuple[Candidate, Any]], *arguments: Any, **options: Any) -> Any:
        found.extend((structure_key(c.graph), s) for c, s in work)
        return compile_(self, work, *arguments, **options)

    monkeypatch.setattr(Tuner, "compile", noted)
    return found


def test_the_choice_of_another_machine_is_tried_first_and_measured_again(
    tmp_path: Path, on: Callable[[str], None], compiled: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    on("First")
    first = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert first.begun_with == ""
    tuned = {(structure_key(c.graph), c.schedule) for c in first.graphs if c.timing is not None}
    assert tuned
    on("Second")
    compiled.clear()
    # as many as the first wave has
    monkeypatch.setattr(tune, "MAX_KERNELS", 1)
    second = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert second.begun_with.startswith("First")
    assert compiled[0] in tuned
    assert not second.recalled and "tune" in second.seconds
    assert ("begun with the choice of", f"{second.begun_with}; measured here") in second.report_rows()
    inputs = arrays(adapter.trace(), {"b": 3, "n": 5})
    check(adapter.trace(), [second(*inputs)], inputs, {"b": 3, "n": 5})
    # each has its own record now
    assert {str(r.processor).partition(";")[0] for r in store.list() if r.processor} == {"First", "Second"}
    for name, result in (("First", first), ("Second", second)):
        on(name)
        again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
        assert again.recalled and again.begun_with == ""
        assert [v.timing for v in again.versions] == [v.timing for v in result.versions]


def test_other_sizes_give_no_hint(tmp_path: Path, on: Callable[[str], None]) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    on("First")
    mi.superoptimize(adapter, budget=BUDGET, cache=store)
    on("Second")
    assert mi.superoptimize(adapter, sizes={"b": 4, "n": 5}, budget=BUDGET, cache=store).begun_with == ""


def test_the_choice_of_another_machine_that_was_forged_is_not_used(
    tmp_path: Path, on: Callable[[str], None]
) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    on("First")
    mi.superoptimize(adapter, budget=BUDGET, cache=store)
    (record,) = (r for r in store.records() if r.processor)
    payload = record.content()
    payload["decision"]["versions"] = payload["decision"]["versions"] * 30
    about = {"program": "adapter", "target": "cpu", "dtype": "float32", "best_us": 1.0}
    put = {"family": record.family, "processor": record.processor, "replaces": record.payload_sha256}
    assert store.put(record.key, payload, **about, **put)  # type: ignore[arg-type]
    on("Second")
    with pytest.warns(mi.cache.CorruptRecordWarning, match="versions"):
        result = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert result.begun_with == ""
