"""Measures everything and writes docs/benchmarks.md, its data and its charts: `make bench`."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.latency import BUDGET, LatencyRow, measure
from benchmarks.plot import plot_ratios, plot_search
from benchmarks.pruning import CUT, PruningRow, ablation
from benchmarks.search import SearchRow, search_row
from mirage.kernels.cpu.limits import measure_limits
from mirage.kernels.target import get_target

DOCS = Path(__file__).parents[1] / "docs"
_PACKAGES = ("mirage-superoptimizer", "numpy", "torch", "onnxruntime", "z3-solver")


def conditions(budget: float, cut: float) -> str:
    """The machine, the date, the versions and the budgets of one run, as Markdown."""
    target, limits = get_target("cpu"), measure_limits(force=True)
    versions = ", ".join(f"{p} {version(p)}" for p in _PACKAGES)
    cores = "core" if target.cores == 1 else "cores"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {target.cpu}, {target.cores} {cores}, {target.l2_bytes >> 10} KiB L2 per core, "
        f"{target.l3_bytes >> 20} MiB L3, vectors of {target.vector_bytes} bytes; measured limits: memory {limits.dram_gbs:.0f} "
        f"GB/s, cache {limits.cache_gbs:.0f} GB/s, {limits.gflops:.0f} GFLOP/s with {limits.threads} threads; "
        f"load average {os.getloadavg()[0]:.1f} before the run. Python {platform.python_version()}, {versions}. "
        f"Every row of the latencies was superoptimized within {budget:g} s; searches of the ablation were cut after {cut:g} s."
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column holds names, the others are aligned to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latency_table(rows: Sequence[LatencyRow]) -> str:
    header = [
        "program",
        "sizes",
        "ours, us",
        "ours min",
        "best peer",
        "its us",
        "its min",
        "ratio",
        "limit, us",
        "share",
        "NumPy, us",
        "runs",
    ]
    return table(header, (_latency_cells(r) for r in rows))


def _latency_cells(r: LatencyRow) -> list[str]:
    numpy = min(r.times[name][1] for name in ("reference", "library"))
    runs = f"{r.kernels} kernel{'s' * (r.kernels != 1)}" if r.kernels else r.kind
    times = [f"{t:,.0f}" for t in (r.ours_us, r.ours_min_us)]
    peer = [r.best_peer, *(f"{t:,.0f}" for t in (r.best_peer_us, r.best_peer_min_us))]
    return [
        r.program, r.sizes, *times, *peer, f"{r.ratio:.2f}", f"{r.limit_us:,.1f}", f"{r.limit_share:.0%}", f"{numpy:,.0f}", runs,
    ]  # fmt: skip


def search_table(rows: Sequence[SearchRow]) -> str:
    header = ["program", "search, s", "prefixes", "checks", "candidates", "verified", "proved", "verify, s", "stopped"]
    cells = (
        [
            r.program,
            f"{r.seconds:.2f}",
            *(f"{n:,}" for n in (r.prefixes, r.checks, r.candidates, r.verified, r.proved)),
            f"{r.verify_seconds:.2f}",
            r.stop_reason,
        ]
        for r in rows
    )
    return table(header, cells)


def pruning_table(rows: Sequence[PruningRow]) -> str:
    """Seconds and prefixes per variant and number of operators; a search that was cut stands for all larger ones."""
    operators = sorted({r.operators for r in rows})
    found = {(r.kernels, r.variant, r.operators): r for r in rows}
    header = ["pruning", "kernels", *(f"{n} operators" for n in operators)]
    series = dict.fromkeys((r.kernels, r.variant) for r in rows)
    return table(header, ([v, str(k), *(_pruning_cell(found.get((k, v, n))) for n in operators)] for k, v in series))


def _pruning_cell(row: PruningRow | None) -> str:
    if row is None:
        return "-"
    if row.cut:
        return f"cut, {row.prefixes:,}+"
    return f"{row.seconds:.2f} s, {row.prefixes:,}"


def fill(text: str, name: str, body: str) -> str:
    """The text with what is between the markers of that name replaced; raises ValueError where they are missing."""
    begin, end = f"<!-- {name}: written by make bench -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"docs/benchmarks.md lacks the lines {begin!r} and {end!r}; put them where {name} belongs")
    return f"{before}{begin}\n{body}\n{end}{after}"


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize each set of sizes.")] = BUDGET,
    cut: Annotated[float, typer.Option(help="Seconds after which a search of the ablation is cut.")] = CUT,
    docs: Annotated[Path, typer.Option(help="Folder with benchmarks.md, where everything is written.")] = DOCS,
) -> None:
    page = docs / "benchmarks.md"
    text = fill(page.read_text(encoding="utf-8"), "conditions", conditions(budget, cut))
    latency: list[LatencyRow] = []
    searches: dict[str, SearchRow] = {}
    for _, result, row in measure(names or [], budget, _say):
        latency.append(row)
        # the search itself does not depend on the sizes: the first set stands for all
        searches.setdefault(row.program, search_row(result))
    pruning = list(ablation(cut, _say))
    search = list(searches.values())
    text = fill(text, "latency", latency_table(latency))
    text = fill(text, "search", search_table(search))
    text = fill(text, "pruning", pruning_table(pruning))
    plot_ratios(latency, docs / "figures" / "latency.svg")
    plot_search(search, docs / "figures" / "search.svg")
    data = {
        "latency": [asdict(r) for r in latency],
        "search": [asdict(r) for r in search],
        "pruning": [asdict(r) for r in pruning],
    }
    (docs / "benchmarks.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
