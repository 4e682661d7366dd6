"""Measures everything and writes docs/benchmarks.md, its data and its charts: `make bench`."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.compiler.race import as_data, sections
from benchmarks.compiler.race import measure as measure_compiler
from benchmarks.imports import import_table
from benchmarks.imports import measure as measure_imports
from benchmarks.kernels.micro import measure as measure_micro
from benchmarks.kernels.micro import micro_table
from benchmarks.kernels.model import measure as measure_model
from benchmarks.kernels.model import model_table
from benchmarks.kernels.model import rows as model_rows
from benchmarks.kernels.overhead import measure as measure_overhead
from benchmarks.kernels.overhead import overhead_table
from benchmarks.kernels.race import BUDGET, kernel_table, measure, summary
from benchmarks.plot import plot_compiler, plot_memory, plot_pruning, plot_ratios, plot_scaling, plot_search
from benchmarks.search.anytime import anytime_table
from benchmarks.search.anytime import measure as measure_anytime
from benchmarks.search.pruning import ablation, pruning_table
from benchmarks.search.scaling import scaling, scaling_table
from benchmarks.search.searches import measure as measure_searches
from benchmarks.search.searches import phase_table, search_table
from benchmarks.tables import as_rows
from mirage.folders import save_file
from mirage.kernels.cpu.model.limits import Limits
from mirage.kernels.target import get_target

#: seconds after which searches of the ablation and of the scaling are cut
CUT = 30.0
#: processes whose imports are timed; deadlines, and the seconds for the best version, of the comparison of deadlines
IMPORTS = 7
ANYTIME_BUDGETS, ANYTIME_BEST = (2.0, 10.0), 60.0
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


class Page:
    """benchmarks.md and benchmarks.json of a folder, where each part is written as soon as it is measured."""

    def __init__(self, docs: Path) -> None:
        self.page, self.data = docs / "benchmarks.md", docs / "benchmarks.json"

    def write(self, parts: Mapping[str, str], rows: Mapping[str, list[dict[str, Any]]]) -> None:
        """Replace what is between the markers of these names, and the rows of these names in the JSON object.

        Raises ValueError where markers are missing.
        """
        text = self.page.read_text(encoding="utf-8")
        for name, body in parts.items():
            text = fill(text, name, body)
        data = json.loads(self.data.read_text(encoding="utf-8")) if self.data.exists() else {}
        save_file(self.page, text)
        save_file(self.data, json.dumps(data | dict(rows), indent=1) + "\n")


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
    page, figures, load = Page(docs), docs / "figures", os.getloadavg()[0]
    latency, limits = measure(names or [], budget, _say)
    means = f"{kernel_table(latency).markdown()}\n\n{summary(latency)}"
    page.write({"conditions": conditions(limits, load, budget, cut), "latency": means}, {"latency": as_rows(latency)})
    plot_ratios(latency, figures / "latency.svg")
    micro = list(measure_micro())
    page.write({"micro": micro_table(micro).markdown()}, {"micro": as_rows(micro)})
    model = model_rows(list(measure_model(names or [], _say)))
    page.write({"model": model_table(model).markdown()}, {"model": as_rows(model)})
    overhead = list(measure_overhead(_say))
    page.write({"overhead": overhead_table(overhead).markdown()}, {"overhead": as_rows(overhead)})
    whole = measure_compiler([], say=_say)
    page.write(sections(whole), as_data(whole))
    plot_compiler(whole.programs, figures / "compiler.svg")
    plot_memory(whole.memory, figures / "activation-memory.svg")
    imports = list(measure_imports(IMPORTS))
    page.write({"imports": import_table(imports).markdown()}, {"imports": as_rows(imports)})
    search = list(measure_searches(names or [], say=_say))
    tables = {"search": search_table(search).markdown(), "phases": phase_table(search).markdown()}
    page.write(tables, {"search": as_rows(search)})
    plot_search(search, figures / "search.svg")
    pruning = list(ablation(cut, _say))
    page.write({"pruning": pruning_table(pruning).markdown()}, {"pruning": as_rows(pruning)})
    plot_pruning(pruning, figures / "pruning.svg")
    scaled = list(scaling(cut, _say))
    page.write({"scaling": scaling_table(scaled).markdown()}, {"scaling": as_rows(scaled)})
    plot_scaling(scaled, figures / "scaling.svg")
    anytime = list(measure_anytime(names or [], ANYTIME_BUDGETS, best_budget=ANYTIME_BEST, say=_say))
    page.write({"anytime": anytime_table(anytime).markdown()}, {"anytime": as_rows(anytime)})


if __name__ == "__main__":
    typer.run(main)
