"""What the blocks of a kernel move, for many candidate schedules at once: bytes from and to DRAM and the L2 cache, and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np

from mirage.kernels.cuda.model.extents import Extents

#: bytes of the smallest transfer of memory
SECTOR = 32
#: bytes of the widest load of a thread, and of the narrowest that is copied to shared memory without it (cp.async, PTX ISA);
#: its operations per load beside it: address and mask (an estimate)
LOAD_BYTES, COPY_BYTES, LOAD_OPERATIONS = 16, 4, 5


class Traffic(Extents):
    """The candidates of one kernel, and what they move."""

    def _row_waste(self, axes: Sequence[str], extents: Mapping[str, np.ndarray]) -> np.ndarray:
        """How many times as many bytes as wanted are moved, where a row of the tile is shorter than a sector."""
        if not axes or axes[-1] not in extents:
            return self.ones
        run = np.minimum(extents[axes[-1]], self.sizes[axes[-1]]) * self.itemsize
        whole = self.sizes[axes[-1]] * self.itemsize
        # a tile of whole rows is contiguous beyond them
        return np.where(run >= whole, 1.0, np.maximum(SECTOR / run, 1.0))

    def _whole(self, axes: Sequence[str]) -> np.ndarray:
        """Bytes of a kernel-level tensor."""
        found = self.ones * self.itemsize
        for a in axes:
            found = found * (self.parts[a] if a in self.parts else max(self.sizes[a], 1))
        return found

    def _distinct(self, at_once: np.ndarray) -> dict[str, np.ndarray]:
        """How many different blocks along each grid axis run at a time, in the candidates' orders of the grid."""
        choices = self.choices
        found = {a: self.ones for a in self.counts}
        for k, order in enumerate(choices.orders):
            left, own = at_once, dict(found)
            axes = list(order or self.work.graph.grid)
            if len(axes) > 1:
                *axes, outer, last = axes
                rows = np.minimum(choices.group, self.counts[outer])
                own[last] = np.minimum(self.counts[last], np.ceil(left / rows))
                own[outer] = np.minimum(self.counts[outer], rows * np.ceil(left / (rows * self.counts[last])))
                left = np.ceil(left / (self.counts[outer] * self.counts[last]))
            for a in reversed(axes):
                own[a] = np.minimum(self.counts[a], left)
                left = np.ceil(left / self.counts[a])
            found = {a: np.where(choices.order == k, own[a], n) for a, n in found.items()}
        return found

    def _bytes(self, waves: np.ndarray, at_once: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes from and to DRAM, and L2. What blocks that run together read of a tensor comes from DRAM once; later ones find
        it in the L2 cache as far as the tensor fits there.
        """
        distinct = self._distinct(at_once)
        l2_bytes = self.device.l2_bytes
        dram, l2 = self.ones * 0, self.ones * 0
        for k, t in enumerate(self.work.inputs):
            whole = self._whole(t.axes)
            extents = self.inner if t.depth else self.block
            loaded = np.minimum(self._volume(t.axes, extents), self._volume(t.axes, self.block)) * self._times(t.depth)
            loaded = loaded * self.itemsize * self._row_waste(self.input_axes[k], extents) * self.blocks
            l2 = l2 + loaded
            missed = np.maximum(1 - l2_bytes / whole, 0)
            shares = [n / self.counts[a] for a, n in distinct.items() if a in t.axes]
            together = whole * np.prod([self.ones, *shares], axis=0) * self._outer(t.axes)
            again = np.minimum(loaded, waves * together) - whole
            dram = (
                dram + np.maximum(again, 0) * missed + (whole * missed if k in self.warm else np.minimum(whole, loaded))
            )
        for axes in self.output_axes:
            whole = self._whole(axes)
            l2 = l2 + whole * self._row_waste(axes, self.block)
            dram = dram + (whole * np.maximum(1 - l2_bytes / whole, 0) if self._partial(axes) else whole)
        return dram, l2

    def _load_bytes(self, k: int) -> np.ndarray:
        """Bytes of one load of input k through pointers: rows must begin at multiples of them."""
        axes = self.input_axes[k]
        if not axes or axes[-1] not in self.inner:
            return self.ones * self.itemsize
        whole_rows = k in dict(self.choices.packed) or len(axes) == 1
        aligned = LOAD_BYTES if whole_rows else gcd(self.sizes[axes[-1]] * self.itemsize, LOAD_BYTES)
        found: np.ndarray = np.clip(self.inner[axes[-1]] * self.itemsize, self.itemsize, aligned)
        return found

    def _outer(self, axes: Sequence[str]) -> np.ndarray:
        """How often a block itself reads a tensor again, for loops inside of which it does not vary."""
        found = self.ones
        inside = False
        for a, n in zip(reversed(self.work.graph.loop), reversed(self.trips), strict=True):
            inside = inside or a in axes
            if inside and a not in axes:
                found = found * n
        return found

    def _partial(self, axes: Sequence[str]) -> bool:
        """Whether these are partial results, which the next kernel reads at once."""
        return any(a in self.parts for a in axes)

    def _in_flight(self) -> np.ndarray:
        """Bytes that a block has asked for at a time: those of the loads of an iteration, for all stages but that which
        is computed, or everything that it loads before its loops.
        """
        looped = sum((self._tile_bytes(t.axes, t.depth) for t in self.work.inputs if t.depth), self.ones * 0)
        first = sum((self._tile_bytes(t.axes, t.depth) for t in self.work.inputs if not t.depth), self.ones * 0)
        ahead = np.minimum(np.maximum(self.stages - 1, 1), self.iterations)
        found: np.ndarray = np.maximum(np.maximum(looped * ahead, first if not self.trips else 0), 1.0)
        return found

    def _tile_bytes(self, axes: Sequence[str], depth: int) -> np.ndarray:
        extents = self.inner if depth else self.block
        found: np.ndarray = np.minimum(self._volume(axes, extents), self._volume(axes, self.block)) * self.itemsize
        return found
