"""How the grid and the loop of a block graph divide axes, as the maps of its inputs say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage.errors import FormatError, GraphError
from mirage.frontends.upstream.read import Block, BlockOperator
from mirage.ir.axes import AxisDims

#: axis -> number of parts
Parts = dict[str, int]


class Cut(Exception):
    """A graph that keeps the inner `size` elements of an axis apart from the rest, and so needs two axes."""

    def __init__(self, axis: str, size: int, where: str) -> None:
        super().__init__(f"{where}: keeps {size} elements of axis {axis} apart from the rest")
        self.axis = axis
        self.size = size
        self.where = where


def divide_axes(axes: Sequence[str], extents: Mapping[str, int], parts: int, where: str) -> Parts:
    """The parts of each axis when a product of axes is divided into contiguous parts, outermost axis first."""
    found: Parts = {}
    rest = parts
    for a in axes:
        if rest == 1:
            break
        size = extents[a]
        if rest % size and size % rest:
            raise GraphError(
                f"{where}: {parts} parts of a dim that is {' * '.join(f'{a}={extents[a]}' for a in axes)} do not follow its "
                "axes; no graph over the program's axes divides it so"
            )
        found[a] = min(rest, size)
        rest //= found[a]
    if rest > 1:
        size = math.prod(extents[a] for a in axes)
        raise FormatError(f"{where}: {parts} parts of a dim of {size} elements; the grid and the loop have to divide it")
    return {a: n for a, n in found.items() if n > 1}


@dataclass
class Partition:
    """The division of all axes that a block graph reads.

    `grid` maps each grid dim of several blocks to the parts of axes, `loop` the axes of the loop to their iterations,
    `tile` every axis to its elements in one iteration of one block.
    """

    block: Block
    where: str
    grid: dict[str, Parts] = field(default_factory=dict)
    loop: Parts = field(default_factory=dict)
    tile: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, tuple[tuple[tuple[str, int], ...], int]] = field(default_factory=dict)

    @property
    def letters(self) -> list[str]:
        """The grid dims of several blocks."""
        return [k for k, n in zip("xyz", self.block.grid, strict=True) if n > 1]

    @property
    def blocks(self) -> Parts:
        """Axis -> blocks along it."""
        return {a: n for parts in self.grid.values() for a, n in parts.items()}

    def read(self, op: BlockOperator, dims: AxisDims, sizes: Mapping[str, int]) -> None:
        """Take in one input iterator of a tensor with these axes; raises where it contradicts another one."""
        extents = {a: sizes[a] for d in dims for a in d}
        by_letter: dict[str, Parts] = {}
        mapped = {k: d for k, d in zip("xyz", op.map, strict=True) if k in self.letters and d >= 0}
        if len(set(mapped.values())) < len(mapped):
            raise GraphError(
                f"{op.where}: two grid dims divide one dim; which is outermost is not stored, use one of them"
            )
        for k, d in mapped.items():
            by_letter[k] = divide_axes(dims[d], extents, self.block.grid["xyz".index(k)], f"{op.where}, input_map.{k}")
            for a, n in by_letter[k].items():
                extents[a] //= n
        loop: Parts = {}
        if op.loop_dim >= 0 and self.block.loop > 1:
            loop = divide_axes(dims[op.loop_dim], extents, self.block.loop, f"{op.where}, forloop_dim")
        for k, parts in by_letter.items():
            self._agree(self.grid.setdefault(k, parts), parts, f"{op.where}: grid dim {k}")
        if loop:
            self.loop = self.loop or loop
            self._agree(self.loop, loop, f"{op.where}: the loop")
        letter = {a: k for k, parts in by_letter.items() for a in parts}
        for a in (a for d in dims for a in d):
            placed = (((letter[a], by_letter[letter[a]][a]),) if a in letter else (), loop.get(a, 1))
            if self._seen.setdefault(a, placed) != placed:
                raise GraphError(
                    f"{op.where}: axis {a} is divided otherwise than in another input; divide it alike in all of them"
                )
            self.tile[a] = extents[a] // loop.get(a, 1)

    @staticmethod
    def _agree(first: Parts, second: Parts, what: str) -> None:
        if first != second:
            raise GraphError(
                f"{what} divides {_text(second)}, but {_text(first)} in another input; one index cannot move along both, "
                "map it to the same axis"
            )

    def check(self) -> None:
        """Raises GraphError where the grid or the loop divides nothing, so that work would only be repeated."""
        for k in self.letters:
            if k not in self.grid:
                raise GraphError(f"{self.where}: grid dim {k} divides no input; map it to a dim, or make it 1")
        if self.block.loop > 1 and not self.loop:
            raise GraphError(f"{self.where}: its loop of {self.block.loop} iterations divides no input; make it 1")

    def extent(self, axes: Sequence[str]) -> int:
        """Elements of a dim in one iteration of one block."""
        return math.prod(self.tile[a] for a in axes)


def _text(parts: Parts) -> str:
    return " * ".join(f"{a} by {n}" for a, n in parts.items()) or "nothing"
