"""Wrong muGraphs on purpose: small random changes that a verifier must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

from mirage.ir.axes import AxisDims
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role, partial_axis

_BINARY = ("add", "sub", "mul", "div")
_UNARY = ("exp", "sqrt", "relu", "sigmoid", "tanh", "silu", "square", "neg", "rsqrt", "gelu")

#: a change of one node of a graph, or None where it doesn't apply
Change = Callable[[Graph, int, Random], Graph | None]


def _with(graph: Graph, i: int, node: Node) -> Graph:
    return replace(graph, nodes=(*graph.nodes[:i], node, *graph.nodes[i + 1 :]))


def _changed_operator(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    for family in (_BINARY, _UNARY):
        if n.op in family:
            return _with(g, i, replace(n, op=rng.choice([o for o in family if o != n.op])))
    return None


def _swapped_operands(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    if n.op in ("sub", "div"):
        return _with(g, i, replace(n, operands=n.operands[::-1]))
    if n.op == "concat_matmul" and n.operands[2] != n.operands[3]:
        w, x, y, z = n.operands
        return _with(g, i, replace(n, operands=(w, x, z, y)))
    return None


def _dropped(g: Graph, i: int) -> Graph:
    """The graph in which users of node i use its first operand."""
    (to, *_) = g.nodes[i].operands

    def ref(r: Ref) -> Ref:
        r = to if r.node == i else r
        return Ref(r.node - (r.node > i), r.out)

    kept = [n for k, n in enumerate(g.nodes) if k != i]
    nodes = tuple(replace(n, operands=tuple(ref(r) for r in n.operands)) for n in kept)
    return replace(g, nodes=nodes, outputs=tuple(ref(r) for r in g.outputs))


def _dropped_accumulator(g: Graph, i: int, rng: Random) -> Graph | None:
    return _dropped(g, i) if g.nodes[i].op == "accumulator" else None


def _dropped_node(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    return _dropped(g, i) if n.op in (*_BINARY, *_UNARY) and n.operands[0] else None


def _missing_partial_sum(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    return _dropped(g, i) if n.op == "sum" and any(a.endswith(".grid") for a in n.reduce) else None


def _changed_operand(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    if not n.operands or n.graph is not None:
        return None
    k = rng.randrange(len(n.operands))
    others = [j for j in range(i) if Ref(j) != n.operands[k] and g.nodes[j].graph is None]
    if not others:
        return None
    changed = (*n.operands[:k], Ref(rng.choice(others)), *n.operands[k + 1 :])
    return _with(g, i, replace(n, operands=changed))


def _changed_reduce(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    others = sorted({a for m in g.nodes for a in m.axes() if a not in n.reduce})
    if not n.reduce or not others:
        return None
    old, new = rng.choice(n.reduce), rng.choice(others)
    swap = {old: new, new: old}
    dims = tuple(tuple(tuple(swap.get(a, a) for a in d) for d in ds) for ds in n.dims)
    return _with(g, i, replace(n, reduce=tuple(swap.get(a, a) for a in n.reduce), dims=dims))


def _exchanged_inputs(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    others = [j for j in g.inputs if j != i]
    if n.op != "input" or not others:
        return None
    j = rng.choice(others)
    return _with(_with(g, i, replace(n, attrs=g.nodes[j].attrs)), j, replace(g.nodes[j], attrs=n.attrs))


def _wrong_constant(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    if n.op != "constant":
        return None
    value = Fraction(n.attr["value"])
    wrong = rng.choice([value * 2, value + 1, -value, value * (1 + Fraction(1, 1 << 40)), 1 / value if value else 1])
    return _with(g, i, replace(n, attrs=(("value", Fraction(wrong)),))) if wrong != value else None


def _wrong_size(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    if n.op != "size":
        return None
    return _with(g, i, replace(n, attrs=(("dim", rng.choice([n.attr["dim"] + 1, n.attr["dim"] * 2])),)))


def _dropped_normalization(g: Graph, i: int, rng: Random) -> Graph | None:
    return _dropped(g, i) if g.nodes[i].op == "div" else None


def _dropped_sum(g: Graph, i: int, rng: Random) -> Graph | None:
    return _dropped(g, i) if g.nodes[i].op == "sum" else None


def _wrong_accumulator(g: Graph, i: int, rng: Random) -> Graph | None:
    n = g.nodes[i]
    if n.op != "accumulator":
        return None
    # which loop axis a sum names makes no difference
    others = [("concat", a) for a in g.loop] + ([("sum", n.attr["axis"])] if n.attr["mode"] == "concat" else [])
    others = [o for o in others if o != (n.attr["mode"], n.attr["axis"])]
    if not others:
        return None
    mode, axis = rng.choice(others)
    return _with(g, i, replace(n, attrs=(("mode", mode), ("axis", axis))))


def _input_read_twice(g: Graph, i: int, rng: Random) -> Graph | None:
    """A kernel gets one of its operands in place of another."""
    n = g.nodes[i]
    if n.graph is None or len(n.operands) < 2:
        return None
    k, other = rng.sample(range(len(n.operands)), 2)
    return _with(g, i, replace(n, operands=(*n.operands[:k], n.operands[other], *n.operands[k + 1 :])))


def _exchanged_outputs(g: Graph, i: int, rng: Random) -> Graph | None:
    """Two results of a kernel, or of the program, in each other's place."""
    n = g.nodes[i]
    if n.graph is not None and len(n.graph.outputs) > 1:
        return _with(g, i, replace(n, graph=replace(n.graph, outputs=_exchanged(n.graph.outputs, rng))))
    if g.level is Level.KERNEL and len(g.outputs) > 1:
        return replace(g, outputs=_exchanged(g.outputs, rng))
    return None


def _exchanged(refs: tuple[Ref, ...], rng: Random) -> tuple[Ref, ...]:
    found = list(refs)
    j, k = rng.sample(range(len(refs)), 2)
    found[j], found[k] = found[k], found[j]
    return tuple(found)


def _exchanged_roles(g: Graph, i: int, rng: Random) -> Graph | None:
    if len(set(g.role.values())) < 2:
        return None
    first, second = rng.sample(g.roles, 2)
    swap = {first[0]: second[1], second[0]: first[1]}
    return replace(g, roles=tuple((a, swap.get(a, r)) for a, r in g.roles))


def _wrong_role(g: Graph, i: int, rng: Random) -> Graph | None:
    if not g.roles:
        return None
    k = rng.randrange(len(g.roles))
    axis, role = g.roles[k]
    new = rng.choice([r for r in Role if r is not role])
    return replace(g, roles=(*g.roles[:k], (axis, new), *g.roles[k + 1 :]))


CHANGES: dict[str, Change] = {
    "changed operator": _changed_operator,
    "swapped operands": _swapped_operands,
    "dropped accumulator": _dropped_accumulator,
    "dropped node": _dropped_node,
    "missing partial sum": _missing_partial_sum,
    "changed operand": _changed_operand,
    "changed reduction": _changed_reduce,
    "exchanged inputs": _exchanged_inputs,
    "wrong constant": _wrong_constant,
    "wrong role": _wrong_role,
    "wrong size": _wrong_size,
    "dropped normalization": _dropped_normalization,
    "dropped sum": _dropped_sum,
    "wrong accumulator": _wrong_accumulator,
    "input read twice": _input_read_twice,
    "exchanged outputs": _exchanged_outputs,
    "exchanged roles": _exchanged_roles,
}


def _repaired(graph: Graph, operands: Sequence[tuple[str, ...]] = ()) -> Graph:
    """The graph with the axes that follow from its operands', so that dims alone do not betray a change."""
    nodes: list[Node] = []
    for n in graph.nodes:
        args = [nodes[r.node].axes(r.out) for r in n.operands]
        found = [tuple(a for axes in args for a in axes if a not in n.reduce)]
        if n.graph is not None:
            inner = _repaired(n.graph, args)
            n = replace(n, graph=inner)
            found = [_result(inner, r) for r in inner.outputs]
        elif n.op == "input":
            found = [n.axes() if graph.level is Level.KERNEL else operands[n.attr["index"]]]
        if n.op != "concat":
            n = replace(n, dims=tuple(_with_axes(d, axes) for d, axes in zip(n.dims, found, strict=True)))
        nodes.append(n)
    return replace(graph, nodes=tuple(nodes))


def _result(block: Graph, output: Ref) -> tuple[str, ...]:
    """The axes of an output as the kernel graph sees it."""
    axes = block.nodes[output.node].axes(output.out)
    return (*axes, *(partial_axis(a) for a, r in block.roles if r is Role.SPLIT and a not in axes))


def _with_axes(dims: AxisDims, axes: Sequence[str]) -> AxisDims:
    kept = tuple(d for d in (tuple(a for a in d if a in axes) for d in dims) if d)
    old = {a for d in kept for a in d}
    return (*kept, *((a,) for a in sorted(set(axes) - old)))


def _graphs(graph: MuGraph) -> list[int | None]:
    """Where nodes can be changed: the kernel graph (None), and the block graphs of these kernel nodes."""
    return [None, *(i for i, n in enumerate(graph.kernel.nodes) if n.graph is not None)]


#: share of the changes after which the axes of all nodes are made to fit
_REPAIRED = 0.75
#: draws without a change, after which a graph is taken to allow none
_TRIES = 200


def mutants(graph: MuGraph, rng: Random) -> Iterator[tuple[str, MuGraph]]:
    """Endless random changes of a muGraph, each with its kind (a key of `CHANGES`).

    Kinds are equally likely where they apply. A mutant may be malformed, and it may be equal to the graph
    by chance. Ends only if no change applies (after `_TRIES` draws in vain).
    """
    in_vain = 0
    while in_vain < _TRIES:
        in_vain += 1
        kind = rng.choice(list(CHANGES))
        places = []
        for at in _graphs(graph):
            inner = graph.kernel if at is None else graph.kernel.nodes[at].graph
            assert inner is not None
            places += [(at, inner, i) for i in range(len(inner.nodes))]
        rng.shuffle(places)
        for at, inner, i in places:
            changed = CHANGES[kind](inner, i, rng)
            if changed is None:
                continue
            if at is not None:
                changed = _with(graph.kernel, at, replace(graph.kernel.nodes[at], graph=changed))
            if rng.random() < _REPAIRED:
                changed = _repaired(changed)
            if changed == graph.kernel:
                continue
            in_vain = 0
            yield kind, replace(graph, kernel=changed)
            break
