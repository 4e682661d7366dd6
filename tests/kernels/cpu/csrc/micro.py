"""What the tests of the C headers share: libraries of them for every vector width, and operands at the end of a page.

Operands end at a page boundary, before a page that cannot be touched, and gaps between rows hold NaN: an
access past a row's end is a crash or a wrong result.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mirage.kernels.cpu.compile import toolchain

Array = npt.NDArray[Any]

PROT_NONE = 0  # of <sys/mman.h>

# The widest vectors of this machine, and the narrower ones.
MACHINE_FLAGS = ["", "-mno-avx512f", "-mno-avx"] if platform.machine() in ("x86_64", "AMD64") else [""]

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect


def load(source: str, flags: str, parts: Sequence[str] = ()) -> ctypes.CDLL:
    """The library of a source, all of which is compiled with these flags and without a warning."""
    # what all optimizations make of it is seen in the widest vectors: they take half of the compiler's time
    own = flags if flags == MACHINE_FLAGS[0] else f"{flags} -Og"
    with pytest.MonkeyPatch.context() as patch:
        # a loop that clang has left as it is, is slower, not wrong
        patch.setenv("MIRAGE_CFLAGS", f"{own} -Wall -Wextra -Werror -Wno-pass-failed")
        return toolchain.load(toolchain.compile(source, name="micro", parts=parts))


def address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def at_page_end(rows: int, columns: int, gap: int, dtype: type[np.floating[Any]], fill: float) -> Array:
    """[rows, columns] with `gap` elements of `fill` between rows; the last row ends where access ends."""
    item = np.dtype(dtype).itemsize
    count = max(rows * (columns + gap) - gap, 0)
    page = mmap.PAGESIZE
    used = (count * item + page - 1) // page * page
    memory = mmap.mmap(-1, used + page)
    base = np.frombuffer(memory, np.uint8)
    assert _mprotect(ctypes.c_void_p(base.ctypes.data + used), ctypes.c_size_t(page), PROT_NONE) == 0
    flat = base[used - count * item : used].view(dtype)
    flat[:] = fill
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), ((columns + gap) * item, item))
