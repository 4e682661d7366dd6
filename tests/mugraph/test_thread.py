"""Thread graphs by rule: what fuses, what does not, and that the graph's meaning stays the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import Graph, MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.thread import construct_threads, inline_threads, stored, thread_groups
from mirage.mugraph.validate import validate
from tests.kernels.kernels import single_kernel, tiles
from tests.mugraph.graphs import CASES, L, P, W, accumulate, block, flash_attention, node, one, reads


def with_blocks(graph: MuGraph, blocks: list[Graph]) -> MuGraph:
    kernels = iter(blocks)
    nodes = tuple(replace(n, graph=next(kernels)) if n.op == "graph" else n for n in graph.kernel.nodes)
    return replace(graph, kernel=replace(graph.kernel, nodes=nodes))


def blocks(graph: MuGraph) -> list[Graph]:
    return [n.graph for n in graph.kernels if n.graph is not None]


@pytest.mark.parametrize("name", [n for n in CASES if n != "library"])
def test_thread_graphs_are_valid_and_mean_the_same(name: str) -> None:
    case = CASES[name]()
    flat = [inline_threads(g) for g in blocks(case.graph)]
    threaded = with_blocks(case.graph, [construct_threads(g, thread_groups(g)) for g in flat])
    validate(threaded)
    assert any(n.op == "graph" for g in blocks(threaded) for n in g.nodes)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.bind(case.sizes)) for t in case.program.input_types]
    results = [
        run_mugraph(g, case.schedule, inputs, FloatArithmetic(case.sizes))[0]
        for g in (case.graph, threaded, with_blocks(threaded, [inline_threads(g) for g in blocks(threaded)]))
    ]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-12)


def test_layer_norm_needs_three_passes() -> None:
    b = ProgramBuilder("layer_norm")
    graph = single_kernel(b.finish([b.op("layer_norm", b.input("x", tensor("m", "n")))]))
    (body,) = blocks(graph)
    ops = [[body.nodes[i].op for i in g] for g in thread_groups(body)]
    # the row's sum; its mean; the centred squares, whose root the last pass needs; and the scaling
    assert ops == [["sum"], ["div"], ["sub", "square", "sum"], ["div", "add", "rsqrt"], ["mul"]]
    threaded = with_blocks(graph, [construct_threads(body, thread_groups(body))])
    inputs = [np.random.default_rng(0).standard_normal((3, 7))]
    ar = FloatArithmetic({"m": 3, "n": 7})
    want, got = (run_mugraph(g, tiles(graph, 2), inputs, ar)[0] for g in (graph, threaded))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_every_node_is_in_one_group_and_groups_share_a_space() -> None:
    (body,) = blocks(flash_attention().graph)
    groups = thread_groups(body)
    assert sorted(i for g in groups for i in g) == [5, 6, 7, 11]
    assert groups == ((5, 6, 7), (11,))
    assert stored(body, groups[0]) == (6, 7)


def test_a_barrier_begins_a_group() -> None:
    (body,) = blocks(flash_attention().graph)
    assert thread_groups(body, frozenset({6})) == ((5,), (6, 7), (11,))


def test_what_does_not_fuse() -> None:
    x = one("m", "n")
    nodes = [
        *reads(x, x),
        node("exp", (0,), ("m", "n")),
        node("sum", (2,), ("m",), reduce=("n",)),
        # reads a sum of its own space's group: another space
        node("sqrt", (3,), ("m",)),
        # shares nothing with the first group
        node("exp", (1,), ("m", "n")),
        # depends on the first group through its sum
        node("div", (2, 4), ("m", "n")),
        # reduces other axes than the first group's sum; shares node 2 with node 6
        node("sum", (2,), ("n",), reduce=("m",)),
        node("mul", (6, 5), ("m", "n")),
    ]
    body = block(nodes, (8, 7), m=W, n=W)
    # 6 can't join 2, nor 8: it needs the root of the sum that ends their group
    assert thread_groups(body) == ((2, 3), (4,), (5, 8), (6, 7))


def test_phases_do_not_fuse() -> None:
    nodes = [
        *reads(one("m", "n"), one("m")),
        node("exp", (0,), ("m", "n")),
        node("sum", (2,), ("m",), reduce=("n",)),
        accumulate(3, "n", ("m",)),
        node("exp", (1,), ("m",)),
        node("mul", (4, 5), ("m",)),
    ]
    body = block(nodes, (6,), m=P, n=L)
    # node 5 runs before the loop, node 6 after it
    assert thread_groups(body) == ((2, 3), (5,), (6,))


def test_deterministic() -> None:
    for name, make in CASES.items():
        if name != "library":
            for g in blocks(make().graph):
                assert thread_groups(g) == thread_groups(g)
