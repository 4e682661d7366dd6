"""Emptying the processor's caches of what a measured call is about to read."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

import numpy as np

from mirage.kernels.cpu.processor import Processor

#: how many times as much as the last level of the caches holds is read: replacement need not be the least recent first
_TIMES_ALL, _TIMES_L2 = 2, 4


class CacheEvictor:
    """Fills the caches of all cores that this process may use with memory that nothing else reads.

    It reads: lines that it had written would have to be written back while a call is timed, and take part of the
    bandwidth that is measured. Each core is filled by a thread of its own, bound to it where the system allows, as
    second-level caches are private; these threads sleep when they are done, so that they take nothing from what is timed next.

    The buffers are in memory from the first on (twice the caches' last level in all). Leave its `with` block to end the threads.
    """

    def __init__(self, target: Processor) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None] * target.cores
        size = max(_TIMES_ALL * target.cache_bytes // len(cores), _TIMES_L2 * target.l2_bytes)
        self._threads = [ThreadPoolExecutor(1, initializer=_bind, initargs=(core,)) for core in cores]
        # ones: pages of zeros that were never written may all be the same one
        made = [t.submit(np.ones, size // 4, np.float32) for t in self._threads]
        self._buffers = [m.result() for m in made]

    @property
    def core_bytes(self) -> list[int]:
        """Bytes that each core reads."""
        return [b.nbytes for b in self._buffers]

    def __call__(self) -> None:
        """Fill the caches."""
        wait([t.submit(b.max) for t, b in zip(self._threads, self._buffers, strict=True)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for t in self._threads:
            t.shutdown()


def _bind(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
