"""Schedules of a muGraph on a CUDA device, as the cost model orders them: sizes of grid, loop and tile, warps and stages.

Tiles are constants of a kernel and powers of two, sizes are arguments: a schedule serves all sizes of the dim symbols, but for
axes that a block holds whole, whose room is the largest size that it serves. The best few are for a compiler, which knows the
registers, and a profiler (Mirage, section 6: tile sizes are chosen after the search).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mirage.errors import ScheduleError
from mirage.ir.dims import evaluate
from mirage.ir.types import HALVES
from mirage.kernels.cpu.model.cost import KernelWork
from mirage.kernels.cuda.model.cost import CudaModel, held_whole, warm_inputs
from mirage.kernels.cuda.model.extents import DOT, WGMMA
from mirage.kernels.cuda.schedules.choices import Choices, Layouts
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule, next_power
from mirage.mugraph.graph import MuGraph, Node, Role, partial_axis

#: tiles of axes that products run over, and of others, at most
PRODUCT_TILE, OTHER_TILE = 256, 4096
#: numbers of parts that an axis is split into
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
#: the usual number first: what is modelled to be as fast with several keeps this order
WARPS, STAGES = (4, 8, 2, 1), (3, 2, 4, 5, 1)
#: warps and stages with which tiles are compared first
FIRST_WARPS, FIRST_STAGES = (4, 8), 3
#: tiles that take turns along the grid; orders of the grid that are compared beside the graph's
GROUPS, ORDERS = (1, 4, 8, 16), 2
#: candidates of a kernel that are compared by tiles, how many of these with all warps and stages and kinds of loads, and how
#: many then with all orders of the grid
MOST, REFINED = 8192, 64
#: how far apart (in factors of 2, all sizes together) schedules are that are offered for one kernel
APART = 2.0


@dataclass(frozen=True)
class Ranked:
    """A schedule and what the model makes of it at the sizes that it was chosen for, in microseconds."""

    schedule: CudaSchedule
    us: float


class CudaScheduler:
    """Schedules of one muGraph for typical sizes of its dim symbols.

    `known` holds the rankings of kernels that graphs share, at the same sizes in the same model. `packed` are the layouts of
    every kernel's constants (`CudaKernelSchedule.packed`).
    """

    def __init__(
        self,
        mugraph: MuGraph,
        sizes: Mapping[str, int],
        model: CudaModel,
        known: dict[tuple[object, ...], list[CudaKernelSchedule]] | None = None,
        packed: Sequence[Layouts] = (),
    ) -> None:
        self.mugraph = mugraph
        self.packed = packed or [()] * len(mugraph.kernels)
        self.model = model
        self.symbols = dict(sizes)
        self.sizes = {a: max(evaluate(d, sizes), 1) for a, d in mugraph.axes.items()}
        self._known = {} if known is None else known

    def best(self, count: int) -> list[Ranked]:
        """At most `count` schedules, the fastest (as modelled) first: the k-th has the k-th best sizes of every kernel, those
        of an axis that several kernels split as the first of them has it.

        Raises ScheduleError where no schedule of a kernel fits the device.
        """
        found: dict[CudaSchedule, float] = {}
        for rank in range(count):
            schedule = self._whole(rank, count)
            if schedule not in found:
                found[schedule] = self.model.us(self.mugraph, schedule, self.symbols)
        ranked = [Ranked(s, us) for s, us in found.items() if us < np.inf]
        return sorted(ranked, key=lambda r: r.us)

    def _whole(self, rank: int, count: int) -> CudaSchedule:
        kernels: list[CudaKernelSchedule] = []
        splits: dict[str, int] = {}
        for k, node in enumerate(self.mugraph.kernels):
            chosen = self._choices(k, node, splits, count)
            kernels.append(chosen[min(rank, len(chosen) - 1)])
            splits |= kernels[-1].split
        return CudaSchedule(tuple(kernels))

    def _choices(self, k: int, node: Node, splits: Mapping[str, int], count: int) -> list[CudaKernelSchedule]:
        """At most `count` candidates of a kernel that are apart, the best first, where earlier kernels split axes so often."""
        assert node.graph is not None
        roles = (a for n in self.mugraph.kernels if n.graph for a, r in n.graph.roles if r is Role.SPLIT)
        sizes = {**self.sizes, **{partial_axis(a): splits.get(a, 1) for a in roles}}
        fixed = tuple((a, n) for a, n in splits.items() if a in node.graph.role or partial_axis(a) in node.graph.role)
        warm = warm_inputs(self.mugraph, node)
        key = (node, fixed, warm, count, self.packed[k])
        if key not in self._known:
            self._known[key] = self._ranked(k, node, sizes, dict(fixed), warm, count)
        return self._known[key]

    def _ranked(
        self,
        k: int,
        node: Node,
        sizes: Mapping[str, int],
        fixed: Mapping[str, int],
        warm: frozenset[int],
        count: int,
    ) -> list[CudaKernelSchedule]:
        work, dtype = self.model.work(node), self.mugraph.dtype
        first = replace(self._tiled(work, sizes, fixed), packed=self.packed[k])
        us = self.model.kernel(work, first, sizes, dtype, warm).us
        refined = self._with_loads(_with_threads(first.take(_fastest(us)), bool(work.graph.loop)))
        us = self.model.kernel(work, refined, sizes, dtype, warm).us
        refined = self._with_order(work, refined.take(_fastest(us)), sizes, warm)
        estimate = self.model.kernel(work, refined, sizes, dtype, warm)
        us = estimate.us

        def schedule(i: int) -> CudaKernelSchedule:
            described = self.model.describable(work, refined.take(np.array([i])), sizes, dtype)
            return refined.schedule(i, bool(estimate.swap[i]), described)

        found: list[CudaKernelSchedule] = []
        order = [int(i) for i in np.argsort(us, kind="stable") if us[i] < np.inf]
        for i in order:
            if len(found) == count:
                break
            s = schedule(i)
            if all(distance(s, t) >= APART for t in found):
                found.append(s)
        if len(found) > 1 and len({bool(s.descriptors) for s in found}) == 1:
            # a device is to compare both kinds of loads
            other = next((i for i in order if refined.described[i] != bool(found[0].descriptors)), None)
            if other is not None and bool(schedule(other).descriptors) != bool(found[0].descriptors):
                found[-1] = schedule(other)
        if not found:
            device = self.model.device
            raise ScheduleError(
                f"{self.mugraph.name}: no tiles of kernel {k} fit {device.name}: {device.block_shared_bytes >> 10} KiB of shared "
                "memory and 255 registers per thread"
            )
        return found

    def _tiled(self, work: KernelWork, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> Choices:
        """All tiles and splits, with a few warps and stages."""
        graph = work.graph
        tiles = {a: self._tiles(work, a, r, max(sizes[a], 1)) for a, r in graph.roles if r is not Role.WHOLE}
        rooms = {a: next_power(sizes[a]) for a in sorted(held_whole(graph)) if not self._is_literal(a)}
        split = [a for a, r in graph.roles if r is Role.SPLIT]
        free = [a for a in split if a not in fixed]
        parts = [(a, n) for a in free for n in SPLITS if n > 1 or a == free[0]] or [("", 1)]
        dots = (True, False) if work.products and self._few_rows(work, sizes) else (True,)
        _thin(tiles, len(parts) * len(FIRST_WARPS) * len(dots))
        lengths = [len(options) for options in tiles.values()]
        grid = np.indices((*lengths, len(parts), len(FIRST_WARPS), len(dots))).reshape(len(lengths) + 3, -1)
        chosen = {a: np.array(o, float)[i] for (a, o), i in zip(tiles.items(), grid[: len(lengths)], strict=True)}
        part, warps, dot = grid[len(lengths) :]
        counts: dict[str, np.ndarray] = {}
        for a in split:
            if a in fixed:
                counts[a] = np.full(grid.shape[1], float(fixed[a]))
                continue
            wanted = np.array([n if a == b else 1 for b, n in parts], float)[part]
            counts[a] = np.minimum(wanted, np.ceil(max(sizes[a], 1) / chosen[a]))
        stages = np.full(grid.shape[1], float(FIRST_STAGES if graph.loop else 1))
        none = np.zeros(grid.shape[1], bool)
        return Choices(
            chosen, counts, rooms, np.array(FIRST_WARPS, float)[warps], stages, np.array(dots)[dot], swap=None,
            described=none | self._copies(), order=np.zeros(grid.shape[1], int), group=none + 1.0,
        )  # fmt: skip

    def _with_order(
        self, work: KernelWork, choices: Choices, sizes: Mapping[str, int], warm: frozenset[int]
    ) -> Choices:
        """Each candidate with the order of the grid that is best: in which blocks that run together share most of what they
        load, or the graph's.
        """
        grid = work.graph.grid
        if len(grid) < 2 or all(set(grid) <= set(t.axes) for t in work.inputs):
            return choices
        others = [(*(b for b in grid if b != a), a) for a in reversed(grid[:-1])]
        orders = ((), *others[:ORDERS])
        options = [(k, float(g)) for k in range(len(orders)) for g in GROUPS]
        order, group = (np.array(column) for column in zip(*options, strict=True))
        every = replace(choices, orders=orders).times(order=order, group=group)
        us = self.model.kernel(work, every, sizes, self.mugraph.dtype, warm).us.reshape(len(choices), len(options))
        return every.take(np.arange(len(choices)) * len(options) + us.argmin(axis=1))

    def _copies(self) -> bool:
        """Whether the device has an engine that copies what descriptors describe."""
        return self.model.device.capability >= WGMMA

    def _with_loads(self, choices: Choices) -> Choices:
        """The candidates with descriptors and without, where the device has such."""
        return choices.times(described=np.array([True, False])) if self._copies() else choices

    def _is_literal(self, a: str) -> bool:
        return a in self.mugraph.axes and bool(self.mugraph.axes[a].is_Integer)

    def _few_rows(self, work: KernelWork, sizes: Mapping[str, int]) -> bool:
        """Whether a product has fewer rows or columns than tl.dot, which pads them: sums of products may be faster then."""
        if self.mugraph.dtype not in HALVES:
            return True
        for p in work.products:
            x, y = p.operands
            for own, other in ((x, y), (y, x)):
                axes = [a for a in own if a in p.out and a not in other]
                if np.prod([max(sizes[a], 1) for a in axes]) < DOT:
                    return True
        return False

    def _tiles(self, work: KernelWork, a: str, role: Role, size: int) -> list[int]:
        """Powers of two that an axis may be divided into, increasing."""
        whole = next_power(size)
        if a in work.batch and role is Role.PARALLEL:
            return [1]
        of_products = any(a in (*p.operands[0], *p.operands[1]) for p in work.products)
        longest = min(PRODUCT_TILE if of_products else OTHER_TILE, whole)
        shortest = 1
        if role is not Role.PARALLEL or (a in work.contiguous and of_products):
            shortest = min(DOT, longest)
        elif a in work.contiguous:
            shortest = min(2 * DOT, longest)
        options = [shortest << i for i in range(next_power(longest // shortest).bit_length())]
        # a few rows as they are, and then as many as instructions take
        return [n for n in options if n <= longest and (not of_products or n >= min(DOT, whole) or n == 1)]


def _thin(tiles: dict[str, list[int]], factor: int) -> None:
    """Leave out every second tile of the axis that has most of them, until there are few enough candidates."""
    while factor * int(np.prod([len(o) for o in tiles.values()] or [1])) > MOST:
        a = max(tiles, key=lambda a: len(tiles[a]))
        if len(tiles[a]) <= 2:
            return
        tiles[a] = tiles[a][::-2][::-1]


def _fastest(us: np.ndarray) -> np.ndarray:
    """The numbers of the best few that fit the device."""
    best = np.argsort(us, kind="stable")[:REFINED]
    found: np.ndarray = best[us[best] < np.inf]
    return found


def _with_threads(choices: Choices, loops: bool) -> Choices:
    """Every tiling with every number of warps and stages; stages only where there is a loop."""
    stages = STAGES if loops else (1,)
    seen: dict[tuple[float, ...], int] = {}
    for k in range(len(choices)):
        seen.setdefault(tuple(n[k] for n in (*choices.tiles.values(), *choices.splits.values(), choices.dot)), k)
    pairs = [(k, w, s) for k in seen.values() for w in WARPS for s in stages]
    found = choices.take(np.array([k for k, _, _ in pairs], int))
    return replace(
        found, warps=np.array([float(w) for _, w, _ in pairs]), stages=np.array([float(s) for _, _, s in pairs])
    )


def distance(x: CudaKernelSchedule, y: CudaKernelSchedule) -> float:
    """How far two schedules of one kernel are apart: factors of 2 between their sizes, warps and stages, added up; as far as is
    wanted where only one of them uses tl.dot, or descriptors.
    """
    pairs = [(n, y.tile[a]) for a, n in x.tiles] + [(n, y.split[a]) for a, n in x.splits]
    pairs += [(x.num_warps, y.num_warps), (x.num_stages, y.num_stages)]
    kinds = [(s.dot, bool(s.descriptors)) for s in (x, y)]
    other = APART * sum(a != b for a, b in zip(*kinds, strict=True))
    return float(other + sum(abs(np.log2(n / m)) for n, m in pairs))
