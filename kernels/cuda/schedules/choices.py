"""Candidates for the schedule of one kernel, as arrays: the cost model counts all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule

#: a whole kernel's layouts: (operand or result, innermost axis)
Layouts = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Choices:
    """Candidates of one kernel: the k-th has the k-th tile and number of splits per axis, warps, stages, and so on.

    `dot` tells whether its products are tl.dot, `swap` whether with their operands swapped (None: where more products have the
    rows of a warpgroup then, as the model finds), `described` whether tensors have
    descriptors (all that can). `order` is the place of its order of the grid among
    `orders`, of which () is the graph's, `group` the tiles that take turns. All have the same `rooms` and layouts.
    """

    tiles: Mapping[str, np.ndarray]
    splits: Mapping[str, np.ndarray]
    rooms: Mapping[str, int]
    warps: np.ndarray
    stages: np.ndarray
    dot: np.ndarray
    swap: np.ndarray | None
    described: np.ndarray
    order: np.ndarray
    group: np.ndarray
    orders: tuple[tuple[str, ...], ...] = ((),)
    packed: Layouts = ()
    layouts: Layouts = ()

    def __len__(self) -> int:
        return len(self.warps)

    def take(self, which: np.ndarray) -> Choices:
        """Those of these numbers, in that order."""
        return replace(
            self,
            tiles={a: n[which] for a, n in self.tiles.items()},
            splits={a: n[which] for a, n in self.splits.items()},
            warps=self.warps[which],
            stages=self.stages[which],
            dot=self.dot[which],
            swap=None if self.swap is None else self.swap[which],
            described=self.described[which],
            order=self.order[which],
            group=self.group[which],
        )

    def times(self, **options: np.ndarray) -> Choices:
        """Every candidate with every one of these options: columns of equal length, of which the k-th go together."""
        (count,) = {len(o) for o in options.values()}
        every = self.take(np.repeat(np.arange(len(self)), count))
        columns: dict[str, Any] = {name: np.tile(o, len(self)) for name, o in options.items()}
        return replace(every, **columns)

    def schedule(self, k: int, swap: bool, described: tuple[int, ...]) -> CudaKernelSchedule:
        """The k-th of them, with that order of operands; `described` are the operands and results that can have descriptors."""
        return CudaKernelSchedule(
            tuple((a, int(n[k])) for a, n in self.tiles.items()),
            tuple((a, int(n[k])) for a, n in self.splits.items()),
            tuple(self.rooms.items()),
            int(self.warps[k]),
            int(self.stages[k]),
            bool(self.dot[k]),
            swap=swap,
            order=self.orders[int(self.order[k])],
            group=int(self.group[k]),
            descriptors=described if self.described[k] else (),
            packed=self.packed,
            layouts=self.layouts,
        )

    @staticmethod
    def of(s: CudaKernelSchedule) -> Choices:
        """One schedule."""
        return Choices(
            {a: np.array([float(n)]) for a, n in s.tiles},
            {a: np.array([float(n)]) for a, n in s.splits},
            dict(s.rooms),
            np.array([float(s.num_warps)]),
            np.array([float(s.num_stages)]),
            np.array([s.dot]),
            np.array([s.swap]),
            np.array([bool(s.descriptors)]),
            np.array([0]),
            np.array([float(s.group)]),
            (s.order,),
            s.packed,
            s.layouts,
        )
