"""Every rule of a muGraph: a valid graph beside the smallest graph that breaks the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy

from mirage.errors import DTypeError, GraphError, MirageError
from mirage.ir.axes import AxisInput, AxisOutput
from mirage.ir.dims import symbol, to_dim
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.thread import construct_threads, thread_groups
from mirage.mugraph.validate import validate
from tests.mugraph.graphs import (
    CASES,
    L,
    P,
    S,
    W,
    accumulate,
    block,
    flash_attention,
    flash_decoding,
    gated,
    joined,
    kernel,
    library,
    node,
    one,
    reads,
)

M, N, K = (symbol(s) for s in "mnk")
AXES: dict[str, sympy.Expr] = {"m": M, "n": N, "k": K, "j": K + N}
X, Y, Z = AxisInput("x", one("m", "k")), AxisInput("y", one("k", "n")), AxisInput("z", one("m", "n"))


def mu(nodes: list[Node], *outputs: Ref, dims: tuple[str, ...] = ("m", "n"), **more: Any) -> MuGraph:
    """A muGraph over x[m, k], y[k, n] and z[m, n] whose nodes 0, 1, 2 read them."""
    body = Graph(Level.KERNEL, (*reads(X.dims, Y.dims, Z.dims), *nodes), outputs or (Ref(len(nodes) + 2),))
    fields = {
        "kernel": body,
        "axes": AXES,
        "inputs": (X, Y, Z),
        "outputs": (AxisOutput(0, one(*dims)),),
        "dtype": "float32",
    }
    return MuGraph("g", **{**fields, **more})


def of_block(
    nodes: list[Node], roles: dict[str, Role], out: tuple[str, ...] = ("m", "n"), level: Level = Level.BLOCK
) -> MuGraph:
    """A muGraph of one kernel over x, y, z: nodes 0, 1, 2 read them, the last node is the output."""
    body = block([*reads(X.dims, Y.dims, Z.dims), *nodes], (len(nodes) + 2,), **roles)
    dims = tuple(a for a in out if not a.endswith(".grid"))
    return mu([kernel(replace(body, level=level), (Ref(0), Ref(1), Ref(2)), one(*out))], Ref(3), dims=dims)


WHOLE = {"m": P, "n": P, "k": W}
LOOP = {"m": P, "n": P, "k": L}
SPLIT = {"m": P, "n": P, "k": S}
MATMUL = node("matmul", (0, 1), ("m", "n"), reduce=("k",))
ACC = accumulate(3, "k", ("m", "n"))
CONCAT_K = accumulate(0, "k", ("m", "k"), "concat")
ROW_SUM = node("sum", (3,), ("m",), reduce=("k",))
SPLIT_K = {"m": P, "n": W, "k": S}


@pytest.mark.parametrize("name", CASES)
def test_shared_graphs_are_valid(name: str) -> None:
    validate(CASES[name]().graph)


@pytest.mark.parametrize(
    "graph",
    [
        mu([MATMUL]),
        mu([node("add", (2, 2), ("n", "m"))]),
        of_block([MATMUL], WHOLE),
        of_block([MATMUL, ACC, node("exp", (4,), ("m", "n"))], LOOP),
        # linear operators may act on a partial sum: (x @ y) * z - x @ y, accumulated
        of_block(
            [
                MATMUL,
                node("mul", (3, 2), ("m", "n")),
                node("sub", (4, 3), ("m", "n")),
                accumulate(5, "k", ("m", "n")),
            ],
            LOOP,
        ),
        of_block([MATMUL, node("div", (3, 2), ("m", "n")), accumulate(4, "k", ("m", "n"))], LOOP),
        # blocks write their parts of a split axis that was concatenated
        of_block([CONCAT_K, node("exp", (3,), ("m", "k"))], SPLIT_K, ("m", "k")),
        # an output may lack an axis of the result: it is broadcast
        mu([node("sum", (2,), ("m",), reduce=("n",))]),
    ],
)
def test_valid(graph: MuGraph) -> None:
    validate(graph)


BROKEN: dict[str, tuple[MuGraph, str]] = {
    # The muGraph as a whole.
    "two inputs of one name": (mu([MATMUL], inputs=(X, X, Z)), "a name is used twice"),
    "an axis name with a dot": (mu([MATMUL], axes={**AXES, "k.grid": K}), "'k.grid' is not an identifier"),
    "a size that is no polynomial": (
        mu([MATMUL], axes={**AXES, "n": to_dim("n // 2")}),
        "the size of axis n, n // 2, is not a sum of products of dims",
    ),
    "an axis without a size": (mu([MATMUL], axes={"m": M, "n": N}), "input x has unknown axis k"),
    "an axis twice in the result": (mu([MATMUL], dims=("m", "m")), "output 0: axis m occurs twice"),
    "a block graph on top": (
        mu([MATMUL], kernel=Graph(Level.BLOCK, (), ())),
        "its top graph is a block graph",
    ),
    "more outputs than results": (mu([MATMUL], Ref(3), Ref(3)), "2 kernel-level outputs for 1 results"),
    "an output axis that the result lacks": (mu([MATMUL], Ref(0)), "output 0 has axis k, the result only"),
    "partial results returned": (
        of_block([MATMUL, ACC], SPLIT, ("k.grid", "m", "n")),
        "sum the partial results",
    ),
    # Form of a node.
    "not topological": (
        mu([node("exp", (4,), ("m", "n")), MATMUL]),
        r"node 3 \(exp\): uses node 4, which does not come",
    ),
    "a negative operand": (mu([node("exp", (-1,), ("m", "k"))]), "uses node -1"),
    "output index out of range": (
        mu([Node("exp", (Ref(0, 1),), (one("m", "k"),))]),
        "uses output 1 of node 0, which has 1",
    ),
    "graph output out of range": (mu([MATMUL], Ref(9)), "uses node 9"),
    "no dims": (mu([Node("exp", (Ref(2),), ())]), "dims for 0 outputs"),
    "two dims of an operator": (
        mu([Node("exp", (Ref(2),), (Z.dims, Z.dims))]),
        "dims for 2 outputs; only a graph-defined",
    ),
    "an axis twice in a tensor": (
        mu([node("exp", (2,), ("m", "m"))]),
        r"node 3 \(exp\): axis m occurs twice",
    ),
    "a graph on an operator": (
        mu([replace(MATMUL, graph=block([], ()))]),
        "only an operator 'graph' is defined by one",
    ),
    "reduce on an elementwise operator": (
        mu([node("exp", (2,), ("m",), reduce=("n",))]),
        "only concat_matmul, matmul, max, sum reduce axes",
    ),
    "joined on a matmul": (mu([replace(MATMUL, joined=("j", ("k", "n")))]), "nothing else has it"),
    "a concat without joined": (mu([node("concat", (2, 2), ("m", "n"))]), "a concat needs it"),
    "an input with an operand": (
        mu([Node("input", (Ref(0),), (X.dims,), (("index", 0),))]),
        "takes 0 operands, got 1",
    ),
    "an input index out of range": (
        mu([Node("input", (), (X.dims,), (("index", 3),))]),
        "reads input 3, but the graph has 3",
    ),
    "an input without index": (mu([Node("input", (), (X.dims,))]), "takes .'index'."),
    "an input read twice": (
        mu([Node("input", (), (X.dims,), (("index", 0),))]),
        "input 0 is read by two nodes",
    ),
    "an unknown operator": (mu([node("exq", (2,), ("m", "n"))]), "'exq' is not registered; did you mean exp"),
    "an operator that is not over axes": (
        mu([node("softmax", (2,), ("m", "n"))]),
        "not an operator over named axes",
    ),
    "wrong arity": (mu([node("add", (2,), ("m", "n"))]), "takes 2 to 2 operands, got 1"),
    "a matmul that reduces nothing": (mu([node("matmul", (2, 2), ("m", "n"))]), "reduces no axis"),
    "attributes of a matmul": (mu([replace(MATMUL, attrs=(("axes", (0,)),))]), "takes none"),
    "a missing attribute": (mu([node("maximum", (2,), ("m", "n"))]), "'value' is missing"),
    "an attribute in another form": (
        mu([node("maximum", (2,), ("m", "n"), attrs=(("value", 0.5),))]),
        "not in canonical form",
    ),
    # Levels.
    "an accumulator in a kernel graph": (
        mu([accumulate(2, "k", ("m", "n"))]),
        "axis k, which is no loop axis",
    ),
    "roles in a kernel graph": (
        mu([], kernel=replace(mu([MATMUL]).kernel, roles=(("m", P),))),
        "a kernel graph has no roles",
    ),
    "a thread graph as a kernel": (
        of_block([MATMUL], WHOLE, level=Level.THREAD),
        "holds block graphs, not thread graphs",
    ),
    "a graph operator without graph": (
        mu([Node("graph", (Ref(2),), (Z.dims,))]),
        "has no graph that defines it",
    ),
    # Roles.
    "an axis without role": (of_block([MATMUL], {"m": P, "n": P}), "kernel 3, axis k has no role"),
    "a role without axis": (
        of_block([MATMUL], {**WHOLE, "j": W}),
        "axis j has a role but occurs in no tensor",
    ),
    "an operand that no node reads": (
        mu([kernel(block(reads(Z.dims), (0,), m=P, n=P), (Ref(2), Ref(0)), Z.dims)]),
        "no node reads operand 1",
    ),
    "a parallel axis reduced": (
        of_block([MATMUL], {**WHOLE, "k": P}),
        r"node 3 \(matmul\): reduces axis k, which is parallel",
    ),
    "a parallel axis that an output lacks": (
        of_block(
            [node("sum", (2,), ("m",), reduce=("n",)), node("exp", (3,), ("m",))],
            {"m": P, "n": W, "k": P},
            ("m",),
        ),
        "without the parallel axis k",
    ),
    # Axes.
    "kernel-level input dims differ": (
        mu([], kernel=replace(mu([MATMUL]).kernel, nodes=(*reads(one("k", "m"), Y.dims, Z.dims), MATMUL))),
        r"dims \[k, m\] differ from those of input x, \[m, k\]",
    ),
    "block input axes differ": (
        mu([kernel(block(reads(X.dims), (0,), m=P, k=P), (Ref(2),), X.dims)]),
        r"\['k', 'm'\], but its operands make \['m', 'n'\]",
    ),
    "an axis lost": (
        mu([node("exp", (2,), ("m",))]),
        r"has axes \['m'\], but its operands make \['m', 'n'\]",
    ),
    "an axis out of nowhere": (
        mu([node("exp", (2,), ("m", "n", "k"))]),
        r"\['k', 'm', 'n'\], but its operands make",
    ),
    "a reduced axis kept": (
        mu([node("sum", (2,), ("m", "n"), reduce=("n",))]),
        r"but its operands make \['m'\]",
    ),
    "a reduced axis absent": (
        mu([node("sum", (2,), ("m", "n"), reduce=("k",))]),
        "reduces axis k, which its operands",
    ),
    "an axis reduced twice": (mu([node("sum", (2,), ("m",), reduce=("n", "n"))]), "reduces an axis twice"),
    "kernel dims differ": (
        of_block([MATMUL], WHOLE, ("m", "k")),
        r"node 3 \(graph\): output 0 has axes \['k', 'm'\]",
    ),
    "kernel with more dims than outputs": (
        mu([kernel(block(reads(Z.dims), (0,), m=P, n=P), (Ref(2),), Z.dims, Z.dims)]),
        "dims for 2 outputs, but it has 1",
    ),
    # Concat.
    "joined axis absent": (
        mu([node("concat", (2, 2), ("m", "j"), joined=("j", ("n", "k")))]),
        "joins axis k, which its operand",
    ),
    "one joined axis for two operands": (
        mu([node("concat", (2, 2), ("m", "j"), joined=("j", ("n",)))]),
        "joins 1 axes of 2 operands",
    ),
    "joined sizes differ": (
        mu([node("concat", (0, 0), ("m", "j"), joined=("j", ("k", "k")))]),
        r"\(k\) \+ \(k\) into j of size k \+ n",
    ),
    "joined into an unknown axis": (
        mu([node("concat", (0, 2), ("m", "i"), joined=("i", ("k", "n")))]),
        "joins axis i, which has no size",
    ),
    "joined axis is another axis too": (
        mu([node("concat", (0, 1), ("m", "n", "j"), joined=("j", ("k", "n")))]),
        "axis k is joined and also another axis",
    ),
    "joined over the grid": (
        of_block(
            [node("concat", (0, 2), ("m", "j"), joined=("j", ("k", "n")))], {**WHOLE, "j": W}, ("m", "j")
        ),
        "joins axis n, of which a block or iteration sees only a part",
    ),
    # Loop.
    "tile and result of the loop combined": (
        of_block([MATMUL, ACC, node("mul", (0, 4), ("m", "k", "n"))], LOOP, ("m", "k", "n")),
        r"node 5 \(mul\): combines node 0, which changes with the loop over k, with node 4",
    ),
    "an output that changes with the loop": (
        of_block([MATMUL], LOOP),
        "is output 0 but changes with the loop over k",
    ),
    "a partial sum in a function": (
        of_block([MATMUL, node("exp", (3,), ("m", "n")), accumulate(4, "k", ("m", "n"))], LOOP),
        r"node 4 \(exp\): acts on a partial sum over axis k and is not linear in it.*accumulate it",
    ),
    "a partial sum plus a fixed value": (
        of_block([MATMUL, node("add", (3, 2), ("m", "n")), accumulate(4, "k", ("m", "n"))], LOOP),
        "is not linear in it",
    ),
    "a partial sum squared": (
        of_block([MATMUL, node("mul", (3, 3), ("m", "n")), accumulate(4, "k", ("m", "n"))], LOOP),
        "is not linear in it",
    ),
    "a partial sum as divisor": (
        of_block([MATMUL, node("div", (2, 3), ("m", "n")), accumulate(4, "k", ("m", "n"))], LOOP),
        "is not linear in it",
    ),
    "a partial sum times a tile": (
        of_block(
            [
                MATMUL,
                node("mul", (0, 3), ("m", "k", "n")),
                node("sum", (4,), ("m", "n"), reduce=("k",)),
                accumulate(5, "k", ("m", "n")),
            ],
            LOOP,
        ),
        "is not linear in it",
    ),
    "a partial sum matmul a partial sum": (
        of_block(
            [MATMUL, node("matmul", (3, 3), ("m",), reduce=("n",)), accumulate(4, "k", ("m",))],
            {**LOOP, "n": W},
            ("m",),
        ),
        "is not linear in it",
    ),
    "accumulating over no loop axis": (
        of_block([MATMUL, accumulate(3, "m", ("m", "n"))], LOOP),
        "axis m, which is no loop axis",
    ),
    "accumulating twice": (
        of_block([MATMUL, ACC, accumulate(4, "k", ("m", "n"))], LOOP),
        "computed after the loop over k",
    ),
    "accumulating what does not change": (
        of_block([accumulate(2, "k", ("m", "n"))], LOOP),
        "the result would count iterations",
    ),
    "adding up tiles": (
        of_block([accumulate(0, "k", ("m", "k"))], {**LOOP, "n": W}, ("m", "k")),
        "adds up tiles that still have the loop axis k",
    ),
    "an unknown mode": (of_block([MATMUL, accumulate(3, "k", ("m", "n"), "max")], LOOP), "mode 'max'"),
    "a maximum over an axis that is looped over": (
        of_block([node("max", (0,), ("m",), reduce=("k",)), accumulate(3, "k", ("m",))], {**LOOP, "n": W}, ("m",)),
        r"node 3 \(max\): takes the maximum over axis k, .*: make its role whole",
    ),
    "a maximum over a split axis": (
        of_block([node("max", (0,), ("m",), reduce=("k",))], {**SPLIT, "n": W}, ("k.grid", "m")),
        r"node 3 \(max\): takes the maximum over axis k, .*: make its role whole",
    ),
    "a maximum of a partial sum": (
        of_block([MATMUL, node("max", (3,), ("m",), reduce=("n",)), accumulate(4, "k", ("m",))], {**LOOP, "n": W}, ("m",)),
        r"node 4 \(max\): takes the maximum over axis k, or of a partial sum over it; sum over it first",
    ),
    "concatenating what lacks the axis": (
        of_block([MATMUL, accumulate(3, "k", ("m", "n"), "concat")], LOOP),
        "so nothing can be concatenated along it",
    ),
    "concatenating what is no sum over another loop axis": (
        of_block([accumulate(0, "k", ("m", "k"), "concat")], {"m": P, "n": L, "k": L}, ("m", "k")),
        "is not a sum over the loop axis n",
    ),
    "concatenating along one of two axes": (
        of_block([accumulate(2, "n", ("m", "n"), "concat")], {"m": L, "n": L, "k": W}),
        "adds up tiles that still have the loop axis m; reduce it in the loop or concatenate along it",
    ),
    "a function of a sum over a concatenated split axis": (
        of_block([CONCAT_K, ROW_SUM, node("exp", (4,), ("m",))], SPLIT_K, ("k.grid", "m")),
        r"node 5 \(exp\): acts on a partial sum over axis k",
    ),
    "a concatenated split axis as partial results": (
        of_block([CONCAT_K], SPLIT_K, ("k.grid", "m", "k")),
        r"\['k', 'k.grid', 'm'\], but its operands make \['k', 'm'\]",
    ),
    # Split.
    "an output without the split axis": (
        of_block([node("exp", (2,), ("m", "n"))], SPLIT),
        "neither a sum over the split axis k nor concatenated along it",
    ),
    "a function of a split sum": (
        of_block([MATMUL, ACC, node("exp", (4,), ("m", "n"))], SPLIT, ("k.grid", "m", "n")),
        "is not linear in it",
    ),
    "kernel dims without the partial axis": (
        of_block([MATMUL, ACC], SPLIT),
        r"\['k.grid', 'm', 'n'\]; set its dims",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken(rule: str) -> None:
    graph, message = BROKEN[rule]
    with pytest.raises(GraphError, match=message):
        validate(graph)


def test_unknown_dtype() -> None:
    with pytest.raises(DTypeError, match="'int3' is not supported"):
        validate(mu([MATMUL], dtype="int3"))


def partials(second: Callable[[], list[Node]], out: tuple[str, ...], **roles: Role) -> MuGraph:
    """x @ y with k split over the grid, then a second kernel over its partial results."""
    first = kernel(block([*reads(X.dims, Y.dims), MATMUL_XY, accumulate(2, "k", ("m", "n"))], (3,), **SPLIT),
                   (Ref(0), Ref(1)), one("k.grid", "m", "n"))  # fmt: skip
    nodes = [*reads(one("k.grid", "m", "n")), *second()]
    last = kernel(block(nodes, (len(nodes) - 1,), **roles), (Ref(3),), one(*out))
    return mu([first, last], Ref(4), dims=tuple(a for a in out if not a.endswith("d")))


MATMUL_XY = node("matmul", (0, 1), ("m", "n"), reduce=("k",))
SUM_PARTS = node("sum", (0,), ("m", "n"), reduce=("k.grid",))


def test_partial_results_are_summed_by_a_later_kernel() -> None:
    validate(partials(lambda: [SUM_PARTS, node("exp", (1,), ("m", "n"))], ("m", "n"), m=P, n=P, k_grid=W))
    looped = lambda: [SUM_PARTS, accumulate(1, "k.grid", ("m", "n")), node("exp", (2,), ("m", "n"))]  # noqa: E731
    validate(partials(looped, ("m", "n"), m=P, n=P, k_grid=L))


def test_partial_results_pass_only_linear_operators() -> None:
    with pytest.raises(
        GraphError,
        match=r"kernel 4, node 1 \(exp\): acts on a partial sum over axis k.grid.*sum over it first",
    ):
        validate(
            partials(
                lambda: [node("exp", (0,), ("k.grid", "m", "n"))], ("k.grid", "m", "n"), m=P, n=P, k_grid=P
            )
        )


def test_an_axis_cannot_be_split_while_its_partial_axis_is_open() -> None:
    nodes = [
        *reads(one("k.grid", "m", "n"), X.dims),
        node("sum", (1,), ("m",), reduce=("k",)),
        accumulate(2, "k", ("m",)),
        node("mul", (0, 3), ("k.grid", "m", "n")),
    ]
    body = block(nodes, (4,), m=P, n=P, k=S, k_grid=W)
    first = partials(lambda: [SUM_PARTS], ("m", "n"), m=P, n=P, k_grid=W).kernel.nodes[3]
    graph = mu([first, kernel(body, (Ref(3), Ref(0)), one("k.grid", "m", "n"))], Ref(4))
    with pytest.raises(GraphError, match=r"has axis k\.grid already"):
        validate(graph)


def with_thread(change: Callable[[Graph], Graph]) -> MuGraph:
    """The gated graph with its thread graph (node 7 of kernel 3) changed."""
    graph = gated().graph
    outer = graph.kernel.nodes[3]
    assert outer.graph is not None
    inner = outer.graph.nodes[7]
    assert inner.graph is not None
    nodes = (*outer.graph.nodes[:7], replace(inner, graph=change(inner.graph)))
    top = (*graph.kernel.nodes[:3], replace(outer, graph=replace(outer.graph, nodes=nodes)))
    return replace(graph, kernel=replace(graph.kernel, nodes=top))


def deeper(g: Graph) -> Graph:
    return replace(g, nodes=(*g.nodes[:3], Node("graph", (Ref(2),), (one("m", "n"),), graph=g)))


THREAD_RULES: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "a split axis": (
        lambda g: replace(g, roles=(("m", P), ("n", S))),
        "thread graph 7, axis n is split over threads",
    ),
    "a fourth level": (deeper, "is the lowest level"),
    "a block graph inside": (
        lambda g: replace(g, level=Level.BLOCK),
        "holds thread graphs, not block graphs",
    ),
    "two outputs": (lambda g: replace(g, outputs=(Ref(2), Ref(3))), "one output, this one 2"),
    "a missing role": (lambda g: replace(g, roles=(("m", P),)), "thread graph 7, axis n has no role"),
    "two roles": (lambda g: replace(g, roles=(*g.roles, ("m", W))), "an axis has two roles"),
}


@pytest.mark.parametrize("rule", THREAD_RULES)
def test_thread_graphs(rule: str) -> None:
    validate(with_thread(lambda g: g))
    change, message = THREAD_RULES[rule]
    with pytest.raises(GraphError, match=message):
        validate(with_thread(change))


def test_a_thread_graph_sees_the_loop_of_its_block() -> None:
    """A sum over the block's loop axis in a thread graph is partial until the block accumulates it."""
    thread = Graph(
        Level.THREAD,
        (*reads(X.dims), node("exp", (0,), ("m", "k")), node("sum", (1,), ("m",), reduce=("k",))),
        (Ref(2),),
        (("m", P), ("k", W)),
    )

    def graph(*after: Node) -> MuGraph:
        nodes = [*reads(X.dims), Node("graph", (Ref(0),), (one("m"),), graph=thread), *after]
        body = block(nodes, (len(nodes) - 1,), m=P, k=L)
        return mu([kernel(body, (Ref(0),), one("m"))], Ref(3), dims=("m",))

    validate(graph(accumulate(1, "k", ("m",)), node("exp", (2,), ("m",))))
    with pytest.raises(GraphError, match=r"kernel 3, node 2 \(exp\): acts on a partial sum over axis k"):
        validate(graph(node("exp", (1,), ("m",)), accumulate(2, "k", ("m",))))
    with pytest.raises(GraphError, match="changes with the loop over k"):
        validate(graph())


@pytest.mark.parametrize("case", [flash_attention, flash_decoding, gated, joined, library])
def test_changing_any_role_or_axis_is_noticed_or_still_valid(case: Any) -> None:
    """No change of one role makes the check fail with anything but a GraphError."""
    graph = case().graph
    for k, outer in enumerate(graph.kernel.nodes):
        if outer.graph is None:
            continue
        for j, (axis, _) in enumerate(outer.graph.roles):
            for role in Role:
                roles = (*outer.graph.roles[:j], (axis, role), *outer.graph.roles[j + 1 :])
                nodes = list(graph.kernel.nodes)
                nodes[k] = replace(outer, graph=replace(outer.graph, roles=roles))
                try:
                    validate(replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes))))
                except MirageError as e:
                    assert type(e) is GraphError


@pytest.mark.parametrize("name", CASES)
def test_constructed_thread_graphs_are_valid(name: str) -> None:
    graph = CASES[name]().graph
    nodes = list(graph.kernel.nodes)
    for k, n in enumerate(nodes):
        if n.graph is not None and not any(inner.graph for inner in n.graph.nodes):
            nodes[k] = replace(n, graph=construct_threads(n.graph, thread_groups(n.graph)))
    validate(replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes))))
