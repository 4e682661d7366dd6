"""The thread pool of CPU kernels, compiled and loaded once per process."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from mirage.kernels.cpu.compile import toolchain


@functools.cache
def library() -> ctypes.CDLL:
    """The pool's library, with `mi_pool_run` and `mi_pool_use` typed as in mirage_pool.h, and `mi_pool_wake(threads)`.

    Raises NoCompilerError, CompilerError or UnsafeCacheError, as `toolchain.compile` and `toolchain.load`.
    """
    loaded = toolchain.library("pool")
    run = loaded.mi_pool_run
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_size_t]
    run.restype = ctypes.c_int
    loaded.mi_pool_wake.argtypes = [ctypes.c_int]
    loaded.mi_pool_wake.restype = None
    loaded.mi_pool_note.argtypes = [ctypes.c_void_p, ctypes.c_int]
    loaded.mi_pool_note.restype = ctypes.c_int
    loaded.mi_pool_use.argtypes = [ctypes.c_void_p]
    loaded.mi_pool_use.restype = ctypes.c_void_p
    return loaded


def kernel_seconds(call: Callable[[], object], kernels: int) -> list[float] | None:
    """The seconds of each kernel that a call runs, in order; None where it runs another number of them.

    Raises what the call raises.
    """
    note = library().mi_pool_note
    found = (ctypes.c_int64 * kernels)()
    note(found, kernels)
    try:
        call()
    finally:
        count = note(None, 0)
    return [1e-9 * ns for ns in found] if count == kernels else None


def openmp_address(runtime: Path) -> int | None:
    """The address that `mi_pool_use` takes to run kernels on the threads of OpenMP, as a library in the process, or what it is
    linked with, has them; None where it has none, or not with GNU's interface.
    """
    try:
        return ctypes.cast(ctypes.CDLL(str(runtime)).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


@functools.cache
def run_address() -> int:
    """Address of `mi_pool_run`, for the launchers of generated kernels (type `mi_pool_run_fn *`)."""
    address = ctypes.cast(library().mi_pool_run, ctypes.c_void_p).value
    assert address is not None
    return address
