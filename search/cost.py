"""The cost bounds that order a search and drop dominated graphs.

A graph's cost is a vector: one entry per resource and set of axis sizes. A graph that needs at least as much of every
resource as another one, at every set of sizes, is dominated and never looked at again. A weighted sum of the entries at the
hinted sizes decides what is looked at first, and which graphs are kept of many: nanoseconds on one core of a rough machine, or on
a CUDA device (`Rates`). What is returned is decided by measurement, or by a model of the device.

Resources: launches; at the kernel level the elements that kernels read and write (each once); at the block level the
elements that all blocks read and write (a tile is read again by every block that needs it), and the time of all operators in
all blocks; per block the time that it takes alone (what no number of cores can shorten), and the elements that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.operator import FOLDS, PRODUCTS, Elementwise, get_operator
from mirage.kernels.cpu.processor import CPU_RATES
from mirage.kernels.target import Rates

#: ns per multiply-add of a matmul by how many of its operands are reused: both (rows and columns), one, none
MATMUL_NS = (0.03, 0.05, 0.12)
#: ns per element of other operators
SUM_NS = 0.06
FLOP_NS = 0.04
#: loop and grid tiles (elements) and grid splits assumed while nothing is scheduled yet
LOOP_TILE = 128
GRID_TILE = 64
SPLITS = 8
#: elements that the caches of a core (or the shared memory of a block) hold
CACHES = (1 << 13, 1 << 18)
#: sizes of the symbolic axes, beside the hinted ones, at which costs are compared
COMPARED = (4096,)
#: and those of programs with products of products, whose best order depends on sizes
COMPARED_CHAINS = (16, 4096)

#: operators through which a product goes on, where one operand depends on it
_LINEAR = frozenset({"mul", "div", "add", "sub", "neg", "sum"})

#: entries of a cost: launches, operators of blocks, and then per set of sizes
_LAUNCHES, _OPERATORS = range(2)
_MEMORY, _CACHE, _WORK, _ALONE, _HELD = range(5)
_ENTRIES = 5


Cost = np.ndarray
Axes = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where an operator runs: the axes along which blocks are laid out, in the order of the results, and the loop.

    Blocks have several elements along the last two parallel axes (rows and columns), one along the others.
    """

    parallel: tuple[str, ...]
    loops: tuple[str, ...]
    split: str | None


def compared_sizes(program: AxisProgram) -> tuple[int, ...]:
    """The sizes of symbolic axes at which the costs of a program's graphs are compared."""
    return COMPARED_CHAINS if _has_chain(program) else COMPARED


def _has_chain(program: AxisProgram) -> bool:
    """Whether an operand of a matmul follows from a matmul by sums, differences and products alone."""
    products: set[int] = set()
    for i, n in enumerate(program.nodes):
        of_product = any(k in products for k in n.operands)
        if n.op == "matmul":
            if of_product:
                return True
            products.add(i)
        elif of_product and n.op in _LINEAR:
            products.add(i)
    return False


class CostModel:
    """Costs at the hinted sizes of the axes, and at others. Symbolic axes (`free`) take other sizes, those `compared`, fixed ones
    do not.

    Elements in memory are of `itemsize` bytes. `rates` decide the order.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        free: Sequence[str],
        itemsize: int,
        rates: Rates = CPU_RATES,
        compared: Sequence[int] = COMPARED,
    ) -> None:
        others = [{a: n if a in free else sizes[a] for a in sizes} for n in compared] if free else []
        self.tables: list[dict[str, int]] = [dict(sizes), *others]
        self.length = 2 + _ENTRIES * len(self.tables)
        weights = np.zeros(self.length)
        weights[_LAUNCHES] = rates.launch
        weights[_OPERATORS] = rates.operator
        hinted = self._entries(weights, 0)
        hinted[_MEMORY] = rates.memory * itemsize
        hinted[_CACHE] = rates.cache * itemsize
        hinted[_WORK] = rates.work
        self._weights = weights
        self._transfers: dict[tuple[Axes, Place, bool], Cost] = {}
        self._operators: dict[tuple[str, tuple[Axes, ...], Axes, Place, bool, bool], Cost] = {}

    @staticmethod
    def _entries(cost: Cost, table: int) -> Cost:
        """The entries of one table of sizes, to write to."""
        return cost[2 + _ENTRIES * table : 2 + _ENTRIES * (table + 1)]

    def total(self, cost: Cost) -> float:
        """ns at the hinted sizes, as the rates have it."""
        return float(self._weights @ cost)

    def launch(self) -> Cost:
        cost = np.zeros(self.length)
        cost[_LAUNCHES] = 1.0
        return cost

    def of_kernel(self, cost: Cost) -> Cost:
        """The cost of a kernel from that of its block graph: how many operators that has no longer matters, and of what it
        holds only how many caches are too small for it.
        """
        found: Cost = self.of_kernels(cost[None])[0]
        return found

    def of_kernels(self, costs: np.ndarray) -> np.ndarray:
        """`of_kernel` of several costs, a row each."""
        costs = costs.copy()
        costs[:, _OPERATORS] = 0.0
        held = costs[:, 2 + _HELD :: _ENTRIES]
        held[:] = sum((held > cache).astype(float) for cache in CACHES)
        return costs

    @staticmethod
    def launches(cost: Cost) -> float:
        """Kernels of a graph; infinite where there is none."""
        return float(cost[_LAUNCHES])

    def totals(self, costs: np.ndarray) -> np.ndarray:
        """`total` of several costs, a row each."""
        return costs @ self._weights

    @staticmethod
    def operators(cost: Cost) -> int:
        """Operators of a block graph."""
        return int(cost[_OPERATORS])

    @staticmethod
    def _volume(axes: Sequence[str], sizes: Mapping[str, int]) -> float:
        return math.prod(sizes.get(a, SPLITS) for a in axes)

    def _held(self, axes: Sequence[str], sizes: Mapping[str, int], at: Place, whole: bool) -> float:
        """Elements of a tensor in a block; `whole` along the loop."""
        volume = 1
        for a in axes:
            size = sizes.get(a, SPLITS)
            if a in at.parallel:
                size = min(size, GRID_TILE) if a in at.parallel[-2:] else 1
            elif a in at.loops and not whole:
                size = min(size, LOOP_TILE)
            volume *= size
        return volume

    @staticmethod
    def _copies(axes: Sequence[str], sizes: Mapping[str, int], at: Place) -> float:
        """How many blocks do the same, for want of an axis."""
        blocks = [math.ceil(sizes.get(a, SPLITS) / GRID_TILE) for a in at.parallel if a not in axes]
        return math.prod(blocks) * (SPLITS if at.split and at.split not in axes else 1)

    def written(self, axes: Sequence[str]) -> Cost:
        """A tensor that some kernel writes, however it does."""
        return self.transfer(axes, Place((), (), None), held=False)

    def transfer(self, axes: Sequence[str], at: Place, held: bool) -> Cost:
        """A tensor that a kernel reads (and holds) or writes."""
        key = (tuple(axes), at, held)
        known = self._transfers.get(key)
        if known is not None:
            return known
        cost = self._transfers[key] = np.zeros(self.length)
        for k, sizes in enumerate(self.tables):
            entry = self._entries(cost, k)
            volume = self._volume(axes, sizes)
            entry[_MEMORY] = volume
            entry[_CACHE] = volume * self._copies(axes, sizes, at)
            if held:
                entry[_HELD] = self._held(axes, sizes, at, False)
        return cost

    def operator(self, op: str, operands: Sequence[Axes], axes: Axes, at: Place, *, varying: bool, whole: bool) -> Cost:
        """An operator on block tensors of these axes. `varying`: it runs in every iteration; `whole`: its result is not a
        tile of the loop axes.
        """
        key = (op, tuple(operands), axes, at, varying, whole)
        cost = self._operators.get(key)
        if cost is not None:
            return cost
        cost = self._operators[key] = np.zeros(self.length)
        cost[_OPERATORS] = 1.0
        pairs = PRODUCTS.get(op)
        for k, sizes in enumerate(self.tables):
            entry = self._entries(cost, k)
            for x, y in pairs or ():
                # of a matmul of concats each product has a space of its own
                self._compute(
                    entry, matmul_ns(operands[x], operands[y]), [operands[x], operands[y]], sizes, at, varying
                )
            if not pairs:
                # a concat copies every element of its result once: the axes of its operands are parts of one of that
                space = [axes] if op == "concat" else [*operands, axes]
                self._compute(entry, _element_ns(op), space, sizes, at, varying)
            entry[_HELD] = self._held(axes, sizes, at, whole)
        return cost

    def _compute(
        self,
        entry: Cost,
        ns: float,
        tensors: Sequence[Sequence[str]],
        sizes: Mapping[str, int],
        at: Place,
        varying: bool,
    ) -> None:
        """Add the time of an operator that takes so many ns per point of the space of these tensors."""
        space = list(dict.fromkeys(a for axes in tensors for a in axes))
        repeats = math.prod(math.ceil(sizes[a] / LOOP_TILE) for a in at.loops if varying and a not in space)
        entry[_WORK] += ns * self._volume(space, sizes) * repeats * self._copies(space, sizes, at)
        alone = self._volume([a for a in space if a not in at.parallel], sizes)
        share = SPLITS if at.split in space or (varying and at.split) else 1
        entry[_ALONE] += ns * alone * repeats / share


def matmul_ns(x: Sequence[str], y: Sequence[str]) -> float:
    """ns per multiply-add of a product of tensors with these axes."""
    return MATMUL_NS[(set(x) <= set(y)) + (set(y) <= set(x))]


def _element_ns(op: str) -> float:
    if op in (*FOLDS, "accumulator", "concat"):
        return SUM_NS
    definition = get_operator(op)
    assert isinstance(definition, Elementwise)
    return FLOP_NS * max(definition.flops, 1)
