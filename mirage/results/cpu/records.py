"""Results for the processor as they are stored: versions with their schedules and timings, the tree, and the baselines.

As in `mirage.results.records`, a record holds no code: C is printed again from the graphs, which are verified again.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, TypeAlias

from mirage.errors import FormatError
from mirage.ir.canonical import Renaming
from mirage.ir.codec import Index, within
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.packing import check_packed
from mirage.kernels.decision import Sizes, Tree, check_tree, rename
from mirage.kernels.profile import Timing
from mirage.mugraph.rename import rename_schedule
from mirage.mugraph.schedule import Schedule
from mirage.results.records import check_points, check_sizes, rename_points, rename_sizes
from mirage.results.result import StoredResult
from mirage.search.accuracy import Accuracy
from mirage.search.candidates import Candidate, Known
from mirage.search.versions import MAX_VERSIONS, Decision, Kind, Point, Version


def check_baselines(baselines: Mapping[str, Timing]) -> None:
    """Of the program as BLAS calls, which is always timed, and operator by operator."""
    if not {"library"} <= set(baselines) <= {"library", "reference"}:
        raise ValueError("the timing of library, and of reference where it was timed")


Baselines: TypeAlias = Annotated[Mapping[str, Timing], check_baselines]


@dataclass(frozen=True)
class VersionRecord:
    """One version as it was stored: of which graph (its place among the records), None where the kind is a baseline."""

    kind: Kind
    timing: Timing | None = None
    graph: Index | None = None
    schedule: Schedule | None = None
    sizes: Sizes = field(default_factory=dict)
    accuracy: tuple[Accuracy, ...] = ()


@dataclass(frozen=True)
class DecisionRecord:
    """Versions and the decision among them, as they were stored."""

    versions: tuple[VersionRecord, ...]
    tree: Tree
    points: tuple[Point, ...]

    def renamed(self, r: Renaming) -> DecisionRecord:
        """The same with other names of axes and dim symbols."""
        versions = tuple(
            replace(v, schedule=rename_schedule(v.schedule, r.axes), sizes=rename_sizes(v.sizes, r.symbols))
            if v.schedule
            else v
            for v in self.versions
        )
        return DecisionRecord(versions, rename(self.tree, r.symbols), rename_points(self.points, r.symbols))

    def check(self, graphs: Sequence[Known], symbols: Collection[str]) -> None:
        """Raises FormatError unless it is of these graphs and dim symbols, ScheduleError where a schedule is not one of its
        graph.
        """
        if not 0 < len(self.versions) <= MAX_VERSIONS:
            raise FormatError(f"decision: there must be 1 to {MAX_VERSIONS} versions, got {len(self.versions)}")
        for v in self.versions:
            if v.graph is None:
                if v.kind == "mugraph" or v.schedule is not None or v.sizes:
                    raise FormatError(f"decision: {v.kind!r} without a graph is no version")
            elif v.kind != "mugraph" or v.schedule is None or v.graph >= len(graphs):
                raise FormatError(f"decision: {v.kind!r} of graph {v.graph} is no version")
            else:
                v.schedule.check(graphs[v.graph].graph)
                check_sizes(v.sizes, symbols)
        check_tree(self.tree, symbols, len(self.versions))
        check_points(self.points, len(self.versions), symbols)

    def restored(self, candidates: Mapping[int, Candidate], constants: Collection[str]) -> Decision:
        """The decision with compiled kernels; `candidates` are its graphs, by their places. Nothing is measured or chosen again.

        Raises FormatError for a version without timing, ScheduleError if a schedule packs other inputs than `constants`.
        """
        versions = []
        for v in self.versions:
            if v.timing is None:
                raise FormatError("decision: a version has no timing")
            c = None if v.graph is None else compiled(candidates[v.graph], v, constants)
            versions.append(Version(v.kind, v.timing, c))
        return Decision(tuple(versions), self.tree, self.points)


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
            versions.append(VersionRecord(v.kind, v.timing, place, c.schedule, c.sizes, c.accuracy))
    return DecisionRecord(tuple(versions), decision.tree, decision.points)


def compiled(c: Candidate, record: VersionRecord, constants: Collection[str]) -> Candidate:
    """The candidate as the record has it tuned; its kernels are made when they are first asked for.

    Raises ScheduleError if the schedule packs other inputs than `constants`.
    """
    assert record.schedule is not None
    schedule = record.schedule
    check_packed(c.graph, schedule, constants)
    make = functools.cache(partial(CpuExecutable, c.graph, schedule, c.maximum, record.sizes, constants))
    return replace(
        c, schedule=schedule, sizes=record.sizes, timing=record.timing, accuracy=record.accuracy, make=make,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StoredCpuResult(StoredResult):
    """A result for the processor as it is stored."""

    decision: DecisionRecord
    threads: Annotated[int, within(1, 2**31 - 1)]
    baselines: Baselines

    def check_stored(self) -> None:
        """As of every result; raises FormatError and ScheduleError, too, where the decision is not one of its graphs."""
        super().check_stored()
        self.decision.check(self.graphs, self.program.symbols())
