"""Block tensors as Triton values: their dims, and text that brings a value to other dims.

Axes of which a block sees one element are no dims. The others are put together in groups that occur in the same values:
a group is one dim of Triton tensors, whose extents are powers of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from mirage.errors import ScheduleError
from mirage.kernels.cuda.schedules.schedule import MAX_ELEMENTS


class Group(NamedTuple):
    """Axes that are one dim, outermost first. `full`: the whole of a loop axis, as an accumulator puts it together."""

    axes: tuple[str, ...]
    full: bool = False


#: a dim is one group, or several, outermost first
Dims = tuple[tuple[Group, ...], ...]


@dataclass(frozen=True)
class Value:
    """A Triton value: an expression (mostly a name) of a float32 tensor.

    `zero` are the groups along which elements past the end of an axis are 0. `stored` is the same value in the type
    that it was loaded in, where it was loaded.
    """

    text: str
    dims: Dims = ()
    zero: frozenset[Group] = frozenset()
    stored: str = ""


class Space:
    """The groups of a kernel in the order of its values' dims, and their extents: text and numbers, per axis."""

    def __init__(
        self,
        groups: Sequence[tuple[str, ...]],
        names: Mapping[str, str],
        tiles: Mapping[str, int],
        rooms: Mapping[str, int],
    ) -> None:
        self.groups = tuple(groups)
        self.names = names
        self.tiles = tiles
        self.rooms = rooms

    def of(self, axes: Iterable[str], full: bool = False) -> tuple[Group, ...]:
        """The groups that hold these axes, in order; loop axes that are put together are held whole if `full`."""
        wanted = set(axes)
        return tuple(
            Group(g, full and any(a in self.rooms for a in g)) for g in self.groups if any(a in wanted for a in g)
        )

    def dims(self, groups: Iterable[Group]) -> Dims:
        """One dim per group, in order."""
        found = set(groups)
        return tuple((g,) for g in self.ordered(found))

    def ordered(self, groups: Iterable[Group]) -> list[Group]:
        return sorted(groups, key=lambda g: self.groups.index(g.axes))

    def name(self, g: Group) -> str:
        return "_".join(self.names[a] for a in g.axes) + ("_all" if g.full else "")

    def size_name(self, a: str, full: bool = False) -> str:
        """The constexpr that holds the extent of an axis."""
        return f"{'ROOM' if full else 'TILE'}_{self.names[a]}"

    def text(self, groups: Iterable[Group]) -> str:
        """The extent of a dim of these groups."""
        return " * ".join(self.size_name(a, g.full) for g in groups for a in g.axes) or "1"

    def extent(self, groups: Iterable[Group]) -> int:
        return prod((self.rooms if g.full else self.tiles)[a] for g in groups for a in g.axes)

    def shape(self, dims: Dims) -> str:
        return f"[{', '.join(self.text(d) for d in dims)}]"

    def check(self, dims: Dims, what: str) -> None:
        """Raises ScheduleError for a tensor that Triton cannot hold."""
        count = prod(self.extent(d) for d in dims)
        if count > MAX_ELEMENTS:
            raise ScheduleError(
                f"{what}: a block tensor of {count} elements; use smaller tiles, at most {MAX_ELEMENTS}"
            )

    def arrange(self, value: Value, dims: Dims, text: str = "") -> str:
        """Text of the value under these dims, which hold all its groups; others are of extent 1, or broadcast where a
        dim holds several groups. `text` stands for the value's own.
        """
        text = text or value.text
        have = [g for d in value.dims for g in d]
        if value.dims == dims:
            return text
        if any(len(d) != 1 for d in value.dims):
            text = f"tl.reshape({text}, {self.shape(tuple((g,) for g in have))})" if have else f"tl.sum({text})"
        want = [g for d in dims for g in d]
        present = [g for g in want if g in have]
        assert len(present) == len(have), (value, dims)
        if not have:
            return text  # a scalar goes with every tensor
        if present != have:
            order = ", ".join(str(have.index(g)) for g in present)
            text = f"tl.permute({text}, ({order}))"
        if len(present) < len(want):
            text += expand([g in have for g in want])
        if all(len(d) == 1 for d in dims):
            return text
        if len(present) < len(want):
            text = f"tl.broadcast_to({text}, {self.shape(tuple((g,) for g in want))})"
        return f"tl.reshape({text}, {self.shape(dims)})"


def expand(present: Sequence[bool]) -> str:
    """The index that puts dims of extent 1 where a value has none; nothing for a scalar, or where none is missing."""
    if all(present) or not any(present):
        return ""
    return f"[{', '.join(':' if p else 'None' for p in present)}]"


def reduced(function: str, text: str, dims: Dims, gone: Iterable[Group]) -> str:
    """The text of a tensor reduced along the dims of these groups."""
    left = [g for d in dims for g in d]
    for g in gone:
        text = f"{function}({bare(text)}, axis={left.index(g)})"
        left.remove(g)
    return text


def parenthesized(text: str) -> str:
    return f"({text})" if " " in text else text


def bare(text: str) -> str:
    """An expression without parentheses around the whole of it."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
