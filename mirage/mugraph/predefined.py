"""Kernels of a single operator as predefined kernel operators (Mirage, section 2: library calls at the kernel level).

Which of the two implementations of one operator is faster is for measurements to say; both are muGraphs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mirage.ir.operator import Level, get_operator
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref
from mirage.mugraph.thread import inline_threads

_SCALARS = ("constant", "size")


def single_operators(graph: MuGraph) -> dict[int, Node]:
    """The operators of graph-defined kernels that compute a single registered one, by the kernels' numbers.

    Such a kernel has one output, and computes one operator and the accumulators that finish it; one that leaves partial
    results is none. `graph` must be valid (`mirage.mugraph.validate`).
    """
    return {i: operator for i, (_, operator) in _single_operators(graph).items()}


def with_predefined(graph: MuGraph, only: Collection[int] | None = None) -> MuGraph:
    """The muGraph whose graph-defined kernels of a single registered operator (`single_operators`) are that operator at the
    kernel level: all of them, or `only` those of these numbers.

    The operator's result has the dims of the kernel's, in the kernel's order; scalar constants
    of the kernel become nodes of the kernel graph. The result is valid as `graph` is, and its origin says how many library
    calls it makes, if not as many as it could; where no kernel is of this kind, it is `graph` itself.
    """
    every = _single_operators(graph)
    single = {i: found for i, found in every.items() if only is None or i in only}
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
    calls = "library calls" if len(single) == len(every) else f"{len(single)} of {len(every)} library calls"
    origin = f"{graph.origin}, {calls}" if graph.origin else calls
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes), outputs=outputs), origin=origin)


def _single_operators(graph: MuGraph) -> dict[int, tuple[Graph, Node]]:
    """Block graphs with their one operator, by the kernels' numbers."""
    found = {}
    for i, n in enumerate(graph.kernel.nodes):
        block = inline_threads(n.graph) if n.graph is not None else None
        if block is not None and (operator := _single_operator(n, block)) is not None:
            found[i] = block, operator
    return found


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
