"""Charts of measured rows as SVG files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchmarks.compiler.memory import MemoryRow
from benchmarks.compiler.race import MODELS, CompilerRow
from benchmarks.kernels.race import KernelRow
from benchmarks.page import processor
from benchmarks.peers.peers import LAYER_PEERS
from benchmarks.search.pruning import PruningRow
from benchmarks.search.scaling import PANELS, ScalingRow
from benchmarks.search.searches import SearchRow

_FASTER, _SLOWER, _PLAIN = "#1b7837", "#b2182b", "#4575b4"
#: the same rows give the same file
matplotlib.rcParams["svg.hashsalt"] = "mirage"
#: of every line its points: where, seconds, and whether the search was cut
_Lines = dict[str, list[tuple[int, float, bool]]]
#: the title of an x axis, and the lines above it
_Panel = tuple[str, _Lines]


def plot_ratios(rows: Sequence[KernelRow], path: Path) -> None:
    """How many times faster ours is than the best peer: cache-cold a bar, cache-hot a mark, per program and set of sizes."""
    cold, hot = ([r for r in rows if r.cold == is_cold] for is_cold in (True, False))
    peers = [_peer(r.best_peer) for r in cold]
    _bars(
        [r.program if r.sizes == "default" else f"{r.program}, {r.sizes}" for r in cold],
        [r.ratio for r in cold],
        [_FASTER if r.ratio >= 1 else _SLOWER for r in cold],
        [f"{c.ratio:.2f}, hot {h.ratio:.2f}  ({peer})" for c, h, peer in zip(cold, hot, peers, strict=True)],
        "best peer's time / ours, cache-cold (above 1: ours is faster)",
        path,
        origin=1.0,
        marks={"the same, cache-hot": [r.ratio for r in hot]},
    )


def _peer(version: str) -> str:
    """The peer that a version is of."""
    return next(peer for peer in LAYER_PEERS if version.startswith(peer))


def plot_search(rows: Sequence[SearchRow], path: Path) -> None:
    """Seconds that each program's search took, and when it had its first and its best graph."""
    _bars(
        [r.program for r in rows],
        [r.search_seconds for r in rows],
        [_PLAIN] * len(rows),
        [f"{r.search_seconds:.2g} s, {r.candidates:,} graphs" for r in rows],
        "search time (s)",
        path,
        marks={"first graph": [r.first_seconds for r in rows], "best graph": [r.first_best_seconds for r in rows]},
    )


def plot_pruning(rows: Sequence[PruningRow], path: Path) -> None:
    """Seconds against the operators of a kernel, a panel per number of kernels and a line per variant."""
    kernels = dict.fromkeys(r.kernels for r in rows)
    panels: list[_Panel] = []
    for k in kernels:
        lines: _Lines = {}
        for r in rows:
            if r.kernels == k:
                lines.setdefault(r.variant, []).append((r.operators, r.seconds, r.cut))
        panels.append((f"operators per kernel, {k} kernel{'s' * (k > 1)}", lines))
    _lines(panels, path)


def plot_scaling(rows: Sequence[ScalingRow], path: Path) -> None:
    """Seconds against the operators of a program, its axes, and workers, a panel each."""
    panels: list[_Panel] = []
    for title, series in PANELS.items():
        lines: _Lines = {}
        for r in rows:
            if r.series in series:
                x = r.operators if title == "operators" else r.count
                lines.setdefault(r.series, []).append((x, r.seconds, r.cut))
        panels.append((title, lines))
    _lines(panels, path)


def plot_compiler(rows: Sequence[CompilerRow], path: Path) -> None:
    """How many times faster models' layers are than by library calls: ours a bar; fused only and the best peer a mark."""
    groups: dict[str, dict[str, CompilerRow]] = {}
    for r in rows:
        if r.program in MODELS:
            groups.setdefault(f"{r.program}, {r.sizes}", {})[r.version] = r
    full = [g["full"] for g in groups.values()]
    peers = [max((r for r in g.values() if r.peer), key=lambda r: r.speedup, default=None) for g in groups.values()]
    marks = {"fused only": [g["fused only"].speedup for g in groups.values()]}
    if found := [p.speedup for p in peers if p is not None]:
        marks["best peer"] = found
    _bars(
        list(groups),
        [r.speedup for r in full],
        [_PLAIN] * len(full),
        [
            f"{r.median_us / 1e3:.3g} ms" + (f"  ({_peer(p.version)} {p.median_us / 1e3:.3g} ms)" if p else "")
            for r, p in zip(full, peers, strict=True)
        ],
        "time by library calls / superoptimized",
        path,
        origin=1.0,
        marks=marks,
    )


def plot_memory(rows: Sequence[MemoryRow], path: Path) -> None:
    """MiB that a program holds after calls of successive sizes: by a static plan a bar, by pools and a symbolic plan a mark."""
    mib = 2**20
    _bars(
        [f"{r.program}, {r.version}" for r in rows],
        [r.static / mib for r in rows],
        [_PLAIN] * len(rows),
        [f"{r.static / mib:,.0f} MiB, {r.saved:.0%} saved" for r in rows],
        "memory of intermediate tensors, static plan (MiB), and what it saves of the caching pool",
        path,
        marks={
            "symbolic plan": [r.symbolic / mib for r in rows],
            "caching pool": [r.caching / mib for r in rows],
            "pool of size classes": [r.size_class / mib for r in rows],
        },
    )


def _lines(panels: Sequence[_Panel], path: Path) -> None:
    """Panels beside each other, with one logarithmic scale of seconds; a search that was cut is a hollow mark."""
    figure = Figure(figsize=(4.4 * len(panels), 3.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(all_axes, panels, strict=True):
        for (label, points), marker in zip(lines.items(), itertools.cycle("osD^"), strict=False):
            (line,) = axes.plot(
                [x for x, *_ in points], [y for _, y, _ in points], marker=marker, markersize=4, label=label,
            )  # fmt: skip
            for x, y, was_cut in points:
                if was_cut:
                    axes.plot(x, y, marker=marker, markersize=8, markerfacecolor="white", color=line.get_color())
                    axes.annotate(f"> {y:.3g} s", (x, y), (8, -3), textcoords="offset points", fontsize=8)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(title)
        axes.margins(x=0.15, y=0.1)
        axes.grid(axis="y", linewidth=0.4)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    figure.axes[0].set_ylabel("search time (s)")
    _save(figure, path)


def _bars(
    labels: Sequence[str],
    values: Sequence[float],
    colors: Sequence[str],
    notes: Sequence[str],
    title: str,
    path: Path,
    origin: float | None = None,
    marks: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> None:
    """Horizontal bars on a logarithmic scale from `origin`, the first one on top, each with a note at its right.

    `marks` are further values, one per bar.
    """
    figure = Figure(figsize=(8, 0.9 + 0.27 * len(labels)), layout="constrained")
    axes = figure.subplots()
    base = min(*values, *itertools.chain(*marks.values())) / 2 if origin is None else origin
    axes.barh(range(len(labels)), [v - base for v in values], left=base, color=colors, height=0.7)
    ends = [max(base, *of_bar) for of_bar in zip(values, *marks.values(), strict=True)]
    for i, (end, note) in enumerate(zip(ends, notes, strict=True)):
        axes.annotate(note, (end, i), (6, 0), textcoords="offset points", va="center", fontsize=8)
    for (label, found), marker in zip(marks.items(), "|dx", strict=False):
        axes.plot(found, range(len(labels)), marker=marker, linestyle="none", markersize=7, color="black", label=label)
    if marks:
        axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(marks), frameon=False)
    axes.axvline(base, color="black", linewidth=0.8)
    axes.set_xscale("log")
    low, high = min(base, *values, *itertools.chain(*marks.values())), max(ends)
    # room for the notes beside the longest bar
    axes.set_xlim(low * (0.8 if low < base else 1.0), high * max(high / low, 2.0) ** 0.35)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel(title)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.suptitle(f"measured on {processor()}", fontsize=8, color="dimgray")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
