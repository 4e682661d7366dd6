"""The muGraph that a program is before any search: one predefined kernel operator per node."""

from __future__ import annotations

from mirage.ir.axes import AxisProgram
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref


def reference_graph(program: AxisProgram) -> MuGraph:
    """The axis program as a kernel graph of predefined operators, node for node."""
    nodes: list[Node] = []
    inputs = iter(range(len(program.inputs)))
    for n in program.nodes:
        if n.op == "input":
            k = next(inputs)
            nodes.append(Node("input", (), (program.inputs[k].dims,), (("index", k),)))
        else:
            operands = tuple(Ref(i) for i in n.operands)
            dims = tuple((a,) for a in n.axes)
            nodes.append(Node(n.op, operands, (dims,), n.attrs, n.reduce, n.joined))
    kernel = Graph(Level.KERNEL, tuple(nodes), tuple(Ref(o.value) for o in program.outputs))
    return MuGraph(
        program.name, program.axes, program.inputs, kernel, program.outputs, program.dtype, "reference"
    )
