"""Schedules of graphs on the processor as its cost model has them, without measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mirage.errors import MirageError
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.model.fit import coefficients
from mirage.kernels.cpu.processor import Processor, processor
from mirage.kernels.cpu.schedules.scheduler import Scheduler, machine_of
from mirage.kernels.target import Made, Make, Scheduled
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph
from mirage.settings import cache_dir


def machine_model() -> CostModel:
    """The cost model of this machine, as far as tuning had fitted it when this process asked for the first time."""
    return _model(processor(), cache_dir())


@lru_cache(maxsize=4)
def _model(target: Processor, folder: Path) -> CostModel:
    # a fit to many measurements takes half a second
    return CostModel(machine_of(target), coefficients(target))


class CpuTuning:
    """See `Tuning`; `make` makes kernels that may read packed copies of `constants`."""

    libraries = ("",)

    def __init__(self, model: CostModel, constants: Sequence[str], make: Make) -> None:
        self.model = model
        self.constants = constants
        self._make = make
        self._schedulers: dict[tuple[int, tuple[int, ...]], Scheduler] = {}

    def at(
        self, graphs: Sequence[tuple[MuGraph, RunningMaximum]], sizes: Mapping[str, int]
    ) -> tuple[list[Scheduled], list[tuple[MuGraph, MirageError]]]:
        """The best schedule of each graph, but where a block needs more memory than a core's share of the caches (paper, 4.1)."""
        found, refused = [], []
        for graph, maximum in graphs:
            try:
                scheduler = self._scheduler(graph, sizes)
                (schedule, *_) = scheduler.within(1, self.model.machine.share)
            except MirageError as e:
                refused.append((graph, e))
                continue
            found.append(Scheduled(graph, maximum, schedule, sizes, scheduler.ns(schedule) / 1e3))
        return sorted(found, key=lambda w: w.us), refused

    def _scheduler(self, graph: MuGraph, sizes: Mapping[str, int]) -> Scheduler:
        key = id(graph), tuple(sizes.values())
        if key not in self._schedulers:
            self._schedulers[key] = Scheduler(graph, sizes, self.model, constants=self.constants)
        return self._schedulers[key]

    def us(self, graph: MuGraph, schedule: Any, sizes: Mapping[str, int], executable: Any = None) -> float:
        return self._scheduler(graph, sizes).ns(schedule) / 1e3

    def is_limited(self, graph: MuGraph) -> bool:
        return False

    def is_hopeless(self, w: Scheduled) -> bool:
        return False

    def made(self, work: Sequence[Scheduled]) -> list[tuple[Scheduled, Made | MirageError]]:
        return list(zip(work, self._make(work, self.constants), strict=True))
