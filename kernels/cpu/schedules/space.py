"""The sizes that a schedule may give an axis: candidates of a kernel, and the neighbours of a schedule.

Tiles are powers of two, whole vectors in threes (as the register tiles of `mirage_gemm.h` take them), the whole axis, and
what divides it evenly. An axis may be split, so that there are cells for all threads where it is the only long one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from mirage.kernels.cpu.model.cost import KernelWork
from mirage.kernels.cpu.schedules.decisions import Decisions
from mirage.mugraph.graph import Graph, Role
from mirage.mugraph.schedule import MAX_SPLITS, KernelSchedule

#: splits tried, per thread
_SPLITS = (1, 2, 4, 8, 16)
#: tiles along an axis are no shorter than this where it is contiguous in memory, or looped over, and as long
_SHORTEST = 16
_LONGEST = 4096
#: elements of the axes that every operand has, at most
_BATCH = 8
#: candidates of a kernel that are compared by the model
MOST = 4096
#: vectors of a page of memory, for 64-byte vectors
_PAGE_VECTORS = 64
#: vectors of a register tile beside one another
_NV = 3
#: a leap among the tiles of an axis: about what one level of caches is larger than the one before it
_LEAP = 16


def tile_options(size: int, role: Role, *, batch: bool, contiguous: bool, lanes: int) -> tuple[int, ...]:
    """Tiles for an axis of that size, increasing: `_coarse` ones and those that divide it evenly."""
    longest = min(_BATCH if batch else _LONGEST, size)
    shortest = min(_SHORTEST, longest) if contiguous or role is not Role.PARALLEL else 1
    found = set(_powers(shortest, longest))
    if contiguous:
        step = lanes * _NV
        found |= {n * step for n in _powers(1, longest // step)}
    for n in found.copy():
        # the same number of tiles, evenly filled
        parts = -(-size // n)
        even = -(-size // parts)
        if shortest <= even <= longest:
            found.add(even)
    if size <= longest:
        found.add(size)
    return tuple(sorted(found))


def _powers(first: int, last: int) -> list[int]:
    """first * 2^i, up to the last."""
    found = []
    while first <= last:
        found.append(first)
        first *= 2
    return found


class Space:
    """The schedules of one kernel at expected sizes of its axes."""

    def __init__(self, work: KernelWork, sizes: Mapping[str, int], threads: int, lanes: int) -> None:
        self.work = work
        self.graph: Graph = work.graph
        self.sizes = {a: max(sizes[a], 1) for a in self.graph.role}
        self.threads = threads
        self.lanes = lanes
        #: per divided axis its tiles
        self.tiles = {a: self._tiles(a, r) for a, r in self.graph.roles if r is not Role.WHOLE}
        self.split = [a for a, r in self.graph.roles if r is Role.SPLIT]

    def _tiles(self, a: str, role: Role) -> tuple[int, ...]:
        batch, contiguous = a in self.work.batch, a in self.work.contiguous
        return tile_options(self.sizes[a], role, batch=batch, contiguous=contiguous, lanes=self.lanes)

    def _coarse(self) -> dict[str, list[int]]:
        """Fewer tiles of every axis: powers of two (a long axis by fours where there are many axes), and all of it."""
        found: dict[str, list[int]] = {}
        for a, options in self.tiles.items():
            kept = [t for t in options if t & (t - 1) == 0 or t == self.sizes[a]]
            if a in self.work.batch:
                kept = kept[:1]
            found[a] = kept
        while True:
            count = len(_SPLITS) if self.split else 1
            for kept in found.values():
                count *= len(kept)
            longest = max(found, key=lambda a: len(found[a]), default="")
            if count <= MOST or len(found[longest]) <= 2:
                return found
            found[longest] = [*found[longest][:-1:2], found[longest][-1]]

    def candidates(self, fixed: Mapping[str, int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Tiles and splits of all candidates: per axis an array, whose k-th element is the k-th candidate's.

        One of the split axes is split, by as many parts as suit the threads; those in `fixed` into as many as it says.
        """
        coarse = self._coarse()
        free = [a for a in self.split if a not in fixed]
        choices = [(a, n) for a in free for n in _SPLITS] or [("", 1)]
        lengths = [len(o) for o in coarse.values()]
        index = np.indices((*lengths, len(choices))).reshape(len(lengths) + 1, -1)
        tiles = {a: np.array(o, float)[i] for (a, o), i in zip(coarse.items(), index[:-1], strict=True)}
        splits: dict[str, np.ndarray] = {}
        for a in self.split:
            if a in fixed:
                splits[a] = np.full(index.shape[1], float(fixed[a]))
                continue
            wanted = np.array([self.threads * n if a == b else 1 for b, n in choices], float)[index[-1]]
            splits[a] = np.minimum(wanted, np.minimum(np.ceil(self.sizes[a] / tiles[a]), MAX_SPLITS))
        return tiles, splits

    def schedule(self, tiles: Mapping[str, np.ndarray], splits: Mapping[str, np.ndarray], k: int) -> KernelSchedule:
        """The k-th of the candidates."""
        return KernelSchedule(
            tuple((a, int(t[k])) for a, t in tiles.items()),
            tuple((a, int(n[k])) for a, n in splits.items()),
            self.lanes,
        )

    def neighbours(self, s: KernelSchedule) -> Iterator[KernelSchedule]:
        """The schedules that differ in one size, by a step (about a factor of 2) or to the next that divides evenly, in one tile
        by a leap, as what is read twice may do best in the next level of the caches and worse on the way there, or in
        whether rows are padded.
        """
        packed = {a for _, a in s.packed}
        for a, tile in s.tiles:
            # there is nothing to pack along one element
            options = [t for t in self.tiles[a] if t > 1 or a not in packed]
            steps = {
                *(t for t in options if t < tile and t * 2 >= tile),
                *(t for t in options if tile < t <= tile * 2),
                *(t for t in options if _LEAP in (t / tile, tile / t)),
            }
            for t in sorted(steps, key=lambda t: (t & (t - 1) != 0, -t)):
                tiles = tuple((b, t if b == a else n) for b, n in s.tiles)
                splits = tuple((b, min(n, -(-self.sizes[b] // t)) if b == a else n) for b, n in s.splits)
                yield replace(s, tiles=tiles, splits=splits)
        for a, count in s.splits:
            most = min(-(-self.sizes[a] // s.tile[a]), MAX_SPLITS)
            for n in {max(count // 2, 1), min(count * 2, most)} - {count}:
                yield replace(s, splits=tuple((b, n if b == a else m) for b, m in s.splits))
        if self._aliases(s) or s.padded:
            yield replace(s, padded=not s.padded)

    def decisions(self, s: KernelSchedule, decided: Decisions, long: Collection[str]) -> Iterator[KernelSchedule]:
        """The schedules that differ in a vector axis or in the layout of a block tensor; `long` are the axes that have more than
        one element in a block.
        """
        for near in (*decided.with_other_vectors(), *decided.with_other_layouts()):
            axes = {a for _, a in {*near.vectors} - {*s.vectors}} | {x.last for x in {*near.layouts} - {*s.layouts}}
            if axes - {None} <= set(long):
                yield near
        if not s.padded:
            pages = _PAGE_VECTORS * self.lanes
            held = {t.node: [s.tile.get(a, self.sizes[a]) for a in t.axes] for t in self.work.held}
            rows = {i for i, lengths in held.items() if len(lengths) > 1 and any(n % pages == 0 for n in lengths)}
            padded = {x.node for x in s.layouts if x.padded}
            yield from decided.with_other_padding(sorted((rows | padded) & decided.last.keys()))

    def _aliases(self, s: KernelSchedule) -> bool:
        """Whether rows of block tensors may be whole pages apart, which share a few sets of the first-level cache."""
        lengths = [s.tile.get(a, self.sizes[a]) for t in self.work.held if len(t.axes) > 1 for a in t.axes]
        return any(n % (_PAGE_VECTORS * self.lanes) == 0 for n in lengths)


def distance(x: KernelSchedule, y: KernelSchedule) -> float:
    """How far two schedules of one kernel are apart: factors of 2 between their sizes, added up."""
    pairs = [(n, y.tile[a]) for a, n in x.tiles] + [(n, y.split[a]) for a, n in x.splits]
    return float(sum(abs(np.log2(n / m)) for n, m in pairs))
