"""Tables and timing of the benchmarks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.run import DOCS, fill
from benchmarks.tables import Table
from benchmarks.timing import race


def test_fill_replaces_only_what_is_between_the_markers() -> None:
    text = "a\n<!-- x: written by make bench -->\nold\n<!-- end of x -->\nb\n"
    filled = fill(text, "x", "new")
    assert filled == "a\n<!-- x: written by make bench -->\nnew\n<!-- end of x -->\nb\n"
    assert fill(filled, "x", "old") == text


def test_fill_names_the_missing_marker() -> None:
    with pytest.raises(ValueError, match="end of y"):
        fill("<!-- y: written by make bench -->", "y", "new")


def test_the_page_has_all_markers() -> None:
    text = Path(DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for name in ("conditions", "latency", "search", "phases", "pruning", "scaling"):
        assert fill(text, name, "unlikely") != text


def test_table() -> None:
    assert Table(["a", "b"], [["x", "1"]]).markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_race_orders_versions_and_leaves_out_the_hopeless() -> None:
    calls = {"fast": 0, "slow": 0, "hopeless": 0}

    def version(name: str, seconds: float) -> None:
        calls[name] += 1
        time.sleep(seconds)

    times = race(
        {
            "fast": lambda: version("fast", 0.004),
            "slow": lambda: version("slow", 0.008),
            "hopeless": lambda: version("hopeless", 0.4),
        },
        seconds=0.5,
    )
    assert 3_900 <= times["fast"].min_us <= times["fast"].median_us
    assert times["fast"].min_us < times["slow"].min_us < times["hopeless"].min_us
    assert calls["hopeless"] == times["hopeless"].runs == 1
    assert times["slow"].runs >= 2
