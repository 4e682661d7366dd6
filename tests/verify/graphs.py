"""Programs and hand-written muGraphs that the tests of degrees and of the verifier share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mirage.ir.axes import AxisDims, AxisProgram, to_axes
from mirage.ir.operator import Level
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from tests.mugraph.graphs import L as L
from tests.mugraph.graphs import P as P
from tests.mugraph.graphs import S as S
from tests.mugraph.graphs import W as W
from tests.mugraph.graphs import kernel as kernel
from tests.mugraph.graphs import node as node
from tests.mugraph.graphs import one as one


def sum_over(axis: str, operand: int, axes: tuple[str, ...]) -> Node:
    """A sum accumulator."""
    return node("accumulator", (operand,), axes, attrs=(("mode", "sum"), ("axis", axis)))


def read(index: int, dims: AxisDims) -> Node:
    return Node("input", (), (dims,), (("index", index),))


def block(nodes: list[Node], outputs: tuple[int, ...], roles: dict[str, Role]) -> Graph:
    return Graph(Level.BLOCK, tuple(nodes), tuple(Ref(i) for i in outputs), tuple(roles.items()))


def mugraph(ap: AxisProgram, kernels: list[Node], output: Ref, name: str = "") -> MuGraph:
    """A kernel graph of the inputs followed by `kernels`."""
    ins = [read(i, x.dims) for i, x in enumerate(ap.inputs)]
    kernel = Graph(Level.KERNEL, tuple(ins + kernels), (output,))
    return MuGraph(name or ap.name, ap.axes, ap.inputs, kernel, ap.outputs, ap.dtype)


def attention() -> Program:
    """softmax(q k / sqrt(d)) v for one group of heads, k given transposed."""
    b = ProgramBuilder("attention")
    q = b.input("q", tensor("h", "s", 64))
    k = b.input("k", tensor("h", 64, "t"))
    v = b.input("v", tensor("h", "t", 64))
    s = b.op("mul", b.op("matmul", q, k), b.op("constant", value=Fraction(1, 8)))
    return b.finish([b.op("matmul", b.op("softmax", s), v)])


ROW = ("h", "s")
HEAD = {"h": P, "s": P, "d64": W, "d64_2": W}


def attention_nodes(ap: AxisProgram) -> list[Node]:
    """The loop of attention: node 8 accumulates the denominator, node 10 the numerator."""
    return [
        *(read(i, x.dims) for i, x in enumerate(ap.inputs)),
        node("matmul", (0, 1), (*ROW, "t"), reduce=("d64",)),
        node("constant", (), (), attrs=(("value", Fraction(1, 8)),)),
        node("mul", (3, 4), (*ROW, "t")),
        node("exp", (5,), (*ROW, "t")),
        node("sum", (6,), ROW, reduce=("t",)),
        sum_over("t", 7, ROW),
        node("matmul", (6, 2), (*ROW, "d64_2"), reduce=("t",)),
        sum_over("t", 9, (*ROW, "d64_2")),
    ]


def flash() -> MuGraph:
    """Attention as one kernel with a loop over keys."""
    ap = to_axes(attention())
    nodes = [*attention_nodes(ap), node("div", (10, 8), (*ROW, "d64_2"))]
    g = block(nodes, (11,), {**HEAD, "t": L})
    kernels = [kernel(g, (Ref(0), Ref(1), Ref(2)), ap.outputs[0].dims)]
    return mugraph(ap, kernels, Ref(3), "flash")


def flash_decoding() -> MuGraph:
    """Attention as two kernels: keys split over blocks, then the partial results combined."""
    ap = to_axes(attention())
    low, high = one("t.grid", *ROW), one("t.grid", *ROW, "d64_2")
    first = block(attention_nodes(ap), (8, 10), {**HEAD, "t": S})
    second = block(
        [
            read(0, low),
            read(1, high),
            node("sum", (0,), ROW, reduce=("t.grid",)),
            node("sum", (1,), (*ROW, "d64_2"), reduce=("t.grid",)),
            node("div", (3, 2), (*ROW, "d64_2")),
        ],
        (4,),
        {"h": P, "s": P, "t.grid": W, "d64_2": P},
    )
    kernels = [
        kernel(first, (Ref(0), Ref(1), Ref(2)), low, high),
        kernel(second, (Ref(3, 0), Ref(3, 1)), ap.outputs[0].dims),
    ]
    return mugraph(ap, kernels, Ref(4), "flash_decoding")


def gated_mlp() -> Program:
    """silu(x w1) * (x w2)."""
    b = ProgramBuilder("gated_mlp")
    x = b.input("x", tensor("m", 128))
    w1 = b.input("w1", tensor(128, "n"))
    w2 = b.input("w2", tensor(128, "n"))
    return b.finish([b.op("mul", b.op("silu", b.op("matmul", x, w1)), b.op("matmul", x, w2))])


def fused_mlp() -> MuGraph:
    """The gated MLP as one kernel with a loop over the contracted axis."""
    ap = to_axes(gated_mlp())
    mn = ("m", "n")
    nodes = [
        *(read(i, x.dims) for i, x in enumerate(ap.inputs)),
        node("matmul", (0, 1), mn, reduce=("d128",)),
        node("matmul", (0, 2), mn, reduce=("d128",)),
        sum_over("d128", 3, mn),
        sum_over("d128", 4, mn),
        node("silu", (5,), mn),
        node("mul", (7, 6), mn),
    ]
    g = block(nodes, (8,), {"m": P, "d128": L, "n": P})
    return mugraph(ap, [kernel(g, (Ref(0), Ref(1), Ref(2)), one(*mn))], Ref(3), "fused_mlp")


def norm_linear() -> Program:
    """rms_norm(x, g) w."""
    b = ProgramBuilder("norm_linear")
    x = b.input("x", tensor("m", 256))
    g = b.input("g", tensor(256))
    w = b.input("w", tensor(256, "n"))
    return b.finish([b.op("matmul", b.op("rms_norm", x, g), w)])


def fused_norm_linear() -> MuGraph:
    """RMSNorm and linear as one kernel: the norm is applied after the matmul (paper, Fig. 9b)."""
    program = norm_linear()
    ap = to_axes(program)
    size = next(n.attrs for n in ap.nodes if n.op == "size")
    eps = next(n.attrs for n in ap.nodes if n.op == "constant")
    mn = ("m", "n")
    nodes = [
        *(read(i, x.dims) for i, x in enumerate(ap.inputs)),
        node("mul", (0, 1), ("m", "d256")),
        node("matmul", (3, 2), mn, reduce=("d256",)),
        sum_over("d256", 4, mn),
        node("square", (0,), ("m", "d256")),
        node("sum", (6,), ("m",), reduce=("d256",)),
        sum_over("d256", 7, ("m",)),
        node("size", (), (), attrs=size),
        node("div", (8, 9), ("m",)),
        node("constant", (), (), attrs=eps),
        node("add", (10, 11), ("m",)),
        node("sqrt", (12,), ("m",)),
        node("div", (5, 13), mn),
    ]
    g = block(nodes, (14,), {"m": P, "d256": L, "n": P})
    return mugraph(ap, [kernel(g, (Ref(0), Ref(1), Ref(2)), one(*mn))], Ref(3), "fused_norm_linear")


def adapter() -> Program:
    """x + relu(x w1) w2."""
    b = ProgramBuilder("adapter")
    x = b.input("x", tensor("b", 96))
    w1 = b.input("w1", tensor(96, 16))
    w2 = b.input("w2", tensor(16, 96))
    return b.finish([b.op("add", b.op("matmul", b.op("relu", b.op("matmul", x, w1)), w2), x)])


def split_adapter() -> MuGraph:
    """The adapter with a split contraction: partial sums, then the rest in a second kernel."""
    ap = to_axes(adapter())
    part = one("d96.grid", "b", "d16")
    first = block(
        [
            read(0, one("b", "d96")),
            read(1, one("d96", "d16")),
            node("matmul", (0, 1), ("b", "d16"), reduce=("d96",)),
            sum_over("d96", 2, ("b", "d16")),
        ],
        (3,),
        {"b": P, "d96": S, "d16": W},
    )
    second = block(
        [
            read(0, part),
            read(1, one("d16", "d96")),
            read(2, one("b", "d96")),
            node("sum", (0,), ("b", "d16"), reduce=("d96.grid",)),
            node("relu", (3,), ("b", "d16")),
            node("matmul", (4, 1), ("b", "d96"), reduce=("d16",)),
            node("add", (5, 2), ("b", "d96")),
        ],
        (6,),
        {"b": P, "d96.grid": W, "d16": W, "d96": P},
    )
    kernels = [
        kernel(first, (Ref(0), Ref(1)), part),
        kernel(second, (Ref(3), Ref(2), Ref(0)), one("b", "d96")),
    ]
    return mugraph(ap, kernels, Ref(4), "split_adapter")


#: each program with muGraphs that compute it
PAIRS: list[tuple[Callable[[], Program], Callable[[], MuGraph]]] = [
    (attention, flash),
    (attention, flash_decoding),
    (gated_mlp, fused_mlp),
    (norm_linear, fused_norm_linear),
    (adapter, split_adapter),
]


def replace_node(graph: MuGraph, path: tuple[int, int], **changes: Any) -> MuGraph:
    """The muGraph with a node of a block graph changed."""
    outer = graph.kernel.nodes[path[0]]
    assert outer.graph is not None
    inner = list(outer.graph.nodes)
    inner[path[1]] = replace(inner[path[1]], **changes)
    nodes = list(graph.kernel.nodes)
    nodes[path[0]] = replace(outer, graph=replace(outer.graph, nodes=tuple(inner)))
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))


def replace_roles(graph: MuGraph, kernel: int, **roles: Role) -> MuGraph:
    """The muGraph with other roles in a block graph."""
    outer = graph.kernel.nodes[kernel]
    assert outer.graph is not None
    new = {**outer.graph.role, **roles}
    nodes = list(graph.kernel.nodes)
    nodes[kernel] = replace(outer, graph=replace(outer.graph, roles=tuple(new.items())))
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))
