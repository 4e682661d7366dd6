"""Results as JSON: what `save` writes, the results store keeps, and both load again with suspicion.

A record holds graphs, certificates, schedules and timings, never code: that is printed again from the graph, and the graph
is verified again before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mirage.errors import FormatError, MirageError
from mirage.ir.canonical import Renaming
from mirage.kernels.decision import MAX_THRESHOLD, Tree, leaves, rename, tree_from_json, tree_to_json
from mirage.kernels.profile import Timing
from mirage.kernels.target import Scheduled, Target
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.serial import mugraph_from_json, mugraph_to_json
from mirage.search.accuracy import Accuracy
from mirage.search.candidates import Candidate, Known
from mirage.search.decision import MAX_VERSIONS, UNMEASURED, Decision, Point, Version
from mirage.verify.certificate import Certificate

#: what competes with graphs: the program operator by operator, and as BLAS calls
BASELINES = ("reference", "library")
#: versions of a decision that are kept: those that run, and others that a device may prefer
MAX_KEPT = 20
#: version of the form; part of every key, so that a record of another version is never looked at
SCHEMA = 4


def timing_to_json(t: Timing | None) -> dict[str, Any] | None:
    return None if t is None else {"min_us": t.min_us, "median_us": t.median_us, "runs": t.runs}


def timing_from_json(obj: Any) -> Timing | None:
    """Raises FormatError for anything but what `timing_to_json` writes."""
    if obj is None:
        return None
    if not isinstance(obj, dict) or set(obj) != {"min_us", "median_us", "runs"}:
        raise FormatError(f"timing: expected min_us, median_us and runs, got {obj!r}")
    if type(obj["runs"]) is not int or not all(
        type(obj[k]) in (int, float) and obj[k] > 0 for k in ("min_us", "median_us")
    ):
        raise FormatError(f"timing: expected positive numbers, got {obj!r}")
    try:
        return Timing(float(obj["min_us"]), float(obj["median_us"]), obj["runs"])
    except OverflowError:
        raise FormatError(f"timing: {obj!r} are no times") from None


def accuracy_to_json(accuracy: Sequence[Accuracy]) -> list[dict[str, Any]]:
    return [asdict(a) for a in accuracy]


def accuracy_from_json(obj: Any) -> tuple[Accuracy, ...]:
    """Raises FormatError for anything but what `accuracy_to_json` writes."""
    if not isinstance(obj, list):
        raise FormatError(f"accuracy: expected a list, got {type(obj).__name__}")
    for item in obj:
        if not isinstance(item, dict) or set(item) != {"trial", "kernel", "program"} or type(item["trial"]) is not str:
            raise FormatError(f"accuracy: expected trial, kernel and program, got {item!r}")
        if not all(type(item[k]) is float and 0 <= item[k] < np.inf for k in ("kernel", "program")):
            raise FormatError(f"accuracy: errors must be numbers of at least 0, got {item!r}")
    return tuple(Accuracy(**item) for item in obj)


def candidates_to_json(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Graphs with their evidence and what was measured of them, in order."""
    return [
        {
            "graph": mugraph_to_json(c.graph),
            "origin": c.graph.origin,
            "certificate": c.certificate.to_json(),
            "cost": c.cost,
            "schedule": c.schedule.to_json() if c.schedule else None,
            "sizes": dict(c.sizes),
            "timing": timing_to_json(c.timing),
            "accuracy": accuracy_to_json(c.accuracy),
            "tried": [[s.to_json(), us] for s, us in c.tried],
        }
        for c in candidates
    ]


class StoredGraphs(Sequence[Known]):
    """Graphs that `read` makes of the items of a list, of each when it is first asked for."""

    def __init__(self, items: Sequence[Any], read: Callable[[Any], Known]) -> None:
        self._items = items
        self._make = read
        self._read: dict[int, Known] = {}

    @staticmethod
    def from_json(obj: Any, symbols: Collection[str], target: Target) -> StoredGraphs:
        """What `candidates_to_json` wrote of a program with these dim symbols; raises FormatError for what is no list, and, when
        a graph is asked for that is malformed.
        """
        if not isinstance(obj, list):
            raise FormatError(f"graphs: expected a list, got {type(obj).__name__}")
        return StoredGraphs(obj, lambda item: _candidate_from_json(item, symbols, target))

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if place not in self._read:
            self._read[place] = self._make(self._items[place])
        return self._read[place]


def candidates_from_json(obj: Any, symbols: Collection[str], target: Target) -> list[Known]:
    """Raises FormatError for anything but what `candidates_to_json` writes of a program with these dim symbols."""
    return list(StoredGraphs.from_json(obj, symbols, target))


def _candidate_from_json(item: Any, symbols: Collection[str], target: Target) -> Known:
    names = {"graph", "origin", "certificate", "cost", "schedule", "sizes", "timing", "accuracy", "tried"}
    if not isinstance(item, dict) or set(item) != names:
        raise FormatError(f"graphs: an entry must have exactly {', '.join(sorted(names))}")
    cost = item["cost"]
    if type(cost) not in (int, float) or not abs(cost) < 1e300 or not isinstance(item["origin"], str):
        raise FormatError("graphs: cost must be a number and origin a text")
    # what it says is not believed: the graph is verified anew
    Certificate.from_json(item["certificate"])
    graph = mugraph_from_json(item["graph"])
    schedule = schedule_from_json(item["schedule"], graph, target)
    tried = _tried_from_json(item["tried"], graph, target)
    graph = MuGraph(graph.name, graph.axes, graph.inputs, graph.kernel, graph.outputs, graph.dtype, item["origin"])
    timing, accuracy = timing_from_json(item["timing"]), accuracy_from_json(item["accuracy"])
    sizes = sizes_from_json(item["sizes"], symbols) if schedule is not None else {}
    return Known(graph, float(cost), schedule, sizes, timing, accuracy, tried)


def _tried_from_json(obj: Any, graph: MuGraph, target: Target) -> tuple[tuple[Any, float], ...]:
    if not isinstance(obj, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in obj):
        raise FormatError("tried: expected a list of schedules with their times")
    found = []
    for schedule, us in obj:
        read = schedule_from_json(schedule, graph, target)
        if read is None or type(us) is not float or not 0 < us < np.inf:
            raise FormatError(f"tried: {us!r} is not the time of a schedule"[:200])
        found.append((read, us))
    return tuple(found)


def schedule_from_json(obj: Any, graph: MuGraph, target: Target) -> Any:
    """The schedule of a graph, if it has one; raises FormatError for anything else, ScheduleError for one of another graph."""
    schedule = None if obj is None else target.schedule_from_json(obj)
    if schedule is not None:
        schedule.check(graph)
    return schedule


def sizes_from_json(obj: Any, symbols: Collection[str]) -> dict[str, int]:
    """A size for every one of these dim symbols; raises FormatError for anything else."""
    if not isinstance(obj, dict) or set(obj) != set(symbols):
        raise FormatError(f"sizes: expected {', '.join(symbols) or 'none'}, got {obj!r}"[:200])
    if not all(type(n) is int and 0 < n <= MAX_THRESHOLD for n in obj.values()):
        raise FormatError(f"sizes: expected positive sizes, got {obj!r}"[:200])
    return {s: obj[s] for s in symbols}


def rename_sizes(sizes: Mapping[str, int], symbols: Mapping[str, str]) -> dict[str, int]:
    """The sizes with other names of their dim symbols."""
    return {symbols[s]: n for s, n in sizes.items()}


def points_to_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    # JSON has no infinity
    return [{"sizes": dict(p.sizes), "us": [t if t < np.inf else None for t in p.times]} for p in points]


def points_from_json(obj: Any, versions: int, symbols: Collection[str]) -> tuple[Point, ...]:
    """Points with the times of so many versions; raises FormatError for anything but what `points_to_json` writes."""
    if not isinstance(obj, list) or not all(isinstance(p, dict) and set(p) == {"sizes", "us"} for p in obj):
        raise FormatError("decision: points must be a list of sizes and us")
    points = []
    for p in obj:
        times = p["us"]
        if not isinstance(times, list) or len(times) != versions:
            raise FormatError(f"decision: us must be a list of {versions}")
        if not all(t is None or (type(t) is float and 0 < t < np.inf) for t in times):
            raise FormatError(f"decision: us must be positive numbers or null, got {times!r}"[:200])
        points.append(Point(sizes_from_json(p["sizes"], symbols), tuple(np.inf if t is None else t for t in times)))
    return tuple(points)


def rename_points(points: Sequence[Point], symbols: Mapping[str, str]) -> tuple[Point, ...]:
    """The points with other names of their dim symbols."""
    return tuple(Point(rename_sizes(p.sizes, symbols), p.times) for p in points)


@dataclass(frozen=True)
class VersionRecord:
    """One version as it was stored: of which graph (its place among the records), None where the kind is a baseline."""

    kind: str
    timing: Timing | None
    graph: int | None
    schedule: Any
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
    measured_on: str = ""

    def renamed(self, r: Renaming, target: Target) -> DecisionRecord:
        """The same with other names of axes and dim symbols."""
        versions = tuple(
            replace(v, schedule=target.renamed(v.schedule, r.axes), sizes=rename_sizes(v.sizes, r.symbols))
            if v.graph is not None
            else v
            for v in self.versions
        )
        points = rename_points(self.points, r.symbols)
        return replace(self, versions=versions, tree=rename(self.tree, r.symbols), points=points)

    def to_json(self) -> dict[str, Any]:
        return {
            "versions": [v.to_json() for v in self.versions],
            "tree": tree_to_json(self.tree),
            "points": points_to_json(self.points),
            # versions beyond those of the leaves are for a device, of which there are several of a kind, to measure
            **({"used": used} if (used := 1 + max(v for _, v in leaves(self.tree))) < len(self.versions) else {}),
            **({"measured_on": self.measured_on} if self.measured_on else {}),
        }

    def restored(self, candidates: Mapping[int, Candidate], target: Target, constants: Collection[str]) -> Decision:
        """The decision with compiled kernels; `candidates` are its graphs, by their places. Nothing is measured or chosen again.

        Raises ScheduleError for schedules that pack other inputs than `constants`, or that the target refuses, and the errors of
        compilation.
        """
        wanted = [(v, candidates[v.graph]) for v in self.versions if v.graph is not None]
        work = [Scheduled(c.graph, c.maximum, v.schedule, v.sizes) for v, c in wanted]
        made = iter(target.made(work, constants))
        versions = []
        for v in self.versions:
            timing = v.timing or UNMEASURED
            if v.graph is None:
                versions.append(Version(v.kind, timing))
                continue
            kernels = next(made)
            if isinstance(kernels, MirageError):
                raise kernels
            c = replace(
                candidates[v.graph], schedule=v.schedule, sizes=v.sizes, timing=v.timing, accuracy=v.accuracy,
                make=kernels.make,
            )  # fmt: skip
            versions.append(Version(v.kind, timing, c, kernels.limits))
        return Decision(tuple(versions), self.tree, self.points, self.measured_on)


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
            timing = None if v.timing is UNMEASURED else v.timing
            versions.append(VersionRecord(v.kind, timing, place, c.schedule, dict(c.sizes), c.accuracy))
    return DecisionRecord(tuple(versions), decision.tree, decision.points, decision.measured_on)


def decision_from_json(
    obj: Any, graphs: Sequence[Known], symbols: Collection[str], target: Target
) -> DecisionRecord:
    """Raises FormatError for anything but what `DecisionRecord.to_json` writes, of these graphs and dim symbols,
    ScheduleError where a schedule is not one of its graph.
    """
    if not isinstance(obj, dict) or obj.keys() - {"used", "measured_on"} != {"versions", "tree", "points"}:
        raise FormatError("decision: expected versions, used, tree, points and measured_on")
    if not isinstance(obj["versions"], list) or not 0 < len(obj["versions"]) <= MAX_KEPT:
        raise FormatError(f"decision: versions must be a list of 1 to {MAX_KEPT}")
    measured_on = obj.get("measured_on", "")
    if not isinstance(measured_on, str):
        raise FormatError(f"decision: measured_on must be the name of a device, got {measured_on!r}"[:200])
    versions = tuple(_version_from_json(v, graphs, symbols, target) for v in obj["versions"])
    if len({v.timing is None for v in versions}) > 1:
        raise FormatError("decision: a version has no timing, and others were measured")
    used = obj.get("used", len(versions))
    if type(used) is not int or not 0 < used <= min(len(versions), MAX_VERSIONS):
        raise FormatError(f"decision: used must be a number from 1 to {MAX_VERSIONS} of the versions, got {used!r}"[:200])
    tree = tree_from_json(obj["tree"], symbols, used)
    return DecisionRecord(versions, tree, points_from_json(obj["points"], len(versions), symbols), measured_on)


def _version_from_json(obj: Any, graphs: Sequence[Known], symbols: Collection[str], target: Target) -> VersionRecord:
    names = {"kind", "timing", "graph", "schedule", "sizes", "accuracy"}
    if not isinstance(obj, dict) or set(obj) != names:
        raise FormatError(f"decision: a version must have exactly {', '.join(sorted(names))}")
    kind, place, timing = obj["kind"], obj["graph"], timing_from_json(obj["timing"])
    accuracy = accuracy_from_json(obj["accuracy"])
    if kind == "mugraph" and type(place) is int and 0 <= place < len(graphs):
        schedule = schedule_from_json(obj["schedule"], graphs[place].graph, target)
        if schedule is None:
            raise FormatError("decision: a version has no schedule")
        return VersionRecord(kind, timing, place, schedule, sizes_from_json(obj["sizes"], symbols), accuracy)
    if kind in BASELINES and timing and place is None and obj["schedule"] is None and not obj["sizes"]:
        return VersionRecord(kind, timing, None, None, {}, accuracy)
    raise FormatError(f"decision: {kind!r} of graph {place!r} is no version"[:200])


def baselines_from_json(obj: Any) -> dict[str, Timing]:
    """Timings of the baselines by name, where versions were measured; raises FormatError."""
    if not isinstance(obj, dict) or not set(obj) <= set(BASELINES):
        raise FormatError(f"baselines: expected library, and reference where it was timed, got {obj!r}")
    found = {name: timing_from_json(t) for name, t in obj.items()}
    if None in found.values():
        raise FormatError("baselines: a timing is missing")
    return {name: t for name, t in found.items() if t is not None}


def baselines_to_json(baselines: Mapping[str, Timing]) -> dict[str, Any]:
    return {name: timing_to_json(t) for name, t in baselines.items()}
