"""Many processes that superoptimize on one store, some of which are killed: nothing is lost, wrong, or done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

#: what there must be none of
NOTHING = ("bad_records", "lost_results", "wrong_results", "searches_twice", "errors")


def hammered(url: str, **options: Any) -> dict[str, Any]:
    """The row of the benchmark, in a process that has no threads when it forks."""
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "benchmarks.cache_hammer", "--url", url, *arguments, "--json"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    (row,) = json.loads(run.stdout)
    assert {name: row[name] for name in NOTHING} == dict.fromkeys(NOTHING, 0)
    assert row["records"] > 0 and row["hits"] > 0
    return dict(row)


# a server takes part in tests of processes and leases, too, which take less
@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
def test_a_few_processes_and_a_kill(url: str) -> None:
    row = hammered(url, processes=2, seconds=0, calls=8, kills=1, every=0.25, questions=2)
    assert row["kills"] >= 1 and row["calls"] >= 8
    # two programs, and what the kills cut short
    assert row["searches"] <= 2 + row["kills"]


@pytest.mark.slow
def test_eight_processes_for_a_minute(url: str) -> None:
    row = hammered(url, processes=8, seconds=60, kills=20)
    assert row["kills"] >= 20
