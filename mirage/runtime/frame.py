"""Frames: the registers, sizes and memory of one call of a function.

What the sizes at a call's start determine is laid out once, and kept for further calls with the same sizes, also where calls with
others are between: storages, and the tensors in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from mirage.errors import FormatError
from mirage.remember import remember
from mirage.runtime.arena import Arena
from mirage.runtime.guards import Entry
from mirage.runtime.places.place import Place, PlacedArray
from mirage.runtime.sizes import Slots

#: sizes for which a frame is laid out at once
_KEPT = 32
#: gives some items of the registers or slots as a tuple
Getter = Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class StorageLayout:
    """A storage, the slot of its size in bytes, and its offset in the arena, None where it grows with the sizes of calls."""

    storage: int
    size: int
    offset: int | None


@dataclass(frozen=True)
class TensorLayout:
    """A register that holds a tensor at an offset of a storage, and the slots of its shape."""

    out: int
    storage: int
    offset: int
    shape: Getter
    dtype: np.dtype[Any]
    #: `Place.view`
    view: Callable[..., PlacedArray]

    def make(self, owner: str, memory: PlacedArray, slots: Slots) -> PlacedArray:
        """The tensor in a storage's memory; raises FormatError if there is not enough of it."""
        shape = self.shape(slots)
        try:
            return self.view(shape, self.dtype, memory, self.offset)
        except (TypeError, ValueError, OverflowError):
            raise FormatError(
                f"{owner}: r{self.out}, {self.dtype}{list(shape)} at {self.offset} bytes, does not fit storage "
                f"{self.storage} of {memory.nbytes} bytes; compile the program again"
            ) from None


@dataclass
class FrameLayout:
    """What all frames of a function have in common: `registers` holds the constants."""

    owner: str
    registers: list[Any]
    arena: int
    storages: int
    place: Place
    planned: list[StorageLayout] = field(default_factory=list)
    tensors: list[TensorLayout] = field(default_factory=list)

    @cached_property
    def fixed(self) -> frozenset[int]:
        """The registers that hold the same in all calls of a frame with the same sizes."""
        return frozenset([*(r for r, a in enumerate(self.registers) if a is not None), *(t.out for t in self.tensors)])


@dataclass
class _LaidOut:
    """A frame as it is laid out for some sizes, in memory that the caller gave, or in its own."""

    given: PlacedArray | None
    storages: list[PlacedArray | None]
    registers: list[Any]
    segments: dict[int, Any]


class Frame:
    """Used by one call at a time."""

    __slots__ = (
        "_given", "_laid_out", "_layout", "_version", "arena", "entry", "moving", "registers", "segments", "slots", "storages",
    )  # fmt: skip

    def __init__(self, layout: FrameLayout) -> None:
        self._layout = layout
        self._given: PlacedArray | None = None
        #: how it was laid out, with the arena as it was by this version
        self._laid_out: dict[Entry, _LaidOut] = {}
        self._version = 0
        self.arena = Arena(layout.arena, layout.place)
        #: what the storages and tensors are laid out for
        self.entry: Entry | None = None
        #: what the registers hold at the start of a call
        self.registers: list[Any] = layout.registers
        #: what `mirage.runtime.segments` prepared for these registers, by the number of the segment
        self.segments: dict[int, Any] = {}
        #: what it prepared for sizes that change from call to call
        self.moving: dict[int, Any] = {}
        self.slots: Slots
        self.storages: list[PlacedArray | None] = [None] * layout.storages

    def enter(self, entry: Entry, memory: PlacedArray | None) -> None:
        """Prepare a call with these sizes, whose arena is in the caller's `memory` if that is given."""
        layout = self._layout
        if not layout.arena:
            memory = None
        if self.entry is entry and self._given is memory:
            return
        # nothing half laid out is used again
        self.entry = None
        if self._version != self.arena.version:
            self._laid_out.clear()
        found = self._laid_out.get(entry)
        if found is None or found.given is not memory:
            found = self._lay_out(entry, memory)
        self.storages, self.registers, self.segments = found.storages, found.registers, found.segments
        self._given, self.entry = memory, entry

    def _lay_out(self, entry: Entry, memory: PlacedArray | None) -> _LaidOut:
        layout, slots, arena = self._layout, entry.slots, self.arena
        planned = arena.planned() if memory is None else memory[: layout.arena]
        if planned.size < layout.arena:
            raise FormatError(
                f"{layout.owner}: an arena of {layout.arena} bytes does not fit the {planned.size} bytes that the caller "
                "gives; compile the program again"
            )
        storages: list[PlacedArray | None] = [None] * layout.storages
        for s in layout.planned:
            size = slots[s.size]
            at = s.offset
            storages[s.storage] = arena.grow(s.storage, size) if at is None else planned[at : at + size]
        registers = layout.registers.copy()
        for t in layout.tensors:
            held = storages[t.storage]
            assert held is not None
            registers[t.out] = t.make(layout.owner, held, slots)
        if self._version != arena.version:
            self._laid_out.clear()
        self._version = arena.version
        return remember(self._laid_out, entry, _LaidOut(memory, storages, registers, {}), _KEPT)

    @property
    def fixed(self) -> frozenset[int]:
        """See `FrameLayout.fixed`."""
        return self._layout.fixed


def getter(places: Sequence[int]) -> Getter:
    """What gives the items at these places."""
    if not places:
        return lambda _: ()
    if len(places) == 1:
        (at,) = places
        return lambda items: (items[at],)
    return itemgetter(*places)
