"""Results for CUDA devices as JSON: versions with their schedules, the tree, and the times that it was learnt from.

As in `mirage.results.records`, a record holds no code: Triton is printed again from the graphs, which are verified again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage.errors import FormatError, MirageError
from mirage.ir.canonical import Renaming
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.kernels.decision import Tree, leaves, rename, tree_from_json, tree_to_json
from mirage.mugraph.rename import rename_axis
from mirage.results.records import (
    points_from_json,
    points_to_json,
    rename_points,
    rename_sizes,
    sizes_from_json,
)
from mirage.search.candidates import Candidate, Known
from mirage.search.cuda.rank import MAX_RIVALS
from mirage.search.cuda.versions import CudaDecision, CudaVersion, build_all
from mirage.search.versions import Point


@dataclass(frozen=True)
class CudaVersionRecord:
    """One version as it was stored: of which graph (its place among the records), with which schedule, for which sizes."""

    graph: int
    schedule: CudaSchedule
    sizes: dict[str, int]


@dataclass(frozen=True)
class CudaDecisionRecord:
    """Versions and the decision among them, as they were stored."""

    versions: tuple[CudaVersionRecord, ...]
    tree: Tree
    points: tuple[Point, ...]
    measured_on: str

    def renamed(self, r: Renaming) -> CudaDecisionRecord:
        """The same with other names of axes and dim symbols."""
        versions = (
            CudaVersionRecord(v.graph, rename_cuda_schedule(v.schedule, r.axes), rename_sizes(v.sizes, r.symbols))
            for v in self.versions
        )
        points = rename_points(self.points, r.symbols)
        return CudaDecisionRecord(tuple(versions), rename(self.tree, r.symbols), points, self.measured_on)

    def to_json(self) -> dict[str, Any]:
        return {
            "versions": [{"graph": v.graph, "schedule": v.schedule.to_json(), "sizes": v.sizes} for v in self.versions],
            "used": 1 + max(v for _, v in leaves(self.tree)),
            "tree": tree_to_json(self.tree),
            "points": points_to_json(self.points),
            "measured_on": self.measured_on,
        }

    def restored(self, candidates: Sequence[Candidate], device: CudaDevice) -> CudaDecision:
        """The decision with kernels compiled for a device; `candidates` are the record's graphs.

        Raises ScheduleError for schedules that the emitter or the device refuses, CompilerError, and as `build_all` does.
        """
        work = [(candidates[v.graph], v.schedule, v.sizes) for v in self.versions]
        versions = []
        for (c, schedule, sizes), built in zip(work, build_all(work, device), strict=True):
            if isinstance(built, MirageError):
                raise built
            versions.append(CudaVersion(c, schedule, sizes, built))
        return CudaDecision(tuple(versions), self.tree, self.points, self.measured_on)


def cuda_record(decision: CudaDecision, candidates: Sequence[Candidate]) -> CudaDecisionRecord:
    """The record of a decision among versions of the graphs of `candidates`."""
    places = {id(c.graph): i for i, c in enumerate(candidates)}
    versions = (CudaVersionRecord(places[id(v.candidate.graph)], v.schedule, dict(v.sizes)) for v in decision.versions)
    return CudaDecisionRecord(tuple(versions), decision.tree, decision.points, decision.measured_on)


def cuda_decision_from_json(obj: Any, graphs: Sequence[Known], symbols: Collection[str]) -> CudaDecisionRecord:
    """Raises FormatError for anything but what `CudaDecisionRecord.to_json` writes, of these graphs and dim symbols,
    ScheduleError where a schedule is not one of its graph.
    """
    if not isinstance(obj, dict) or set(obj) != {"versions", "used", "tree", "points", "measured_on"}:
        raise FormatError("decision: expected versions, used, tree, points and measured_on")
    if not isinstance(obj["versions"], list) or not 0 < len(obj["versions"]) <= MAX_RIVALS:
        raise FormatError(f"decision: versions must be a list of 1 to {MAX_RIVALS}")
    if not isinstance(obj["measured_on"], str):
        raise FormatError(f"decision: measured_on must be the name of a device, got {obj['measured_on']!r}"[:200])
    versions = tuple(_version_from_json(v, graphs, symbols) for v in obj["versions"])
    # those of the leaves come first; the others are for a device to measure
    used = obj["used"]
    if type(used) is not int or not 0 < used <= len(versions):
        raise FormatError(f"decision: used must be a number from 1 to {len(versions)}, got {used!r}"[:200])
    tree = tree_from_json(obj["tree"], symbols, used)
    return CudaDecisionRecord(
        versions, tree, points_from_json(obj["points"], len(versions), symbols), obj["measured_on"]
    )


def _version_from_json(obj: Any, graphs: Sequence[Known], symbols: Collection[str]) -> CudaVersionRecord:
    if not isinstance(obj, dict) or set(obj) != {"graph", "schedule", "sizes"}:
        raise FormatError("decision: a version must have exactly graph, schedule and sizes")
    place = obj["graph"]
    if type(place) is not int or not 0 <= place < len(graphs):
        raise FormatError(f"decision: there is no graph {place!r}"[:200])
    schedule = CudaSchedule.from_json(obj["schedule"])
    schedule.check(graphs[place].graph)
    return CudaVersionRecord(place, schedule, sizes_from_json(obj["sizes"], symbols))


def rename_cuda_schedule(schedule: CudaSchedule, axes: Mapping[str, str]) -> CudaSchedule:
    """The schedule with its axes renamed."""

    def table(pairs: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple((rename_axis(a, axes), n) for a, n in pairs)

    return replace(
        schedule,
        kernels=tuple(
            replace(
                k,
                tiles=table(k.tiles),
                splits=table(k.splits),
                rooms=table(k.rooms),
                order=tuple(rename_axis(a, axes) for a in k.order),
                packed=tuple((i, rename_axis(a, axes)) for i, a in k.packed),
                layouts=tuple((i, rename_axis(a, axes)) for i, a in k.layouts),
            )
            for k in schedule.kernels
        ),
    )
