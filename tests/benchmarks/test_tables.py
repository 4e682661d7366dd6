"""Tables of the benchmarks, and the page that they are written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.run import DOCS, fill
from benchmarks.tables import Table


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
