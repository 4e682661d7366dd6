"""Memory of large results that is used again once nobody holds the result.

Memory fresh from the system costs a page fault per page: a third of the time of a softmax of 64 MiB, and of a decoding step that
gives back its caches. The C library's allocator keeps of what is dropped only what its thresholds allow.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from mirage.kernels.cpu.launch.memory import LINE, address, aligned

#: bytes from which a single result is kept: glibc gives back at once what is larger (M_MMAP_THRESHOLD)
LARGE = 32 << 20
#: bytes from which each of several results is: dropped together, they are more than glibc keeps (M_TRIM_THRESHOLD)
SEVERAL = 128 << 10
#: how many results of all programs together are kept in any case; how many at most, which a search for one looks through, and how
#: many bytes
KEPT, MOST, KEPT_BYTES = 2, 64, 128 << 20

_BYTE = np.dtype(np.uint8)
# unused memory; append and popleft are atomic, as results may be dropped by any thread, at any time
_free: deque[np.ndarray] = deque()


def _give_back(memory: np.ndarray) -> None:
    _free.append(memory)
    while len(_free) > KEPT and (len(_free) > MOST or sum(m.size for m in tuple(_free)) > KEPT_BYTES):
        with suppress(IndexError):
            _free.popleft()


class _Lease:
    """What the arrays over a piece of memory keep alive: when the last one of them has gone, the memory is free again."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": memory.shape,
            "typestr": _BYTE.str,
            "data": (address(memory), False),
        }
        # while the interpreter ends, too
        self._memory = memory
        weakref.finalize(self, _give_back, memory).atexit = False


def is_large(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether `lease` is for arrays of this size."""
    return prod(shape) * dtype.itemsize > LARGE


def lease(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array, in memory that an array of about the same size had, if there is any.

    Whatever views an array keeps its memory: other arrays, buffers, tensors of other libraries.
    """
    size = prod(shape) * dtype.itemsize
    # caches grow a little from call to call: an eighth more at most
    step = max(1 << max(size.bit_length() - 4, 0), LINE)
    wanted = -(-size // step) * step
    memory = None
    for _ in range(len(_free)):
        try:
            memory = _free.popleft()
        except IndexError:
            break
        if memory.size == wanted:
            break
        # this size is not wanted now: it goes first when others come
        _free.append(memory)
        memory = None
    held = _Lease(aligned(wanted, _BYTE) if memory is None else memory)
    # the array interface has no name for bfloat16
    return np.asarray(held)[:size].view(dtype).reshape(shape)
