"""Kernels of a single operator as predefined kernel operators (Mirage, section 2: library calls at the kernel level).

Which of the two implementations of one operator is faster is for measurements to say; both are muGraphs.
"""

from __future__ import annotations

from dataclasses import replace

from mirage.ir.operator import Level, get_operator
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref
from mirage.mugraph.thread import inline_threads

_SCALARS = ("constant", "size")


def with_predefined(graph: MuGraph) -> MuGraph:
    """The muGraph whose graph-defined kernels of a single registered operator are that operator at the kernel level.

    Such a kernel has one output, and computes one operator and the accumulators that finish it; one that leaves partial
    results is none. The operator's result has the dims of the kernel's, in the kernel's order; scalar constants
    of the kernel become nodes of the kernel graph. `graph` must be valid (`mirage.mugraph.validate`) and so is
    the result, whose origin says that it makes library calls; where no kernel is of this kind, it is `graph` itself.
    """
    single: dict[int, tuple[Graph, Node]] = {}
    for i, n in enumerate(graph.kernel.nodes):
        block = inline_threads(n.graph) if n.graph is not None else None
        if block is not None and (operator := _single_operator(n, block)) is not None:
            single[i] = block, operator
    if not single:
        return graph
    nodes: list[Node] = []
    new: dict[int, int] = {}
    for i, n in enumerate(graph.kernel.nodes):
        node = replace(n, operands=tuple(Ref(new[r.node], r.out) for r in n.operands))
        if i in single:
            block, operator = single[i]
            operands: list[Ref] = []
            for r in operator.operands:
                source = block.nodes[r.node]
                if source.op in _SCALARS:
                    nodes.append(source)
                    operands.append(Ref(len(nodes) - 1))
                else:
                    operands.append(node.operands[source.attr["index"]])
            node = replace(operator, operands=tuple(operands), dims=n.dims)
        nodes.append(node)
        new[i] = len(nodes) - 1
    outputs = tuple(Ref(new[r.node], r.out) for r in graph.kernel.outputs)
    origin = f"{graph.origin}, library calls" if graph.origin else "library calls"
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes), outputs=outputs), origin=origin)


def _single_operator(kernel: Node, block: Graph) -> Node | None:
    """The one operator of a kernel's block graph, where it is the kernel's result and allowed at the kernel level."""
    compute = [i for i in block.compute_nodes() if block.nodes[i].op != "accumulator"]
    if len(compute) != 1 or len(block.outputs) != 1:
        return None
    (i,) = compute
    operator = block.nodes[i]
    if Level.KERNEL not in get_operator(operator.op).levels:
        return None
    if any(block.nodes[r.node].op == "accumulator" for r in operator.operands):
        return None
    result = block.nodes[block.outputs[0].node]
    of_operator = result is operator or (result.op == "accumulator" and result.operands == (Ref(i),))
    # partial results have axes that the operator's own result lacks
    return operator if of_operator and set(kernel.axes()) == set(operator.axes()) else None
