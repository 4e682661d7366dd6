"""The processor as a target."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mirage.errors import MirageError, ScheduleError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisProgram
from mirage.ir.codec import decode
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.packing import check_packed
from mirage.kernels.cpu.library import CpuLibraryProgram
from mirage.kernels.cpu.model.limits import limit_us, measure_limits
from mirage.kernels.cpu.processor import CPU_RATES, Processor, processor
from mirage.kernels.cpu.tuning import CpuTuning, machine_model
from mirage.kernels.target import Made, Scheduled, unknown
from mirage.mugraph.rename import rename_schedule
from mirage.mugraph.schedule import Schedule

if TYPE_CHECKING:
    from mirage.kernels.cpu.loops.kernel import LoopKernel


class CpuTarget:
    """See `Target`; `machine` is the processor at hand."""

    name = "cpu"
    answers = "mirage.results.cpu.tune"
    kernels = "mirage.compiler.kernels.cpu_maker"
    on_host = True
    rates = CPU_RATES

    def __init__(self, machine: Processor) -> None:
        self.machine = machine
        self.machines = [f"{machine.cpu}\n{machine.cores}"]

    @property
    def note(self) -> str:
        return f"{self.machine.cpu}, {self.machine.cores} cores"

    def floor_us(self, moved: int, flops: int, dtype: str) -> float:
        return limit_us(moved, flops, measure_limits(), self.machine)

    def report(self, program: AxisProgram, executable: CpuExecutable) -> list[tuple[str, str]]:
        return []

    def schedule_from_json(self, obj: Any) -> Schedule:
        return decode(Schedule, obj, "schedule")

    def renamed(self, schedule: Schedule, axes: Mapping[str, str]) -> Schedule:
        return rename_schedule(schedule, axes)

    def check_at_hand(self, name: str) -> None:
        """It is."""

    def arithmetic(self) -> type[FloatArithmetic]:
        return FloatArithmetic

    def library(self, program: AxisProgram) -> CpuLibraryProgram:
        return CpuLibraryProgram(program)

    def loops(self, program: LoopProgram, hints: Mapping[str, int]) -> LoopKernel:
        # only whole programs have loops
        from mirage.kernels.cpu.loops.kernel import LoopKernel

        return LoopKernel(program)

    def finish(self, kernels: Iterable[Any]) -> None:
        """Every kernel is complete when it is made."""

    def tuning(self, program: AxisProgram, constants: Collection[str]) -> CpuTuning:
        return CpuTuning(machine_model(), tuple(constants), self.made)

    def made(self, work: Sequence[Scheduled], constants: Collection[str]) -> list[Made | MirageError]:
        """Kernels are compiled when they are first asked for."""
        found: list[Made | MirageError] = []
        for w in work:
            try:
                check_packed(w.graph, w.schedule, constants)
            except ScheduleError as e:
                found.append(e)
                continue
            make = partial(CpuExecutable, w.graph, w.schedule, w.maximum, w.sizes, constants)
            found.append(Made(functools.cache(make)))
        return found


def find(name: str) -> CpuTarget:
    """The processor at hand; raises UnknownTarget for any other name than "cpu"."""
    if name != "cpu":
        raise unknown(name)
    return CpuTarget(processor())
