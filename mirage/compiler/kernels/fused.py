"""Kernels of groups that are fused without a search: forms of one kernel or two, tiles and versions as the cost model has
them.

The model orders forms and schedules at typical sizes; nothing is measured. One schedule does not suit all sizes (BladeDISC,
section 5.2), so a kernel has as many versions as a decision tree over modelled times has leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mirage.compiler.fused_graph import fused_graphs
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.kernels.versions import KernelVersion, compile_versions
from mirage.compiler.staged_graph import staged_graphs
from mirage.errors import AxisError, DimError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.processor import processor
from mirage.kernels.cpu.target import CpuTarget
from mirage.kernels.cpu.tuning import CpuTuning
from mirage.kernels.decision import leaves, relabel
from mirage.kernels.target import Scheduled
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph
from mirage.search.buckets import Sizes, is_empty, sample_points
from mirage.search.decide import learn

#: elements of a dim of which nothing is known
DEFAULT_SIZE = 4096


def fused_kernel(
    program: Program,
    hints: Sequence[Mapping[str, int]],
    model: CostModel,
    *,
    bounds: Mapping[str, int] | None = None,
    constants: Collection[str] = (),
) -> MuGraphKernel | None:
    """One kernel for the whole program, built and scheduled without a search or measurements; None where it has no such form
    (`fused_graphs`), or a block of every form needs more memory than a core has caches. At sizes where one kernel would leave
    threads idle, it may run two (`staged_graphs`).

    `hints` are typical sizes (dim symbol -> elements, at least 1), at which the best version as modelled runs; `bounds` the
    most that dims can be, where they are known. Without hints, dims are as large as they can be, or 4096. The kernel runs at
    all sizes. Raises DimError where a hint lacks a dim, and what `compile_versions` raises.
    """
    symbols = program.symbols()
    most = bounds or {}
    anchors = anchor_sizes(program, hints, most)
    graphs = _graphs(program)

    def allowed(sizes: Sizes) -> bool:
        return all(n <= most.get(s, n) for s, n in sizes.items()) and not is_empty(program, sizes)

    points = [*anchors, *sample_points(anchors, allowed)]
    tuning = CpuTuning(model, tuple(constants), CpuTarget(processor()).made)
    every: dict[tuple[int, Any], Scheduled] = {}
    for w in (w for p in points for w in tuning.at(graphs, p)[0]):
        every.setdefault(w.pair, w)
    if not every:
        return None
    ways = list(every.values())
    times = [[tuning.us(w.graph, w.schedule, p) for w in ways] for p in points]
    tree = learn(symbols, points, times, wanted=len(anchors))
    used = list(dict.fromkeys(v for _, v in leaves(tree)))
    versions = [KernelVersion("mugraph", ways[k].graph, ways[k].schedule, ways[k].sizes) for k in used]
    compiled = compile_versions(program, versions, constants)
    return MuGraphKernel(
        program, compiled, relabel(tree, {k: i for i, k in enumerate(used)}), "fused", tuple(constants)
    )


def anchor_sizes(
    program: Program, hints: Sequence[Mapping[str, int]], bounds: Mapping[str, int]
) -> list[dict[str, int]]:
    """The distinct sets of sizes to schedule for: the hints, or without any, dims as large as they can be, else 4096.

    Raises DimError where a hint lacks a dim.
    """
    symbols = program.symbols()
    given = hints or [{s: bounds.get(s, DEFAULT_SIZE) for s in symbols}]
    return [dict(key) for key in dict.fromkeys(tuple(_sizes(program, symbols, h).items()) for h in given)]


def _sizes(program: Program, symbols: Sequence[str], given: Mapping[str, int]) -> Sizes:
    if missing := [s for s in symbols if s not in given]:
        raise DimError(f"{program.name}: sizes {dict(given)} lack {', '.join(missing)}; give every dim one")
    return {s: max(given[s], 1) for s in symbols}


def _graphs(program: Program) -> list[tuple[MuGraph, RunningMaximum]]:
    try:
        axis_program = to_axes(program)
    except AxisError:
        return []
    fused = list(fused_graphs(axis_program))
    return [(g, analyze(g)) for g in (*fused, *staged_graphs(axis_program))] if fused else []
