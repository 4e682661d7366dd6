"""The program that a muGraph computes, read off the graph itself.

A valid graph gives the same result at every choice of tiles and splits (`mirage.mugraph.validate`). At one block, one
iteration and one part per axis, grids, loops, accumulators and sums of partial results vanish: what is left is a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage.ir.axes import AxisDims, AxisNode, AxisOutput, AxisProgram
from mirage.ir.operator import FOLDS, PRODUCTS, reduced_axes
from mirage.ir.program import AttrItems
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref
from mirage.mugraph.validate import validate


def whole_program(graph: MuGraph) -> AxisProgram:
    """The program over the axes of a muGraph; raises GraphError where the graph breaks a rule."""
    validate(graph)
    return _Whole(graph).run(graph.kernel, [o.dims for o in graph.outputs])


def results_of(graph: MuGraph, kernel: int) -> AxisProgram:
    """The program that the results of one node of the kernel graph are, those of a split kernel with all parts added up. The
    graph has to be valid.
    """
    return _results(graph, [Ref(kernel, k) for k in range(len(graph.kernel.nodes[kernel].dims))])


def result_of(graph: MuGraph, result: Ref) -> AxisProgram:
    """The same of one result of a node."""
    return _results(graph, [result])


def _results(graph: MuGraph, results: Sequence[Ref]) -> AxisProgram:
    dims = [graph.kernel.nodes[r.node].dims[r.out] for r in results]
    whole = [tuple(tuple(a for a in d if a in graph.axes) for d in result) for result in dims]
    return _Whole(graph).run(replace(graph.kernel, outputs=tuple(results)), whole)


class _Whole:
    def __init__(self, graph: MuGraph) -> None:
        self.graph = graph
        self.nodes: list[AxisNode] = []

    def run(self, kernel: Graph, dims: Sequence[AxisDims]) -> AxisProgram:
        g = self.graph
        for x in g.inputs:
            self.nodes.append(AxisNode("input", (), (("name", x.name),), self.order(set(x.axes))))
        results = self.read(kernel, list(range(len(g.inputs))))
        outputs = tuple(AxisOutput(v, d) for v, d in zip(results, dims, strict=True))
        return AxisProgram(g.name, dict(g.axes), g.inputs, tuple(self.nodes), outputs, g.dtype)

    def order(self, axes: set[str]) -> tuple[str, ...]:
        return tuple(a for a in self.graph.axes if a in axes)

    def read(self, graph: Graph, inputs: Sequence[int]) -> list[int]:
        """The values of a graph's outputs for these values of its inputs."""
        values: dict[tuple[int, int], int] = {}
        for i, n in enumerate(graph.nodes):
            args = [values[r.node, r.out] for r in n.operands]
            if n.graph is not None:
                values.update({(i, k): v for k, v in enumerate(self.read(n.graph, args))})
            elif n.op == "input":
                values[i, 0] = inputs[n.attr["index"]]
            else:
                values[i, 0] = args[0] if n.op == "accumulator" else self.operator(n, args)
        return [values[r.node, r.out] for r in graph.outputs]

    def operator(self, n: Node, args: Sequence[int]) -> int:
        axes = [self.nodes[v].axes for v in args]
        if n.op in PRODUCTS:
            groups = reduced_axes(n.op, axes, self.order(set(n.reduce)))
            products = [
                self.add("matmul" if over else "mul", (args[i], args[j]), reduce=over)
                for (i, j), over in zip(PRODUCTS[n.op], groups, strict=True)
            ]
            return products[0] if len(products) == 1 else self.add("add", tuple(products))
        if n.op in FOLDS:
            # one part of a split axis: nothing is left to add up
            over = self.order(set(n.reduce))
            return self.add(n.op, tuple(args), reduce=over) if over else args[0]
        if n.joined is not None:
            self.nodes.append(AxisNode("concat", tuple(args), (), self.order(set(n.axes())), (), n.joined))
            return len(self.nodes) - 1
        return self.add(n.op, tuple(args), attrs=n.attrs)

    def add(self, op: str, args: tuple[int, ...], reduce: tuple[str, ...] = (), attrs: AttrItems = ()) -> int:
        axes = {a for v in args for a in self.nodes[v].axes} - set(reduce)
        self.nodes.append(AxisNode(op, args, attrs, self.order(axes), reduce))
        return len(self.nodes) - 1
