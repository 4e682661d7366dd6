"""Results for the processor as JSON: versions with their schedules and timings, the tree, and the baselines.

As in `mirage.results.records`, a record holds no code: C is printed again from the graphs, which are verified again.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mirage.errors import FormatError
from mirage.ir.canonical import Renaming
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.packing import check_packed
from mirage.kernels.decision import Tree, rename, tree_from_json, tree_to_json
from mirage.kernels.profile import Timing
from mirage.mugraph.rename import rename_schedule
from mirage.mugraph.schedule import Schedule
from mirage.results.records import (
    accuracy_from_json,
    accuracy_to_json,
    points_from_json,
    points_to_json,
    rename_points,
    rename_sizes,
    schedule_from_json,
    sizes_from_json,
    timing_from_json,
    timing_to_json,
)
from mirage.search.accuracy import Accuracy
from mirage.search.candidates import Candidate, Known
from mirage.search.versions import MAX_VERSIONS, Decision, Point, Version

#: what competes with graphs: the program operator by operator, and as BLAS calls
BASELINES = ("reference", "library")


@dataclass(frozen=True)
class VersionRecord:
    """One version as it was stored: of which graph (its place among the records), None where the kind is a baseline."""

    kind: str
    timing: Timing
    graph: int | None
    schedule: Schedule | None
    sizes: dict[str, int]
    accuracy: tuple[Accuracy, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "timing": timing_to_json(self.timing),
            "graph": self.graph,
            "schedule": self.schedule.to_json() if self.schedule else None,
            "sizes": self.sizes,
            "accuracy": accuracy_to_json(self.accuracy),
        }


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

    def to_json(self) -> dict[str, Any]:
        return {
            "versions": [v.to_json() for v in self.versions],
            "tree": tree_to_json(self.tree),
            "points": points_to_json(self.points),
        }

    def restored(self, candidates: Mapping[int, Candidate], constants: Collection[str]) -> Decision:
        """The decision with compiled kernels; `candidates` are its graphs, by their places. Nothing is measured or chosen again.

        Raises ScheduleError if a schedule packs other inputs than `constants`.
        """
        versions = (
            Version(v.kind, v.timing, None if v.graph is None else compiled(candidates[v.graph], v, constants))
            for v in self.versions
        )
        return Decision(tuple(versions), self.tree, self.points)


def decision_record(decision: Decision, candidates: Sequence[Candidate]) -> DecisionRecord:
    """The record of a decision among versions whose graphs are among those of `candidates`."""
    places = {id(c.graph): i for i, c in enumerate(candidates)}
    versions = []
    for v in decision.versions:
        c = v.candidate
        if c is None:
            versions.append(VersionRecord(v.kind, v.timing, None, None, {}, ()))
        else:
            place = places[id(c.graph)]
            versions.append(VersionRecord(v.kind, v.timing, place, c.schedule, dict(c.sizes), c.accuracy))
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


def decision_from_json(obj: Any, graphs: Sequence[Known], symbols: Collection[str]) -> DecisionRecord:
    """Raises FormatError for anything but what `DecisionRecord.to_json` writes, of these graphs and dim symbols,
    ScheduleError where a schedule is not one of its graph.
    """
    if not isinstance(obj, dict) or set(obj) != {"versions", "tree", "points"}:
        raise FormatError("decision: expected versions, tree and points")
    if not isinstance(obj["versions"], list) or not 0 < len(obj["versions"]) <= MAX_VERSIONS:
        raise FormatError(f"decision: versions must be a list of 1 to {MAX_VERSIONS}")
    versions = tuple(_version_from_json(v, graphs, symbols) for v in obj["versions"])
    tree = tree_from_json(obj["tree"], symbols, len(versions))
    return DecisionRecord(versions, tree, points_from_json(obj["points"], len(versions), symbols))


def _version_from_json(obj: Any, graphs: Sequence[Known], symbols: Collection[str]) -> VersionRecord:
    names = {"kind", "timing", "graph", "schedule", "sizes", "accuracy"}
    if not isinstance(obj, dict) or set(obj) != names:
        raise FormatError(f"decision: a version must have exactly {', '.join(sorted(names))}")
    kind, place, timing = obj["kind"], obj["graph"], timing_from_json(obj["timing"])
    if timing is None:
        raise FormatError("decision: a version has no timing")
    accuracy = accuracy_from_json(obj["accuracy"])
    if kind == "mugraph" and type(place) is int and 0 <= place < len(graphs):
        schedule = schedule_from_json(obj["schedule"], graphs[place].graph)
        if schedule is None:
            raise FormatError("decision: a version has no schedule")
        return VersionRecord(kind, timing, place, schedule, sizes_from_json(obj["sizes"], symbols), accuracy)
    if kind in BASELINES and place is None and obj["schedule"] is None and not obj["sizes"]:
        return VersionRecord(kind, timing, None, None, {}, accuracy)
    raise FormatError(f"decision: {kind!r} of graph {place!r} is no version"[:200])


def baselines_from_json(obj: Any) -> dict[str, Timing]:
    """Timings of the baselines by name, of which the library's is always there; raises FormatError."""
    if not isinstance(obj, dict) or not {"library"} <= set(obj) <= set(BASELINES):
        raise FormatError(f"baselines: expected library, and reference where it was timed, got {obj!r}")
    found = {name: timing_from_json(t) for name, t in obj.items()}
    if None in found.values():
        raise FormatError("baselines: a timing is missing")
    return {name: t for name, t in found.items() if t is not None}


def baselines_to_json(baselines: Mapping[str, Timing]) -> dict[str, Any]:
    return {name: timing_to_json(t) for name, t in baselines.items()}
