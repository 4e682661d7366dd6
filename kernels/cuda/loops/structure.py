"""The kernels of a loop program: what each launch computes, over which loops. Plain data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.scalars import Scalar

#: the loop over the parts of columns
PART = "part"


class Division(Protocol):
    """Decides how columns are divided among programs, from what is known of sizes."""

    def shares(self, rows: Sequence[Dim], columns: Sequence[Dim]) -> bool:
        """Whether the elements of so many columns may be written by the programs that reduce so many rows."""

    def parts(self, kernel: Kernel) -> int:
        """Into how many parts, each for a program of its own, the columns that a kernel reduces are divided."""


@dataclass(frozen=True)
class Member:
    """A stage of a kernel, over the kernel's loops: `body` is its element, or what `combiner` reduces over the columns of space
    `space` (-1: it has none). `index` is the index that it writes in its tensor of shape `shape`; `stored` says whether it does.

    Of argmax and argmin, `place` is what they give of the extreme element. With `places` they store the extreme elements
    themselves, and what they give to the tensor of that name.
    """

    name: str
    dtype: str
    body: Scalar
    combiner: str
    space: int
    shape: tuple[Dim, ...]
    index: tuple[Scalar, ...]
    stored: bool
    place: Scalar | None = None
    places: str = ""

    @property
    def bodies(self) -> list[Scalar]:
        """The expressions that are computed."""
        return [self.body] if self.place is None else [self.body, self.place]


@dataclass(frozen=True)
class Kernel:
    """One launch: `rows` are its row loops with their extents, `spaces` the loops over columns of each space.

    `phases` hold members over one space each that do not read one another; what they read of others was computed before.
    With several `parts`, loop `PART` over them is one more of rows, and each goes over its own share of the columns.
    """

    rows: tuple[tuple[str, Dim], ...]
    spaces: tuple[tuple[tuple[str, Dim], ...], ...]
    phases: tuple[tuple[Member, ...], ...]
    parts: int = 1

    @property
    def members(self) -> list[Member]:
        """The members in the order in which they are computed."""
        return [m for p in self.phases for m in p]

    @property
    def reduces(self) -> bool:
        """Whether any member reduces columns."""
        return any(m.combiner for p in self.phases for m in p)

    @property
    def extents(self) -> dict[str, Dim]:
        """The extent of every loop."""
        found = dict([*self.rows, *(loop for s in self.spaces for loop in s)])
        return found | ({PART: sympy.Integer(self.parts)} if self.parts > 1 else {})
