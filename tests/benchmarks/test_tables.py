"""Tables of the benchmarks, and the page that they are written to."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np
import pytest

import benchmarks.run
from benchmarks.run import DOCS, Page, conditions, fill
from benchmarks.tables import Table
from mirage.kernels.cpu.model.limits import Limits


def test_fill_replaces_only_what_is_between_the_markers() -> None:
    text = "a\n<!-- x: written by make bench -->\nold\n<!-- end of x -->\nb\n"
    filled = fill(text, "x", "new")
    assert filled == "a\n<!-- x: written by make bench -->\nnew\n<!-- end of x -->\nb\n"
    assert fill(filled, "x", "old") == text


def test_fill_names_the_missing_marker() -> None:
    with pytest.raises(ValueError, match="end of y"):
        fill("<!-- y: written by make bench -->", "y", "new")


def test_each_part_is_written_when_it_is_there(tmp_path: Path) -> None:
    whole = "<!-- x: written by make bench -->\n\n<!-- end of x -->\n<!-- y: written by make bench -->\nold\n<!-- end of y -->\n"
    (tmp_path / "benchmarks.md").write_text(whole)
    page = Page(tmp_path)
    page.write({"x": "new"}, {"x": [{"us": 1.0}]})
    page.write({}, {"y": [{"us": 2.0}]})
    assert (tmp_path / "benchmarks.md").read_text() == fill(whole, "x", "new")
    assert json.loads((tmp_path / "benchmarks.json").read_text()) == {"x": [{"us": 1.0}], "y": [{"us": 2.0}]}
    with pytest.raises(ValueError, match="z belongs"):
        page.write({"x": "newer", "z": ""}, {"z": []})
    assert (tmp_path / "benchmarks.md").read_text() == fill(whole, "x", "new")


def test_the_page_has_all_markers() -> None:
    text = Path(DOCS / "benchmarks.md").read_text(encoding="utf-8")
    names = ("conditions", "latency", "overhead", "search", "phases", "pruning", "scaling")
    for name in (*names, "compiler", "activation memory", "dispatch"):
        assert fill(text, name, "unlikely") != text


def test_conditions_name_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.run, "_PACKAGES", ("numpy", "no-such-package"))
    text = conditions(Limits(81.6, 400.0, 500.0, 2), 0.25, budget=3, cut=4)
    assert f"Python {platform.python_version()}, numpy {np.__version__}. " in text
    assert "memory 82 GB/s, cache 400 GB/s, 500 GFLOP/s with 2 threads; load average 0.2" in text
    assert "within 3 s per set of sizes" in text and "cut after 4 s" in text


def test_table() -> None:
    assert Table(["a", "b"], [["x", "1"]]).markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |"
