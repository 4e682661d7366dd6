"""CUDA graphs: calls recorded once and launched as one, at the processor's cost of about one kernel (Relax, section 4.5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mirage.errors import DeviceError, InputError
from mirage.kernels.cuda.device import find_cupy
from mirage.kernels.cuda.launch.arrays import external_stream, stream_handle
from mirage.kernels.cuda.launch.bound import BoundCall

T = TypeVar("T")


def record(cupy: Any, run: Callable[[], T]) -> tuple[Any, Any, T]:
    """The CUDA graph of what `run` enqueues on CuPy's current stream and device, the memory that it took, and what it returned.

    It is called twice: once for what is only done the first time. The memory has to be held as long as the graph is launched.
    Raises DeviceError where the device cannot record it.
    """
    # what is allocated must not be given to others
    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.using_allocator(pool.malloc):
        # the contents that it reads may still be on their way
        stream.wait_event(cupy.cuda.get_current_stream().record())
        with stream:
            run()
            stream.synchronize()
            stream.begin_capture()
            try:
                result = run()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    stream.end_capture()
                raise
            try:
                return stream.end_capture(), pool, result
            except RuntimeError as e:
                raise DeviceError(
                    f"the device cannot record these calls as a CUDA graph ({e}); launch them one by one"
                ) from e


class CudaGraph:
    """Calls in order, recorded as one CUDA graph on CuPy's current device; recording them runs them once.

    `results` are what each call writes: the arrays are the same at every launch, as are those that it reads, whose contents
    may change. Memory that library calls take is the graph's own. Two launches must not overlap in time.

    Raises InputError for no calls, or calls of several devices, and DeviceError where the device cannot record a call.
    """

    def __init__(self, calls: Sequence[BoundCall]) -> None:
        cupy = find_cupy()
        if cupy is None:
            raise DeviceError("CUDA graphs need CuPy and a CUDA device, and none is at hand")
        if len({c.device for c in calls}) != 1:
            raise InputError(
                f"a CUDA graph of {len(calls)} calls on {len({c.device for c in calls})} devices; record calls of one"
            )
        self._cupy = cupy
        self._calls = list(calls)
        self.results = [c.results for c in calls]
        with cupy.cuda.Device(calls[0].device):
            self._graph, self._pool, _ = record(cupy, self._run)

    def _run(self) -> None:
        for call in self._calls:
            call.launch()

    def launch(self, stream: Any = None) -> None:
        """Enqueue all calls on a stream (see `CudaExecutable.__call__`), by default CuPy's current one; nothing is waited for."""
        if stream is None:
            self._graph.launch()
        else:
            self._graph.launch(external_stream(self._cupy, stream_handle(stream)))
