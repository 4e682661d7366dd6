"""Memory of a call's intermediate tensors: one arena of a planned size, and storages that grow with the sizes of calls."""

from __future__ import annotations

from mirage.errors import MirageError
from mirage.runtime.places.place import Place, PlacedArray


class Arena:
    """Memory for one call of a function at a time, kept for the next one. All of it starts at cache lines.

    `size` bytes are planned and never grow; storages are numbered from 0.
    """

    def __init__(self, size: int, place: Place) -> None:
        self.size = size
        self._place = place
        self._own: PlacedArray | None = None
        #: how often memory was taken: what lies in it is where it was as long as this stays
        self.version = 0
        self._grown: dict[int, PlacedArray] = {}

    @property
    def bytes(self) -> int:
        """Bytes that are held."""
        held = [*self._grown.values()] if self._own is None else [self._own, *self._grown.values()]
        return sum(int(m.nbytes) for m in held)

    def planned(self) -> PlacedArray:
        """The planned memory; raises MirageError if there is not as much."""
        if self._own is None:
            self._own = self._allocate(self.size)
        return self._own

    def grow(self, storage: int, size: int) -> PlacedArray:
        """At least so many bytes for a storage: the same memory as long as it is large enough.

        Raises MirageError if there is not as much.
        """
        memory = self._grown.get(storage)
        if memory is None or memory.size < size:
            # a little more, as lengths often grow by one from call to call; what is outgrown is dropped first
            more = 0 if memory is None else memory.size + memory.size // 4
            self._grown.pop(storage, None)
            memory = self._grown[storage] = self._allocate(max(size, more))
        return memory

    def _allocate(self, size: int) -> PlacedArray:
        self.version += 1
        try:
            return self._place.allocate(size)
        except (MemoryError, ValueError, OverflowError):
            raise MirageError(
                f"there is no memory for {size} bytes of intermediate tensors; use smaller sizes or bounds"
            ) from None
