"""Models of run-time memory pools, the baselines that a static plan is measured against (Relax, section 5.2 and Table 2).

They do the bookkeeping of an allocator without its memory: `reserved` is how much it would hold.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mirage.compiler.memory.buffers import Buffer

_KIB, _MIB = 1 << 10, 1 << 20


class Pool(Protocol):
    """An allocator that keeps what is freed; `reserved` are all bytes that it ever asked the system for."""

    reserved: int

    def allocate(self, size: int) -> int:
        """A handle of so many bytes."""
        ...

    def free(self, handle: int) -> None: ...


class SizeClassPool:
    """A free list per size, rounded up to pages: as the pooled allocator of TVM's virtual machine, which Relax runs on."""

    def __init__(self, page: int = 4 * _KIB) -> None:
        self.reserved = 0
        self._page = page
        self._free: dict[int, int] = {}
        self._sizes: list[int] = []

    def allocate(self, size: int) -> int:
        size = -(-max(size, 1) // self._page) * self._page
        if self._free.get(size):
            self._free[size] -= 1
        else:
            self.reserved += size
        self._sizes.append(size)
        return len(self._sizes) - 1

    def free(self, handle: int) -> None:
        size = self._sizes[handle]
        self._free[size] = self._free.get(size, 0) + 1


@dataclass(eq=False)
class _Block:
    """A part of a segment; `before` and `after` are its neighbours."""

    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = False


class CachingPool:
    """PyTorch's caching allocator: best fit among free blocks, which are split and merged; segments are never given back.

    Requests are rounded up to 512 bytes. Those of at most 1 MiB share segments of 2 MiB; those below 10 MiB come from segments
    of 20 MiB, larger ones from their own, rounded up to 2 MiB. With `exact` a segment is as large as the request that
    it is made for: the same policy without that reserve, which weighs heavily on small models.
    """

    def __init__(self, exact: bool = False) -> None:
        self.reserved = 0
        self._exact = exact
        self._blocks: dict[int, _Block] = {}
        self._count = 0
        #: free blocks of small and of large segments, as (size, number, block)
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}

    def allocate(self, size: int) -> int:
        size = -(-max(size, 1) // 512) * 512
        small = size <= _MIB
        free = self._free[small]
        k = next((k for k, (room, _, _) in enumerate(free) if room >= size), None)
        block = free.pop(k)[2] if k is not None else self._segment(size, small)
        rest = block.size - size
        if rest >= 512 if small else rest > _MIB:
            after = _Block(rest, small, block, block.after)
            if block.after is not None:
                block.after.before = after
            block.size, block.after = size, after
            self._release(after)
        block.free = False
        self._count += 1
        self._blocks[self._count] = block
        return self._count

    def _segment(self, size: int, small: bool) -> _Block:
        if not self._exact:
            if small:
                size = 2 * _MIB
            else:
                size = 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB
        self.reserved += size
        return _Block(size, small)

    def free(self, handle: int) -> None:
        block = self._blocks.pop(handle)
        for other in (block.before, block.after):
            if other is not None and other.free:
                block = self._merge(block, other)
        self._release(block)

    def _merge(self, block: _Block, other: _Block) -> _Block:
        """Both neighbours as one block."""
        free = self._free[other.small]
        del free[next(k for k, (_, _, b) in enumerate(free) if b is other)]
        first, second = (other, block) if block.before is other else (block, other)
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _release(self, block: _Block) -> None:
        block.free = True
        self._count += 1
        insort(self._free[block.small], (block.size, self._count, block), key=lambda f: f[:2])


def replay(pool: Pool, buffers: Iterable[Buffer], sizes: Mapping[str, int]) -> None:
    """One call of a function that takes each buffer from the pool at its first step, and frees it after its last.

    `sizes` are the bytes of each. Several calls on one pool show what it holds after calls of different shapes.
    """
    allocations: dict[int, list[Buffer]] = {}
    ends: dict[int, list[Buffer]] = {}
    for b in buffers:
        allocations.setdefault(b.first, []).append(b)
        ends.setdefault(b.last, []).append(b)
    held: dict[str, int] = {}
    for at in sorted(allocations.keys() | ends.keys()):
        for b in allocations.get(at, ()):
            held[b.id] = pool.allocate(sizes[b.id])
        for b in ends.get(at, ()):
            pool.free(held.pop(b.id))


def reserved_after(pool: Pool, calls: Sequence[Mapping[str, int]], buffers: Sequence[Buffer]) -> int:
    """Bytes that the pool holds after these calls of one function, each given by the bytes of its buffers."""
    for sizes in calls:
        replay(pool, buffers, sizes)
    return pool.reserved
