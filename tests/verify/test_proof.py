"""Proofs: of every graph that a search returns, and of none that was spoiled by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

import mirage as mi
from benchmarks.search.mutate import mutants
from mirage.errors import MirageError
from mirage.ir.program import Program
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.thread import construct_threads, thread_groups
from mirage.mugraph.validate import validate
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove, prove_programs
from tests.mugraph.graphs import accumulate, kernel, mugraph, node, one, reads
from tests.mugraph.graphs import block as made
from tests.programs import QUICK, SMALL, T, axes, block, program, search
from tests.sampled import thinned

NAMES = [*QUICK, *(n for n in SMALL if n != "self division")]


@pytest.mark.parametrize("name", NAMES)
def test_every_graph_of_a_search_is_proved(name: str) -> None:
    graphs = search(name).graphs
    assert graphs
    for g in graphs:
        validate(g)
        assert prove(axes(name), g) == "proved", str(g)


@pytest.mark.parametrize("name", NAMES)
def test_the_program_itself_is_proved(name: str) -> None:
    assert prove(axes(name), reference_graph(axes(name))) == "proved"


def threaded(g: MuGraph) -> MuGraph:
    """The graph with thread graphs in every kernel."""
    nodes = tuple(
        replace(n, graph=construct_threads(n.graph, thread_groups(n.graph))) if n.graph else n for n in g.kernel.nodes
    )
    return replace(g, kernel=replace(g.kernel, nodes=nodes))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "scalar inputs"])
def test_graphs_with_thread_graphs_are_proved(name: str) -> None:
    graphs = [threaded(g) for g in search(name).graphs[::2]]
    for g in graphs:
        validate(g)
        assert prove(axes(name), g) == "proved", str(g)
    if name not in ("matmul", "chain", "equal outputs", "concat", "concat matmul"):
        assert any(n.op == "graph" for g in graphs for k in g.kernels if k.graph for n in k.graph.nodes)


# Spoiled by hand: every change of a kind, at every place, in every graph of a search.

Change = Callable[[Graph, int], Graph | None]


def changed(g: Graph, i: int, node: Node) -> Graph:
    return replace(g, nodes=(*g.nodes[:i], node, *g.nodes[i + 1 :]))


def bypassed(g: Graph, i: int) -> Graph:
    """Node i left out; who read it reads its operand."""
    to = g.nodes[i].operands[0]

    def ref(r: Ref) -> Ref:
        r = to if r.node == i else r
        return Ref(r.node - (r.node > i), r.out)

    rest = (*g.nodes[:i], *g.nodes[i + 1 :])
    return replace(
        g,
        nodes=tuple(replace(n, operands=tuple(map(ref, n.operands))) for n in rest),
        outputs=tuple(map(ref, g.outputs)),
    )


def without_accumulator(g: Graph, i: int) -> Graph | None:
    return bypassed(g, i) if g.nodes[i].op == "accumulator" else None


def without_partial_sum(g: Graph, i: int) -> Graph | None:
    n = g.nodes[i]
    return bypassed(g, i) if n.op == "sum" and n.reduce[0].endswith(".grid") else None


def without_sum(g: Graph, i: int) -> Graph | None:
    n = g.nodes[i]
    return bypassed(g, i) if n.op == "sum" and n.reduce[0] in g.loop else None


def with_swapped_division(g: Graph, i: int) -> Graph | None:
    n = g.nodes[i]
    return changed(g, i, replace(n, operands=n.operands[::-1])) if n.op in ("div", "sub") else None


def with_other_axis(g: Graph, i: int) -> Graph | None:
    n = g.nodes[i]
    others = [a for r in n.operands for a in g.nodes[r.node].axes(r.out) if a not in n.reduce]
    if n.op not in ("sum", "matmul") or not others:
        return None
    to, was = others[0], n.reduce[0]
    dims = tuple(tuple(was if a == to else a for a in d) for d in n.dims[0])
    return changed(g, i, replace(n, reduce=(to, *n.reduce[1:]), dims=(dims,)))


def with_the_wrong_order(g: Graph, i: int) -> Graph | None:
    """exp after the sum over the loop, not in it: an accumulator and the operator before it exchanged."""
    n = g.nodes[i]
    if n.op != "accumulator" or g.nodes[n.operands[0].node].op != "sum":
        return None
    before = n.operands[0].node
    inner = g.nodes[before].operands[0]
    source = g.nodes[inner.node]
    if source.op != "exp":
        return None
    moved = changed(g, before, replace(g.nodes[before], operands=source.operands))
    return changed(moved, i, replace(n, operands=(Ref(before),)))


def with_other_function(g: Graph, i: int) -> Graph | None:
    to = {"exp": "sigmoid", "silu": "sigmoid", "relu": "tanh", "sqrt": "exp", "rsqrt": "sqrt", "neg": "square"}
    n = g.nodes[i]
    return changed(g, i, replace(n, op=to[n.op])) if n.op in to else None


def with_add_for_mul(g: Graph, i: int) -> Graph | None:
    n = g.nodes[i]
    to = {"add": "mul", "mul": "add"}
    return changed(g, i, replace(n, op=to[n.op])) if n.op in to else None


CHANGES = {
    "a missing accumulator": without_accumulator,
    "partial results not summed": without_partial_sum,
    "a sum missing in the loop": without_sum,
    "swapped operands of a division": with_swapped_division,
    "a reduction over another axis": with_other_axis,
    "exp after the sum": with_the_wrong_order,
    "another function": with_other_function,
    "add for mul": with_add_for_mul,
}


@pytest.mark.parametrize("kind", CHANGES)
def test_spoiled_graphs_are_never_proved(kind: str) -> None:
    spoiled = 0
    for name in ("gqa_decode", "rmsnorm_linear", "adapter_mlp", "gated_mlp", "softmax", "cosine", "mean", "neg"):
        for g in search(name).graphs[::2]:
            for k, n in enumerate(g.kernel.nodes):
                for i in range(len(n.graph.nodes)) if n.graph else ():
                    assert n.graph is not None
                    wrong = CHANGES[kind](n.graph, i)
                    if wrong is not None:
                        kernel = changed(g.kernel, k, replace(n, graph=wrong))
                        assert prove(axes(name), replace(g, kernel=kernel)) == "not proved"
                        spoiled += 1
    assert spoiled > 3


def with_role(g: MuGraph, k: int, axis: str, role: Role) -> MuGraph:
    """The graph in which kernel k divides an axis in another way."""
    at = [i for i, n in enumerate(g.kernel.nodes) if n.graph][k]
    n = g.kernel.nodes[at]
    assert n.graph is not None
    roles = tuple((a, role if a == axis else r) for a, r in n.graph.roles)
    return replace(g, kernel=changed(g.kernel, at, replace(n, graph=replace(n.graph, roles=roles))))


def test_wrong_roles_are_never_proved() -> None:
    p = axes("matmul")
    nodes = [
        *reads(*(x.dims for x in p.inputs)),
        node("matmul", (0, 1), ("b", "n"), reduce=("d64",)),
        accumulate(2, "d64", ("b", "n")),
    ]
    roles = {"b": Role.PARALLEL, "d64": Role.LOOP, "n": Role.PARALLEL}
    loop = mugraph(p, [kernel(made(nodes, (3,), **roles), (Ref(0), Ref(1)), one("b", "n"))], Ref(2))
    assert prove(axes("matmul"), loop) == "proved"
    for axis, role in [
        ("d64", Role.SPLIT),
        ("d64", Role.PARALLEL),
        ("d64", Role.WHOLE),
        ("n", Role.LOOP),
        ("b", Role.SPLIT),
    ]:
        assert prove(axes("matmul"), with_role(loop, 0, axis, role)) == "not proved", axis
    split = next(g for g in search("matmul").graphs if "split" in g.origin)
    assert prove(axes("matmul"), split) == "proved"
    for role in (Role.LOOP, Role.WHOLE):
        assert prove(axes("matmul"), with_role(split, 0, "d64", role)) == "not proved"
    # what may be tiled may be whole
    assert prove(axes("matmul"), with_role(loop, 0, "n", Role.WHOLE)) == "proved"


def test_an_axis_split_twice_is_not_proved() -> None:
    g = next(g for g in search("normalized").graphs if "split" in g.origin)
    assert prove(axes("normalized"), g) == "proved"
    assert prove(axes("normalized"), with_role(g, 1, "d64", Role.SPLIT)) == "not proved"


def test_a_graph_of_another_program_is_not_proved() -> None:
    g = search("dot").graphs[0]
    assert prove(axes("matmul"), g) == "not proved"
    assert prove(axes("mha_decode"), search("mqa_decode").graphs[0]) == "not proved"
    first = search("two outputs").graphs[0]
    exchanged = replace(
        first, outputs=first.outputs[::-1], kernel=replace(first.kernel, outputs=first.kernel.outputs[::-1])
    )
    assert prove(axes("two outputs"), exchanged) == "not proved"
    fewer = replace(first, outputs=first.outputs[:1], kernel=replace(first.kernel, outputs=first.kernel.outputs[:1]))
    assert prove(axes("two outputs"), fewer) == "not proved"


@pytest.mark.parametrize("name", thinned(["gqa_decode", "softmax", "cosine", "mean", "two outputs"]))
def test_what_is_proved_passes_the_finite_fields(name: str) -> None:
    """Random changes: proved means equal, by the other kind of evidence."""
    verifier = Verifier(program(name))
    proved = 0
    graphs = search(name).graphs
    for seed, g in enumerate(graphs[:: max(1, len(graphs) // 4)]):
        for _, mutant in itertools.islice(mutants(g, Random(seed)), 120):
            if prove(axes(name), mutant) != "proved":
                continue
            validate(mutant)
            proved += mutant != g
            assert verifier.check(mutant).equal
    assert proved, "some changes change nothing"


def test_malformed_graphs_are_errors_elsewhere() -> None:
    """`prove` only doubts; `validate` says what is wrong."""
    g = search("matmul").graphs[0]
    b = block(g)
    at = next(i for i, n in enumerate(g.kernel.nodes) if n.graph)
    loose = changed(g.kernel, at, replace(g.kernel.nodes[at], graph=replace(b, roles=())))
    assert prove(axes("matmul"), replace(g, kernel=loose)) == "not proved"
    with pytest.raises(MirageError, match="role"):
        validate(replace(g, kernel=loose))


# Two programs.

x, w, v = T("b", 64), T(64, "n"), T(64, "n")


def trace(fn: Callable) -> Program:
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    return mi.trace(fn, "f", **{n: {"x": x, "w": w, "v": v, "y": x}[n] for n in names})


SAME: dict[str, tuple[Callable, Callable]] = {
    "distribution": (lambda x, w, v: x @ w + x @ v, lambda x, w, v: x @ (w + v)),
    "scaling": (lambda x, w: (x * 2) @ w, lambda x, w: 2 * (x @ w)),
    "softmax": (
        lambda x, w: mi.softmax(x) @ w,
        lambda x, w: (mi.exp(x) @ w) / mi.sum(mi.exp(x), axis=1, keepdims=True),
    ),
    "mean": (lambda x: mi.mean(x, axis=1), lambda x: mi.sum(x / 64, axis=1)),
    "silu": (lambda x: mi.silu(x), lambda x: x * mi.sigmoid(x)),
    "transposes": (lambda x, w: x @ w, lambda x, w: (w.mT @ x.mT).mT),
    "two outputs": (lambda x, y: (x + y, x * y), lambda x, y: (y + x, y * x)),
    "names of inputs": (lambda x: x + x, lambda y: y * 2),
}
OTHER: dict[str, tuple[Callable, Callable]] = {
    "another operand": (lambda x, w, v: x @ w + x @ v, lambda x, w, v: x @ w + x @ w),
    "another constant": (lambda x, w: (x * 2) @ w, lambda x, w: 3 * (x @ w)),
    "another axis": (lambda x: mi.softmax(x, axis=1), lambda x: mi.softmax(x, axis=0)),
    "mean of squares": (lambda x: mi.mean(x, axis=1) ** 2, lambda x: mi.mean(x * x, axis=1)),
    "another function": (lambda x: mi.silu(x), lambda x: mi.gelu(x)),
    "other outputs": (lambda x, y: (x + y, x * y), lambda x, y: (x * y, x + y)),
    "exchanged inputs": (lambda x, y: x / y, lambda x, y: y / x),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_programs_are_proved(name: str) -> None:
    a, b = map(trace, SAME[name])
    assert prove_programs(a, b) == "proved" == prove_programs(b, a)
    assert prove_programs(a, a) == "proved"


@pytest.mark.parametrize("name", OTHER)
def test_other_programs_are_not_proved(name: str) -> None:
    a, b = map(trace, OTHER[name])
    assert prove_programs(a, b) == "not proved" == prove_programs(b, a)


def test_a_program_is_itself_without_an_axis_form_too() -> None:
    def straddling(factor: int) -> Program:
        return mi.trace(
            lambda x: mi.reshape(mi.reshape(x, ("n", 2, 3)), ("n", 3, 2)) * factor, "straddling", x=T("n", 6)
        )

    with pytest.raises(MirageError, match="neither divides the other"):
        Verifier(straddling(2))
    assert prove_programs(straddling(2), straddling(2)) == "proved"
    assert prove_programs(straddling(2), straddling(3)) == "not proved"


def test_equal_only_at_some_size_is_not_proved() -> None:
    """n * x is 16 * x where n is 16."""
    a = mi.trace(lambda x: mi.sum(x, axis=1), "f", x=T("b", "n"))
    b = mi.trace(lambda x: mi.mean(x, axis=1) * 16, "f", x=T("b", "n"))
    assert prove_programs(a, b) == "not proved"
    at_16 = mi.trace(lambda x: mi.sum(x, axis=1), "f", x=T("b", 16))
    mean_16 = mi.trace(lambda x: mi.mean(x, axis=1) * 16, "f", x=T("b", 16))
    assert prove_programs(at_16, mean_16) == "proved"
