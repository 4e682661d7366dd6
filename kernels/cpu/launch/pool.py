"""The thread pool of CPU kernels, compiled and loaded once per process."""

from __future__ import annotations

import ctypes
import functools

from mirage.kernels.cpu.compile import toolchain


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
    return loaded


@functools.cache
def run_address() -> int:
    """Address of `mi_pool_run`, for the launchers of generated kernels (type `mi_pool_run_fn *`)."""
    address = ctypes.cast(library().mi_pool_run, ctypes.c_void_p).value
    assert address is not None
    return address
