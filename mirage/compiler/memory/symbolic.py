"""Memory planning for sizes without a bound: storages are used again where sizes prove it right (Relax, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.compiler.memory.buffers import Buffer, Place, Sizes
from mirage.ir.dims import Dim, symbols_of


@dataclass(eq=False)
class _Storage:
    bytes: Dim
    #: the step that allocates it
    first: int
    #: the last step of the buffer that has it now
    last: int


def plan_symbolic(
    buffers: Sequence[Buffer], sizes: Sizes, introduced: Mapping[str, int] | None = None
) -> tuple[tuple[Dim, ...], dict[str, Place]]:
    """Sizes (bytes) of storages, and the place of each buffer; the whole is never larger than one storage per buffer.

    A free storage is taken if it is provably of the buffer's size, else the least one that provably is not smaller, else the
    largest one that provably is not larger, which then grows. `introduced` gives the steps at which dim symbols that the
    parameters' shapes do not determine become known: a storage does not grow by a size that is not known when it is allocated.
    """
    known = introduced or {}
    storages: list[_Storage] = []
    placed: dict[str, int] = {}
    for b in sorted(buffers, key=lambda b: b.first):
        free = [s for s in storages if s.last < b.first]
        found = next((s for s in free if sizes.equal(s.bytes, b.bytes)), None)
        if found is None:
            for s in free:
                if sizes.at_most(b.bytes, s.bytes) and (found is None or sizes.at_most(s.bytes, found.bytes)):
                    found = s
        if found is None:
            for s in free:
                early = all(known.get(name, -1) < s.first for name in symbols_of(b.bytes))
                if early and sizes.at_most(s.bytes, b.bytes) and (found is None or sizes.at_most(found.bytes, s.bytes)):
                    found = s
            if found is not None:
                found.bytes = b.bytes
        if found is None:
            found = _Storage(b.bytes, b.first, b.last)
            storages.append(found)
        found.last = b.last
        placed[b.id] = storages.index(found)
    places = {b.id: Place(placed[b.id], 0, storages[placed[b.id]].bytes) for b in buffers}
    return tuple(s.bytes for s in storages), places
