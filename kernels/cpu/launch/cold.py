"""Calls whose arrays are in no cache, as those of a layer of a model whose other layers run in between."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.profile import wall_ns
from mirage.settings import num_threads


@functools.cache
def _library() -> ctypes.CDLL:
    library = toolchain.library("cold")
    library.mi_flush.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.mi_flush.restype = None
    return library


def can_flush() -> bool:
    """Whether this processor's caches can be told to give up what they hold of an array."""
    return bool(_library().mi_can_flush())


def flush(array: np.ndarray) -> None:
    """Leave a contiguous array in no cache, where that can be told."""
    _library().mi_flush(address(array), array.nbytes)


class ColdCall:
    """Calls of an executable with contiguous arrays; `nanoseconds` of one while no cache holds what it reads or writes.

    What kernels hand on to each other stays where it is, as it is every call's. The library's threads are awake, and the code
    is in the caches: an untimed call comes before.
    """

    def __init__(self, run: CpuExecutable, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> None:
        self._executable = run
        self._inputs = inputs
        self._run = run.prepared(inputs, sizes)

    def __call__(self) -> Any:
        return self._run()

    def nanoseconds(self) -> int:
        found = self._run()
        results = [found] if isinstance(found, np.ndarray) else list(found)
        for array in (*self._inputs, *self._executable.packed(), *results):
            flush(array)
        # the next results are where these were
        del found, results, array
        pool.library().mi_pool_wake(num_threads())
        return wall_ns(self._run)
