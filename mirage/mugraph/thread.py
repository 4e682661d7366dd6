"""Thread graphs by rule (paper, section 4.2: thread graphs come from fusion, not from search).

Elementwise chains, sums and maxima of a block graph become register-level groups: the nodes of a group share one
iteration space, so that values used only inside it are never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage.ir.operator import FOLDS, Elementwise, Level, get_operator
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role

Groups = tuple[tuple[int, ...], ...]


def is_elementwise(node: Node) -> bool:
    """Whether a node is an elementwise operator of the registry (scalar constants are not)."""
    if node.op in ("input", "constant", "size", "accumulator", "graph"):
        return False
    return isinstance(get_operator(node.op), Elementwise)


def space(graph: Graph, i: int) -> frozenset[str]:
    """The axes that an elementwise node, a sum or a maximum iterates over."""
    n = graph.nodes[i]
    return frozenset(n.axes()) | frozenset(n.reduce)


def thread_groups(graph: Graph, barriers: frozenset[int] = frozenset()) -> Groups:
    """The elementwise nodes, sums and maxima of a block graph, maximally fused; every one is in exactly one group.

    The nodes of a group have one iteration space, run in the same phase (before, in or after the loop), and
    connect through a value or a common operand. A sum or maximum ends a group: nothing in the group reads it. Nodes in
    `barriers` read nothing that their group computes. Deterministic: nodes join the first group that fits, in
    topological order.
    """
    groups: list[list[int]] = []
    home: dict[int, int] = {}
    for i, n in enumerate(graph.nodes):
        if n.op not in FOLDS and not is_elementwise(n):
            continue
        candidates = [] if i in barriers else range(len(groups))
        for g in candidates:
            if _fits(graph, i, groups[g]) and _acyclic(graph, [*groups[:g], [*groups[g], i], *groups[g + 1 :]]):
                groups[g].append(i)
                home[i] = g
                break
        else:
            home[i] = len(groups)
            groups.append([i])
    return tuple(tuple(g) for g in groups)


def _phase(graph: Graph, i: int) -> tuple[bool, bool]:
    return i in graph.after_loop, i in graph.in_loop


def _fits(graph: Graph, i: int, group: Sequence[int]) -> bool:
    n = graph.nodes[i]
    first = group[0]
    if space(graph, i) != space(graph, first) or _phase(graph, i) != _phase(graph, first):
        return False
    operands = {r.node for r in n.operands}
    if any(graph.nodes[j].op in FOLDS and j in operands for j in group):
        return False
    folded = {graph.nodes[j].reduce for j in group if graph.nodes[j].op in FOLDS}
    if n.op in FOLDS and any(set(r) != set(n.reduce) for r in folded):
        return False
    shared = {r.node for j in group for r in graph.nodes[j].operands if graph.nodes[r.node].axes()}
    return bool(operands & (set(group) | shared))


def _acyclic(graph: Graph, groups: Sequence[Sequence[int]]) -> bool:
    """Whether the groups can run one after another."""
    return len(unit_order(graph, groups)) == len(_units(graph, groups)[0])


def _units(graph: Graph, groups: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], dict[int, int]]:
    grouped = {i for g in groups for i in g}
    units = sorted([tuple(g) for g in groups] + [(i,) for i in range(len(graph.nodes)) if i not in grouped])
    return units, {i: u for u, members in enumerate(units) for i in members}


def unit_order(graph: Graph, groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Groups and single nodes in an order in which each runs after its operands; shorter where there is a cycle."""
    units, of = _units(graph, groups)
    needs = [{of[r.node] for i in u for r in graph.nodes[i].operands} - {k} for k, u in enumerate(units)]
    order: list[int] = []
    done: set[int] = set()
    while ready := [k for k in range(len(units)) if k not in done and needs[k] <= done]:
        # the earliest in the graph's order, one at a time, so that the code reads as the graph does
        order.append(ready[0])
        done.add(ready[0])
    return [units[k] for k in order]


def stored(graph: Graph, group: Sequence[int]) -> tuple[int, ...]:
    """Nodes of a group whose value is read outside it, or returned by the graph."""
    inside = set(group)
    read = {r.node for i, n in enumerate(graph.nodes) if i not in inside for r in n.operands}
    read |= {r.node for r in graph.outputs}
    return tuple(i for i in group if i in read)


def construct_threads(graph: Graph, groups: Groups) -> Graph:
    """The block graph in which groups are "graph" nodes that hold a thread graph.

    In a thread graph the axes of the result are parallel, summed axes are looped over and summed by an
    accumulator, those of a maximum are whole. A graph node has one result: a group that stores several becomes one
    node per stored value, each reading those before.
    """
    parts: list[list[int]] = []
    for group in groups:
        wanted = stored(graph, group)
        for out in wanted:
            parts.append(_needed(graph, group, out, stop=set(wanted)))
    new: dict[int, int] = {}
    nodes: list[Node] = []
    for unit in unit_order(graph, parts):
        last = unit[-1]
        n = graph.nodes[last]
        if unit in {tuple(p) for p in parts}:
            inner, reads = _thread_graph(graph, unit)
            nodes.append(Node("graph", tuple(Ref(new[j]) for j in reads), n.dims, graph=inner))
        elif n.op in FOLDS or is_elementwise(n):
            continue  # inside a part
        else:
            refs = tuple(Ref(new[r.node], r.out) for r in n.operands)
            nodes.append(Node(n.op, refs, n.dims, n.attrs, n.reduce, n.joined, n.graph))
        new[last] = len(nodes) - 1
    return Graph(graph.level, tuple(nodes), tuple(Ref(new[r.node], r.out) for r in graph.outputs), graph.roles)


def _needed(graph: Graph, group: Sequence[int], out: int, stop: set[int]) -> list[int]:
    """The nodes of the group that compute `out`, other stored values being read."""
    need = {out}
    for i in reversed(group):
        if i in need:
            need |= {r.node for r in graph.nodes[i].operands if r.node in group and r.node not in stop}
    return [i for i in group if i in need]


def _thread_graph(graph: Graph, part: Sequence[int]) -> tuple[Graph, list[int]]:
    """A part as a thread graph, and the block-level nodes that its inputs read."""
    inside = set(part)
    reads = sorted({r.node for i in part for r in graph.nodes[i].operands} - inside)
    nodes: list[Node] = []
    new: dict[int, int] = {}
    for k, i in enumerate(reads):
        nodes.append(Node("input", (), (graph.nodes[i].dims[0],), (("index", k),)))
        new[i] = k
    for i in part:
        n = graph.nodes[i]
        nodes.append(Node(n.op, tuple(Ref(new[r.node]) for r in n.operands), n.dims, n.attrs, n.reduce, n.joined))
        if n.op == "sum":
            nodes.append(Node("accumulator", (Ref(len(nodes) - 1),), n.dims, (("mode", "sum"), ("axis", n.reduce[0]))))
        new[i] = len(nodes) - 1
    last = graph.nodes[part[-1]]
    reduced = Role.WHOLE if last.op == "max" else Role.LOOP
    roles = tuple((a, Role.PARALLEL) for a in last.axes()) + tuple((a, reduced) for a in last.reduce)
    return Graph(Level.THREAD, tuple(nodes), (Ref(new[part[-1]]),), roles), reads


def inline_threads(graph: Graph) -> Graph:
    """The block graph with its thread graphs' operators in place of the "graph" nodes.

    A thread graph sees whole block tensors, so its accumulators change nothing and are left out.
    """
    if not any(n.graph for n in graph.nodes):
        return graph
    nodes: list[Node] = []
    new: dict[int, int] = {}
    for i, n in enumerate(graph.nodes):
        operands = tuple(Ref(new[r.node], r.out) for r in n.operands)
        if n.graph is None:
            nodes.append(replace(n, operands=operands))
            new[i] = len(nodes) - 1
            continue
        inner: dict[int, int] = {}
        for j, m in enumerate(n.graph.nodes):
            if m.op == "input":
                inner[j] = operands[m.attr["index"]].node
            elif m.op == "accumulator":
                inner[j] = inner[m.operands[0].node]
            else:
                nodes.append(replace(m, operands=tuple(Ref(inner[r.node]) for r in m.operands)))
                inner[j] = len(nodes) - 1
        new[i] = inner[n.graph.outputs[0].node]
    return replace(graph, nodes=tuple(nodes), outputs=tuple(Ref(new[r.node], r.out) for r in graph.outputs))


def with_threads(graph: MuGraph, maximum: RunningMaximum) -> MuGraph:
    """The muGraph with a thread graph for every register-level group of its block graphs, as they are printed.

    An exp that keeps a running maximum begins a group, because the maximum is taken of what it reads.
    """
    nodes: list[Node] = []
    for i, n in enumerate(graph.kernel.nodes):
        if n.graph is None:
            nodes.append(n)
            continue
        sites = frozenset(s.path[1] for s in maximum.sites if s.path[0] == i)
        nodes.append(replace(n, graph=construct_threads(n.graph, thread_groups(n.graph, sites))))
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))
