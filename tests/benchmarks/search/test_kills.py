"""What is told of processes that were killed."""

from __future__ import annotations

import pytest

from benchmarks.search import kills
from benchmarks.search.kills import KillRow, kills_summary, kills_table, measure
from mirage.errors import MirageError


def row(kill: int, kept_us: float | None, over_last: float | None = None) -> KillRow:
    return KillRow(kill, 1.5, kept_us, units=3, units_again=0, schedules=4, schedules_again=2, over_last=over_last)


def test_the_tables() -> None:
    rows = [row(0, None), row(1, 30.0, 1.5), row(2, 25.0, 1.25), row(3, 20.0, 1.0)]
    assert kills_table(rows).rows[1] == ["1", "1.5", "30.0", "3 (0)", "4 (2)", "1.50"]
    figures = {what: figure for what, figure in kills_summary(rows).rows}
    assert figures["processes killed"] == "4" and figures["killed before there was an answer"] == "1"
    assert figures["schedules compiled"] == "16" and figures["of these, begun before"] == "8"
    assert figures["first answer over the last"] == "1.50"
    assert figures["least of the answers between over the last"] == "1.25"
    assert ["first answer over the last", "-"] in kills_summary([row(0, None)]).rows


@pytest.mark.slow
def test_a_process_that_fails_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a program that is there runs until it is killed, or ends; one of another fails before."""
    monkeypatch.setattr(kills, "LIVES", (600.0, 600.0))
    (row,) = measure("softmax", kills=1)
    assert row.units and row.schedules
    with pytest.raises(MirageError, match="has failed"):
        list(measure("nothing", kills=1))
