"""Schedules that decide about operators of a block otherwise than the back end would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random

from mirage.kernels.cpu.emit.mugraph import Emitter
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import BlockLayout, KernelSchedule, Schedule


def planned(graph: MuGraph, schedule: Schedule, hints: Mapping[str, int]) -> Emitter:
    return Emitter(graph, schedule, analyze(graph), hints)


def each_other(graph: MuGraph, schedule: Schedule, hints: Mapping[str, int]) -> Iterator[Schedule]:
    """The schedules that differ in one decision: any vector axis, any layout, padded or not."""
    for k, kernel in enumerate(planned(graph, schedule, hints).kernels):
        rows = [i for i, choice in kernel.decisions.last.items() if len(choice.options) > 1]
        for s in (
            *kernel.decisions.with_other_vectors(),
            *kernel.decisions.with_other_layouts(),
            *kernel.decisions.with_other_padding(rows),
        ):
            yield _with(schedule, k, s)


def all_decided(graph: MuGraph, schedule: Schedule, hints: Mapping[str, int], rng: Random) -> Schedule:
    """The schedule with a random vector axis for every group and product, and a random layout for every block tensor that has
    rows and whose own it does not follow from."""
    for k in range(len(schedule.kernels)):
        choices = planned(graph, schedule, hints).kernels[k].decisions.vectors
        vectors = tuple((i, rng.choice(c.options)) for i, c in choices.items() if c.options)
        schedule = _with(schedule, k, replace(schedule.kernels[k], vectors=vectors))
        # what may be stored last depends on the vectors of products
        tensors = planned(graph, schedule, hints).kernels[k].decisions.last
        layouts = tuple(
            BlockLayout(i, rng.choice(c.options), rng.random() < 0.5) for i, c in tensors.items() if len(c.options) > 1
        )
        schedule = _with(schedule, k, replace(schedule.kernels[k], layouts=layouts))
    return schedule


def _with(schedule: Schedule, k: int, kernel: KernelSchedule) -> Schedule:
    return Schedule((*schedule.kernels[:k], kernel, *schedule.kernels[k + 1 :]))
