"""Measures everything and writes docs/benchmarks.md, its data and its charts: `make bench`."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compiler.race import as_data as compiler_data
from benchmarks.compiler.race import measure as measure_compiler
from benchmarks.compiler.race import sections
from benchmarks.kernels.micro import measure as measure_micro
from benchmarks.kernels.micro import micro_table
from benchmarks.kernels.model import measure as measure_model
from benchmarks.kernels.model import model_table
from benchmarks.kernels.model import rows as model_rows
from benchmarks.kernels.overhead import measure as measure_overhead
from benchmarks.kernels.overhead import overhead_table
from benchmarks.kernels.race import BUDGET, kernel_table, measure, summary
from benchmarks.plot import plot_compiler, plot_memory, plot_pruning, plot_ratios, plot_scaling, plot_search
from benchmarks.search.pruning import ablation, pruning_table
from benchmarks.search.scaling import scaling, scaling_table
from benchmarks.search.searches import measure as measure_searches
from benchmarks.search.searches import phase_table, search_table
from mirage.kernels.cpu.limits import Limits
from mirage.kernels.target import get_target

#: seconds after which searches of the ablation and of the scaling are cut, so that all takes some ten minutes
CUT = 30.0
DOCS = Path(__file__).parents[1] / "docs"
_PACKAGES = ("mirage-superoptimizer", "numpy", "torch", "onnxruntime", "jax", "z3-solver")


def conditions(limits: Limits, load: float, budget: float, cut: float) -> str:
    """The machine with its measured limits and its load average, the date, the versions and the budgets, as Markdown."""
    target = get_target("cpu")
    versions = ", ".join(f"{p} {v}" for p in _PACKAGES if (v := _version(p)))
    cores = "core" if target.cores == 1 else "cores"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {target.cpu}, {target.cores} {cores}, {target.l2_bytes >> 10} KiB L2 per core, "
        f"{target.l3_bytes >> 20} MiB L3, vectors of {target.vector_bytes} bytes; measured limits: memory {limits.dram_gbs:.0f} "
        f"GB/s, cache {limits.cache_gbs:.0f} GB/s, {limits.gflops:.0f} GFLOP/s with {limits.threads} threads; "
        f"load average {load:.1f} before the run. Python {platform.python_version()}, {versions}. "
        f"Latencies are those of a search, verification and tuning within {budget:g} s per set of sizes; searches of the "
        f"ablation and of the scaling were cut after {cut:g} s."
    )


def _version(package: str) -> str:
    """The version of an installed package; empty where a peer is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


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
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize, per set of sizes.")] = BUDGET,
    cut: Annotated[
        float, typer.Option(help="Seconds after which searches of the ablation and the scaling are cut.")
    ] = CUT,
    docs: Annotated[Path, typer.Option(help="Folder with benchmarks.md, where everything is written.")] = DOCS,
) -> None:
    page, figures = docs / "benchmarks.md", docs / "figures"
    text, load = page.read_text(encoding="utf-8"), os.getloadavg()[0]
    latency, limits = measure(names or [], budget, _say)
    micro = list(measure_micro())
    model = model_rows(list(measure_model(names or [], _say)))
    overhead = list(measure_overhead(_say))
    whole = measure_compiler([], say=_say)
    search = list(measure_searches(names or [], say=_say))
    pruning = list(ablation(cut, _say))
    scaled = list(scaling(cut, _say))
    text = fill(text, "conditions", conditions(limits, load, budget, cut))
    text = fill(text, "latency", f"{kernel_table(latency).markdown()}\n\n{summary(latency)}")
    for name, body in sections(whole).items():
        text = fill(text, name, body)
    tables = {
        "micro": micro_table(micro),
        "model": model_table(model),
        "overhead": overhead_table(overhead),
        "search": search_table(search),
        "phases": phase_table(search),
        "pruning": pruning_table(pruning),
        "scaling": scaling_table(scaled),
    }
    for name, table in tables.items():
        text = fill(text, name, table.markdown())
    plot_ratios(latency, figures / "latency.svg")
    plot_compiler(whole.programs, figures / "compiler.svg")
    plot_memory(whole.memory, figures / "activation-memory.svg")
    plot_search(search, figures / "search.svg")
    plot_pruning(pruning, figures / "pruning.svg")
    plot_scaling(scaled, figures / "scaling.svg")
    data = {
        "latency": [asdict(r) for r in latency],
        "micro": [asdict(r) for r in micro],
        "model": [asdict(r) for r in model],
        "overhead": [asdict(r) for r in overhead],
        **compiler_data(whole),
        "search": [asdict(r) for r in search],
        "pruning": [asdict(r) for r in pruning],
        "scaling": [asdict(r) for r in scaled],
    }
    (docs / "benchmarks.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
