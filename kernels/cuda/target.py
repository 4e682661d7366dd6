"""CUDA devices as targets, whether they are at hand or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from mirage.errors import CompilerError, MirageError, ScheduleError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisProgram
from mirage.ir.codec import decode
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.cuda.compile.functions import Request, typical_requests
from mirage.kernels.cuda.compile.kernels import CompiledKernel, checked, compile_all
from mirage.kernels.cuda.device import CudaDevice, cuda_device, find_cupy
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.emitted import EmittedTriton, TritonKernel
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.launch.loaded import cupy_at_hand
from mirage.kernels.cuda.library.libraries import CUBLASLT, LIBRARIES, library
from mirage.kernels.cuda.library.operators import cupy_arithmetic, device_arrays
from mirage.kernels.cuda.library.predefined import library_operators
from mirage.kernels.cuda.library.program import CudaLibraryProgram
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from mirage.kernels.cuda.model.cost import floor_us
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.kernels.cuda.tuning import CudaTuning
from mirage.kernels.library_calls import NUMPY
from mirage.kernels.target import RANKED_KERNELS, Made, Rates, Scheduled

#: operators of a core in whose time a CUDA device does one: between those of its ordinary cores and those of its tensor cores
CUDA_CORES = 5000.0


class CudaTarget:
    """See `Target`."""

    answers = "mirage.results.cuda.result"
    kernels = RANKED_KERNELS
    on_host = False

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.name = device.target
        # bytes at the bandwidths of its memory and its cache, and launches, are most of a cost
        self.rates = Rates(
            1e9 * device.launch_s, 0.0, 1e9 / device.sustained_bandwidth, 1e9 / device.l2_bandwidth, 1 / CUDA_CORES
        )
        # as the device at hand measured, else as the model has it
        self.machines = [device.name, ""] if device.present else [""]

    @property
    def note(self) -> str:
        return self.device.note

    def floor_us(self, moved: int, flops: int, dtype: str) -> float:
        return floor_us(self.device, moved, flops, dtype)

    def report(self, program: AxisProgram, executable: CudaExecutable) -> list[tuple[str, str]]:
        rows = [
            (f"kernel {k.name}", f"{k.num_warps} warps, {k.registers} registers, {k.shared >> 10} KiB shared")
            for k in executable.kernels
        ]
        for name in LIBRARIES:
            why = library(name).why_not(program)
            rows.append((f"library {name}", f"not offered: {why}" if why else "offered"))
        return rows

    def schedule_from_json(self, obj: Any) -> CudaSchedule:
        return decode(CudaSchedule, obj, "schedule")

    def renamed(self, schedule: CudaSchedule, axes: Mapping[str, str]) -> CudaSchedule:
        return schedule.renamed(axes)

    def check_at_hand(self, name: str) -> None:
        cupy_at_hand(name, self.device, "compile")

    def arithmetic(self) -> type[FloatArithmetic]:
        return cupy_arithmetic(find_cupy())

    def library(self, program: AxisProgram) -> CudaLibraryProgram:
        return CudaLibraryProgram(program, device_arrays())

    def loops(self, program: LoopProgram, hints: Mapping[str, int]) -> CudaLoopKernel:
        return CudaLoopKernel(program, self.device, hints)

    def finish(self, kernels: Iterable[Any]) -> None:
        for k in kernels:
            if isinstance(k, CudaLoopKernel):
                # the first one has all of them compiled
                _ = k.kernels

    def tuning(self, program: AxisProgram, constants: Collection[str]) -> CudaTuning:
        return CudaTuning(self.device, program, constants, self.made)

    def made(self, work: Sequence[Scheduled], constants: Collection[str]) -> list[Made | MirageError]:
        """The kernels for aligned arrays of the sizes of each; what was not compiled before is compiled side by side.

        Raises NoCompilerError without Triton, UnsafeCacheError if another user could have written the cache.
        """
        emitted: list[EmittedTriton | MirageError] = []
        requests: list[Request] = []
        for w in work:
            try:
                w.schedule.check(w.graph)
                one = emit(w.graph, w.schedule, w.maximum)
                self._prepare(w, one)
                requests += typical_requests(one, self.device, w.sizes)
                emitted.append(one)
            except MirageError as e:
                emitted.append(e)
        done = iter(compile_all(requests))
        return [
            e if isinstance(e, MirageError) else self._made(w, e, list(islice(done, len(e.kernels))), constants)
            for w, e in zip(work, emitted, strict=True)
        ]

    def _prepare(self, w: Scheduled, emitted: EmittedTriton) -> None:
        """Have the library of predefined operators compile what it needs; raises CompilerError."""
        for run in emitted.runs:
            if not isinstance(run, TritonKernel) and emitted.library != CUBLASLT:
                library_operators(w.graph, emitted, run, w.maximum, self.device, NUMPY).prepare(w.sizes)

    def _made(
        self,
        w: Scheduled,
        emitted: EmittedTriton,
        kernels: Sequence[CompiledKernel | CompilerError],
        constants: Collection[str],
    ) -> Made | MirageError:
        try:
            run = CudaExecutable(w.graph, emitted, self.device, w.sizes, constants, checked(kernels, self.device))
        except (CompilerError, ScheduleError) as e:
            return e
        return Made(lambda: run, emitted.limits)


def find(name: str) -> CudaTarget:
    """The device at hand, or an architecture of the table (`cuda_device`)."""
    return CudaTarget(cuda_device(name))
