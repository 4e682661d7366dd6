"""The cost bounds that order a search and drop dominated graphs.

A graph's cost is a vector: one entry per resource and set of axis sizes. A graph that needs at least as much of every
resource as another one, at every set of sizes, is dominated and never looked at again. A weighted sum of the entries at the
hinted sizes (nanoseconds on one core of a rough machine) decides what is looked at first; what is returned is decided by
measurement.

Resources: launches; at the kernel level the elements that kernels read and write (each once); at the block level the elements
that all blocks read and write (tiles are read again by every block that needs them), and the time of all operators in all blocks; per block the time that it takes alone (what no number of cores can shorten), and the
elements that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.ir.operator import Elementwise, get_operator

#: ns per multiply-add of a matmul by how many of its operands are reused: both (rows and columns), one, none
MATMUL_NS = (0.03, 0.05, 0.12)
#: ns per element of other operators
SUM_NS = 0.06
FLOP_NS = 0.04
#: ns per element that a kernel reads or writes in memory, and in a cache
MEMORY_NS = 0.3
CACHE_NS = 0.02
#: ns to run one operator of a block at all
OPERATOR_NS = 20.0
#: ns to start a kernel
LAUNCH_NS = 3000.0
#: loop and grid tiles (elements) and grid splits assumed while nothing is scheduled yet
LOOP_TILE = 128
GRID_TILE = 64
SPLITS = 8
#: elements that every cache holds
CACHE_ELEMENTS = 1 << 14
#: sizes of the symbolic axes, beside the hinted ones, at which costs are compared
_SIZES = (4096,)

#: entries of a cost: launches, operators of blocks, and then per set of sizes
_LAUNCHES, _OPERATORS = range(2)
_MEMORY, _CACHE, _WORK, _ALONE, _HELD = range(5)
_ENTRIES = 5

Cost = np.ndarray


@dataclass(frozen=True)
class Place:
    """Where an operator runs: the axes along which blocks are laid out, and the loop."""

    parallel: frozenset[str]
    loops: tuple[str, ...]
    split: str | None


class CostModel:
    """Costs at the hinted sizes of the axes, and at others. Symbolic axes (`free`) take other sizes, fixed ones do not."""

    def __init__(self, sizes: Mapping[str, int], free: Sequence[str]) -> None:
        others = [{a: n if a in free else sizes[a] for a in sizes} for n in _SIZES] if free else []
        self.tables: list[dict[str, int]] = [dict(sizes), *others]
        self.length = 2 + _ENTRIES * len(self.tables)
        weights = np.zeros(self.length)
        weights[_LAUNCHES] = LAUNCH_NS
        weights[_OPERATORS] = OPERATOR_NS
        hinted = self._entries(weights, 0)
        hinted[_MEMORY] = MEMORY_NS
        hinted[_CACHE] = CACHE_NS
        hinted[_WORK] = 1.0
        self._weights = weights

    @staticmethod
    def _entries(cost: Cost, table: int) -> Cost:
        """The entries of one table of sizes, to write to."""
        return cost[2 + _ENTRIES * table : 2 + _ENTRIES * (table + 1)]

    def total(self, cost: Cost) -> float:
        """ns on one core, at the hinted sizes."""
        return float(self._weights @ cost)

    def launch(self) -> Cost:
        cost = np.zeros(self.length)
        cost[_LAUNCHES] = 1.0
        return cost

    def of_kernel(self, cost: Cost) -> Cost:
        """The cost of a kernel from that of its block graph: how many operators that has no longer matters, nor what it
        holds as long as a cache can hold it.
        """
        cost = cost.copy()
        cost[_OPERATORS] = 0.0
        for k in range(len(self.tables)):
            entry = self._entries(cost, k)
            entry[_HELD] = max(entry[_HELD] - CACHE_ELEMENTS, 0.0)
        return cost

    @staticmethod
    def operators(cost: Cost) -> int:
        """Operators of a block graph."""
        return int(cost[_OPERATORS])

    @staticmethod
    def _volume(axes: Sequence[str], sizes: Mapping[str, int]) -> float:
        return math.prod(sizes.get(a, SPLITS) for a in axes)

    def _held(self, axes: Sequence[str], sizes: Mapping[str, int], at: Place, whole: bool) -> float:
        """Elements of a tensor in a block whose grid tiles have one element."""
        return math.prod(
            min(sizes.get(a, SPLITS), LOOP_TILE) if a in at.loops and not whole else sizes.get(a, SPLITS)
            for a in axes
            if a not in at.parallel
        )

    @staticmethod
    def _copies(axes: Sequence[str], sizes: Mapping[str, int], at: Place) -> float:
        """How many blocks do the same, for want of an axis."""
        blocks = [math.ceil(sizes.get(a, SPLITS) / GRID_TILE) for a in at.parallel if a not in axes]
        return math.prod(blocks) * (SPLITS if at.split and at.split not in axes else 1)

    def written(self, axes: Sequence[str]) -> Cost:
        """A tensor that some kernel writes, however it does."""
        return self.transfer(axes, Place(frozenset(), (), None), held=False)

    def transfer(self, axes: Sequence[str], at: Place, held: bool) -> Cost:
        """A tensor that a kernel reads (and holds) or writes."""
        cost = np.zeros(self.length)
        for k, sizes in enumerate(self.tables):
            entry = self._entries(cost, k)
            volume = self._volume(axes, sizes)
            entry[_MEMORY] = volume
            entry[_CACHE] = volume * self._copies(axes, sizes, at)
            if held:
                entry[_HELD] = self._held(axes, sizes, at, False)
        return cost

    def operator(
        self, op: str, operands: Sequence[Sequence[str]], axes: Sequence[str], at: Place, *, varying: bool, whole: bool
    ) -> Cost:
        """An operator on block tensors of these axes. `varying`: it runs in every iteration; `whole`: its result is not a
        tile of the loop axes.
        """
        cost = np.zeros(self.length)
        cost[_OPERATORS] = 1.0
        space = list(dict.fromkeys([a for x in operands for a in x] + list(axes)))
        for k, sizes in enumerate(self.tables):
            entry = self._entries(cost, k)
            repeats = 1.0
            if varying:
                repeats = math.prod(math.ceil(sizes[a] / LOOP_TILE) for a in at.loops if a not in space)
            ns = self._ns(op, operands)
            volume = self._volume(space, sizes)
            alone = self._volume([a for a in space if a not in at.parallel], sizes)
            share = SPLITS if at.split in space or (varying and at.split) else 1
            entry[_WORK] = volume * repeats * ns * self._copies(space, sizes, at)
            entry[_ALONE] = alone * repeats * ns / share
            entry[_HELD] = self._held(axes, sizes, at, whole)
        return cost

    @staticmethod
    def _ns(op: str, operands: Sequence[Sequence[str]]) -> float:
        if op == "matmul":
            x, y = map(set, operands)
            return MATMUL_NS[(x <= y) + (y <= x)]
        if op == "concat_matmul":
            w, x, y, z = map(set, operands)
            return max(MATMUL_NS[(w <= y) + (y <= w)], MATMUL_NS[(x <= z) + (z <= x)])
        if op in ("sum", "accumulator", "concat"):
            return SUM_NS
        definition = get_operator(op)
        assert isinstance(definition, Elementwise)
        return FLOP_NS * max(definition.flops, 1)
