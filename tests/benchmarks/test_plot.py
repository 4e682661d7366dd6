"""The charts of the benchmarks are readable SVG and depend on nothing but their rows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.latency import LatencyRow
from benchmarks.search import SearchRow

pytest.importorskip("matplotlib")


def row(program: str, ratio: float) -> LatencyRow:
    return LatencyRow(
        program, "default", 10.0, 9.0, "ONNX Runtime", 10 * ratio, 9 * ratio, ratio, 5.0, 0.5, "mugraph", 1, {}
    )


def test_charts(tmp_path: Path) -> None:
    from benchmarks.plot import plot_ratios, plot_search

    for name, rows in (("a", [row("faster", 2.5), row("slower", 0.4)]), ("b", [row("equal", 1.0)])):
        plot_ratios(rows, tmp_path / f"{name}.svg")
        plot_ratios(rows, tmp_path / "again.svg")
        first = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(first).tag.endswith("svg")
        assert first == (tmp_path / "again.svg").read_text(encoding="utf-8")
        assert all(r.program in first for r in rows)
    plot_search([SearchRow("p", 0.5, 10, 100, 3, 2, 2, 0.1, "complete")], tmp_path / "figures" / "search.svg")
    assert "10 prefixes" in (tmp_path / "figures" / "search.svg").read_text(encoding="utf-8")
