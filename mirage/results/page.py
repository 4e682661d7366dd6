"""The explorable page of a result: its graphs by modelled and measured cost, below the machine's limits, and what was pruned."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from math import prod

from mirage.drawing.page import Entry, Roofs, Rule, SearchPage, page_html
from mirage.drawing.show import Displayed, View, picture, show
from mirage.errors import InputError
from mirage.folders import save_file
from mirage.ir.dims import evaluate
from mirage.kernels.cpu.emit.mugraph import emit
from mirage.kernels.cpu.model.limits import measure_limits, program_cost
from mirage.kernels.profile import score
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.results.cpu.result import Superoptimized
from mirage.results.ranked import Ranked
from mirage.results.result import Result
from mirage.search.candidates import Candidate
from mirage.search.examples import pruning_examples
from mirage.search.pruned import Pruned
from mirage.search.stats import RULES

#: pixels of a page in a notebook
_FRAME = 900


@dataclass(frozen=True)
class Page(Displayed, drawn_by="mirage.results.page"):
    """A page of HTML that stands for itself: no part of it comes from elsewhere. Notebooks show it in a frame."""

    html: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which any browser opens; raises InputError if it cannot be written."""
        save_file(path, self.html)

    def __repr__(self) -> str:
        return f"Page({len(self.html):,} characters; save it, and open the file in a browser)"


@show.register
def _(page: Page) -> View:
    frame = 'sandbox="allow-scripts" style="width:100%;border:0" title="the graphs of a search"'
    return View(html=f'<iframe {frame} height="{_FRAME}" srcdoc="{escape(page.html)}"></iframe>')


def explore(result: Result) -> Page:
    """The page of a result: every verified graph by its modelled and its measured cost, with its picture and its source; the
    measured ones below the machine's limits; and what each rule of the search pruned, with examples.

    The examples take a second search at most, which is cut short; the machine's limits are measured once, in about 0.3 s. Raises
    what `mirage.kernels.cpu.model.limits.measure_limits` raises.
    """
    return Page(page_html(search_page(result)))


@dataclass(frozen=True)
class _Facts:
    """What a result's target adds: `us` are those of graphs by their ids, and `time` says what they are; `baselines` the us of
    what competes; `gflops`, `gbs` and `note` as in `Roofs`; `sources` the code of graphs by their ids.
    """

    time: str
    us: Mapping[int, float]
    baselines: Mapping[str, float]
    gflops: float
    gbs: Mapping[str, float]
    note: str
    sources: Mapping[int, str]


def search_page(result: Result) -> SearchPage:
    """What the page of a result shows; raises what `explore` raises."""
    facts, program = _facts(result), result.verifier.axis_program
    _, flops = program_cost(program, result.sizes)
    examples = pruning_examples(program, result.sizes)
    rules = [
        Rule(why, RULES.get(why, ""), count, tuple(f"{e}   [{e.plan}]" for e in sorted(examples.get(why, ()), key=_length)))
        for why, count in result.stats.pruned.items()
    ]
    return SearchPage(
        title=result.title,
        verdict=result.certificate.verdict,
        equal=result.certificate.equal,
        best=str(result.best),
        time=facts.time,
        entries=[_entry(result, c, facts, flops) for c in result.graphs],
        baselines=facts.baselines,
        roofs=Roofs(facts.gflops, facts.gbs, flops, facts.note),
        rules=rules,
        report=result.report_rows(),
        program=str(result.program),
        program_drawing=picture(result.program),
        certificate=str(result.certificate),
    )


def _length(example: Pruned) -> int:
    """By which the simplest examples come first."""
    return len(str(example))


def _entry(result: Result, c: Candidate, facts: _Facts, flops: int) -> Entry:
    best = result.best.candidate
    moved = _moved(c, result.sizes)
    notes = [f"modelled {c.cost / 1e3:,.1f} us by the search", str(c.certificate)]
    if c.schedule is not None:
        notes.insert(1, f"schedule: {c.schedule}")
    notes += [f"error to float64, {a.trial}: {a.kernel:.1e}, program {a.program:.1e}" for a in c.accuracy]
    return Entry(
        plans=c.graph.origin,
        kernels=len(c.graph.kernels),
        library=len(c.graph.kernels) < _operators(c.graph),
        runs=best is not None and c.graph is best.graph,
        modelled_us=c.cost / 1e3,
        us=facts.us.get(id(c.graph)),
        intensity=flops / moved if moved else None,
        verdict=c.certificate.verdict,
        drawing=picture(c.graph),
        text=str(c.graph),
        source=facts.sources.get(id(c.graph), ""),
        notes="\n\n".join(notes),
    )


def _operators(graph: MuGraph) -> int:
    """The operators of the kernel graph: kernels, and predefined ones."""
    return sum(n.op not in ("input", "constant", "size") for n in graph.kernel.nodes)


def _moved(c: Candidate, sizes: Mapping[str, int]) -> int:
    """Bytes that the operators of the kernel graph read and write, each once; 0 where that is not known, as how often an axis is
    split is only known with a schedule of the processor.
    """
    graph = c.graph
    extents = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    if isinstance(c.schedule, Schedule):
        extents = c.schedule.axis_sizes(graph, sizes)
    nodes = graph.kernel.nodes
    tensors = [
        (i, axes)
        for k, n in enumerate(nodes)
        if n.op not in ("input", "constant", "size")
        for i, axes in (*((r.node, nodes[r.node].axes(r.out)) for r in n.operands), *((k, n.axes(o)) for o in range(len(n.dims))))
    ]
    if any(a not in extents for _, axes in tensors for a in axes):
        return 0
    return sum(graph.itemsize(i) * prod(extents[a] for a in axes) for i, axes in tensors)


@singledispatch
def _facts(result: Result) -> _Facts:
    raise InputError(f"{type(result).__name__} objects have no page")


@_facts.register
def _(result: Superoptimized) -> _Facts:
    limits = measure_limits()
    us = _measured(result.graphs)
    sources = {
        id(c.graph): emit(c.graph, c.schedule, c.maximum, c.sizes) for c in result.graphs if isinstance(c.schedule, Schedule)
    }
    return _Facts(
        "measured", us, {name: score(t) for name, t in result.baselines.items()}, limits.gflops,
        {"memory": limits.dram_gbs, "caches": limits.cache_gbs},
        f"measured with {limits.threads} threads on {result.target.cpu}", sources,
    )  # fmt: skip


def _measured(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Microseconds of a call of each graph that was measured, by its id: of the last measurement, or, where it did not come to
    that, of the race that it was in, in proportion.
    """
    last = {id(c.graph): score(c.timing) for c in candidates if c.timing is not None}
    races = {id(c.graph): min(us for _, us in c.tried) for c in candidates if c.tried}
    both = [last[g] / races[g] for g in last.keys() & races.keys()]
    scale = statistics.median(both) if both else 1.0
    return {g: us * scale for g, us in races.items()} | last


@_facts.register
def _(result: Ranked) -> _Facts:
    machine, dtype = result.machine, result.program.dtype
    us: dict[int, float] = {}
    sources: dict[int, str] = {}
    for version, time in zip(result.decision.versions, result.decision.points[0].times, strict=False):
        c = version.candidate
        if c is not None and time < us.get(id(c.graph), math.inf):
            us[id(c.graph)], sources[id(c.graph)] = time, str(result.executable(version).source)
    return _Facts(
        f"modelled for {result.device_name}" if result.ranked_by_model else "measured", us, {},
        # the machine's rates from the times of 10^9 operations and of 10^9 bytes
        _rate(machine.floor_us(0, 10**9, dtype)), {"memory": _rate(machine.floor_us(10**9, 0, dtype))}, machine.note, sources,
    )  # fmt: skip


def _rate(us: float) -> float:
    """10^9 per second, of what takes so many microseconds per 10^9; 0, which is not known, where that is no time."""
    return 1e6 / us if us > 0 else 0.0
