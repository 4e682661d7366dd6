"""The thread pool of CPU kernels, compiled and loaded once per process."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from mirage.kernels.cpu.compile import toolchain

#: what runs kernels in place of the pool's own threads
_parallel: Any = None


@functools.cache
def library() -> ctypes.CDLL:
    """The pool's library, with `mi_pool_run` typed as in mirage_pool.h, and `mi_pool_wake(threads)`.

    Raises NoCompilerError, CompilerError or UnsafeCacheError, as `toolchain.compile` and `toolchain.load`.
    """
    loaded = toolchain.library("pool")
    run = loaded.mi_pool_run
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_size_t]
    run.restype = ctypes.c_int
    loaded.mi_pool_wake.argtypes = [ctypes.c_int]
    loaded.mi_pool_wake.restype = None
    loaded.mi_pool_use.argtypes = [ctypes.c_void_p]
    loaded.mi_pool_use.restype = None
    loaded.mi_pool_use(_parallel)
    return loaded


def use_openmp(runtime: Path) -> bool:
    """Run kernels on the threads of OpenMP from now on, as a library in the process, or what it is linked with, has them.

    For programs that call this library between kernels: the threads of two pools wait for each other's processors. False where
    it has no such threads, or not with GNU's interface. A fork of the process has the pool's own threads.
    """
    global _parallel
    try:
        parallel = ctypes.CDLL(str(runtime)).GOMP_parallel
    except (OSError, AttributeError):
        return False
    _parallel = ctypes.cast(parallel, ctypes.c_void_p)
    if library.cache_info().currsize:
        library().mi_pool_use(_parallel)
    return True


@functools.cache
def run_address() -> int:
    """Address of `mi_pool_run`, for the launchers of generated kernels (type `mi_pool_run_fn *`)."""
    address = ctypes.cast(library().mi_pool_run, ctypes.c_void_p).value
    assert address is not None
    return address
