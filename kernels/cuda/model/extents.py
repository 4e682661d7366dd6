"""What the blocks of a kernel hold and compute with, for many candidate schedules at once: extents, instructions, descriptors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np

from mirage.ir.types import DTYPES, HALVES
from mirage.kernels.cpu.model.cost import KernelWork, divided
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emit.descriptors import LEAST, MOST
from mirage.kernels.cuda.emitted import DIVISIBILITY
from mirage.kernels.cuda.schedules.choices import Choices
from mirage.mugraph.graph import Role, partial_axis

#: least extents of a tile of tl.dot, and the rows that a warpgroup's instruction has (wgmma, PTX ISA 9.7.15)
DOT, WGMMA_ROWS, WGMMA_WARPS = 16, 64, 4
#: compute capability from which there are such instructions
WGMMA = (9, 0)
#: the element type of ordinary cores, in full precision; tensor cores take those of 16 bits
CORES = "float32"
#: rows and columns from which a product is one of matrices, and how many times as long a kernel takes that leaves one with as
#: many rows as a warpgroup has to the older instructions: their operands pass through registers, and nothing runs beside them
MATRIX, NARROW = 16, 2.0


def _innermost(axes: tuple[str, ...], axis: str | None) -> tuple[str, ...]:
    """The axes with one of them last."""
    return axes if axis is None else (*(a for a in axes if a != axis), axis)


def _padded(extent: np.ndarray) -> np.ndarray:
    """The next powers of two: tiles of Triton have no other extents."""
    found: np.ndarray = 2.0 ** np.ceil(np.log2(np.maximum(extent, 1.0)))
    return found


class Extents:
    """The candidates of one kernel at sizes of its axes."""

    def __init__(
        self,
        device: CudaDevice,
        work: KernelWork,
        choices: Choices,
        sizes: Mapping[str, int],
        dtype: str,
        warm: Collection[int],
        inner: Mapping[int, str],
    ) -> None:
        self.device, self.work, self.sizes, self.dtype, self.warm = device, work, sizes, dtype, warm
        self.choices = choices
        self.itemsize = DTYPES[dtype].itemsize
        self.tensor_cores = dtype in HALVES
        self.wgmma = device.capability >= WGMMA
        self.warps, self.stages, self.dot = choices.warps, choices.stages, choices.dot
        tiles, splits = choices.tiles, choices.splits
        self.ones = np.ones(len(choices))
        #: whether the rooms of axes that block tensors hold whole are large enough
        self.serves = all(sizes[a] <= n for a, n in choices.rooms.items())
        #: extents that a block has altogether, the same padded, and the padded ones that it holds in an iteration
        self.block: dict[str, np.ndarray] = {}
        self.whole: dict[str, np.ndarray] = {}
        self.inner: dict[str, np.ndarray] = {}
        #: sizes of the axes of partial results that the kernel writes
        self.parts: dict[str, np.ndarray] = {}
        self.blocks = self.ones
        #: numbers of blocks along grid axes
        self.counts: dict[str, np.ndarray] = {}
        g = work.graph
        for a, role in g.roles:
            size = max(sizes[a], 1)
            count, block = divided(role, self.ones * size, tiles.get(a, self.ones), splits.get(a, self.ones))
            if role is Role.SPLIT:
                self.parts[partial_axis(a)] = count
            if role in (Role.PARALLEL, Role.SPLIT):
                self.counts[a] = count
            self.blocks = self.blocks * count
            self.block[a] = block
            self.whole[a] = _padded(choices.rooms.get(a, 1.0) * self.ones) if a in choices.rooms else _padded(block)
            self.inner[a] = self.whole[a] if role is Role.WHOLE else _padded(tiles[a])
            if role is Role.PARALLEL:
                self.whole[a] = self.inner[a]
        self.trips = [np.ceil(self.block[a] / self.inner[a]) for a in g.loop]
        self.iterations = np.prod([self.ones, *self.trips], axis=0)
        packed = dict(choices.packed)
        laid = {**inner, **packed}
        #: axes of inputs and results, the innermost one in memory last
        self.input_axes = [_innermost(t.axes, laid.get(k)) for k, t in enumerate(work.inputs)]
        self.output_axes = [_innermost(axes, dict(choices.layouts).get(k)) for k, axes in enumerate(work.outputs)]
        #: whether they can have descriptors
        self.input_described = [self._describable(axes, k in packed) for k, axes in enumerate(self.input_axes)]
        self.output_described = [self._describable(axes, False) for axes in self.output_axes]
        #: block tensors that stay in registers throughout the loop
        self.accumulated = [n.axes() for n in g.nodes if n.op == "accumulator"]
        self.swap = self._best_order() if choices.swap is None else choices.swap

    def _describable(self, axes: Sequence[str], whole_rows: bool) -> np.ndarray:
        """Whether a tensor that the kernel reads or writes has a descriptor (as `plan_operand`, of which grouped axes are left
        to the emitter), its rows being whole 16 bytes at these sizes.
        """
        none: np.ndarray = self.ones < 0
        own = [a for a in axes if a in self.inner]
        row = self.sizes[axes[-1]] * self.itemsize if own and own[-1] == axes[-1] else 1
        if row % DIVISIBILITY and not (whole_rows and own):
            return none
        role, loop = self.work.graph.role, self.work.graph.loop
        single = {a: (self.inner[a] == 1) & (role[a] is not Role.WHOLE or self.sizes[a] == 1) for a in own}
        dims = sum((~s for s in single.values()), self.ones * 0)
        moving = sum((single[a] for a in own if a in loop), self.ones * 0)
        long = ~single[own[-1]] & (self.inner[own[-1]] * self.itemsize >= DIVISIBILITY)
        found: np.ndarray = (dims >= LEAST) & (dims <= MOST) & (moving == 0) & long
        return found

    def describable(self, k: int) -> tuple[int, ...]:
        """The operands and then the results that candidate k can have descriptors of."""
        return tuple(i for i, can in enumerate((*self.input_described, *self.output_described)) if can[k])

    def _copied(self, k: int) -> np.ndarray:
        """Whether the copy engine loads input k."""
        found: np.ndarray = self.choices.described & self.input_described[k] & self.wgmma
        return found

    def _volume(self, axes: Sequence[str], extents: Mapping[str, np.ndarray]) -> np.ndarray:
        found = self.ones
        for a in axes:
            # partial axes, which the kernel's own graph does not have
            if a in extents:
                found = found * extents[a]
        return found

    def _times(self, depth: int) -> np.ndarray:
        """How often a block runs what varies with so many loops."""
        found: np.ndarray = np.prod([self.ones, *self.trips[:depth]], axis=0)
        return found

    def _product(self, k: int) -> tuple[np.ndarray, ...]:
        """(products of a batch, rows, columns, depth) of the k-th product, padded as tl.dot takes them where it does."""
        p = self.work.products[k]
        x, y = (set(axes) for axes in p.operands)
        out = [a for a in p.out if a in self.inner]
        batch = self._volume([a for a in out if a in x and a in y], self.inner)
        rows = self._volume([a for a in out if a in x and a not in y], self.inner)
        columns = self._volume([a for a in out if a in y and a not in x], self.inner)
        least = np.where(self.dot, DOT, 1)
        return batch, *(np.maximum(n, least) for n in (rows, columns, self._volume(p.reduce, self.inner)))

    def _is_wide(self, k: int) -> np.ndarray:
        """Whether the k-th product is a warpgroup's: 64 rows in the order of the operands, and no batch in a tile."""
        batch, m, n, _ = self._product(k)
        rows = np.where(self.swap, n, m)
        found: np.ndarray = self.dot & (rows >= WGMMA_ROWS) & (batch <= 1) & (self.warps >= WGMMA_WARPS)
        found = found & (self.wgmma & self.tensor_cores)
        return found

    def _best_order(self) -> np.ndarray:
        """Whether more products have the rows of a warpgroup with their operands swapped; or else, of large tiles, whether more
        sums are along rows then: a thread holds elements of few rows and many columns, and sums of rows in few registers.
        """
        gain = self.ones * 0
        summed = {a for n in self.work.graph.nodes if n.op == "sum" for a in n.reduce}
        for k, p in enumerate(self.work.products):
            _, m, n, _ = self._product(k)
            x, y = ([a for a in p.out if a in own and a not in other] for own, other in (p.operands, p.operands[::-1]))
            along = 1.0 * bool(summed.intersection(x)) - 1.0 * bool(summed.intersection(y))
            gain = gain + np.where(np.minimum(m, n) >= WGMMA_ROWS, along / 4, 0.0)
            if self.wgmma:
                gain = gain + (n >= WGMMA_ROWS) - 1.0 * (m >= WGMMA_ROWS)
        found: np.ndarray = (gain > 0) & self.dot & self.tensor_cores
        return found

    def _is_narrow(self) -> np.ndarray:
        """Whether no product is a warpgroup's, and one has as many rows at these sizes."""
        narrow, large = self.ones > 0, False
        for k, p in enumerate(self.work.products):
            x, y = p.operands
            sides = [prod(self.sizes[a] for a in p.out if a in own and a not in other) for own, other in ((x, y), (y, x))]
            large = large or (min(sides) >= MATRIX and max(sides) >= WGMMA_ROWS)
            narrow = narrow & ~self._is_wide(k)
        return narrow & (large and self.wgmma and self.tensor_cores)
