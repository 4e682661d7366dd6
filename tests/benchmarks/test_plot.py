"""The charts of the benchmarks are readable SVG and depend on nothing but their rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.compiler.memory import MemoryRow
from benchmarks.compiler.race import CompilerRow
from benchmarks.kernels.race import KernelRow
from benchmarks.search.pruning import PruningRow
from benchmarks.search.scaling import SERIES, WORKERS, ScalingRow
from benchmarks.search.searches import SearchRow

pytest.importorskip("matplotlib")


def pair(program: str, hot: float, cold: float) -> list[KernelRow]:
    return [
        KernelRow(
            program, "batch8", 8, is_cold, 10.0, 9.0, "torch.compile nn.Linear layout", 10 * ratio, 9 * ratio, True, 5,
            ratio, ratio, 5.0, 0.5, "mugraph", 1, {},
        )
        for is_cold, ratio in ((False, hot), (True, cold))
    ]  # fmt: skip


def test_charts(tmp_path: Path) -> None:
    from benchmarks.plot import plot_ratios

    for rows in (pair("faster", 2.5, 3.5) + pair("slower", 7.0, 0.4), pair("equal", 1.0, 1.0)):
        text = drawn(partial(plot_ratios, rows), tmp_path)
        assert all(f"{r.program}, batch8" in text for r in rows)
        for hot, cold in zip(rows[::2], rows[1::2], strict=True):
            assert f"{cold.ratio:.2f}, hot {hot.ratio:.2f}  (torch.compile)" in text
        assert "cache-hot" in text


def test_chart_of_searches(tmp_path: Path) -> None:
    from benchmarks.plot import plot_search

    row = SearchRow("p", 0.5, 0.1, 0.2, 10, 100, 4, 3, 2, 2, 0.1, 50.0, 5.0, {}, {}, "complete")
    text = drawn(partial(plot_search, [row]), tmp_path / "figures")
    assert "0.5 s, 3 graphs" in text and "first graph" in text


def test_charts_of_ablation_and_scaling(tmp_path: Path) -> None:
    from benchmarks.plot import plot_pruning, plot_scaling

    pruned = [PruningRow(v, k, 4, 0.5, 10, 100, 3, v == "none") for v in ("full", "none") for k in (1, 2)]
    text = drawn(partial(plot_pruning, pruned), tmp_path)
    assert all(label in text for label in ("full", "none", "operators per kernel, 2 kernels", "&gt; 0.5 s"))
    scaled = [ScalingRow(s, n, 2 * n, 0.5 * n, 10, 100, 3, n == 3) for s in (*SERIES, WORKERS) for n in (1, 2, 3)]
    text = drawn(partial(plot_scaling, scaled), tmp_path)
    assert all(label in text for label in (*SERIES, WORKERS, "operators", "axes", "&gt; 1.5 s"))
    assert "&gt; 1.5 s" not in drawn(partial(plot_scaling, [r for r in scaled if not r.cut]), tmp_path)


def test_charts_of_whole_programs(tmp_path: Path) -> None:
    from benchmarks.plot import plot_compiler, plot_memory

    def row(program: str, version: str, us: float, peer: bool = False) -> CompilerRow:
        return CompilerRow(program, "large", version, peer, 9, 9, 0, 1.5, us, us, 1000 / us, 10.0, 1.0, 1e-6)

    def of(program: str) -> list[CompilerRow]:
        return [row(program, version, us) for version, us in (("library only", 1000), ("fused only", 800), ("full", 500))]

    rows = [*of("bert_encoder"), *of("refinement"), row("bert_encoder", "PyTorch", 700, peer=True)]
    text = drawn(partial(plot_compiler, rows), tmp_path)
    assert "bert_encoder, large" in text and "0.5 ms  (PyTorch 0.7 ms)" in text and "best peer" in text
    assert "refinement" not in text
    # without any peer there is no such mark
    text = drawn(partial(plot_compiler, of("bert_encoder")), tmp_path)
    assert "0.5 ms" in text and "peer" not in text
    mib = 2**20
    memory = MemoryRow("p", "full", ("s=1", "s=2"), 5, 9 * mib, 8 * mib, 7 * mib, 6 * mib, 4 * mib, 0, 4 * mib, 0.5, 0.4, 0)
    text = drawn(partial(plot_memory, [memory]), tmp_path)
    assert "p, full" in text and "4 MiB, 50% saved" in text
    assert all(label in text for label in ("symbolic plan", "caching pool", "pool of size classes"))


def drawn(plot: Callable[[Path], None], folder: Path) -> str:
    """What a chart is, which is the same when it is drawn again."""
    first, again = folder / "first.svg", folder / "again.svg"
    plot(first)
    plot(again)
    text = first.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text == again.read_text(encoding="utf-8")
    return text
