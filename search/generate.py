"""The muGraph generator: graphs by number of kernels and by the plan of the last one (paper, section 4.1)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.serial import mugraph_from_json, mugraph_to_json
from mirage.search.assemble import assemble
from mirage.search.checkpoint import Checkpoint
from mirage.search.compose import Kernel
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, Outcome, Run, run_units
from mirage.search.options import SearchOptions
from mirage.search.pareto import Front, Fronts
from mirage.search.plan import KernelPlan
from mirage.search.space import Space
from mirage.search.stats import SearchStats

#: the unit of the search that comes first, so that a search that is cut short has these graphs
FUSED = "the program's own operators in one kernel"

#: share of a search's time after which graphs are made of the values that there are
SPACE_SHARE = 0.6

#: which graphs a search may return; picklable, where an executor is used
Accept = Callable[[MuGraph], bool]
#: told how many units of the search are done, of how many, and how many graphs there are
Progress = Callable[[int, int, int], None]


@dataclass
class SearchResult:
    """Distinct graphs, cheapest (as modelled) first, and what the search did.

    Where kernels of a single operator may be library calls, the graph is followed by the one in which they are.
    """

    graphs: list[MuGraph] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    stats: SearchStats = field(default_factory=SearchStats)


def generate(
    program: AxisProgram,
    sizes: Mapping[str, int],
    options: SearchOptions | None = None,
    *,
    executor: Executor | None = None,
    checkpoint: Checkpoint | None = None,
    accept: Accept | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Graphs of a program that are candidates for verification: those that no other one dominates in cost.

    `sizes` (of the dim symbols) order the search and are among those at which costs are compared. A graph that `accept`
    refuses dominates none. A program whose expressions are too large has no graphs, and its stop reason says so. With an
    `executor`, the units of the search (a number of kernels, and the plan of the last one) run in its workers; with a
    `checkpoint`, finished ones are not run again. The result is the same. An interrupt ends the search with what was found.

    Raises SearchError for impossible options, UnknownPruner for an unknown pruner, JobError if a worker dies.
    """
    options = options or SearchOptions()
    options.check()
    start, began = time.perf_counter(), time.time()
    axis_sizes = {a: evaluate(d, sizes) for a, d in program.axes.items()}
    searcher = _Searcher(program, axis_sizes, options, accept)
    try:
        space = searcher.space(options.budget)
    except KeyboardInterrupt:
        stats = SearchStats(seconds=time.perf_counter() - start, stop_reason=INTERRUPTED)
        return SearchResult(stats=stats)
    except TermTooLarge as e:
        return SearchResult(stats=SearchStats(seconds=time.perf_counter() - start, stop_reason=f"not searched: {e}"))
    units: dict[str, tuple[int, KernelPlan] | None] = {FUSED: None}
    # every kernel yields a tensor that no other one does
    kernels = min(options.max_kernels, len(space.tensors.all))
    units |= {f"{k} kernels, last: {p}": (k, p) for k in range(1, kernels + 1) for p in space.plans}
    graphs = 0

    def report(unit: str, outcome: Outcome, done: int, total: int) -> None:
        nonlocal graphs
        graphs += len(outcome.payload["graphs"])
        if progress is not None:
            progress(done, total, graphs)

    left = max(options.budget - (time.perf_counter() - start), 0.05)
    run = run_units(units, searcher.unit, seconds=left, executor=executor, checkpoint=checkpoint, progress=report)
    result = _merge(run, space, began)
    result.stats.seconds = time.perf_counter() - start
    return result


class _Searcher:
    """Runs the units of one search. In one process they share the space; workers build their own, once each."""

    def __init__(
        self, program: AxisProgram, axis_sizes: Mapping[str, int], options: SearchOptions, accept: Accept | None
    ) -> None:
        self.program = program
        self.axis_sizes = dict(axis_sizes)
        self.options = options
        self.accept = accept
        self._search = uuid.uuid4().hex
        self._space: Space | None = None
        # threads of one process share the space, one at a time
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., _Searcher], tuple[object, ...]]:
        return _restored, (self._search, self.program, self.axis_sizes, self.options, self.accept)

    def space(self, seconds: float) -> Space:
        if self._space is None:
            deadline = time.perf_counter() + SPACE_SHARE * seconds
            self._space = Space(self.program, self.axis_sizes, self.options, deadline)
        return self._space

    def unit(self, which: tuple[int, KernelPlan] | None, seconds: float) -> Outcome:
        """The graphs of so many kernels whose last one has this plan; None for those of the program's own operators."""
        deadline = time.perf_counter() + seconds
        with self._turn:
            space = self.space(seconds)
            composer, accept = space.composer, partial(self._accepted, space)
            composer.until(deadline)
            stopped = ""
            try:
                if which is None:
                    composer.fused(accept)
                else:
                    composer.compose(*which, accept)
            except KeyboardInterrupt:
                stopped = INTERRUPTED
            if not stopped and (not composer.complete or space.tensors.cut):
                stopped = OUT_OF_TIME
            # another unit may have come upon them first
            found = [
                {
                    "graphs": [mugraph_to_json(g) for g in a.graphs],
                    "cost": a.cost.tolist(),
                    "foreign": a.foreign,
                    "at": a.at,
                }
                for a in composer.accepted
                if which in (None, (len(a.kernels), a.kernels[-1].plan))
            ]
            return Outcome({"graphs": found}, stopped)

    def _accepted(self, space: Space, kernels: list[Kernel]) -> list[MuGraph]:
        """The graph, and the one in which kernels of a single operator are library calls, where they are accepted."""
        graph = assemble(space.tensors, kernels)
        calls = with_predefined(graph)
        return [g for g in ([graph] if calls is graph else [graph, calls]) if self.accept is None or self.accept(g)]


#: the searcher that this process, a worker, restored last
_last: dict[str, _Searcher] = {}


def _restored(
    key: str, program: AxisProgram, axis_sizes: Mapping[str, int], options: SearchOptions, accept: Accept | None
) -> _Searcher:
    if key not in _last:
        _last.clear()
        _last[key] = _Searcher(program, axis_sizes, options, accept)
    return _last[key]


def _merge(run: Run, space: Space, began: float) -> SearchResult:
    """The graphs of all units that none of another unit dominates."""
    fronts = Fronts()
    found: list[tuple[Front, int, np.ndarray, dict[str, Any]]] = []
    times = []
    for outcome in run.outcomes.values():
        for item in outcome.payload["graphs"]:
            cost = np.array(item["cost"])
            times.append(item["at"])
            if not fronts.dominates(cost, item["foreign"]):
                found.append((*fronts.add(cost, item["foreign"]), cost, item))
    alive = [
        (space.composer.model.total(cost), item)
        for front, member, cost, item in found
        if front.alive(member) and not (item["foreign"] and fronts.own.dominates(cost))
    ]
    alive.sort(key=lambda pair: pair[0])
    result = SearchResult(stats=space.stats)
    stats = result.stats
    if alive:
        stats.first_seconds = max(min(times) - began, 0.0)
        stats.best_seconds = max(alive[0][1]["at"] - began, 0.0)
    seen: set[object] = set()
    for cost_ns, item in alive:
        for g in map(mugraph_from_json, item["graphs"]):
            key = structure_key(g)
            if key not in seen:
                seen.add(key)
                result.graphs.append(g)
                result.costs.append(cost_ns)
    stats.candidates = len(result.graphs)
    reasons = [f"{why} ({n} of {len(run.units)} units)" for why, n in run.cuts.items()]
    stats.stop_reason = "; ".join([*(reasons or ["complete"]), *filter(None, [space.note])])
    return result


def plan_by_plan(graphs: Sequence[tuple[MuGraph, float]]) -> list[tuple[MuGraph, float]]:
    """Graphs with their costs, the cheapest of each plan first, then the second cheapest of each, and so on."""
    by_plan: dict[str, list[tuple[MuGraph, float]]] = {}
    for item in graphs:
        by_plan.setdefault(item[0].origin, []).append(item)
    ranked = [
        (rank, cost, graph)
        for plan in by_plan.values()
        for rank, (graph, cost) in enumerate(sorted(plan, key=lambda item: item[1]))
    ]
    return [(graph, cost) for _, cost, graph in sorted(ranked, key=lambda item: item[:2])]


@dataclass(frozen=True)
class Found:
    """Graphs that were accepted together, and their modelled cost in ns."""

    graphs: list[MuGraph]
    cost: float


class Search:
    """Temporary: one search as a stream."""

    def __init__(self, program, sizes, options=None, accept=None, checkpoint=None, executor=None):  # type: ignore
        self.arguments = program, sizes, options
        self.rest = {"accept": accept, "checkpoint": checkpoint, "executor": executor}
        self.done = False
        self.stats = SearchStats(stop_reason="budget spent")

    def advance(self, seconds: float) -> list[Found]:
        if self.done:
            return []
        found = generate(*self.arguments, **self.rest)
        self.stats = found.stats
        self.done = True
        return [Found([g], c) for g, c in zip(found.graphs, found.costs)]

    @property
    def stop_reason(self) -> str:
        return self.stats.stop_reason
