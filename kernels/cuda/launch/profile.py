"""Timing of alternatives side by side on a CUDA device, by its own clock, with arguments that no cache holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.errors import DeviceError
from mirage.kernels import profile
from mirage.kernels.cuda.device import CudaDevice, find_cupy
from mirage.kernels.cuda.launch.bound import BoundCall
from mirage.kernels.cuda.launch.graphs import CudaGraph
from mirage.kernels.profile import Timing

#: bytes of all copies of a call's arguments over those of the level-2 cache: what is read next was evicted
COLD = 3
#: calls of one graph at least: its launch, of a few microseconds, is divided by them
MIN_CALLS = 20
#: copies at most, for calls of few bytes
MAX_COPIES = 256


@dataclass(frozen=True)
class Repeated:
    """A function that enqueues several calls on CuPy's current stream, whose time is that of one."""

    launch: Callable[[], object]
    calls: int

    def __call__(self) -> None:
        self.launch()


def cold_copies(moved: int, device: CudaDevice) -> int:
    """How many copies of the arrays of a call, which reads and writes `moved` bytes, a rotation needs so that none of them is in
    the level-2 cache when its turn comes.
    """
    return min(max(-(-COLD * device.l2_bytes // max(moved, 1)), 1), MAX_COPIES)


def rotation(calls: Sequence[BoundCall]) -> Repeated:
    """Calls on copies of the same arrays, in turns, as one CUDA graph; see `cold_copies`."""
    rounds = -(-MIN_CALLS // len(calls))
    return Repeated(CudaGraph([*calls] * rounds).launch, rounds * len(calls))


def interleave(fns: Mapping[str, Callable[[], object]], *, seconds: float, min_runs: int = 5) -> dict[str, Timing]:
    """The times on the device of several functions, which enqueue work on CuPy's current stream, measured in turns.

    As `mirage.kernels.profile.interleave`, but by events on that stream: the time that the processor needs to enqueue counts only
    where the device waits for it. A `Repeated` function has the time of one of its calls. A function that works on another stream
    is not timed.

    Raises DeviceError where no device is at hand, BudgetError if `seconds` is not positive.
    """
    cupy = find_cupy()
    if cupy is None:
        raise DeviceError("kernels are timed on a CUDA device, and CuPy finds none")
    return profile.interleave(fns, seconds=seconds, min_runs=min_runs, measure=DeviceClock(cupy))


class DeviceClock:
    """The clock of the device behind CuPy's current stream."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def __call__(self, fn: Callable[[], object]) -> int:
        """Nanoseconds on the device of one call, the previous ones being finished."""
        stream = self._cupy.cuda.get_current_stream()
        stream.synchronize()
        self._start.record(stream)
        fn()
        self._end.record(stream)
        self._end.synchronize()
        elapsed: float = self._cupy.cuda.get_elapsed_time(self._start, self._end)
        return round(elapsed * 1e6 / (fn.calls if isinstance(fn, Repeated) else 1))
