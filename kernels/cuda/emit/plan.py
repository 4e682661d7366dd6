"""What is known of a graph-defined kernel before it is printed: its tensors, the dims of its values, its exps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import sympy

from mirage.ir.axes import AxisDims
from mirage.ir.dims import Dim, ceil_div
from mirage.ir.operator import PRODUCTS, reduced_axes
from mirage.kernels.cpu.emit.maximum import Block, Companion
from mirage.kernels.cuda.emit.algebra import FunctionSources
from mirage.kernels.cuda.emit.values import Group, Space
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import Graph, Node, Role, partial_axis


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory: number `index`, its dims as products of axes, the dim of stride 1 (-1: none).

    `strides` are the known ones of its axes, in elements.
    """

    index: int
    dims: AxisDims
    dtype: np.dtype
    unit: int
    strides: Mapping[str, int]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims for a in d)


@dataclass(frozen=True)
class Program:
    """What the kernels of a muGraph share.

    `names` and `sizes` are those of all axes, partial ones too; `dims` names the dims that are computed with.
    """

    names: Mapping[str, str]
    sizes: Mapping[str, Dim]
    dims: Mapping[Dim, str]
    functions: FunctionSources
    maximum: RunningMaximum
    storage: np.dtype


class BlockPlan:
    """A planned kernel; `limits` are the axes that it holds whole, or a block's part of, with those sizes and their rooms.

    Raises ScheduleError where the schedule lacks a room.
    """

    def __init__(
        self,
        number: int,
        kernel: int,
        block: Block,
        schedule: CudaKernelSchedule,
        program: Program,
        inputs: list[Tensor],
        outputs: list[Tensor],
        companions: Mapping[int, tuple[Companion, Tensor]],
    ) -> None:
        self.number = number
        self.kernel = kernel
        self.block = block
        self.graph: Graph = block.graph
        self.schedule = schedule
        self.program = program
        self.names = program.names
        self.inputs = inputs
        self.outputs = outputs
        self.companions = companions
        self.rescales = {r.node: r for r in block.rescales}
        self.shifts = {x.node: x for x in block.shifts}
        self.sites = block.sites(program.maximum, kernel)
        self.limits: dict[str, tuple[Dim, int]] = {}
        self.space = self._space()
        self.uses_dot = schedule.dot and any(n.op in PRODUCTS for n in self.graph.nodes)

    def degree(self, i: int, site: int) -> int:
        if i not in self.block.old:
            return 0
        return self.program.maximum.degree.get(((self.kernel, self.block.old[i]), 0), {}).get(site, 0)

    def readers(self, i: int) -> list[int]:
        # an input that the kernel computes comes after what it names, without reading it
        nodes = self.graph.nodes
        return [j for j, n in enumerate(nodes) if n.op != "input" and any(r.node == i for r in n.operands)]

    def stored_in_loop(self, i: int) -> bool:
        """Whether a concatenating accumulator's pieces go to the outputs one by one: nothing else needs them."""
        n = self.graph.nodes[i]
        if n.op != "accumulator" or n.attr["mode"] != "concat" or self.graph.summed_loops(i) or self.readers(i):
            return False
        return not any(self.degree(i, s) for s in range(len(self.program.maximum.sites)))

    def held(self, i: int) -> bool:
        """Whether a block tensor holds all pieces of a concatenating accumulator."""
        n = self.graph.nodes[i]
        return n.op == "accumulator" and n.attr["mode"] == "concat" and not self.stored_in_loop(i)

    def literal(self, a: str) -> int | None:
        size = self.program.sizes[a]
        return int(size) if size.is_Integer else None

    def divides(self, a: str, full: bool = False) -> bool:
        """Whether every tile of an axis is full, whatever its size turns out to be."""
        size = self.literal(a)
        if full and self.graph.role[a] is Role.SPLIT:
            return False
        if self.graph.role[a] is Role.WHOLE or full:
            return size == (self.space.rooms if full else self.space.tiles)[a]
        return self.space.tiles[a] == 1 or (size is not None and size % self.space.tiles[a] == 0)

    def partial(self) -> dict[str, str]:
        """The axes of the kernel's partial results -> the grid axis that numbers them."""
        return {partial_axis(a): a for a, r in self.graph.roles if r is Role.SPLIT}

    def _space(self) -> Space:
        graph, sizes = self.graph, self.program.sizes
        tiles = {a: self.schedule.extent(graph, a, sizes[a]) for a, _ in graph.roles}
        held = {str(n.attr["axis"]) for i, n in enumerate(graph.nodes) if self.held(i)}
        rooms = {a: max(self.schedule.room(a, sizes[a]), tiles[a]) for a, _ in graph.roles if a in held}
        joined = {a for n in graph.nodes if n.joined for a in (n.joined[0], *n.joined[1])}
        for a, role in graph.roles:
            if role is Role.SPLIT and a in rooms:
                tile = sympy.Integer(tiles[a])
                part = sympy.expand(tile * ceil_div(ceil_div(sizes[a], tile), sympy.Integer(self.schedule.split[a])))
                self.limits[a] = part, rooms[a]
            elif not sizes[a].is_Integer and (role is Role.WHOLE or a in rooms):
                self.limits[a] = sizes[a], rooms.get(a, tiles[a])
        dims = [a for a, role in graph.roles if a in joined or a in rooms or not self._single(a, role, tiles[a])]
        # which values have an axis, and which rows of maxima
        rows = [set(self.program.maximum.sites[s].rows) for found in self.sites.values() for s in found]
        rows += [set(r.axes) for r in self.block.rescales]
        marks = {a: tuple(a in n.axes(k) for n in graph.nodes for k in range(len(n.dims))) for a in dims}
        marks = {a: (*m, *(a in r for r in rows)) for a, m in marks.items()}
        alone = joined | {a for a, r in graph.roles if r in (Role.LOOP, Role.SPLIT)}
        groups: list[list[str]] = []
        for a in dims:
            same = next((g for g in groups if marks[g[0]] == marks[a] and not {a, g[0]} & alone), None)
            if same is None:
                groups.append([a])
            else:
                same.append(a)
        order = self._order([tuple(g) for g in groups])
        return Space(order, self.names, tiles, rooms)

    def _single(self, a: str, role: Role, tile: int) -> bool:
        """Whether a block sees exactly one element along the axis."""
        return tile == 1 and (role is not Role.WHOLE or self.literal(a) == 1)

    def _order(self, groups: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The groups so that operands of products mostly have their rows before their columns."""
        nodes = self.graph.nodes
        batch: list[str] = []
        rest: list[str] = []
        for n in nodes:
            for (i, j), summed in zip(PRODUCTS.get(n.op, ()), self.summed(n), strict=True):
                x, y = (nodes[n.operands[k].node].axes(n.operands[k].out) for k in (i, j))
                batch += [a for a in n.axes() if a in x and a in y]
                rest += [*(a for a in n.axes() if a in x and a not in y), *summed, *(a for a in n.axes() if a not in x)]
        order = list(dict.fromkeys([*(a for a in batch if a not in rest), *rest, *(a for a, _ in self.graph.roles)]))
        return sorted(groups, key=lambda g: order.index(g[0]))

    def summed(self, n: Node) -> tuple[tuple[str, ...], ...]:
        """The axes that each product of a node sums."""
        operands = [self.graph.nodes[r.node].axes(r.out) for r in n.operands]
        return reduced_axes(n.op, operands, n.reduce) if n.op in PRODUCTS else ()

    def loop_depth(self, g: Group) -> int:
        """In how many loops the index of a group is known: 0 before them."""
        loop = self.graph.loop
        return max((loop.index(a) + 1 for a in g.axes if a in loop and not g.full), default=0)
