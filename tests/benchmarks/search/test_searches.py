"""Rows of searches: their fields, their JSON, and where the time of a search goes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from benchmarks.programs import PROGRAMS
from benchmarks.search import phases
from benchmarks.search.phases import OTHER, PHASES, Clock, clocked
from benchmarks.search.searches import main, phase_table, search_row, search_table
from mirage.search.compose import Composer
from mirage.search.decision import MAX_VERSIONS
from tests import programs
from tests.work import ByHand


def test_a_row_says_what_the_search_did() -> None:
    function = PROGRAMS["adapter_mlp"]
    row = search_row(function)
    assert row.program == "adapter_mlp" and row.stop_reason == "complete"
    assert 0 < row.first_seconds <= row.first_best_seconds <= row.search_seconds
    assert 0 < row.prefixes < row.checks and row.tensors > 1
    assert row.proved == row.verified == row.candidates > 1
    # the proofs of all, and the tests of those that a result can return
    seconds = 1e-3 * (row.ms_per_proof * row.candidates + row.ms_per_test * min(row.candidates, MAX_VERSIONS))
    assert row.verify_seconds == pytest.approx(seconds)
    assert row.limits["kernels"] == 5
    stats = programs.search("adapter_mlp").stats
    assert (row.prefixes, row.checks, row.limits) == (stats.prefixes, stats.checks, stats.limits)


def test_phases_divide_the_time_of_both() -> None:
    row = search_row(PROGRAMS["gated_mlp"])
    assert list(row.phases) == [*PHASES, OTHER]
    assert all(row.phases[name] > 0 for name in PHASES)
    total, both = sum(row.phases.values()), row.search_seconds + row.verify_seconds
    assert total >= both


def test_json_prints_one_object_per_program(capsys: pytest.CaptureFixture[str]) -> None:
    main(["softmax", "rms_norm"], as_json=True)
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert [r["program"] for r in rows] == ["softmax", "rms_norm"]
    wanted = {
        "search_seconds", "prefixes", "checks", "candidates", "verified", "proved", "first_best_seconds", "stop_reason",
    }  # fmt: skip
    assert all(wanted <= set(r) for r in rows)
    assert "rms_norm: searching" in printed.err


def test_tables_print_whole_cells(capsys: pytest.CaptureFixture[str]) -> None:
    main(["softmax"])
    out = capsys.readouterr().out
    assert "ms per proof" in out and "ms per tested graph" in out and "random tests" in out and "…" not in out


def test_shares_of_phases_are_of_their_sum() -> None:
    row = search_row(PROGRAMS["softmax"])
    (cells,) = phase_table([row]).rows
    shares = [float(c.rstrip("%")) for c in cells[2:]]
    assert len(shares) == len(PHASES) + 1 and sum(shares) == pytest.approx(100, abs=len(shares) / 2)
    (cells,) = search_table([row]).rows
    assert cells[0] == "softmax" and cells[-1] == "complete"


def test_a_clock_gives_a_phase_no_time_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = ByHand()
    monkeypatch.setattr(phases, "time", hand)
    clock = Clock()
    inner = clock.timed("proofs", lambda: hand.sleep(5.0))

    def items() -> Iterator[int]:
        for i in range(2):
            inner()
            hand.sleep(1.0)
            yield i

    for _ in clock.timed("composition", items)():
        hand.sleep(3.0)
    with pytest.raises(ZeroDivisionError):
        clock.timed("closures", lambda: 1 // 0)()
    found = {name: seconds for name, seconds in clock.seconds.items() if seconds}
    assert found == {"proofs": 10.0, "composition": 2.0, OTHER: 6.0}


def test_clocks_are_taken_away_again() -> None:
    before = Composer.compose
    with clocked():
        assert Composer.compose is not before
    assert Composer.compose is before
