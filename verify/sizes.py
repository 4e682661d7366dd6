"""Random small sizes and schedules at which a muGraph is compared with its program."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from random import Random

import sympy

from mirage.ir.axes import AxisProgram
from mirage.ir.dims import Dim, divide
from mirage.ir.dims import evaluate as dim_value
from mirage.mugraph.graph import Graph, MuGraph, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule, Schedule

#: elements of the largest tensor, or four times as many as with sizes of 2: larger draws are replaced
_MAX_ELEMENTS = 256
_ATTEMPTS = 50
#: blocks of one kernel
_MAX_CELLS = 4


class AxisSizes:
    """Draws a small size for every axis, literal dims included, and says what `size` nodes are then worth.

    Axes whose size occurs in a `size` node (the n of a mean) and have equal expressions get equal sizes;
    the others are independent, because over named axes nothing else relates them.
    """

    def __init__(self, program: AxisProgram) -> None:
        self.program = program
        self._factor_axes: dict[Dim, tuple[str, ...] | None] = {}
        self.symbols = sorted({s.name for d in program.axes.values() for s in d.free_symbols})
        self.tied: set[Dim] = set()
        for n in program.nodes:
            if n.op == "size":
                self.tied.update(program.axes[a] for a in self._factors(dict(n.attrs)["dim"]) or ())
            elif n.joined is not None:
                self.tied.update(program.axes[a] for a in n.joined[1])

    def _factors(self, dim: Dim) -> tuple[str, ...] | None:
        if dim not in self._factor_axes:
            self._factor_axes[dim] = factor_axes(dim, self.program.axes)
        return self._factor_axes[dim]

    def draw(self, count: int, largest: int, rng: Random) -> list[dict[str, int]]:
        """`count` size tables; over three of them every axis takes sizes 2, the largest, and 1 or 2."""
        spaces = [{*n.axes, *n.reduce} for n in self.program.nodes]
        limit = max(_MAX_ELEMENTS, 4 << max(map(len, spaces)))
        tables: list[dict[str, int]] = []
        for _ in range(_ATTEMPTS):
            tables = self._draw(count, largest, rng)
            if all(math.prod(t[a] for a in space) <= limit for t in tables for space in spaces):
                break
        return tables

    def _draw(self, count: int, largest: int, rng: Random) -> list[dict[str, int]]:
        tied: dict[Dim, list[int]] = {}
        rows: dict[str, list[int]] = {}
        for a, dim in self.program.axes.items():
            choices = [largest, 2] + [rng.randint(1, 2) for _ in range(count - 2)]
            rng.shuffle(choices)
            rows[a] = tied.setdefault(dim, choices) if dim in self.tied else choices
        tables = [{a: row[i] for a, row in rows.items()} for i in range(count)]
        joins = [n.joined for n in self.program.nodes if n.joined is not None]
        for t in tables:
            for joined, parts in joins:
                t[joined] = sum(t[a] for a in parts)
            if any(t[joined] != sum(t[a] for a in parts) for joined, parts in joins):
                # joins whose parts are related otherwise than one by one: the sizes as the program has them
                symbols = {s: rng.randint(2, largest) for s in self.symbols}
                t.update({a: dim_value(d, symbols) for a, d in self.program.axes.items()})
        return tables

    def value(self, dim: sympy.Expr, sizes: Mapping[str, int], seed: int) -> int:
        """What a `size` node is worth: the product of its axes' sizes, or an arbitrary number where it
        has none.
        """
        if (axes := self._factors(dim)) is not None:
            return math.prod(sizes[a] for a in axes)
        digest = hashlib.blake2b(f"{dim} {seed}".encode(), digest_size=4).digest()
        return int(dim) if dim.is_Integer else 2 + int.from_bytes(digest)


def factor_axes(dim: sympy.Expr, axes: Mapping[str, Dim]) -> tuple[str, ...] | None:
    """Axes whose sizes multiply to `dim`, or None; the first that fit, in the order of the table."""
    if dim == 1:
        return ()
    names = list(axes)
    for i, a in enumerate(names):
        rest = divide(dim, axes[a])
        if rest is not None and axes[a] != 1:
            found = factor_axes(rest, {b: axes[b] for b in names[i + 1 :]})
            if found is not None:
                return (a, *found)
    return None


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
