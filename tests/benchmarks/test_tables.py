"""Tables of the benchmarks, and the page that they are written to."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path

import numpy as np
import pytest

import benchmarks.run
from benchmarks.kernels.race import KernelRow
from benchmarks.page import Page, fill, processor
from benchmarks.run import DOCS, conditions
from benchmarks.tables import Table, mean_text
from mirage.errors import InputError
from mirage.kernels.cpu.model.limits import Limits

WHOLE = (
    "a\n<!-- x: written by make bench -->\n<!-- on A, 2 cores -->\nold\n\nof two\n<!-- end of x -->\nb\n"
    "<!-- y: written by make bench -->\n<!-- end of y -->\n"
)


def test_fill_replaces_only_what_was_measured_on_a_processor() -> None:
    assert fill(WHOLE, "x", "new", "A, 2 cores") == WHOLE.replace("old\n\nof two", "new")
    both = fill(WHOLE, "x", "other", "B, 4 cores")
    assert both == WHOLE.replace("of two\n", "of two\n\n<!-- on B, 4 cores -->\nother\n")
    assert fill(both, "x", "new", "A, 2 cores") == both.replace("old\n\nof two", "new")
    assert fill(both, "x", "new", "B, 4 cores") == both.replace("other", "new")
    assert fill(WHOLE, "y", "first", "A, 2 cores").endswith(
        "<!-- y: written by make bench -->\n<!-- on A, 2 cores -->\nfirst\n<!-- end of y -->\n"
    )


def test_fill_names_the_missing_marker() -> None:
    with pytest.raises(ValueError, match="end of y"):
        fill("<!-- y: written by make bench -->", "y", "new", "A")


def test_each_part_is_written_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text(WHOLE)
    page, other = Page(tmp_path, "A, 2 cores"), Page(tmp_path, "B, 4 cores")
    page.write({"x": "new"}, {"x": [{"us": 1.0}]})
    other.write({"y": "other"}, {"x": [{"us": 2.0}]})
    page.write({}, {"y": [{"us": 3.0}]})
    text = (tmp_path / "benchmarks.md").read_text()
    assert "<!-- on A, 2 cores -->\n**A, 2 cores**, 20" in text and ":\n\nnew\n<!-- end of x -->" in text and "old" not in text
    assert "<!-- on B, 4 cores -->\n**B, 4 cores**, 20" in text and ":\n\nother\n<!-- end of y -->" in text
    stored = {"x": {"A, 2 cores": [{"us": 1.0}], "B, 4 cores": [{"us": 2.0}]}, "y": {"A, 2 cores": [{"us": 3.0}]}}
    assert json.loads((tmp_path / "benchmarks.json").read_text()) == stored
    assert (page.rows("x"), other.rows("x"), other.rows("y")) == ([{"us": 1.0}], [{"us": 2.0}], [])
    with pytest.raises(ValueError, match="z belongs"):
        page.write({"x": "newer", "z": ""}, {"z": []})
    assert (tmp_path / "benchmarks.md").read_text() == text


def rows(program: str, us: float, share: float = 0.5) -> list[KernelRow]:
    numpy = {"reference": (us, us), "library": (us, us)}
    return [
        KernelRow(
            program, "a", 1, cold, us, us, "JAX", us, us, False, 5, 1.0, 1.0, share * us, share, "mugraph", 1, numpy,
        )
        for cold in (False, True)
    ]  # fmt: skip


def test_programs_are_measured_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other programs stay; a program that is faster than the machine leaves the page as it was."""
    markers = "<!-- {0}: written by make bench -->\n<!-- end of {0} -->\n"
    (tmp_path / "benchmarks.md").write_text(markers.format("conditions") + markers.format("latency"))
    measured = {"softmax": rows("softmax", 3.0), "lora": rows("lora", 2.0), "moe": rows("moe", 1.0, 1.2)}
    monkeypatch.setattr(benchmarks.run, "measure", lambda names, *_: (measured[names[0]], Limits(1, 2, 3, 2)))
    monkeypatch.setattr(benchmarks.run, "plot_ratios", lambda *_: None)

    def run(*programs: str) -> tuple[int, list[str]]:
        with pytest.raises(SystemExit) as exit:
            benchmarks.run.main(["kernels"], list(programs), docs=tmp_path)
        return int(exit.value.code or 0), [r["program"] for r in Page(tmp_path, processor()).rows("latency") if r["cold"]]

    assert run("softmax") == (0, ["softmax"])
    assert run("lora", "softmax") == (0, ["lora", "softmax"])
    measured["lora"] = rows("lora", 9.0)
    assert run("moe", "lora") == (1, ["lora", "softmax"])
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| lora | a | cold | 9.0 |" in text and "| softmax | a | cold | 3.0 |" in text and "moe" not in text


def test_rows_of_other_keys_stay(tmp_path: Path) -> None:
    """Rows are written by their keys, each as soon as it is measured; rows with other fields tell something else, and go."""
    (tmp_path / "benchmarks.md").write_text("<!-- cells: written by make bench -->\n<!-- end of cells -->\n")
    page = Page(tmp_path, "A, 2 cores")
    run = benchmarks.run._Run(page, tmp_path, [], 1.0, 1.0, 0.0)

    @dataclasses.dataclass
    class Cell:
        name: str
        us: float

    def write(*cells: Cell) -> list[tuple[str, float]]:
        benchmarks.run._row_by_row(run, "cells", Cell, cells, lambda c: c.name, lambda cells: f"{len(cells)} cells")
        return [(r["name"], r["us"]) for r in page.rows("cells")]

    page.write({}, {"cells": [{"name": "a", "ms": 1.0}]})
    assert write(Cell("gru", 2.0), Cell("cnn", 1.0)) == [("cnn", 1.0), ("gru", 2.0)]
    assert write(Cell("lstm", 4.0), Cell("cnn", 3.0)) == [("cnn", 3.0), ("gru", 2.0), ("lstm", 4.0)]
    assert "3 cells" in (tmp_path / "benchmarks.md").read_text()


def test_parts_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="no part is named kernel; choose from kernels, micro"):
        benchmarks.run.main(["kernels", "kernel"])


def test_the_page_has_all_markers() -> None:
    text = Path(DOCS / "benchmarks.md").read_text(encoding="utf-8")
    names = ("conditions", "latency", "overhead", "search", "phases", "pruning", "scaling")
    for name in (*names, "compiler", "activation memory", "dispatch"):
        assert fill(text, name, "unlikely", "A, 2 cores") != text


def test_conditions_name_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.run, "_PACKAGES", ("numpy", "no-such-package"))
    text = conditions(Limits(81.6, 400.0, 500.0, 2), 0.25, budget=3, cut=4)
    assert f"Python {platform.python_version()}, numpy {np.__version__}. " in text
    assert "memory 82 GB/s, cache 400 GB/s, 500 GFLOP/s with 2 threads; load average 0.2" in text
    assert "within 3 s per set of sizes" in text and "cut after 4 s" in text


def test_table() -> None:
    assert Table(["a", "b"], [["x", "1"]]).markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_geometric_means() -> None:
    assert mean_text([2.0, 8.0]) == "4.00" and mean_text([]) == ""
