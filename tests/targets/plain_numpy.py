"""NumPy as a target: all that a target needs, for one without a compiler, schedules or measurements.

A package that has this module as the entry point `numpy = tests.targets.plain_numpy` of the group "mirage.targets" offers it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.errors import MirageError, UnknownTarget
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisProgram
from mirage.ir.codec import decode
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.library import LibraryProgram
from mirage.kernels.loop_text import parts_to_text
from mirage.kernels.target import RANKED, RANKED_KERNELS, Made, Rates, Scheduled
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.whole import whole_program


@dataclass(frozen=True)
class NumpySchedule:
    """There is nothing to decide."""

    def check(self, graph: MuGraph) -> None:
        """Every graph has it."""


class NumpyKernels(LibraryProgram):
    """A muGraph as NumPy's calls, without its tiles."""

    def __init__(self, graph: MuGraph) -> None:
        super().__init__(whole_program(graph))
        self.source = str(graph)

    def forget(self) -> None:
        """There are no packed copies."""


class NumpyLoops:
    """A loop program as the interpreter has it."""

    kind = "target_loops"
    target = "numpy"
    workspace_types = ()

    def __init__(self, program: LoopProgram, hints: Mapping[str, int]) -> None:
        self.program, self.hints = program, {s: hints.get(s, 1) for s in program.symbols}
        self.symbols, self.output_types = program.symbols, program.output_types

    def to_text(self) -> str:
        return parts_to_text(self.program, self.target, self.hints)

    def __call__(self, inputs: Any, sizes: Mapping[str, int], out: Sequence[np.ndarray], workspace: Any = ()) -> None:
        for o, found in zip(out, run_loops(self.program, inputs, sizes), strict=True):
            o[...] = found


class NumpyTuning:
    """Graphs of few operators first."""

    libraries = ("",)

    def at(
        self, graphs: Sequence[tuple[MuGraph, RunningMaximum]], sizes: Mapping[str, int]
    ) -> tuple[list[Scheduled], list[tuple[MuGraph, MirageError]]]:
        schedule = NumpySchedule()
        found = [Scheduled(g, m, schedule, sizes, self.us(g, schedule, sizes)) for g, m in graphs]
        return sorted(found, key=lambda w: w.us), []

    def us(self, graph: MuGraph, schedule: Any, sizes: Mapping[str, int], executable: Any = None) -> float:
        return float(len(whole_program(graph).nodes))

    def is_limited(self, graph: MuGraph) -> bool:
        return False

    def is_hopeless(self, w: Scheduled) -> bool:
        return False

    def made(self, work: Sequence[Scheduled]) -> list[tuple[Scheduled, Made | MirageError]]:
        return list(zip(work, TARGET.made(work, ()), strict=True))


class NumpyTarget:
    """See `mirage.kernels.target.Target`."""

    name, note, answers, kernels, on_host = "numpy", "NumPy", RANKED, RANKED_KERNELS, True
    rates = Rates(launch=3000.0, operator=1000.0, memory=0.1, cache=0.1, work=1.0)
    machines = ("",)

    def floor_us(self, moved: int, flops: int, dtype: str) -> float:
        return 1e-4 * moved

    def report(self, program: AxisProgram, executable: Any) -> list[tuple[str, str]]:
        return []

    def schedule_from_json(self, obj: Any) -> NumpySchedule:
        return decode(NumpySchedule, obj, "schedule")

    def renamed(self, schedule: NumpySchedule, axes: Mapping[str, str]) -> NumpySchedule:
        return schedule

    def check_at_hand(self, name: str) -> None:
        """It is."""

    def arithmetic(self) -> type[FloatArithmetic]:
        return FloatArithmetic

    def library(self, program: AxisProgram) -> Callable[..., list[Any]]:
        return LibraryProgram(program)

    def loops(self, program: LoopProgram, hints: Mapping[str, int]) -> NumpyLoops:
        return NumpyLoops(program, hints)

    def finish(self, kernels: Iterable[Any]) -> None:
        """Kernels are complete when they are made."""

    def tuning(self, program: AxisProgram, constants: Collection[str]) -> NumpyTuning:
        return NumpyTuning()

    def made(self, work: Sequence[Scheduled], constants: Collection[str]) -> list[Made | MirageError]:
        runs = [NumpyKernels(w.graph) for w in work]
        return [Made(lambda run=run: run) for run in runs]  # type: ignore[misc]


TARGET = NumpyTarget()


def find(name: str) -> NumpyTarget:
    """NumPy; raises UnknownTarget for any other name."""
    if name != TARGET.name:
        raise UnknownTarget(f"target {name!r} does not exist; choose numpy")
    return TARGET
