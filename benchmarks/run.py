"""Measures everything, or parts of it, and writes docs/benchmarks.md, its data and its charts: `make bench`.

`python -m benchmarks.run [PART ...]` measures and writes these parts (`PARTS`).
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cache_hits import hit_table
from benchmarks.cache_hits import measure as measure_hits
from benchmarks.compiler.memory import MemoryRow
from benchmarks.compiler.race import CompilerRow, as_data, sections
from benchmarks.compiler.race import check as check_compiler
from benchmarks.compiler.race import measure as measure_compiler
from benchmarks.imports import import_table
from benchmarks.imports import measure as measure_imports
from benchmarks.kernels.micro import check as check_micro
from benchmarks.kernels.micro import measure as measure_micro
from benchmarks.kernels.micro import micro_table
from benchmarks.kernels.model import measure as measure_model
from benchmarks.kernels.model import model_table
from benchmarks.kernels.model import rows as model_rows
from benchmarks.kernels.overhead import measure as measure_overhead
from benchmarks.kernels.overhead import overhead_table
from benchmarks.kernels.race import BUDGET, KernelRow, better, check, kernel_table, measure, summary
from benchmarks.page import Page, processor
from benchmarks.plot import plot_compiler, plot_memory, plot_pruning, plot_ratios, plot_scaling, plot_search
from benchmarks.programs import KERNELS
from benchmarks.search.adversary import adversary_table, by_kind
from benchmarks.search.adversary import measure as measure_adversary
from benchmarks.search.anytime import anytime_table
from benchmarks.search.anytime import measure as measure_anytime
from benchmarks.search.by_hand import by_hand_table
from benchmarks.search.by_hand import measure as measure_by_hand
from benchmarks.search.kills import kills_summary
from benchmarks.search.kills import measure as measure_kills
from benchmarks.search.large_programs import large_table
from benchmarks.search.large_programs import measure as measure_large
from benchmarks.search.pruning import ablation, pruning_table
from benchmarks.search.rewrite_programs import PROGRAMS as REWRITES
from benchmarks.search.rewrites import RewriteRow, rewrites_table, searches_table
from benchmarks.search.rewrites import measure as measure_rewrites
from benchmarks.search.rules import measure as measure_rules
from benchmarks.search.rules import rules_table
from benchmarks.search.scaling import scaling, scaling_table
from benchmarks.search.searches import measure as measure_searches
from benchmarks.search.searches import phase_table, search_table
from benchmarks.tables import as_rows
from mirage.errors import InputError, VerificationError
from mirage.kernels.cpu import processor as machine
from mirage.kernels.cpu.model.limits import Limits

#: seconds after which searches of the ablation and of the scaling are cut
CUT = 30.0
#: processes whose imports are timed, and those that recall a result; deadlines, and the seconds for the best version, of the
#: comparison of deadlines
IMPORTS, RECALLS = 7, 9
ANYTIME_BUDGETS, ANYTIME_BEST = (2.0, 10.0), 60.0
#: the program whose superoptimizations are killed
KILLED = "qknorm_attention"
DOCS = Path(__file__).parents[1] / "docs"
_PACKAGES = ("mirage-superoptimizer", "numpy", "torch", "transformers", "onnxruntime", "openvino", "jax", "z3-solver")


def conditions(limits: Limits, load: float, budget: float, cut: float) -> str:
    """The machine with its measured limits and its load average, the versions and the budgets, as Markdown."""
    target = machine.processor()
    versions = ", ".join(f"{p} {v}" for p in _PACKAGES if (v := _version(p)))
    return (
        f"{target.l2_bytes >> 10} KiB L2 per core, {target.l3_bytes >> 20} MiB L3, vectors of {target.vector_bytes} bytes; "
        f"measured limits: memory {limits.dram_gbs:.0f} GB/s, cache {limits.cache_gbs:.0f} GB/s, {limits.gflops:.0f} GFLOP/s "
        f"with {limits.threads} threads; load average {load:.1f} before the run. Python {platform.python_version()}, {versions}. "
        f"Latencies are those of a search, verification and tuning within {budget:g} s per set of sizes; searches of the "
        f"ablation and of the scaling were cut after {cut:g} s."
    )


def _version(package: str) -> str:
    """The version of an installed package; empty where a peer is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class _Run:
    """What parts are measured with."""

    page: Page
    figures: Path
    names: list[str]
    budget: float
    cut: float
    load: float


def _earlier(run: _Run, part: str, kind: type[Any]) -> list[Any]:
    """The rows of a part of the page that were measured before, where they tell as much as those of this kind."""
    fields = {f.name for f in dataclasses.fields(kind)}
    return [kind(**r) for r in run.page.rows(part) if set(r) == fields]


def _kernels(run: _Run) -> None:
    """Writes the rows of each program when they are measured; those of other programs stay, where they tell as much."""
    best, refused = None, []
    for name in run.names or KERNELS:
        latency, limits = measure([name], run.budget, _say)
        best = limits if best is None else better(best, limits)
        try:
            check(latency)
        except VerificationError as e:
            refused.append(str(e))
            continue
        kept = [r for r in _earlier(run, "latency", KernelRow) if r.program != name]
        rows = sorted(kept + latency, key=lambda r: list(KERNELS).index(r.program))
        means = f"{kernel_table(rows).markdown()}\n\n{summary(rows)}"
        about = conditions(best, run.load, run.budget, run.cut)
        run.page.write({"conditions": about, "latency": means}, {"latency": as_rows(rows)})
        plot_ratios(rows, run.figures / "latency.svg")
    if refused:
        raise VerificationError("; ".join(refused))


def _micro(run: _Run) -> None:
    micro = list(measure_micro())
    check_micro(micro)
    run.page.write({"micro": micro_table(micro).markdown()}, {"micro": as_rows(micro)})


def _model(run: _Run) -> None:
    model = model_rows(list(measure_model(run.names, _say)))
    run.page.write({"model": model_table(model).markdown()}, {"model": as_rows(model)})


def _overhead(run: _Run) -> None:
    overhead = list(measure_overhead(_say))
    run.page.write({"overhead": overhead_table(overhead).markdown()}, {"overhead": as_rows(overhead)})


def _compiler(run: _Run) -> None:
    found = measure_compiler(run.names, say=_say)
    check_compiler(found.programs)
    whole = found.beside(_earlier(run, "compiler", CompilerRow), _earlier(run, "activation memory", MemoryRow))
    run.page.write(sections(whole), as_data(whole))
    plot_compiler(whole.programs, run.figures / "compiler.svg")
    plot_memory(whole.memory, run.figures / "activation-memory.svg")


def _flow(run: _Run) -> None:
    """Writes the rows of each model when they are measured; those of other models stay, where they tell as much."""
    # needs torch, which other parts do without
    from benchmarks.flow.race import FlowRow, measure, section

    fields = {f.name for f in dataclasses.fields(FlowRow)}
    for rows in measure(run.names, say=_say):
        measured = {(r.model, r.mode) for r in rows}
        kept = [FlowRow(**r) for r in run.page.rows("flow") if set(r) == fields]
        rows += [r for r in kept if (r.model, r.mode) not in measured]
        run.page.write({"flow": section(rows)}, {"flow": as_rows(rows)})


def _row_by_row(
    run: _Run, part: str, kind: type[Any], rows: Iterable[Any], key: Callable[[Any], Any], section: Callable[[Any], str]
) -> None:
    """Writes rows of a kind by their keys, each when it is measured; those of other keys stay, where they tell as much."""
    for row in rows:
        found = sorted([*(r for r in _earlier(run, part, kind) if key(r) != key(row)), row], key=key)
        run.page.write({part: section(found)}, {part: as_rows(found)})


def _rewrites(run: _Run) -> None:
    def section(rows: Sequence[RewriteRow]) -> str:
        return f"{searches_table(rows).markdown()}\n\n{rewrites_table(rows).markdown()}"

    rows = measure_rewrites(run.names, say=_say)
    _row_by_row(run, "rewrites", RewriteRow, rows, lambda r: list(REWRITES).index(r.name), section)


def _rules(run: _Run) -> None:
    rows = list(measure_rules(run.names, say=_say))
    run.page.write({"rules": rules_table(rows).markdown()}, {"rules": as_rows(rows)})


# the peers of the following parts need torch and ONNX Runtime, which other parts do without


def _networks(run: _Run) -> None:
    from benchmarks.flow.networks import NETWORKS, NetworkRow, measure, section

    order = list(NETWORKS)
    _row_by_row(run, "networks", NetworkRow, measure(run.names, _say), lambda r: (order.index(r.label), r.batch), section)


def _quantized(run: _Run) -> None:
    from benchmarks.flow.quantized import NETWORKS, QuantizedRow, measure, section

    order = list(NETWORKS)
    rows = measure(run.names, _say)
    _row_by_row(run, "quantized", QuantizedRow, rows, lambda r: (order.index(r.network), r.batch), section)


def _stored(run: _Run) -> None:
    from benchmarks.flow.stored import NAMES, StoredRow, measure, section

    _row_by_row(run, "stored", StoredRow, measure(run.names, _say), lambda r: NAMES.index(r.case), section)


def _widened(run: _Run) -> None:
    from benchmarks.flow.widened import CASES, WidenedRow, measure, section

    _row_by_row(run, "widened", WidenedRow, measure(run.names, _say), lambda r: list(CASES).index(r.case), section)


def _deep(run: _Run) -> None:
    from benchmarks.flow.deep import NAMES, DeepRow, measure, section

    _row_by_row(run, "deep", DeepRow, measure(run.names, _say), lambda r: NAMES.index(r.model), section)


def _architectures(run: _Run) -> None:
    from benchmarks.flow.architectures import ArchitectureRow, measure, section

    _row_by_row(run, "architectures", ArchitectureRow, measure(run.names, _say), lambda r: r.name, section)


def _bfloat16(run: _Run) -> None:
    from benchmarks.flow.bfloat16 import Bfloat16Row, measure, section
    from benchmarks.flow.models import CASES

    order, rows = list(CASES), measure(run.names, _say)
    _row_by_row(run, "bfloat16", Bfloat16Row, rows, lambda r: (order.index(r.case), r.batch, r.length, r.cached), section)


def _generation(run: _Run) -> None:
    from benchmarks.flow.generation import CACHES, PROMPTS, GenerationRow, measure, section

    order, rows = [*PROMPTS, *CACHES], measure(run.names, _say)

    def key(r: GenerationRow) -> tuple[int, bool, tuple[int, int], int]:
        return order.index(r.model), r.dtype != "float32", (r.prompt[0], r.prompt[1]), order.index(r.cache)

    _row_by_row(run, "generation", GenerationRow, rows, key, section)


def _relay(run: _Run) -> None:
    from benchmarks.flow.relay import RelayRow, measure, section
    from benchmarks.graphs.relay import MODELS

    _row_by_row(run, "relay", RelayRow, measure(run.names, _say), lambda r: list(MODELS).index(r.model), section)


def _gradients(run: _Run) -> None:
    from benchmarks.flow.gradients import CASES, GradientRow, gradient_table, measure

    def section(rows: Sequence[GradientRow]) -> str:
        return gradient_table(rows).markdown()

    _row_by_row(run, "gradients", GradientRow, measure(run.names), lambda r: list(CASES).index(r.name), section)


def _imports(run: _Run) -> None:
    imports = list(measure_imports(IMPORTS))
    run.page.write({"imports": import_table(imports).markdown()}, {"imports": as_rows(imports)})


def _hits(run: _Run) -> None:
    rows = list(measure_hits(RECALLS))
    run.page.write({"hits": hit_table(rows).markdown()}, {"hits": as_rows(rows)})


def _search(run: _Run) -> None:
    search = list(measure_searches(run.names, say=_say))
    tables = {"search": search_table(search).markdown(), "phases": phase_table(search).markdown()}
    run.page.write(tables, {"search": as_rows(search)})
    plot_search(search, run.figures / "search.svg")


def _pruning(run: _Run) -> None:
    pruning = list(ablation(run.cut, _say))
    run.page.write({"pruning": pruning_table(pruning).markdown()}, {"pruning": as_rows(pruning)})
    plot_pruning(pruning, run.figures / "pruning.svg")


def _scaling(run: _Run) -> None:
    scaled = list(scaling(run.cut, _say))
    run.page.write({"scaling": scaling_table(scaled).markdown()}, {"scaling": as_rows(scaled)})
    plot_scaling(scaled, run.figures / "scaling.svg")


def _large(run: _Run) -> None:
    rows = list(measure_large(run.cut, _say))
    run.page.write({"large": large_table(rows).markdown()}, {"large": as_rows(rows)})
    by_hand = list(measure_by_hand([], say=_say))
    run.page.write({"partitions": by_hand_table(by_hand).markdown()}, {"partitions": as_rows(by_hand)})


def _anytime(run: _Run) -> None:
    anytime = list(measure_anytime(run.names, ANYTIME_BUDGETS, best_budget=ANYTIME_BEST, say=_say))
    run.page.write({"anytime": anytime_table(anytime).markdown()}, {"anytime": as_rows(anytime)})


def _kills(run: _Run) -> None:
    killed = list(measure_kills(KILLED, say=_say))
    run.page.write({"kills": kills_summary(killed).markdown()}, {"kills": as_rows(killed)})


def _masks(run: _Run) -> None:
    # needs torch, which other parts do without
    from benchmarks.flow.masks import measure, section

    rows = list(measure(_say))
    run.page.write({"masks": section(rows)}, {"masks": as_rows(rows)})


def _convolutions(run: _Run) -> None:
    # needs torch, which other parts do without
    from benchmarks.flow.convolutions import CASES, ConvolutionRow, measure, section

    order = list(CASES)
    _row_by_row(run, "convolutions", ConvolutionRow, measure(run.names, _say), lambda r: (order.index(r.layer), r.batch), section)


def _products(run: _Run) -> None:
    # needs torch, which other parts do without
    from benchmarks.flow.products import measure, product_table

    rows = list(measure())
    run.page.write({"products": product_table(rows).markdown()}, {"products": as_rows(rows)})


def _adversary(run: _Run) -> None:
    """Refused where a verdict is wrong."""
    found = list(measure_adversary())
    if wrong := [j for j in found if j.wrong]:
        raise VerificationError("; ".join(map(str, wrong)))
    rows = by_kind(found)
    run.page.write({"adversary": adversary_table(rows).markdown()}, {"adversary": as_rows(rows)})


#: what measures a part of the page and writes it, by name, in the order in which all are measured
PARTS: Mapping[str, Callable[[_Run], None]] = {
    "kernels": _kernels,
    "micro": _micro,
    "model": _model,
    "overhead": _overhead,
    "compiler": _compiler,
    "flow": _flow,
    "architectures": _architectures,
    "networks": _networks,
    "relay": _relay,
    "gradients": _gradients,
    "products": _products,
    "quantized": _quantized,
    "stored": _stored,
    "widened": _widened,
    "deep": _deep,
    "bfloat16": _bfloat16,
    "generation": _generation,
    "masks": _masks,
    "convolutions": _convolutions,
    "imports": _imports,
    "hits": _hits,
    "search": _search,
    "pruning": _pruning,
    "scaling": _scaling,
    "large": _large,
    "rules": _rules,
    "rewrites": _rewrites,
    "anytime": _anytime,
    "kills": _kills,
    "adversary": _adversary,
}


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"All if none is named: {', '.join(PARTS)}.")] = None,
    programs: Annotated[
        list[str] | None, typer.Option("--program", help="A program, of parts that have some; all if none is named.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize, per set of sizes.")] = BUDGET,
    cut: Annotated[
        float, typer.Option(help="Seconds after which searches of the ablation and the scaling are cut.")
    ] = CUT,
    docs: Annotated[Path, typer.Option(help="Folder with benchmarks.md, where everything is written.")] = DOCS,
) -> None:
    """Measure parts of the page, and write each when it is measured.

    A part in which a result is wrong, or faster than the machine's limit, is not written, and the exit status is 1.
    """
    unknown = [p for p in parts or () if p not in PARTS]
    if unknown:
        raise InputError(f"no part is named {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    run = _Run(Page(docs, processor()), docs / "figures", programs or [], budget, cut, os.getloadavg()[0])
    refused = []
    for name in parts or PARTS:
        try:
            PARTS[name](run)
        except VerificationError as e:
            refused.append(name)
            _say(f"{name} is not written: {e}")
    raise SystemExit(bool(refused))


if __name__ == "__main__":
    typer.run(main)
