"""Where the tensors of a kernel live: C names of axes, views of memory, and scratch buffers.
 A block tensor is a view of a kernel-level tensor (pointer and strides, never copied) or a buffer in the
thread's scratch, whose last axis is contiguous and padded to whole vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from math import prod
from typing import Self

from mirage.ir.dims import Dim
from mirage.mugraph.graph import Graph, Role
from mirage.mugraph.schedule import KernelSchedule

#: a length along an axis: a number, or the name of an axis for the block's whole extent along it
Length = int | str


def c_names(axes: Iterable[str]) -> dict[str, str]:
    """A C identifier for each axis: ASCII letters, digits and _ only, all different."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for a in axes:
        base = re.sub(r"[^A-Za-z0-9]", "_", a)[:24]
        name, k = base, 2
        while name in taken:
            name, k = f"{base}_{k}", k + 1
        taken.add(name)
        names[a] = name
    return names


@dataclass(frozen=True)
class View:
    """Elements in memory: a C pointer, a stride (C text, in elements) per axis, and the axis of stride 1.

    A scalar is a C expression instead. Axes without a stride are broadcast. `narrow` is the type of 16 or 8 bits that
    elements are stored in (see mirage_narrow.h), "" where it is that which is computed in. `past` is C text of
    whether to store them past the caches, if that is a question (see mirage_stream.h).
    """

    pointer: str
    strides: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    scalar: str = ""
    narrow: str = ""
    past: str = ""

    def at(self, index: Mapping[str, str]) -> str:
        """Pointer to the element at this index (C text per axis; absent axes are at 0)."""
        terms = [self.pointer]
        for a, s in self.strides.items():
            i = index.get(a, "0")
            if i != "0":
                terms.append(i if s == "1" else f"{i} * {s}")
        return " + ".join(terms)

    def stride(self, axis: str | None) -> str:
        return self.strides.get(axis, "0") if axis is not None else "0"


def element_type(narrow: str) -> str:
    """The C type of elements in memory."""
    return f"mi_narrow_{narrow}" if narrow else "mi_real"


def function_of(name: str, narrow: str, kind: str = "") -> str:
    """The C function of this name and kind ("_n", "_strided", ...) for such elements."""
    return f"{name}_narrow{kind}_{narrow}" if narrow else f"{name}{kind}"


@dataclass(frozen=True)
class Buffer:
    """A tensor in scratch: its axes in storage order, with the room along each.

    Rows are whole vectors; those of a `padded` one have one more, so that rows of some KiB do not share sets of a cache.
    """

    name: str
    axes: tuple[str, ...]
    room: tuple[Length, ...]
    padded: bool = False

    def view(self, names: Mapping[str, str]) -> View:
        strides = {a: f"{self.name}_{names[a]}" for a in self.axes[:-1]}
        if self.axes:
            strides[self.axes[-1]] = "1"
        return View(self.name, strides, self.axes[-1] if self.axes else None)

    def declare(self, names: Mapping[str, str]) -> list[str]:
        """C declarations of the strides and of the pointer, which is taken from `at`."""
        lines = []
        step = self._row(names)
        for a, r in zip(reversed(self.axes[:-1]), [*reversed(self.room[:-1])], strict=True):
            lines.append(f"const long {self.name}_{names[a]} = {step};")
            step = f"{_length(r, names)} * {self.name}_{names[a]}" if r != 1 else f"{self.name}_{names[a]}"
        return [*lines, f"mi_real *const {self.name} = at;", f"at += {step};"]

    def count(self, names: Mapping[str, str]) -> str:
        """C expression: the elements that the buffer takes."""
        lengths = [_length(r, names) for r in self.room[:-1] if r != 1]
        return " * ".join([*lengths, self._row(names)])

    def _row(self, names: Mapping[str, str]) -> str:
        """C expression: the elements from one row to the next."""
        if not self.room:
            return "MI_W"
        row = f"whole_vectors({_length(self.room[-1], names)})"
        return f"({row} + MI_W)" if self._extra else row

    @property
    def _extra(self) -> int:
        """Vectors that a row has more."""
        return int(self.padded and len(self.room) > 1)

    def elements(self, length: Mapping[str, int], lanes: int) -> int:
        """The same, for these block extents and vectors of `lanes` elements."""
        sizes = [length[r] if isinstance(r, str) else r for r in self.room] or [1]
        return prod(sizes[:-1]) * (-(-sizes[-1] // lanes) + self._extra) * lanes


def _length(r: Length, names: Mapping[str, str]) -> str:
    return str(r) if isinstance(r, int) else f"room_{names[r]}"


class BlockAxes:
    """The axes of one kernel: names, constant sizes, tiles."""

    def __init__(
        self,
        graph: Graph,
        schedule: KernelSchedule,
        sizes: Mapping[str, Dim],
        hints: Mapping[str, int],
        names: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.schedule = schedule
        self.names = names
        self.hints = hints
        #: axes whose size is known when the kernel is printed
        self.literal = {a: int(s) for a, s in sizes.items() if s.is_Integer}
        #: extents of axes, as C text, that differ from block to block for another reason than the size
        self._own: dict[str, str] = {}
        if schedule.halved is not None:
            columns = schedule.halved[1]
            self._own[columns] = f"x_{names[columns]}"

    def with_extent(self, axis: str, extent: str) -> Self:
        """The same axes where this one has another extent in a block, given as C text."""
        found = copy(self)
        found._own = {**self._own, axis: extent}
        return found

    def tile(self, axis: str) -> int:
        """The tile of a divided axis, not larger than a constant size."""
        tile = self.schedule.tile[axis]
        return min(tile, max(self.literal[axis], 1)) if axis in self.literal else tile

    def constant(self, axis: str, looping: bool) -> int | None:
        """The extent of an axis in a block (in an iteration, if `looping`), if every block has the same."""
        size, role = self.literal.get(axis), self.graph.role[axis]
        if axis in self._own:
            return None
        if role is Role.WHOLE or (role is Role.LOOP and not looping):
            return size
        if role is Role.SPLIT and not looping:
            return None
        tile = self.tile(axis)
        if role is Role.PARALLEL and tile == 1:
            return 1
        # an iteration over an empty range does not happen, so that a tile of 1 is never less
        if looping and role in (Role.LOOP, Role.SPLIT) and tile == 1:
            return 1
        return tile if size is not None and role is not Role.SPLIT and size % tile == 0 else None

    def extent(self, axis: str, looping: bool) -> str:
        """C text of the extent of an axis in a block, or in an iteration."""
        found = self.constant(axis, looping)
        if found is not None:
            return str(found)
        if axis in self._own:
            return self._own[axis]
        inner = looping and self.graph.role[axis] in (Role.LOOP, Role.SPLIT)
        return f"{'e' if inner else 'x'}_{self.names[axis]}"

    def room(self, axis: str, looping: bool) -> Length:
        """The room along an axis that a buffer needs."""
        role = self.graph.role[axis]
        if role is Role.PARALLEL or (looping and role in (Role.LOOP, Role.SPLIT)):
            return self.tile(axis)
        if role is not Role.SPLIT and axis in self.literal:
            return max(self.literal[axis], 1)
        return axis

    def hint(self, axis: str, looping: bool) -> int:
        """The extent to expect, for choosing layouts."""
        role, size = self.graph.role[axis], self.hints[axis]
        if role is Role.WHOLE or (role is Role.LOOP and not looping):
            return size
        if role is Role.SPLIT and not looping:
            return max(1, min(size, self.schedule.bounds(self.graph, axis, size)[1]))
        return max(1, min(self.tile(axis), size))

    def lengths(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Per axis, the block's whole extent at these sizes: what a `Length` names."""
        return {a: max(self.schedule.bounds(self.graph, a, sizes[a])[1], 1) for a, _ in self.graph.roles}
