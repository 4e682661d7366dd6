"""Random small sizes and schedules at which a muGraph is compared with its program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate as dim_value
from mirage.mugraph.graph import Graph, MuGraph, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.verify.measure import Measure, is_exact

#: elements of the largest tensor, or four times as many as with sizes of 2: larger draws are replaced
_MAX_ELEMENTS = 256
_ATTEMPTS = 50
#: elements of an axis, unless more are needed
_LARGEST = 3
#: blocks of one kernel
_MAX_CELLS = 4


def axis_symbol(i: int) -> str:
    """The dim symbol that stands for the i-th axis while axes have sizes of their own."""
    return f"_axis{i}"


@dataclass(frozen=True)
class SizeTable:
    """Elements of every axis in the arrays of some tests, and how often these count (see `Measure`).

    `symbols` are sizes of dim symbols where the axes have the sizes that follow from these, and no weights.
    """

    elements: Mapping[str, int]
    measure: Measure | None
    symbols: Mapping[str, int] = field(default_factory=dict)

    def speaks_for(self, axis: str, needed: int) -> bool:
        """Whether tests with these elements speak for all sizes of an axis that needs so many."""
        if self.measure is None:
            return False
        size, n = self.measure.axes[axis]
        return n >= needed or is_exact(size, n)


class AxisSizes:
    """Draws a small number of elements for every axis, literal dims included.

    Axes are independent, because over named axes nothing but their weights relates them. `others` are programs over the same
    axes.
    """

    def __init__(self, program: AxisProgram, *others: AxisProgram) -> None:
        self.program = program
        self.nodes = [n for p in (program, *others) for n in p.nodes]
        self.symbols = sorted({s.name for d in program.axes.values() for s in d.free_symbols})
        self.made_of = self._made_of()

    def _made_of(self) -> dict[str, tuple[str, ...]] | None:
        """Axes that put others side by side, and these; None where one is put together in several ways that no weights fit.

        Where one axis is put together twice of parts of equal sizes, the parts are the same.
        """
        axes = self.program.axes
        found: dict[str, tuple[str, ...]] = {}
        for joined, parts in dict.fromkeys(n.joined for n in self.nodes if n.joined is not None):
            first = found.setdefault(joined, parts)
            if [axes[a] for a in first] != [axes[a] for a in parts]:
                return None
            for mine, other in zip(first, parts, strict=True):
                if mine != other and found.setdefault(other, (mine,)) != (mine,):
                    return None
        return found

    def draw(
        self, count: int, largest: int, rng: Random, needed: Mapping[str, int] | None = None
    ) -> list[SizeTable]:
        """`count` size tables; over three of them every axis has 2, 3 (or as many as are needed), and 1 or 2 elements.

        `needed` are the axes that are summed: they have weights, and in the first table as many elements as are needed. No axis
        has more than `largest`, or than its literal size.
        """
        spaces = [{*n.axes, *n.reduce} for n in self.nodes]
        limit = max(_MAX_ELEMENTS, 4 << max(map(len, spaces)))
        tables: list[SizeTable] = []
        for _ in range(_ATTEMPTS):
            tables = self._draw(count, largest, rng, needed or {})
            if all(math.prod(t.elements[a] for a in space) <= limit for t in tables for space in spaces):
                break
        return tables

    def _draw(self, count: int, largest: int, rng: Random, needed: Mapping[str, int]) -> list[SizeTable]:
        rows: dict[str, list[int]] = {}
        for a, dim in self.program.axes.items():
            need = min(needed.get(a, 1), largest)
            choices = [max(min(largest, _LARGEST), need), 2] + [rng.randint(1, 2) for _ in range(count - 2)]
            rng.shuffle(choices)
            # no more than needed: where exponentials are summed over many elements, there are many tests
            first = choices.index(min(n for n in choices if n >= need))
            choices[0], choices[first] = choices[first], choices[0]
            rows[a] = [min(n, int(dim)) for n in choices] if dim.is_Integer else choices
        return [self._table({a: row[i] for a, row in rows.items()}, largest, rng, needed) for i in range(count)]

    def _table(self, elements: dict[str, int], largest: int, rng: Random, needed: Mapping[str, int]) -> SizeTable:
        if self.made_of is None:
            symbols = {s: rng.randint(2, min(largest, _LARGEST)) for s in self.symbols}
            sizes = {a: dim_value(d, symbols) for a, d in self.program.axes.items()}
            return SizeTable(sizes, None, symbols)
        for joined, parts in self.made_of.items():
            elements[joined] = sum(elements[a] for a in parts)
        weighted = {*needed, *(a for joined, parts in self.made_of.items() for a in (joined, *parts))}
        axes = {a: (self.program.axes[a], n) for a, n in elements.items() if a in weighted}
        return SizeTable(elements, Measure(axes, self.made_of))


def draw_schedule(graph: MuGraph, sizes: Mapping[str, int], rng: Random) -> tuple[Schedule, dict[str, int]]:
    """Random tiles and splits, and the sizes of all axes with the partial ones.

    Loops have two or three iterations where the size allows it, grids at most four blocks; tiles need not
    divide.
    """
    everything = dict(sizes)
    splits: dict[str, int] = {}
    kernels: list[KernelSchedule] = []
    for node in graph.kernels:
        assert node.graph is not None
        kernels.append(_kernel(node.graph, everything, splits, rng))
        everything.update({partial_axis(a): n for a, n in splits.items()})
    return Schedule(tuple(kernels)), everything


def _kernel(graph: Graph, sizes: Mapping[str, int], splits: dict[str, int], rng: Random) -> KernelSchedule:
    tiles: dict[str, int] = {}
    own: dict[str, int] = {}
    cells = 1
    for a, role in rng.sample(graph.roles, len(graph.roles)):
        size = sizes[a]
        if role is Role.SPLIT:
            # results of one axis that several kernels split have one partial axis
            own[a] = splits.setdefault(a, rng.randint(2, 3) if size > 1 else rng.randint(1, 2))
            tiles[a] = rng.randint(1, max(1, size // 2))
        elif role is Role.LOOP:
            tiles[a] = rng.randint(1, max(1, size - 1))
        elif role is Role.PARALLEL:
            tile = rng.randint(1, max(1, size - 1)) if cells * size <= _MAX_CELLS else size
            tiles[a] = tile
            cells *= -(-size // tile)
    order = [a for a, _ in graph.roles]
    return KernelSchedule(
        tuple((a, tiles[a]) for a in order if a in tiles),
        tuple((a, own[a]) for a in order if a in own),
        lanes=2,
    )
