"""Measuring the versions of a result on a CUDA device: what the model has ranked is checked, timed, and decided among again.

Versions take turns (`mirage.kernels.cuda.launch.profile`), so that clocks and neighbours hit them alike. A turn is a CUDA graph
of calls, as whole programs launch kernels, each with other copies of the arguments than the last, more of them than the L2
cache holds: kernels read weights and keys from DRAM, as they do in a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import DeviceError, MirageError, VerificationError
from mirage.ir.axes import AxisProgram
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.launch.bound import BoundCall
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.launch.profile import DeviceClock, Repeated, cold_copies, interleave, rotation
from mirage.kernels.library import LibraryProgram
from mirage.search.accuracy import Trial, accuracy_trials
from mirage.search.decision import Decision, Point, Version
from mirage.search.inputs import random_inputs

#: copies of the arguments at most: each has a call of every version, and its memory
COPIES = 64
#: share of the free memory of the device that the arguments and results of a point may take
MEMORY_SHARE = 0.5
#: a version that takes so many times as long as the fastest in its second call, and longer by what launches can take that no
#: graph holds (us), has no turns: some take a thousand times as long
HOPELESS, LAUNCHES_US = 3.0, 100.0

#: times of versions (us) at some sizes, infinite where one does not serve these or fails
Times = Callable[[Sequence[Version], Mapping[str, int]], list[float]]


def remeasured(
    decision: Decision, check: Callable[[Version], str], times: Times, wanted: int, device: str
) -> tuple[Decision, list[str]]:
    """The decision among the versions that pass `check` (which says why one does not), learnt from measured times at the same
    points, of which the first `wanted` were given; and why others were left out. `device` is the name of the device.

    Raises VerificationError where none passes, or none runs at the first point.
    """
    rejected: list[str] = []
    good: list[Version] = []
    for v in decision.versions:
        why = check(v)
        if why:
            rejected.append(f"{v}: {why}")
        else:
            good.append(v)
    points = [Point(p.sizes, tuple(times(good, p.sizes))) for p in decision.points] if good else []
    if not good or min(points[0].times) == np.inf:
        raise VerificationError(
            f"no version runs on {device} and gives the program's results ({'; '.join(rejected[:2])}); use target='cpu', and "
            "please report this program"
        )
    return Decision.learnt(good, points, wanted, device), rejected


class DeviceRuns:
    """Runs versions of a program on the device at hand, within about `budget` seconds altogether.

    `executable` gives the kernels of a version. Every random input is a function of `seed`.
    """

    def __init__(
        self,
        cupy: Any,
        program: Program,
        axis_program: AxisProgram,
        sizes: Mapping[str, int],
        device: CudaDevice,
        executable: Callable[[Version], CudaExecutable],
        *,
        budget: float,
        points: int,
        seed: int,
    ) -> None:
        self.cupy = cupy
        self.program = program
        self.device = device
        self.executable = executable
        self.seed = seed
        self.share = budget / (points + 1)
        _, flops = program_cost(axis_program, sizes)
        library = LibraryProgram(axis_program)
        inputs = random_inputs(program, sizes, seed)
        self.trials: list[Trial] = accuracy_trials(program, inputs, dict(sizes), flops, library, seed)

    def check(self, version: Version) -> str:
        """Why a version must not be used; empty where its results are about as near to float64 as the program's own."""
        try:
            run = self.executable(version)
            for trial in self.trials:
                if not version.serves(trial.sizes):
                    continue
                _, passed = trial.measure(
                    lambda xs, ss: [self._from_device(y) for y in run([self._to_device(x) for x in xs], ss)]
                )
                if not passed:
                    return f"its results differ from the program's at {trial.name}"
        except MirageError as e:
            return str(e)
        except (RuntimeError, MemoryError) as e:
            # errors of the driver, as CuPy passes them on
            return f"it fails on the device: {e}"
        return ""

    def times(self, versions: Sequence[Version], sizes: Mapping[str, int]) -> list[float]:
        """Median microseconds of each version at these sizes, its arguments in DRAM; infinite where it cannot run there."""
        found = [np.inf] * len(versions)
        moved = self._bytes(sizes)
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        count = min(cold_copies(moved, self.device), COPIES, int(MEMORY_SHARE * free) // max(moved, 1))
        if not count:
            return found
        host = random_inputs(self.program, sizes, self.seed)
        copies = [[self._to_device(x) for x in host] for _ in range(count)]
        # versions write the same results
        outs = [[self.cupy.empty(t.bind(sizes), DTYPES[t.dtype]) for t in self.program.output_types] for _ in copies]
        # the stream of the measurements does not wait for the one that copies
        self.cupy.cuda.get_current_stream().synchronize()
        arrays = list(zip(copies, outs, strict=True))
        turns: dict[str, Callable[[], object]] = {}
        with self.cupy.cuda.Stream(non_blocking=True):
            for k, v in enumerate(versions):
                if v.serves(sizes):
                    found[k] = self._once(v, sizes, arrays)
            least = min(found, default=np.inf)
            most = max(HOPELESS * least, least + LAUNCHES_US)
            for k, v in enumerate(versions):
                if found[k] <= most < np.inf:
                    run = self.executable(v)
                    try:
                        turns[str(k)] = _turn([run.bind(xs, sizes, ys) for xs, ys in arrays])
                    except (MirageError, RuntimeError, MemoryError):
                        # of the driver: other versions may run
                        found[k] = np.inf
            for name, timing in interleave(turns, seconds=self.share).items():
                found[int(name)] = timing.median_us
        return found

    def _once(self, version: Version, sizes: Mapping[str, int], arrays: Sequence[tuple[list[Any], list[Any]]]) -> float:
        """Microseconds of the second call of a version, on the last arrays after the first; infinite where it cannot run."""
        try:
            run = self.executable(version)
            warm, timed = (run.bind(xs, sizes, ys) for xs, ys in (arrays[0], arrays[-1]))
            warm.launch()
            return DeviceClock(self.cupy)(timed.launch) / 1e3
        except (MirageError, RuntimeError, MemoryError):
            # of the compiler, or of the driver: other versions may run
            return np.inf

    def _bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arguments and results of a call."""
        types = [*self.program.input_types, *self.program.output_types]
        return sum(int(np.prod(t.bind(sizes), dtype=np.int64)) * ELEMENTS[t.dtype].itemsize for t in types)

    def _to_device(self, x: np.ndarray) -> Any:
        # as unsigned integers: CuPy copies these whatever type they stand for
        return self.cupy.asarray(np.ascontiguousarray(x).view(f"u{x.itemsize}")).view(x.dtype)

    def _from_device(self, y: Any) -> np.ndarray:
        dtype = np.dtype(y.dtype)
        found: np.ndarray = self.cupy.asnumpy(self.cupy.ascontiguousarray(y).view(f"u{dtype.itemsize}")).view(dtype)
        return found


def _turn(calls: Sequence[BoundCall]) -> Repeated:
    """The calls one after another, as one CUDA graph where all that they do can be recorded."""

    def launch() -> None:
        for call in calls:
            call.launch()

    try:
        return rotation(calls)
    except DeviceError:
        return Repeated(launch, len(calls))
