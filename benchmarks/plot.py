"""Charts of measured rows as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

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
        origin=1.0,
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
    origin: float | None = None,
) -> None:
    """Horizontal bars on a logarithmic scale from `origin`, the first one on top, each with a note at its right end."""
    figure = Figure(figsize=(8, 0.9 + 0.27 * len(labels)), layout="constrained")
    axes = figure.subplots()
    base = min(values) / 2 if origin is None else origin
    axes.barh(range(len(labels)), [v - base for v in values], left=base, color=colors, height=0.7)
    for i, (value, note) in enumerate(zip(values, notes, strict=True)):
        axes.annotate(note, (max(value, base), i), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(base, color="black", linewidth=0.8)
    axes.set_xscale("log")
    low, high = min(base, *values), max(base, *values)
    # room for the notes beside the longest bar
    axes.set_xlim(low * (0.8 if low < base else 1.0), high * max(high / low, 2.0) ** 0.35)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel(title)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
