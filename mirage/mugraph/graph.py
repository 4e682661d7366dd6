"""The muGraph (paper, section 2): one structure for kernel, block and thread graphs.

Every tensor's dims are ordered products of named axes. At the kernel level an axis has its full size; in a block or
thread graph the same name stands for the part that one block (thread) sees in one loop iteration. The grid, the for-loop
and the maps that the paper draws (imap, omap, fmap) follow from one *role* per axis:

| role | split | in the output |
| --- | --- | --- |
| parallel | a = grid * tile | yes |
| whole | a = tile | if not reduced |
| loop | a = loop * tile | if the accumulator concatenates |
| split | a = grid * loop * tile | if the accumulator concatenates; else as `a.grid`: parts that a later kernel sums |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from mirage.drawing.show import Displayed
from mirage.ir.axes import AxisDims, AxisInput, AxisOutput, Name, Names
from mirage.ir.codec import IN_ORDER, Index, few
from mirage.ir.dims import Dim
from mirage.ir.operator import Level
from mirage.ir.program import AttrItems
from mirage.ir.types import ELEMENTS, DType


class Role(Enum):
    """How a block (or thread) graph divides an axis."""

    PARALLEL = "parallel"
    WHOLE = "whole"
    LOOP = "loop"
    SPLIT = "split"


def partial_axis(axis: str) -> str:
    """Name of the axis that indexes the partial results of a grid-split reduction."""
    return f"{axis}.grid"


@dataclass(frozen=True)
class Ref:
    """A tensor: output `out` of node `node` of the same graph."""

    node: Index
    out: Index = 0


@dataclass(frozen=True)
class Node:
    """One operator of a graph.

    `op` is a registered operator ("matmul", "concat_matmul", "sum" and "max" with the axes they `reduce`, "concat" with
    `joined`, elementwise ones), or one of

    - "input": attrs `index`: which input of the graph it reads (an input iterator below the kernel level);
    - "accumulator": attrs `mode` and `axis`, one of the loop axes. Mode "sum" adds up the iterations over all loop
      axes; mode "concat" puts those over `axis` side by side and adds up those over the others;
    - "graph": a graph-defined operator, whose meaning is `graph`, one level down.

    `dims` holds, per output, its dims as products of axes.
    """

    op: Name
    operands: Annotated[tuple[Ref, ...], few]
    dims: Annotated[tuple[AxisDims, ...], few]
    attrs: Annotated[AttrItems, few] = ()
    reduce: Names = ()
    joined: tuple[Name, Names] | None = None
    graph: Graph | None = None

    @property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)

    def axes(self, out: int = 0) -> tuple[str, ...]:
        """The axes of an output, in layout order."""
        return tuple(a for d in self.dims[out] for a in d)


@dataclass(frozen=True)
class Graph:
    """A kernel, block or thread graph in topological order. `roles` (below the kernel level) covers all its axes."""

    level: Level
    nodes: Annotated[tuple[Node, ...], few]
    outputs: Annotated[tuple[Ref, ...], few]
    roles: Annotated[tuple[tuple[Name, Role], ...], few] = ()

    @cached_property
    def role(self) -> dict[str, Role]:
        return dict(self.roles)

    @property
    def grid(self) -> tuple[str, ...]:
        """Axes along which blocks (threads) are laid out: the parallel ones, then the split ones."""
        by = [[a for a, r in self.roles if r is want] for want in (Role.PARALLEL, Role.SPLIT)]
        return tuple(by[0] + by[1])

    @property
    def loop(self) -> tuple[str, ...]:
        """Axes of the for-loop."""
        return tuple(a for a, r in self.roles if r in (Role.LOOP, Role.SPLIT))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the input nodes, in order of the graph's inputs."""
        found = [i for i, n in enumerate(self.nodes) if n.op == "input"]
        return tuple(sorted(found, key=lambda i: self.nodes[i].attr["index"]))

    def _map(self, dims: AxisDims, axes: tuple[str, ...]) -> dict[str, int | None]:
        return {a: next((i for i, d in enumerate(dims) if a in d), None) for a in axes}

    def imap(self, node: int) -> dict[str, int | None]:
        """Grid axis -> dim of the input tensor that it partitions, or None (replicated, the paper's phi)."""
        return self._map(self.nodes[node].dims[0], self.grid)

    def fmap(self, node: int) -> dict[str, int | None]:
        """Loop axis -> dim that it iterates over, or None: of an input iterator, or of an accumulator's result."""
        return self._map(self.nodes[node].dims[0], self.loop)

    def summed_loops(self, accumulator: int) -> tuple[str, ...]:
        """The loop axes over which an accumulator adds up iterations."""
        n = self.nodes[accumulator]
        return tuple(a for a in self.loop if n.attr["mode"] == "sum" or a != n.attr["axis"])

    def omap(self, k: int, dims: AxisDims) -> dict[str, int]:
        """Grid axis -> dim of the k-th output (of these kernel-level dims) along which blocks are concatenated."""
        whole = self._map(dims, self.grid)
        partial = {a: next((i for i, d in enumerate(dims) if partial_axis(a) in d), None) for a in self.grid}
        where = {a: i if i is not None else partial[a] for a, i in whole.items()}
        return {a: i for a, i in where.items() if i is not None}

    @cached_property
    def after_loop(self) -> frozenset[int]:
        """Nodes that run once, after the loop: accumulators and what depends on them."""
        after: set[int] = set()
        for i, n in enumerate(self.nodes):
            if n.op == "accumulator" or any(r.node in after for r in n.operands):
                after.add(i)
        return frozenset(after)

    @cached_property
    def in_loop(self) -> frozenset[int]:
        """Nodes whose value changes with the loop iteration."""
        varying: set[int] = set()
        loop = set(self.loop)
        for i, n in enumerate(self.nodes):
            if n.op == "accumulator":
                continue
            if (n.op == "input" and loop & set(n.axes())) or any(r.node in varying for r in n.operands):
                varying.add(i)
        return frozenset(varying)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Per node, in how many of the loops, outermost first, its value has to be computed; 0 before and after them."""
        found: list[int] = []
        for i, n in enumerate(self.nodes):
            own = n.axes() if n.op == "input" else ()
            inner = max((k + 1 for k, a in enumerate(self.loop) if a in own), default=0)
            found.append(0 if i in self.after_loop else max([inner, *(found[r.node] for r in n.operands)]))
        return tuple(found)

    def compute_nodes(self) -> list[int]:
        """Nodes that are operators: neither inputs nor scalar constants."""
        return [i for i, n in enumerate(self.nodes) if n.op not in ("input", "constant", "size")]


@dataclass(frozen=True)
class MuGraph(Displayed, drawn_by="mirage.mugraph.draw"):
    """A whole kernel graph for an axis program: what a search returns and a verifier checks.

    `axes` maps the program's axes to their symbolic sizes; partial axes `a.grid` take theirs from the schedule.
    """

    name: Name
    axes: Annotated[Mapping[Name, Dim], IN_ORDER, few]
    inputs: Annotated[tuple[AxisInput, ...], few]
    kernel: Graph
    outputs: Annotated[tuple[AxisOutput, ...], few]
    dtype: DType
    origin: Name = field(default="", compare=False)

    def check_stored(self) -> None:
        """Raises GraphError where a graph that was read breaks a rule."""
        from mirage.mugraph.validate import validate

        validate(self)

    @property
    def kernels(self) -> tuple[Node, ...]:
        """The graph-defined kernel operators, in order."""
        return tuple(n for n in self.kernel.nodes if n.op == "graph")

    def itemsize(self, i: int) -> int:
        """Bytes of an element of what kernel-level node i gives."""
        n = self.kernel.nodes[i]
        stored = self.inputs[n.attr["index"]].dtype if n.op == "input" else ""
        return ELEMENTS[stored or self.dtype].itemsize

    def __str__(self) -> str:
        from mirage.mugraph.text import print_mugraph

        return print_mugraph(self)
