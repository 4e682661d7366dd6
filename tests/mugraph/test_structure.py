"""The structure of a muGraph: what a key forgets and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import mirage as mi
from benchmarks.search.mutate import mutants
from mirage.ir.axes import AxisProgram, to_axes
from mirage.mugraph.canonical import COMMUTATIVE, most_parallel, structure_key, without_loops
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.validate import validate
from mirage.verify.proof import prove
from tests.mugraph.graphs import CASES, block, flash_attention, flash_decoding, gated, joined, kernel, mugraph

GRAPHS = {name: case().graph for name, case in CASES.items()}


def shuffled(graph: Graph, rng: Random) -> Graph:
    """Another topological order of every graph, operands of commutative operators exchanged at random."""
    order: list[int] = []
    rest = list(range(len(graph.nodes)))
    while rest:
        i = rng.choice([i for i in rest if all(r.node in order for r in graph.nodes[i].operands)])
        rest.remove(i)
        order.append(i)
    new = {old: k for k, old in enumerate(order)}

    def node(n: Node) -> Node:
        operands = [Ref(new[r.node], r.out) for r in n.operands]
        if n.op in COMMUTATIVE or n.op == "matmul":
            rng.shuffle(operands)
        return replace(n, operands=tuple(operands), graph=None if n.graph is None else shuffled(n.graph, rng))

    nodes = tuple(node(graph.nodes[i]) for i in order)
    roles = tuple(rng.sample(graph.roles, len(graph.roles)))
    return replace(graph, nodes=nodes, outputs=tuple(Ref(new[r.node], r.out) for r in graph.outputs), roles=roles)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
def test_order_is_forgotten(name: str, seed: int) -> None:
    graph = GRAPHS[name]
    other = replace(graph, kernel=shuffled(graph.kernel, Random(seed)))
    validate(other)
    assert structure_key(other) == structure_key(graph)


def test_the_order_of_results_of_a_kernel_is_forgotten() -> None:
    graph = flash_decoding().graph
    nodes = list(graph.kernel.nodes)
    first, second = nodes[3], nodes[4]
    assert first.graph is not None
    nodes[3] = replace(first, dims=first.dims[::-1], graph=replace(first.graph, outputs=first.graph.outputs[::-1]))
    nodes[4] = replace(second, operands=(Ref(3, 1), Ref(3, 0)))
    other = replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))
    validate(other)
    assert structure_key(other) == structure_key(graph)
    nodes[4] = second
    # now it divides the sum of exponents by the values
    wrong = replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))
    assert structure_key(wrong) != structure_key(graph)


def renamed(fn: Callable[..., Any], **types: Any) -> AxisProgram:
    return to_axes(mi.trace(fn, "f", **types))


def test_names_are_forgotten() -> None:
    """The same graph for a program with other names of axes, inputs and itself."""
    a = gated().graph
    names = {"m": "rows", "k": "inner", "n": "columns"}

    def node(n: Node) -> Node:
        attrs = tuple((k, names.get(v, v) if k == "axis" else v) for k, v in n.attrs)
        dims = tuple(tuple(tuple(names[x] for x in d) for d in ds) for ds in n.dims)
        inner = None if n.graph is None else graph(n.graph)
        return replace(n, attrs=attrs, dims=dims, reduce=tuple(names[x] for x in n.reduce), graph=inner)

    def graph(g: Graph) -> Graph:
        return replace(g, nodes=tuple(map(node, g.nodes)), roles=tuple((names[x], r) for x, r in g.roles))

    program = renamed(
        lambda p, q, r: mi.silu(p @ q) * (p @ r),
        p=mi.tensor("rows", "inner"), q=mi.tensor("inner", "columns"), r=mi.tensor("inner", "columns"),
    )  # fmt: skip
    # sizes are part of the structure, and so are the names of symbols
    b = replace(
        a, name="other", axes={names[x]: s for x, s in a.axes.items()}, inputs=program.inputs,
        outputs=program.outputs, kernel=graph(a.kernel), origin="elsewhere",
    )  # fmt: skip
    validate(b)
    assert structure_key(a) == structure_key(b)


def test_different_graphs_have_different_keys() -> None:
    keys = {structure_key(g) for g in (*GRAPHS.values(), *map(most_parallel, GRAPHS.values()))}
    # flash_attention keeps head groups whole, gated, library and joined are as parallel as can be
    assert len(keys) == len(GRAPHS) + 2


@pytest.mark.parametrize("name", GRAPHS)
def test_changes_are_kept(name: str) -> None:
    """A changed graph has another key, unless only the order of a product's operands changed: then it is still right."""
    graph = GRAPHS[name]
    program = to_axes(CASES[name]().program)
    other = 0
    stream = mutants(graph, Random(3))
    for _ in range(60):
        kind, mutant = next(stream)
        try:
            validate(mutant)
        except mi.MirageError:
            continue
        if structure_key(mutant) == structure_key(graph):
            assert prove(program, mutant) == "proved", kind
        else:
            other += 1
    assert other


def test_roles_are_kept_and_may_be_generalized() -> None:
    graph = flash_attention().graph
    wide = most_parallel(graph)
    validate(wide)
    body = wide.kernels[0].graph
    assert body is not None
    assert body.role == {a: Role.PARALLEL if a in ("b", "h", "d8", "s") else r for a, r in body.role.items()}
    assert body.role["t"] is Role.LOOP and body.role["d64"] is Role.WHOLE
    assert structure_key(wide) != structure_key(graph)
    assert structure_key(most_parallel(wide)) == structure_key(wide)


@pytest.mark.parametrize("case", [flash_attention, flash_decoding, gated, joined])
def test_at_one_iteration_loops_are_gone(case: Callable[[], Any]) -> None:
    c = case()
    graph: MuGraph = without_loops(c.graph)
    validate(graph)
    assert prove(to_axes(c.program), graph) == "proved"
    for n in graph.kernels:
        assert n.graph is not None
        assert Role.LOOP not in n.graph.role.values()
        split = Role.SPLIT in n.graph.role.values()
        assert any(m.op == "accumulator" for m in n.graph.nodes) == split


def test_products_of_concats_may_be_exchanged() -> None:
    """w @ y + x @ z: the products, and the operands of each."""
    program = to_axes(
        mi.trace(
            lambda w, x, y, z: w @ y + x @ z,
            w=mi.tensor("m", "k"), x=mi.tensor("m", "r"), y=mi.tensor("k", "n"), z=mi.tensor("r", "n"),
        )
    )  # fmt: skip

    def graph(*order: int) -> MuGraph:
        loads = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(program.inputs)]
        product = Node("concat_matmul", tuple(map(Ref, order)), ((("m",), ("n",)),), reduce=("k", "r"))
        roles = tuple((a, Role.PARALLEL if a in "mn" else Role.WHOLE) for a in program.axes)
        body = block([*loads, product], (4,), **dict(roles))
        return mugraph(program, [kernel(body, tuple(map(Ref, range(4))), program.outputs[0].dims)], Ref(4))

    keys = [structure_key(graph(*order)) for order in ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (2, 1, 0, 3))]
    assert len(set(keys)) == 1
    assert prove(program, graph(0, 1, 2, 3)) == "proved"
