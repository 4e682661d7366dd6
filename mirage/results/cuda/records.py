"""Results for CUDA devices as they are stored: versions with their schedules, the tree, and the times that it was learnt from.

As in `mirage.results.records`, a record holds no code: Triton is printed again from the graphs, which are verified again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage.errors import FormatError, MirageError, NoCompilerError
from mirage.ir.canonical import Renaming
from mirage.ir.codec import Index
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.kernels.decision import Sizes, Tree, check_tree, leaves, rename
from mirage.mugraph.rename import rename_axis
from mirage.results.records import check_points, check_sizes, rename_points, rename_sizes
from mirage.results.result import StoredResult
from mirage.search.candidates import Candidate, Known
from mirage.search.cuda.rank import MAX_RIVALS
from mirage.search.cuda.versions import CudaDecision, CudaVersion, build_all
from mirage.search.versions import Point


@dataclass(frozen=True)
class CudaVersionRecord:
    """One version as it was stored: of which graph (its place among the records), with which schedule, for which sizes."""

    graph: Index
    schedule: CudaSchedule
    sizes: Sizes


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

    def check(self, graphs: Sequence[Known], symbols: Collection[str]) -> None:
        """Raises FormatError unless it is of these graphs and dim symbols, ScheduleError where a schedule is not one of its
        graph.
        """
        if not 0 < len(self.versions) <= MAX_RIVALS:
            raise FormatError(f"decision: there must be 1 to {MAX_RIVALS} versions, got {len(self.versions)}")
        for v in self.versions:
            if v.graph >= len(graphs):
                raise FormatError(f"decision: there is no graph {v.graph}")
            v.schedule.check(graphs[v.graph].graph)
            check_sizes(v.sizes, symbols)
        # those of the leaves come first; the others are for a device to measure
        used = 1 + max(v for _, v in leaves(self.tree))
        check_tree(self.tree, symbols, min(used, len(self.versions)))
        check_points(self.points, len(self.versions), symbols)

    def restored(self, candidates: Sequence[Candidate], device: CudaDevice) -> CudaDecision:
        """The decision with kernels compiled for a device; `candidates` are the record's graphs.

        Raises ScheduleError for schedules that the emitter or the device refuses, CompilerError, and as `build_all` does.
        """
        work = [(candidates[v.graph], v.schedule, v.sizes) for v in self.versions]
        versions = []
        for (c, schedule, sizes), built in zip(work, build_all(work, device), strict=True):
            if isinstance(built, NoCompilerError) and schedule.gemm is not None:
                # CUTLASS kernels that are not in the cache: cuBLASLt computes the products
                schedule = replace(schedule, gemm=None)
                (built,) = build_all([(c, schedule, sizes)], device)
            if isinstance(built, MirageError):
                raise built
            versions.append(CudaVersion(c, schedule, sizes, built))
        return CudaDecision(tuple(versions), self.tree, self.points, self.measured_on)


def cuda_record(decision: CudaDecision, candidates: Sequence[Candidate]) -> CudaDecisionRecord:
    """The record of a decision among versions of the graphs of `candidates`."""
    places = {id(c.graph): i for i, c in enumerate(candidates)}
    versions = (CudaVersionRecord(places[id(v.candidate.graph)], v.schedule, v.sizes) for v in decision.versions)
    return CudaDecisionRecord(tuple(versions), decision.tree, decision.points, decision.measured_on)


@dataclass(frozen=True, kw_only=True)
class StoredCudaResult(StoredResult):
    """A result for a CUDA device as it is stored."""

    decision: CudaDecisionRecord

    def check_stored(self) -> None:
        """As of every result; raises FormatError and ScheduleError, too, where the decision is not one of its graphs."""
        super().check_stored()
        self.decision.check(self.graphs, self.program.symbols())


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
