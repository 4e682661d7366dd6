"""The benchmark of deadlines: what a row says, and what its process prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mirage as mi
from benchmarks.search.anytime import AnytimeRow, anytime_table
from benchmarks.search.deadline import run


def row(over_best: float, first_kernel: float | None, *, speed: float = 1.0) -> AnytimeRow:
    kind = "library" if first_kernel is None else "mugraph"
    return AnytimeRow("softmax", 2.0, "cold", speed, 0.5, first_kernel, 1.9, over_best, kind)


def test_the_table_has_a_row_per_deadline_start_and_speed() -> None:
    table = anytime_table([row(1.0, 1.5), row(4.0, None), row(2.0, 3.0, speed=0.25)])
    full, part = table.rows
    assert full == ["2 s, cold, full speed", "0.50", "1.50", "1 of 2", "2.00", "4.00", "0.95"]
    assert part[0] == "2 s, cold, 0.25 of a core" and part[3] == "1 of 1"


def test_a_row_without_any_kernel_has_no_time_of_one() -> None:
    ((_, _, kernel, count, *_),) = anytime_table([row(1.0, None)]).rows
    assert (kernel, count) == ("nan", "0 of 1")


def test_the_process_of_a_row_saves_its_result_and_prints_what_was_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
    result = tmp_path / "result.json"
    run(0.0, str(result), "rms_norm", 1e-3)
    graph, kernel, seconds = json.loads(capsys.readouterr().out)
    assert graph > 0.0 and kernel is None and seconds > 0.0
    assert isinstance(mi.load(result), mi.Superoptimized)
