"""What memory planning takes and gives: buffers with lifetimes, and their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mirage.ir.dims import Dim

#: bytes that every offset and size in an arena is a multiple of: a cache line, and the widest vector
ALIGNMENT = 64


def round_up(size: int) -> int:
    """The size in bytes, up to the next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Buffer:
    """Memory for one value: its size in bytes, and the first and last step that it is in use."""

    id: str
    bytes: Dim
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Whether both are in use at one step."""
        return self.first <= other.last and other.first <= self.last


class Sizes(Protocol):
    """What planning must know of symbolic sizes; whatever cannot be proved is False, or None."""

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether a = b for all sizes."""
        ...

    def at_most(self, a: Dim, b: Dim) -> bool:
        """Whether a <= b for all sizes."""
        ...

    def upper_bound(self, dim: Dim) -> int | None:
        """The most that a dim can be."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a buffer is: at an offset in a storage, or in the arena if that is None, with so many bytes for it there."""

    storage: int | None
    offset: int
    bytes: Dim


@dataclass(frozen=True)
class Plan:
    """Places of buffers.

    `arena` is the size in bytes of the one block of memory for all buffers whose sizes have a bound, and `most_live` its lower
    bound: the most bytes that are in use at one step. `storages` are the sizes of blocks whose size a call's shapes decide.
    """

    arena: int
    most_live: int
    storages: tuple[Dim, ...]
    places: Mapping[str, Place]
