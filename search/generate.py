"""The muGraph generator: the search as one call, whose graphs are those that no other one dominates in cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from mirage.drawing.show import Displayed
from mirage.ir.axes import AxisProgram
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.graph import MuGraph
from mirage.search.checkpoint import Checkpoint
from mirage.search.options import SearchOptions
from mirage.search.pareto import ROUNDING, Front, Fronts
from mirage.search.stats import SearchStats
from mirage.search.stream import Search
from mirage.search.units import Accept, Found

#: told how many units of the search are done, of how many, and how many graphs there are
Progress = Callable[[int, int, int], None]


@dataclass
class SearchResult(Displayed, drawn_by="mirage.search.draw"):
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
    safe: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Graphs of a program that are candidates for verification: all that a `Search`, whose arguments these are, finds within its
    budget, without dominated ones.

    A program whose expressions are too large has no graphs, and its stop reason says so. An interrupt ends the search with
    what was found.

    Raises SearchError for impossible options, UnknownPruner for an unknown pruner, JobError if a worker dies.
    """
    search = Search(program, sizes, options, accept=accept, safe=safe, checkpoint=checkpoint, executor=executor)
    told = 0
    try:
        while not search.done and search.seconds < search.options.budget:
            search.advance(search.options.budget - search.seconds)
            while progress is not None and told < len(search.finished):
                told += 1
                progress(told, len(search.units), len(search.found))
    except KeyboardInterrupt:
        search.interrupt()
    finally:
        search.save()
    return _result(search)


def _result(search: Search) -> SearchResult:
    result = SearchResult(stats=search.stats)
    seen: set[str] = set()
    for found in undominated(search.found):
        for g in found.graphs:
            key = structure_key(g)
            if key not in seen:
                seen.add(key)
                result.graphs.append(g)
                result.costs.append(found.cost)
    result.stats.candidates = len(result.graphs)
    return result


def undominated(found: Sequence[Found]) -> list[Found]:
    """What no other one dominates, cheapest first."""
    fronts = Fronts()
    members: list[tuple[Front, int, Found]] = []
    for f in found:
        if not fronts.dominates(f.entries * ROUNDING, f.foreign):
            members.append((*fronts.add(f.entries, f.foreign), f))
    alive = [
        f
        for front, member, f in members
        if front.alive(member) and not (f.foreign and fronts.own.dominates(f.entries * ROUNDING))
    ]
    return sorted(alive, key=lambda f: f.cost)


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
