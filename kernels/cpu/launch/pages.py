"""Memory in large pages, for what is kept for long and read from memory: copies of constants.

Where the caches hold nothing of an array, the tables that tell where its pages are come from memory, too, and a virtual
machine has two sets of them: half a MiB in small pages takes 1.3 to 1.8 times as long to read as in a large one.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from mirage.kernels.cpu.launch.memory import LINE, address

#: bytes of a large page
PAGE = 2 << 20

_lock = threading.Lock()
#: where the next array begins in the page that several share, where the page ends, and its memory, which lives as long as an
#: array in it
_shared: tuple[int, int, weakref.ref[np.ndarray]] | None = None


def in_large_pages(count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array of `count` elements that starts at a cache line, in large pages where the system gives them.

    Arrays of up to half a page share one; it is given back with the last of them.
    """
    global _shared
    size = count * dtype.itemsize
    if size > PAGE // 2:
        memory, start = _pages(size)
        return memory[start : start + size].view(dtype)
    with _lock:
        start, end, found = _shared or (0, 0, lambda: None)
        held = found()
        if held is None or start + size > end:
            held, start = _pages(PAGE)
            end = start + PAGE
        _shared = start + -(-size // LINE) * LINE, end, weakref.ref(held)
        return held[start : start + size].view(dtype)


def _pages(size: int) -> tuple[np.ndarray, int]:
    """Memory, and where in it a large page begins, or a cache line where there are none, followed by at least `size` bytes."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        whole = -(-size // PAGE) * PAGE
        with suppress(OSError):
            memory = mmap.mmap(-1, whole + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            raw = np.frombuffer(memory, np.uint8)
            start = -address(raw) % PAGE
            memory.madvise(mmap.MADV_HUGEPAGE, start, whole)
            return raw, start
    raw = np.empty(size + LINE, np.uint8)
    return raw, -address(raw) % LINE
