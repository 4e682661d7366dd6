"""What single kernels take, as measured where graphs of several kernels run.

Graphs of one program have kernels in common, and schedules of one graph differ in one kernel or two. So what was measured of a
kernel anywhere is what it is expected to take everywhere; a graph is expected to take what its kernels take together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.schedules.scheduler import Part, Scheduler
from mirage.mugraph.graph import Node
from mirage.mugraph.schedule import KernelSchedule, Schedule

#: which kernel (by its number), how often axes are split, and which operands have another last axis than their own
_Setting = tuple[int, tuple[tuple[str, int], ...], tuple[tuple[int, str], ...]]


@dataclass(frozen=True)
class _Measured:
    us: float
    counts: np.ndarray


class KernelTimes:
    """The least microseconds of each kernel and schedule, in proportion to one another, at one set of sizes."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}
        self._measured: dict[_Setting, dict[KernelSchedule, _Measured]] = {}
        #: of each kernel, the one that was fastest
        self._best: dict[int, _Measured] = {}
        #: what the library calls of graphs took
        self._calls: list[_Measured] = []

    def numbers(self, scheduler: Scheduler) -> list[int]:
        """The numbers of the kernels of a graph: those of the same number compute the same, whatever graph they are in."""
        return [self._numbers.setdefault(replace(n, operands=()), len(self._numbers)) for n in scheduler.nodes]

    def fastest(self) -> dict[Node, float]:
        """The least microseconds of each kernel, as a node without operands."""
        return {node: self._best[i].us for node, i in self._numbers.items() if i in self._best}

    def learn(
        self, scheduler: Scheduler, numbers: Sequence[int], schedule: Schedule, us: Sequence[float], whole: float
    ) -> None:
        """What the kernels took that run in every call, of a graph that took so many microseconds as a whole."""
        calls = scheduler.library_counts(schedule)
        if calls.any():
            self._calls.append(_Measured(max(whole - sum(us), 0.0), calls))
        for part, time in zip(scheduler.parts(schedule), us, strict=True):
            k, s, *_ = part
            found = _Measured(time, scheduler.part_counts(part))
            known = self._measured.setdefault(_setting(numbers, part), {})
            if s not in known or time < known[s].us:
                known[s] = found
            best = self._best.get(numbers[k])
            if best is None or time < best.us:
                self._best[numbers[k]] = found

    def has(self, numbers: Sequence[int], part: Part) -> bool:
        """Whether a kernel of a graph was measured with this schedule."""
        return part[1] in self._measured.get(_setting(numbers, part), ())

    def shares(self, scheduler: Scheduler, numbers: Sequence[int], schedule: Schedule) -> dict[int, float]:
        """The shares of the time of a graph that its kernels have, by their places; empty where one was not measured."""
        parts = scheduler.parts(schedule)
        if not all(self.has(numbers, part) for part in parts):
            return {}
        us = {part[0]: self._measured[_setting(numbers, part)][part[1]].us for part in parts}
        return {k: own / sum(us.values()) for k, own in us.items()}

    def us(
        self, scheduler: Scheduler, numbers: Sequence[int], schedule: Schedule, model: CostModel, modelled: float
    ) -> float | None:
        """The estimate of a graph that is modelled to take so many microseconds: what was measured of its kernels; of kernels
        that were measured with other schedules, and of library calls, the model's estimate, times by how much it was wrong about
        them; and the model's for the rest, times by how much it was wrong about measured kernels, or else calls. None where none
        was measured.

        A kernel that took far longer than modelled may have had a bad schedule, or be slow with any: the model is taken to be as
        wrong about its other schedules as the geometric mean of what it was about this one and is usually.
        """
        found, wrong, calls = 0.0, [], [_error(m, model) for m in self._calls]
        usual = median(_error(m, model) for m in self._best.values()) if self._best else 1.0
        counts = scheduler.library_counts(schedule)
        if calls and counts.any():
            own = 1e-3 * float(model.ns(counts))
            found += own * median(calls)
            modelled -= own
        for part in scheduler.parts(schedule):
            best = self._best.get(numbers[part[0]])
            if best is None:
                continue
            here = self._measured.get(_setting(numbers, part), {}).get(part[1])
            own = 1e-3 * float(model.ns(scheduler.part_counts(part)))
            wrong.append(_error(best, model))
            found += here.us if here is not None else own * math.sqrt(usual * wrong[-1])
            modelled -= own
        return found + max(modelled, 0.0) * median(wrong or calls) if found else None

    def fastest_of(self, scheduler: Scheduler, numbers: Sequence[int], schedule: Schedule) -> Schedule:
        """The schedule with each kernel as it was fastest, where axes are split as often and stored in the same order."""
        kernels = list(schedule.kernels)
        for part in scheduler.parts(schedule):
            k, own, *_ = part
            known = self._measured.get(_setting(numbers, part), {})
            alike = {s: m.us for s, m in known.items() if (s.splits, s.last) == (own.splits, own.last)}
            if alike:
                best = min(alike, key=alike.__getitem__)
                kernels[k] = best if alike[best] < alike.get(own, math.inf) else own
        return Schedule(tuple(kernels))


def _error(measured: _Measured, model: CostModel) -> float:
    """By how much the model is wrong."""
    return measured.us / max(1e-3 * float(model.ns(measured.counts)), 1e-9)


def _setting(numbers: Sequence[int], part: Part) -> _Setting:
    k, _, splits, orders = part
    return numbers[k], splits, orders
