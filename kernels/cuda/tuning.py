"""Schedules of the graphs of a program on a CUDA device, in the order of their modelled cost, and their kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mirage.errors import MirageError, ScheduleError
from mirage.ir.axes import AxisProgram
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emit.mugraph import with_descriptors
from mirage.kernels.cuda.library.libraries import CUBLASLT, offered
from mirage.kernels.cuda.model.cost import CudaModel, held_whole
from mirage.kernels.cuda.schedules.layouts import with_layouts, with_packed
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule
from mirage.kernels.cuda.schedules.scheduler import CudaScheduler
from mirage.kernels.target import Made, Make, Scheduled
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph

#: schedules of a graph that are ranked
SCHEDULES = 4
#: of the fastest ones so many get layouts for what is between their kernels, and so many are also tried with constants that are
#: read from packed copies
LAID, PACKED = 24, 2


class CudaTuning:
    """See `Tuning`; `make` makes kernels."""

    def __init__(self, device: CudaDevice, program: AxisProgram, constants: Collection[str], make: Make) -> None:
        self.constants = constants
        self.model = CudaModel(device)
        self.libraries = offered(program)
        self._make = make
        #: kernels whose registers spill: which work, by identity, with which schedule
        self._spilled: set[tuple[int, CudaKernelSchedule]] = set()

    def at(
        self, graphs: Sequence[tuple[MuGraph, RunningMaximum]], sizes: Mapping[str, int]
    ) -> tuple[list[Scheduled], list[tuple[MuGraph, MirageError]]]:
        known: dict[tuple[object, ...], list[CudaKernelSchedule]] = {}
        found: list[Scheduled] = []
        refused: list[tuple[MuGraph, MirageError]] = []
        for graph, maximum in graphs:
            first = Scheduled(graph, maximum, None, sizes, library=CUBLASLT)
            try:
                best = CudaScheduler(graph, sizes, self.model, known).best(SCHEDULES)
            except MirageError as e:
                refused.append((graph, e))
                continue
            found += [replace(first, schedule=r.schedule, us=r.us) for r in best]
            if best and any(n.op == "matmul" for n in graph.kernel.nodes):
                others = (name for name in self.libraries if name != CUBLASLT)
                found += [
                    replace(first, schedule=replace(best[0].schedule, library=x), us=best[0].us, library=x) for x in others
                ]
        found.sort(key=lambda r: r.us)
        for i, r in enumerate(found[:LAID]):
            laid, us = with_layouts(r.graph, r.schedule, sizes, self.model)
            found[i] = replace(r, schedule=laid, us=us) if laid != r.schedule else r
        found.sort(key=lambda r: r.us)
        for r in found[:PACKED] if self.constants else ():
            packed = with_packed(r.graph, r.schedule, self.constants, sizes, self.model)
            if packed is not None:
                # other tiles may be best for that layout
                layouts = [s.packed for s in packed[0].kernels]
                best = CudaScheduler(r.graph, sizes, self.model, known, layouts).best(SCHEDULES)
                found += [replace(r, schedule=p.schedule, us=p.us) for p in best]
        return sorted(found, key=lambda r: r.us), refused

    def us(self, graph: MuGraph, schedule: Any, sizes: Mapping[str, int], executable: Any = None) -> float:
        return self.model.us(graph, schedule, sizes, executable.kernels if executable else ())

    def is_hopeless(self, w: Scheduled) -> bool:
        """Whether it has a kernel that another graph has, and that spills."""
        kernels = zip(w.graph.kernels, w.schedule.kernels, strict=True)
        return any((id(self.model.work(n)), s) in self._spilled for n, s in kernels)

    def is_limited(self, graph: MuGraph) -> bool:
        """Whether a schedule serves sizes up to some only: a block holds an axis whole whose size is not known."""
        held = (a for n in graph.kernels if n.graph for a in held_whole(n.graph))
        # the sizes of partial axes are the schedule's
        return any(a in graph.axes and not graph.axes[a].is_Integer for a in held)

    def _described(self, r: Scheduled) -> Scheduled:
        """With those descriptors that the emitter makes: the model does not look at axes that share a dim."""
        if not any(s.descriptors for s in r.schedule.kernels):
            return r
        try:
            able = with_descriptors(r.graph, r.schedule, r.maximum)
        except MirageError:
            # which its compilation says
            return r
        kernels = []
        for s, most in zip(r.schedule.kernels, able.kernels, strict=True):
            kept = tuple(d for d in s.descriptors if d in most.descriptors)
            kernels.append(replace(s, descriptors=kept))
        return replace(r, schedule=replace(r.schedule, kernels=tuple(kernels)))

    def made(self, work: Sequence[Scheduled]) -> list[tuple[Scheduled, Made | MirageError]]:
        """Each with the descriptors that it has; registers that spill are an error."""
        described = [self._described(w) for w in work]
        together = zip(work, described, self._make(described, self.constants), strict=True)
        return [(w, self._checked(given, w, made)) for given, w, made in together]

    def _checked(self, given: Scheduled, w: Scheduled, made: Made | MirageError) -> Made | MirageError:
        if isinstance(made, MirageError):
            return made
        kernels = made.make().kernels
        if spills := sum(k.spill_bytes for k in kernels):
            together = zip(w.graph.kernels, given.schedule.kernels, kernels, strict=True)
            self._spilled |= {(id(self.model.work(n)), s) for n, s, k in together if k.spill_bytes}
            return ScheduleError(f"registers spill {spills} bytes; choose smaller tiles or more warps")
        return made
