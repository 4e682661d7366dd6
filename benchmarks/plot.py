"""Charts of measured rows as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.latency import LatencyRow
from benchmarks.search import SearchRow

_FASTER, _SLOWER, _PLAIN = "#1b7837", "#b2182b", "#4575b4"
#: the same rows give the same file
matplotlib.rcParams["svg.hashsalt"] = "mirage"


def plot_ratios(rows: Sequence[LatencyRow], path: Path) -> None:
    """How many times faster ours is than the best peer, a bar per program and set of sizes."""
    labels = [r.program if r.sizes == "default" else f"{r.program}, {r.sizes}" for r in rows]
    peers = ["ONNX Runtime" if r.best_peer.startswith("ONNX Runtime") else "PyTorch" for r in rows]
    _bars(
        labels,
        [r.ratio for r in rows],
        [_FASTER if r.ratio >= 1 else _SLOWER for r in rows],
        [f"{r.ratio:.2f}  ({peer})" for r, peer in zip(rows, peers, strict=True)],
        "best peer's time / ours (above 1: ours is faster)",
        path,
        mark=1.0,
    )


def plot_search(rows: Sequence[SearchRow], path: Path) -> None:
    """Seconds that each program's search took."""
    _bars(
        [r.program for r in rows],
        [r.seconds for r in rows],
        [_PLAIN] * len(rows),
        [f"{r.seconds:.2g} s, {r.prefixes:,} prefixes" for r in rows],
        "search time (s)",
        path,
    )


def _bars(
    labels: Sequence[str],
    values: Sequence[float],
    colors: Sequence[str],
    notes: Sequence[str],
    title: str,
    path: Path,
    mark: float | None = None,
) -> None:
    """Horizontal bars on a logarithmic scale, the first one on top, each with a note at its end."""
    figure = Figure(figsize=(8, 0.9 + 0.27 * len(labels)), layout="constrained")
    axes = figure.subplots()
    low, high = min([*values, mark or values[0]]) / 2, max([*values, mark or values[0]])
    axes.barh(range(len(labels)), [v - low for v in values], left=low, color=colors, height=0.7)
    for i, (value, note) in enumerate(zip(values, notes, strict=True)):
        axes.annotate(note, (value, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    if mark is not None:
        axes.axvline(mark, color="black", linewidth=0.8)
    axes.set_xscale("log")
    # room for the notes beside the longest bar
    axes.set_xlim(low, high * (high / low) ** 0.35)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel(title)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
