"""Measuring the versions of a result on a CUDA device: what the model has ranked is checked, timed, and decided among again.

Versions take turns, so that clocks and neighbours hit them alike. A turn is a CUDA graph of calls, as whole programs launch
kernels, each with other copies of the arguments than the last, more of them than the L2 cache holds: kernels read weights and
keys from DRAM, as they do in a model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mirage.errors import MirageError, VerificationError
from mirage.ir.axes import AxisProgram
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.limits import program_cost
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.launch import CudaExecutable
from mirage.kernels.library import LibraryProgram
from mirage.search.accuracy import Trial, accuracy_trials, random_inputs
from mirage.search.rank import CudaDecision, CudaVersion
from mirage.search.versions import Point

#: bytes of all copies of the arguments of a call over those of the L2 cache, and the most copies
COLD, COPIES = 3, 16
#: calls of each version before it is timed, and rounds of timed calls at least and at most
WARM, MIN_ROUNDS, MAX_ROUNDS = 3, 5, 100
#: share of the free memory of the device that the arguments and results of a point may take
MEMORY_SHARE = 0.5

#: times of versions (us) at some sizes, infinite where one does not serve these or fails
Times = Callable[[Sequence[CudaVersion], Mapping[str, int]], list[float]]


def remeasured(
    decision: CudaDecision, check: Callable[[CudaVersion], str], times: Times, wanted: int, device: str
) -> tuple[CudaDecision, list[str]]:
    """The decision among the versions that pass `check` (which says why one does not), learnt from measured times at the same
    points, of which the first `wanted` were given; and why others were left out. `device` is the name of the device.

    Raises VerificationError where none passes, or none runs at the first point.
    """
    rejected: list[str] = []
    good: list[CudaVersion] = []
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
    return CudaDecision.learnt(good, points, wanted, device), rejected


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
        executable: Callable[[CudaVersion], CudaExecutable],
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

    def check(self, version: CudaVersion) -> str:
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

    def times(self, versions: Sequence[CudaVersion], sizes: Mapping[str, int]) -> list[float]:
        """Median microseconds of each version at these sizes, its arguments in DRAM; infinite where it cannot run there."""
        found = [np.inf] * len(versions)
        moved = self._bytes(sizes)
        count = int(min(max(COLD * self.device.l2_bytes // max(moved, 1), 1), COPIES))
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        if moved * count > MEMORY_SHARE * free:
            return found
        host = random_inputs(self.program, sizes, self.seed)
        copies = [[self._to_device(x) for x in host] for _ in range(count)]
        # versions write the same results
        outs = [[self.cupy.empty(t.bind(sizes), DTYPES[t.dtype]) for t in self.program.output_types] for _ in copies]
        # the stream of the measurements does not wait for the one that copies
        self.cupy.cuda.get_current_stream().synchronize()
        stream = self.cupy.cuda.Stream(non_blocking=True)
        turns: dict[int, Callable[[], object]] = {}
        # a captured graph works on the memory of its calls
        held: list[list[Callable[[], None]]] = []
        for k, v in enumerate(versions):
            if v.serves(sizes):
                try:
                    with stream:
                        run = self.executable(v)
                        calls = [run.bind(xs, sizes, ys).launch for xs, ys in zip(copies, outs, strict=True)]
                        held.append(calls)
                        turns[k] = self._turn(calls, stream)
                except (MirageError, RuntimeError, MemoryError):
                    # of the compiler, or of the driver: other versions may run
                    continue
        for k, us in interleaved(self.cupy, stream, turns, self.share).items():
            found[k] = us / count
        return found

    def _turn(self, calls: Sequence[Callable[[], None]], stream: Any) -> Callable[[], object]:
        """The calls one after another, in one CUDA graph where all that they do can be captured."""
        for _ in range(WARM):
            calls[0]()
        stream.synchronize()
        stream.begin_capture()
        try:
            for call in calls:
                call()
            graph = stream.end_capture()
        except RuntimeError:
            with suppress(RuntimeError):
                stream.end_capture()
            return lambda: [call() for call in calls]
        return lambda: graph.launch(stream)

    def _bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arguments and results of a call."""
        types = [*self.program.input_types, *self.program.output_types]
        return sum(int(np.prod(t.bind(sizes), dtype=np.int64)) * DTYPES[t.dtype].itemsize for t in types)

    def _to_device(self, x: np.ndarray) -> Any:
        # as unsigned integers: CuPy copies these whatever type they stand for
        return self.cupy.asarray(np.ascontiguousarray(x).view(f"u{x.itemsize}")).view(x.dtype)

    def _from_device(self, y: Any) -> np.ndarray:
        dtype = np.dtype(y.dtype)
        found: np.ndarray = self.cupy.asnumpy(self.cupy.ascontiguousarray(y).view(f"u{dtype.itemsize}")).view(dtype)
        return found


def interleaved(cupy: Any, stream: Any, turns: Mapping[int, Callable[[], object]], seconds: float) -> dict[int, float]:
    """Median microseconds of each of these turns, which enqueue work on a stream, measured with events in rounds for about so
    many seconds.
    """
    stop = time.perf_counter() + seconds
    times: dict[int, list[float]] = {k: [] for k in turns}
    for done in range(MAX_ROUNDS if turns else 0):
        if done >= MIN_ROUNDS and time.perf_counter() > stop:
            break
        for k, turn in turns.items():
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            with stream:
                begin.record(stream)
                turn()
                end.record(stream)
            end.synchronize()
            times[k].append(1e3 * cupy.cuda.get_elapsed_time(begin, end))
    return {k: statistics.median(t) for k, t in times.items()}
