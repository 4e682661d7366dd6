"""Inputs that kernels compute where they read them: what a mask of two vectors of positions is, clamp(i - j + 1, 0, 1).

A simple function of inputs that each lack an axis of it takes less to compute again than to read. To the search it is an
input, so that its operators cost no search, and stay in the program's order, in which differences of whole numbers are exact. In
a graph that was found, its kernels compute it from the program's inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from mirage.ir.axes import AxisInput, AxisNode, AxisProgram
from mirage.ir.functions import FUNCTIONS
from mirage.ir.operator import Elementwise, get_operator
from mirage.mugraph.graph import MuGraph, Node, Ref

#: nodes that are read rather than computed
SOURCES = frozenset({"input", "constant", "size"})
#: operations per element of a simple operator, at most
SIMPLE = 2


@dataclass(frozen=True)
class Folded:
    """A program, and the `core` of it that is searched: behind the program's inputs it has one for each node in `computed`."""

    program: AxisProgram
    core: AxisProgram
    computed: tuple[int, ...]

    @cached_property
    def _inputs(self) -> list[int]:
        """The program's input nodes."""
        return [i for i, n in enumerate(self.program.nodes) if n.op == "input"]

    def expand(self, graph: MuGraph) -> MuGraph:
        """The graph of the program for one of its core."""
        if not self.computed:
            return graph
        own, kernel = len(self._inputs), graph.kernel
        values = {i: n.attr["index"] for i, n in enumerate(kernel.nodes) if n.op == "input"}
        w = _Writer(self.program)
        new: dict[int, int] = {}
        for i, n in enumerate(kernel.nodes):
            if i in values:
                if values[i] < own:
                    new[i] = w.add(n)
                    w.made[self._inputs[values[i]]] = new[i]
                continue
            # what each operand is that kernels compute
            nodes = [self.computed[k - own] if (k := values.get(r.node, -1)) >= own else None for r in n.operands]
            if n.graph is None:
                nodes_of = [new[r.node] if c is None else w.value(c) for c, r in zip(nodes, n.operands, strict=True)]
                new[i] = w.add(replace(n, operands=tuple(map(Ref, nodes_of, (r.out for r in n.operands)))))
            else:
                given = [Ref(new[r.node], r.out) if c is None else None for c, r in zip(nodes, n.operands, strict=True)]
                new[i] = w.add(self._kernel(n, nodes, given, w.made))
        outputs = tuple(Ref(new[r.node], r.out) for r in kernel.outputs)
        return replace(graph, inputs=self.program.inputs, kernel=replace(kernel, nodes=tuple(w.nodes), outputs=outputs))

    def _kernel(self, n: Node, computed: list[int | None], given: list[Ref | None], places: dict[int, int]) -> Node:
        """A kernel that computes these operands, and is given the others; `places` are those of the program's inputs."""
        block = n.graph
        assert block is not None
        operands: list[Ref] = []

        def read(node: Node, ref: Ref) -> Node:
            operands.append(ref)
            return replace(node, attrs=(("index", len(operands) - 1),))

        w = _Writer(self.program, lambda i, node: read(node, Ref(places[i])))
        of_place = {place: i for i, place in places.items()}
        new: dict[int, int] = {}
        for i in block.inputs:
            if (ref := given[block.nodes[i].attr["index"]]) is not None:
                new[i] = w.add(read(block.nodes[i], ref))
                if ref.node in of_place:
                    w.made[of_place[ref.node]] = new[i]
        for i, b in enumerate(block.nodes):
            if b.op == "input" and (c := computed[b.attr["index"]]) is not None:
                new[i] = w.value(c)
            elif b.op != "input":
                new[i] = w.add(replace(b, operands=tuple(Ref(new[r.node], r.out) for r in b.operands)))
        outputs = tuple(Ref(new[r.node], r.out) for r in block.outputs)
        return replace(n, operands=tuple(operands), graph=replace(block, nodes=tuple(w.nodes), outputs=outputs))


class _Writer:
    """Nodes of a graph, among them values of the program's nodes: each is `made` once. `read` is what an input of the program
    that is not there is read by.
    """

    def __init__(self, program: AxisProgram, read: Callable[[int, Node], Node] | None = None) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self.made: dict[int, int] = {}
        self._read = read
        self._inputs = {x.name: x for x in program.inputs}

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def value(self, i: int) -> int:
        """The place of the value of a node of the program."""
        if i not in self.made:
            n = self.program.nodes[i]
            operands = tuple(Ref(self.value(j)) for j in n.operands)
            if n.op == "input":
                assert self._read is not None
                node = self._read(i, Node("input", (), (self._inputs[n.attr["name"]].dims,)))
            else:
                node = Node(n.op, operands, (tuple((a,) for a in n.axes),), n.attrs)
            self.made[i] = self.add(node)
        return self.made[i]


def fold(program: AxisProgram) -> Folded:
    """The program with what kernels compute where they read it; itself as its core where there is no such thing."""
    found = _computed(program)
    if not found:
        return Folded(program, program, ())
    names = {x.name for x in program.inputs} | {x.argument for x in program.inputs}
    inputs: list[AxisInput] = []
    for i in found:
        name = f"computed{i}"
        while name in names:
            name += "_"
        inputs.append(AxisInput(name, tuple((a,) for a in program.nodes[i].axes)))
    given = [i for i, n in enumerate(program.nodes) if n.op == "input"]
    read = [AxisNode("input", (), (("name", x.name),), program.nodes[i].axes) for x, i in zip(inputs, found, strict=True)]
    kept = [i for i in _needed(program, found) if i not in (*given, *found)]
    place = {i: k for k, i in enumerate((*given, *found, *kept))}
    nodes = [
        *(program.nodes[i] for i in given), *read,
        *(replace(n, operands=tuple(place[j] for j in n.operands)) for n in (program.nodes[i] for i in kept)),
    ]  # fmt: skip
    outputs = tuple(replace(o, value=place[o.value]) for o in program.outputs)
    core = replace(program, inputs=(*program.inputs, *inputs), nodes=tuple(nodes), outputs=outputs)
    return Folded(program, core, found)


def _computed(program: AxisProgram) -> tuple[int, ...]:
    """The nodes that kernels compute where they read them: the last ones of those that follow from one another."""
    sources: dict[int, set[frozenset[str]] | None] = {}
    for i, n in enumerate(program.nodes):
        below = [sources[j] for j in n.operands]
        known = [axes for axes in below if axes is not None]
        simple = n.op in SOURCES or (isinstance(op := get_operator(n.op), Elementwise) and op.flops <= SIMPLE)
        sources[i] = {frozenset(n.axes)} if n.op == "input" else set().union(*known) if simple and known == below else None
    outputs = {o.value for o in program.outputs}
    # sums and products are left to the search, which may take them apart
    found = {
        i for i, n in enumerate(program.nodes)
        if n.op in FUNCTIONS and (axes := sources[i]) and frozenset(n.axes) not in axes and i not in outputs
    }  # fmt: skip
    needed = _needed(program, found)
    return tuple(i for i in needed if i in found)


def _needed(program: AxisProgram, read: frozenset[int] | set[int] | tuple[int, ...]) -> list[int]:
    """The nodes that outputs need where these are read, with those of these."""
    needed = {o.value for o in program.outputs}
    for i in reversed(range(len(program.nodes))):
        if i in needed and i not in read:
            needed.update(program.nodes[i].operands)
    return sorted(needed)
