"""The structure of a muGraph, names and order erased.

Two graphs have the same structure if they differ only in names, in the order of nodes, kernels and a kernel's results,
and in the order of the operands of operators that commute. Axes are known by where the inputs have them, so graphs are
comparable if their inputs are the same, in order. The layout of tensors (the order of axes in memory) is not part of the
structure; the roles of axes are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mirage.ir.axes import AxisDims, argument_places
from mirage.ir.dims import dim_text
from mirage.ir.operator import PRODUCTS, Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role

#: elementwise operators whose operands may be exchanged; over named axes, those of a matmul may be too
COMMUTATIVE = frozenset({"add", "mul"})


def structure_key(graph: MuGraph) -> str:
    """A text that two graphs share exactly if they have the same structure (but for a collision of 128 bits).

    The graph has to be valid.
    """
    return _Structure(graph).key()


class _Structure:
    def __init__(self, graph: MuGraph) -> None:
        self.graph = graph
        self.names = _axis_names(graph)

    def key(self) -> str:
        g = self.graph
        keys = self.keys(g.kernel, [])
        used = {a for n in _all_nodes(g.kernel) for a in (*_axes_of(n), *n.reduce)}
        sizes = sorted((self.name(a), dim_text(d)) for a, d in g.axes.items() if a in used)
        inputs = [(self.shape(x.dims), k) for x, k in zip(g.inputs, argument_places(g.inputs), strict=True)]
        outputs = [(self.shape(o.dims), keys[r]) for o, r in zip(g.outputs, g.kernel.outputs, strict=True)]
        return _digest(inputs, sizes, outputs, sorted(keys.values()), g.dtype)

    def name(self, axis: str) -> str:
        whole, dot, part = axis.partition(".")
        return self.names[whole] + dot + part

    def axis_names(self, axes: Iterable[str]) -> list[str]:
        return sorted(self.name(a) for a in axes)

    def shape(self, dims: AxisDims) -> list[list[str]]:
        return [[self.name(a) for a in d] for d in dims]

    def keys(self, graph: Graph, operands: Sequence[str]) -> dict[Ref, str]:
        """The key of every tensor of a graph whose inputs have these keys."""
        found: dict[Ref, str] = {}
        for i, n in enumerate(graph.nodes):
            args = [found[r] for r in n.operands]
            if n.graph is not None:
                found.update(self.graph_keys(i, n.graph, args))
            elif n.op == "input":
                index = n.attr["index"]
                found[Ref(i)] = _digest("input", index if graph.level is Level.KERNEL else operands[index])
            else:
                found[Ref(i)] = self.operator_key(n, args)
        return found

    def graph_keys(self, i: int, graph: Graph, operands: Sequence[str]) -> Mapping[Ref, str]:
        keys = self.keys(graph, operands)
        roles = sorted((self.name(a), role.value) for a, role in graph.roles)
        outputs = [keys[r] for r in graph.outputs]
        whole = _digest(graph.level.value, roles, sorted(keys.values()), sorted(outputs))
        return {Ref(i, k): _digest(whole, key) for k, key in enumerate(outputs)}

    def operator_key(self, n: Node, args: Sequence[str]) -> str:
        attrs = [(k, str(v)) for k, v in n.attrs]
        if n.op == "accumulator":
            # a sum is over all loop axes, whichever it names
            attrs = [("concat", self.name(n.attr["axis"]) if n.attr["mode"] == "concat" else "")]
        joined = None if n.joined is None else (self.name(n.joined[0]), [self.name(a) for a in n.joined[1]])
        order: Sequence[object] = sorted(args) if n.op in COMMUTATIVE else args
        if n.op in PRODUCTS:
            order = sorted(sorted((args[i], args[j])) for i, j in PRODUCTS[n.op])
        return _digest(n.op, attrs, self.axis_names(n.reduce), joined, list(order))


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _axes_of(n: Node) -> set[str]:
    return {a.partition(".")[0] for dims in n.dims for d in dims for a in d}


def _all_nodes(graph: Graph) -> Iterable[Node]:
    for n in graph.nodes:
        yield n
        if n.graph is not None:
            yield from _all_nodes(n.graph)


def _axis_names(graph: MuGraph) -> dict[str, str]:
    """Names of axes by their first place in the inputs, then in the outputs, then by what they join."""
    found: dict[str, str] = {}
    places = [(f"input {t}", x.dims) for t, x in enumerate(graph.inputs)]
    places += [(f"output {t}", o.dims) for t, o in enumerate(graph.outputs)]
    for where, dims in places:
        for i, d in enumerate(dims):
            for k, a in enumerate(d):
                found.setdefault(a, f"{where}, dim {i}, factor {k}")
    for n in _all_nodes(graph.kernel):
        if n.joined is not None and n.joined[0] not in found:
            name = f"[{' + '.join(found[a] for a in n.joined[1])}]"
            again = sum(x.startswith(name) for x in found.values())
            found[n.joined[0]] = f"{name} {again}"
    for a in graph.axes:
        found.setdefault(a, f"unused {a}")
    return found


def most_parallel(graph: MuGraph) -> MuGraph:
    """The graph in which blocks share every axis that they can: one block along an axis is what a whole one was.

    whole -> parallel, where all results of the kernel have the axis and no node reduces or joins it.
    """
    return _map_blocks(graph, _parallel)


def without_loops(graph: MuGraph) -> MuGraph:
    """The graph at one iteration of every loop: loop axes are whole, and their accumulators are gone."""
    return _map_blocks(graph, _unlooped)


def _map_blocks(graph: MuGraph, change: Callable[[Graph], Graph]) -> MuGraph:
    nodes = tuple(n if n.graph is None else replace(n, graph=change(n.graph)) for n in graph.kernel.nodes)
    return replace(graph, kernel=replace(graph.kernel, nodes=nodes))


def _parallel(graph: Graph) -> Graph:
    shared = set.intersection(*(set(graph.nodes[r.node].axes(r.out)) for r in graph.outputs))
    for n in _all_nodes(graph):
        shared -= {*n.reduce, *((n.joined[0], *n.joined[1]) if n.joined is not None else ())}
    roles = tuple((a, Role.PARALLEL if r is Role.WHOLE and a in shared else r) for a, r in graph.roles)
    return replace(graph, roles=roles)


def _unlooped(graph: Graph) -> Graph:
    split = [a for a, r in graph.roles if r is Role.SPLIT]
    new: dict[int, int] = {}
    nodes: list[Node] = []
    for i, n in enumerate(graph.nodes):
        if n.op == "accumulator":
            kept = n.attr["mode"] == "sum" or n.attr["axis"] in split
            if not (split and kept):
                new[i] = new[n.operands[0].node]
                continue
            if n.attr["axis"] not in split:
                n = replace(n, attrs=(("mode", "sum"), ("axis", split[0])))
        new[i] = len(nodes)
        nodes.append(replace(n, operands=tuple(Ref(new[r.node], r.out) for r in n.operands)))
    roles = tuple((a, Role.WHOLE if r is Role.LOOP else r) for a, r in graph.roles)
    return replace(
        graph, nodes=tuple(nodes), outputs=tuple(Ref(new[r.node], r.out) for r in graph.outputs), roles=roles
    )
