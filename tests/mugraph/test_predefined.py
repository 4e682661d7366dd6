"""Kernels of one operator become predefined operators, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage.ir.axes import to_axes
from mirage.ir.canonical import canonical_key
from mirage.ir.codec import decode, encode
from mirage.ir.interpret import run_reference
from mirage.ir.operator import Level
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.rename import rename_mugraph
from mirage.mugraph.thread import with_threads
from mirage.mugraph.validate import validate
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.kernels.kernels import cut, error, random_inputs, tiles
from tests.mugraph.graphs import CASES, OUT, ROWS, Case, flash_decoding, one


def adapter_program() -> Program:
    b = ProgramBuilder("adapter")
    x = b.input("x", tensor("m", 48))
    w, u = b.input("w", tensor(48, 16)), b.input("u", tensor(16, 48))
    hidden = b.op("relu", b.op("matmul", x, w))
    total = b.op("add", b.op("mul", b.op("matmul", hidden, u), b.op("constant", value=Fraction(1, 3))), x)
    return b.finish([total, b.op("sum", total, axes=(1,))])


#: nodes over axes: 3 matmul, 4 relu, 5 matmul, 6 constant, 7 mul, 8 add, 9 sum
ALONE = ((3,), (4,), (5,), (7,), (8,), (9,))


def ops(graph: MuGraph) -> list[str]:
    return [n.op for n in graph.kernel.nodes if n.op != "input"]


@pytest.mark.parametrize("loop", [(), ("d48", "d16", "d48_2")], ids=["whole", "loops"])
@pytest.mark.parametrize("threads", [False, True])
def test_every_kernel_of_one_operator(loop: tuple[str, ...], threads: bool) -> None:
    p = adapter_program()
    ap = to_axes(p)
    assert [ap.nodes[i].op for (i,) in ALONE] == ["matmul", "relu", "matmul", "mul", "add", "sum"]
    own = cut(p, *ALONE, loop=loop)
    assert not loop or all(n.graph and n.graph.loop for n in own.kernels if n.op in ("matmul", "sum"))
    given = with_threads(own, analyze(own)) if threads else own
    graph = with_predefined(given)
    assert ops(graph) == ["matmul", "relu", "matmul", "constant", "mul", "add", "sum"]
    assert graph.kernels == () and ops(given) == ["graph"] * 6
    assert graph.origin == "library calls"
    assert with_predefined(replace(given, origin="plan 3")).origin == "plan 3, library calls"
    agrees_with(p, graph)


def agrees_with(p: Program, graph: MuGraph) -> None:
    """Valid, proved, equal in the field, and equal when run; also after it was stored and renamed."""
    validate(graph)
    ap = to_axes(p)
    assert prove(ap, graph) == "proved"
    assert Verifier(p, 0).check(graph).equal
    again = decode(MuGraph, encode(graph), "muGraph")
    assert again == graph
    canonical = canonical_key(ap)
    there = rename_mugraph(again, canonical.renaming, canonical.program)
    assert prove(canonical.program, there) == "proved"
    assert rename_mugraph(there, canonical.renaming.inverse(), ap) == graph
    exe = CpuExecutable(graph, tiles(graph, 16), analyze(graph))
    for n in (1, 13, 16, 17):
        sizes = dict.fromkeys(p.symbols(), n)
        inputs = random_inputs(p, sizes, n)
        assert error(exe(inputs, sizes), run_reference(p, inputs, sizes, "float64")) < 2e-5


def test_only_kernels_of_one_operator() -> None:
    p = adapter_program()
    given = cut(p, (3, 4), (5,), (7, 8), loop=("d16",))
    graph = with_predefined(given)
    assert ops(given) == ["graph", "graph", "graph", "sum"]
    assert ops(graph) == ["graph", "matmul", "graph", "sum"]
    agrees_with(p, graph)


@pytest.mark.parametrize("make", CASES.values())
def test_a_graph_without_such_kernels_is_the_same_object(make: Callable[[], Case]) -> None:
    graph = make().graph
    assert with_predefined(graph) is graph


def test_a_result_keeps_the_order_of_dims_that_its_kernel_stores() -> None:
    p = adapter_program()
    given = cut(p, (3,))
    turned = [replace(n, dims=(n.dims[0][::-1],)) if n.op == "graph" else n for n in given.kernel.nodes]
    graph = with_predefined(replace(given, kernel=replace(given.kernel, nodes=tuple(turned))))
    assert graph.kernel.nodes[3].op == "matmul" and graph.kernel.nodes[3].dims == (given.kernel.nodes[3].dims[0][::-1],)
    agrees_with(p, graph)


def test_partial_results_and_second_outputs_are_no_predefined_operators() -> None:
    """Kernels of one matmul each, one of them split over the grid, or with a result that is stored twice."""
    b = ProgramBuilder("split")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n"))
    p = b.finish([b.op("matmul", x, w)])
    graph = cut(p, (2,), loop=("k",))
    assert with_predefined(graph) is not graph
    (node,) = graph.kernels
    assert node.graph is not None
    twice = replace(node, dims=node.dims * 2, graph=replace(node.graph, outputs=node.graph.outputs * 2))
    top = replace(graph.kernel, nodes=(*graph.kernel.nodes[:-1], twice))
    doubled = replace(graph, kernel=top)
    validate(doubled)
    assert with_predefined(doubled) is doubled


def test_sums_of_partial_results_become_predefined() -> None:
    """The kernels after FlashDecoding's first one, each of one operator."""
    case = flash_decoding()
    first = case.graph.kernels[0]
    nodes = [
        *case.graph.kernel.nodes[:4],
        Node("sum", (Ref(3, 0),), (one(*ROWS),), reduce=("t.grid",)),
        Node("sum", (Ref(3, 1),), (one(*OUT),), reduce=("t.grid",)),
        Node("div", (Ref(5), Ref(4)), case.graph.kernels[1].dims),
    ]
    wanted = replace(case.graph, kernel=replace(case.graph.kernel, nodes=tuple(nodes), outputs=(Ref(6),)))
    given = replace(wanted, kernel=replace(wanted.kernel, nodes=tuple(_as_kernel(wanted, i) for i in range(7))))
    validate(given)
    assert ops(given) == ["graph"] * 4
    graph = with_predefined(given)
    assert graph == wanted and graph.kernels == (first,)
    assert prove(to_axes(case.program), graph) == "proved"


def _as_kernel(graph: MuGraph, i: int) -> Node:
    """A predefined operator as a graph-defined kernel; others as they are."""
    n = graph.kernel.nodes[i]
    if n.op in ("input", "graph"):
        return n
    dims = [graph.kernel.nodes[r.node].dims[r.out] for r in n.operands]
    inputs = [Node("input", (), (d,), (("index", k),)) for k, d in enumerate(dims)]
    operator = replace(n, operands=tuple(Ref(k) for k in range(len(inputs))))
    roles = [(a, Role.PARALLEL) for a in n.axes()] + [(a, Role.WHOLE) for a in n.reduce]
    block = Graph(Level.BLOCK, (*inputs, operator), (Ref(len(inputs)),), tuple(roles))
    return Node("graph", n.operands, n.dims, graph=block)
