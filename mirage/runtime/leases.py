"""Memory of large results that is used again once nobody holds the result.

Memory fresh from the system costs a page fault per page, a third of the time of a softmax of 64 MiB. The C library's allocator
keeps what it got up to 32 MiB; this keeps a little of what is larger.
"""

from __future__ import annotations

import weakref
from collections import deque
from math import prod
from typing import Any

import numpy as np

from mirage.kernels.cpu.launch.memory import address, aligned

#: bytes from which results are kept: glibc gives back at once what is larger (M_MMAP_THRESHOLD)
LARGE = 32 << 20
#: how many of them, of all programs together
KEPT = 2

_BYTE = np.dtype(np.uint8)
# unused memory; append and popleft are atomic, as results may be dropped by any thread, at any time
_free: deque[np.ndarray] = deque(maxlen=KEPT)


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
        weakref.finalize(self, _free.append, memory).atexit = False


def is_large(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether `lease` is for arrays of this size."""
    return prod(shape) * dtype.itemsize > LARGE


def lease(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array, in memory that an array of the same size had, if there is any.

    Whatever views an array keeps its memory: other arrays, buffers, tensors of other libraries.
    """
    size = prod(shape) * dtype.itemsize
    memory = None
    for _ in range(KEPT):
        try:
            memory = _free.popleft()
        except IndexError:
            break
        if memory.size == size:
            break
        # this size is not wanted now: it goes first when others come
        _free.append(memory)
        memory = None
    # the array interface has no name for bfloat16
    return np.asarray(_Lease(aligned(size, _BYTE) if memory is None else memory)).view(dtype).reshape(shape)
