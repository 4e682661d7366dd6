"""Results as they are stored: what `save` writes, the results store keeps, and both load again with suspicion.

A record holds graphs, schedules and timings, never code: that is printed again from the graph, and the graph is verified again
before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

from mirage.errors import FormatError, MirageError
from mirage.ir.canonical import Renaming
from mirage.ir.codec import Index, Json, decode, encode
from mirage.kernels.decision import Sizes, Tree, check_tree, leaves, rename
from mirage.kernels.profile import Timing
from mirage.kernels.target import Made, Scheduled, Target
from mirage.mugraph.schedule import Schedule
from mirage.results.lazy import LazySequence
from mirage.search.accuracy import Accuracy
from mirage.search.candidates import Candidate, Known
from mirage.search.decision import UNMEASURED, Decision, Kind, Point, Version

_NONE = Json(None)
#: versions of a decision that are kept: those that run, and others that a device may prefer
MAX_KEPT = 20


def known(c: Candidate) -> Known:
    """What is stored of a candidate: its graph, and what was measured of it on the processor."""
    if not isinstance(c.schedule, Schedule):
        return Known(c.graph, c.cost)
    return Known(c.graph, c.cost, c.schedule, c.sizes, c.timing, c.accuracy, c.tried)


class StoredGraphs(LazySequence[Known]):
    """Graphs that `read` makes of the items of a list, of each when it is first asked for."""

    def __init__(self, items: Sequence[Any], read: Callable[[Any], Known]) -> None:
        super().__init__(len(items), lambda i: read(items[i]))

    @staticmethod
    def of_json(items: Sequence[Any], symbols: Collection[str]) -> StoredGraphs:
        """Graphs of a program with these dim symbols, as JSON; raises FormatError, and the errors of graphs and schedules, when
        one is asked for that is malformed.
        """

        def read(item: Any) -> Known:
            found = decode(Known, item, "graphs")
            check_sizes(found.sizes, symbols if found.schedule is not None else ())
            return found

        return StoredGraphs(items, read)


def check_sizes(sizes: Mapping[str, int], symbols: Collection[str]) -> None:
    """Raises FormatError unless there is a size for every one of these dim symbols, and no other."""
    if set(sizes) != set(symbols):
        raise FormatError(f"sizes: expected those of {', '.join(symbols) or 'none'}, got {', '.join(sizes) or 'none'}"[:200])


def rename_sizes(sizes: Mapping[str, int], symbols: Mapping[str, str]) -> dict[str, int]:
    """The sizes with other names of their dim symbols."""
    return {symbols[s]: n for s, n in sizes.items()}


def check_points(points: Sequence[Point], versions: int, symbols: Collection[str]) -> None:
    """Raises FormatError unless every point has the times of so many versions, and sizes of these dim symbols."""
    for p in points:
        check_sizes(p.sizes, symbols)
        if len(p.times) != versions:
            raise FormatError(f"decision: times must be a list of {versions}, got {len(p.times)}")


def rename_points(points: Sequence[Point], symbols: Mapping[str, str]) -> tuple[Point, ...]:
    """The points with other names of their dim symbols."""
    return tuple(Point(rename_sizes(p.sizes, symbols), p.times) for p in points)


def check_baselines(baselines: Mapping[str, Timing]) -> None:
    """Of the program as BLAS calls, and operator by operator, where versions are measured."""
    if not set(baselines) <= {"library", "reference"}:
        raise ValueError("the timing of library, and of reference where it was timed")


Baselines: TypeAlias = Annotated[Mapping[str, Timing], check_baselines]


@dataclass(frozen=True)
class VersionRecord:
    """One version as it was stored: of which graph (its place among the records), None where the kind is a baseline."""

    kind: Kind
    timing: Timing | None = None
    graph: Index | None = None
    #: of the target's own class
    schedule: Json = _NONE
    sizes: Sizes = field(default_factory=dict)
    accuracy: tuple[Accuracy, ...] = ()

    def check(self, graphs: Sequence[Known], symbols: Collection[str], target: Target) -> None:
        """Raises FormatError unless its sizes are those of dim symbols, ScheduleError where its schedule is not one of its
        graph.
        """
        if self.graph is not None:
            target.schedule_from_json(self.schedule).check(graphs[self.graph].graph)
            check_sizes(self.sizes, symbols)

    def restored(self, candidate: Candidate | None, target: Target, constants: Collection[str]) -> Version:
        """The version, whose kernels are of the graph of `candidate`; raises as `DecisionRecord.restored`."""
        timing = self.timing or UNMEASURED
        if candidate is None:
            return Version(self.kind, timing)
        schedule = target.schedule_from_json(self.schedule)
        (kernels,) = target.made([Scheduled(candidate.graph, candidate.maximum, schedule, self.sizes)], constants)
        return self.with_kernels(candidate, schedule, kernels)

    def with_kernels(self, candidate: Candidate, schedule: Any, kernels: Made | MirageError) -> Version:
        """The version with what the target made of its graph and its schedule; raises what came of that instead."""
        if isinstance(kernels, MirageError):
            raise kernels
        # what was tried of the graph was at its own sizes
        tried = candidate.tried if dict(candidate.sizes) == dict(self.sizes) else ()
        c = replace(
            candidate, schedule=schedule, sizes=self.sizes, timing=self.timing, accuracy=self.accuracy, make=kernels.make,
            tried=tried,
        )  # fmt: skip
        return Version(self.kind, self.timing or UNMEASURED, c, kernels.limits)


@dataclass(frozen=True)
class DecisionRecord:
    """Versions and the decision among them, as they were stored."""

    versions: tuple[VersionRecord, ...]
    tree: Tree
    points: tuple[Point, ...]
    measured_on: str = ""

    def renamed(self, r: Renaming, target: Target) -> DecisionRecord:
        """The same with other names of axes and dim symbols."""

        def schedule(given: Json) -> Json:
            return Json(encode(target.renamed(target.schedule_from_json(given), r.axes)))

        versions = tuple(
            v if v.graph is None else replace(v, schedule=schedule(v.schedule), sizes=rename_sizes(v.sizes, r.symbols))
            for v in self.versions
        )
        points = rename_points(self.points, r.symbols)
        return DecisionRecord(versions, rename(self.tree, r.symbols), points, self.measured_on)

    def check(self, graphs: Sequence[Known], symbols: Collection[str], target: Target) -> None:
        """Raises FormatError unless it is of these graphs and dim symbols, ScheduleError where a schedule is not one of its
        graph.
        """
        self.check_form(len(graphs), symbols)
        for v in self.versions:
            v.check(graphs, symbols, target)

    def check_form(self, graphs: int, symbols: Collection[str]) -> None:
        """Raises FormatError unless it is of so many graphs and of these dim symbols: no graph is read."""
        if not 0 < len(self.versions) <= MAX_KEPT:
            raise FormatError(f"decision: there must be 1 to {MAX_KEPT} versions, got {len(self.versions)}")
        for v in self.versions:
            if v.graph is None:
                if v.kind == "mugraph" or v.schedule is not None or v.sizes:
                    raise FormatError(f"decision: {v.kind!r} without a graph is no version")
            elif v.kind != "mugraph" or v.schedule is None or v.graph >= graphs:
                raise FormatError(f"decision: {v.kind!r} of graph {v.graph} is no version")
            else:
                check_sizes(v.sizes, symbols)
        measured = {v.timing is not None for v in self.versions}
        if len(measured) > 1:
            raise FormatError("decision: a version has no timing")
        # those of the leaves come first; the others are for a device to measure
        used = 1 + max(v for _, v in leaves(self.tree))
        check_tree(self.tree, symbols, len(self.versions) if measured == {True} else min(used, len(self.versions)))
        check_points(self.points, len(self.versions), symbols)

    def restored(self, candidates: Mapping[int, Candidate], target: Target, constants: Collection[str]) -> Decision:
        """The decision with compiled kernels; `candidates` are its graphs, by their places. Nothing is measured or chosen again.

        Raises ScheduleError for schedules that pack other inputs than `constants`, or that the target refuses, and the errors of
        compilation.
        """
        wanted = [(v, candidates[v.graph]) for v in self.versions if v.graph is not None]
        work = [Scheduled(c.graph, c.maximum, target.schedule_from_json(v.schedule), v.sizes) for v, c in wanted]
        # all at once, as a target may make them side by side
        made = iter(zip(work, target.made(work, constants), strict=True))
        versions = []
        for v in self.versions:
            if v.graph is None:
                versions.append(v.restored(None, target, constants))
            else:
                w, kernels = next(made)
                versions.append(v.with_kernels(candidates[v.graph], w.schedule, kernels))
        return Decision(tuple(versions), self.tree, self.points, self.measured_on)


def decision_record(decision: Decision, candidates: Sequence[Candidate]) -> DecisionRecord:
    """The record of a decision among versions whose graphs are among those of `candidates`."""
    places = {id(c.graph): i for i, c in enumerate(candidates)}
    versions = []
    for v in decision.versions:
        c = v.candidate
        if c is None:
            versions.append(VersionRecord(v.kind, v.timing))
        else:
            place = places[id(c.graph)]
            timing = None if v.timing is UNMEASURED else v.timing
            versions.append(VersionRecord(v.kind, timing, place, Json(encode(c.schedule)), c.sizes, c.accuracy))
    return DecisionRecord(tuple(versions), decision.tree, decision.points, decision.measured_on)
