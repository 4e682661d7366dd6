"""Hand-written muGraphs that tests share, each with the program that it implements and a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mirage.ir.axes import AxisDims, AxisProgram, to_axes
from mirage.ir.operator import Level
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule

P, W, L, S = Role.PARALLEL, Role.WHOLE, Role.LOOP, Role.SPLIT


@dataclass(frozen=True)
class Case:
    """A program, a muGraph for it, a schedule that leaves tails, and sizes that make the schedule uneven."""

    program: Program
    graph: MuGraph
    schedule: Schedule
    sizes: dict[str, int]


def one(*axes: str) -> AxisDims:
    """Dims of one axis each."""
    return tuple((a,) for a in axes)


def node(op: str, operands: tuple[int, ...], axes: tuple[str, ...], **more: Any) -> Node:
    return Node(op, tuple(Ref(i) for i in operands), (one(*axes),), **more)


def reads(*dims: AxisDims) -> list[Node]:
    """Input nodes for operands of these dims."""
    return [Node("input", (), (d,), (("index", k),)) for k, d in enumerate(dims)]


def accumulate(operand: int, axis: str, axes: tuple[str, ...], mode: str = "sum") -> Node:
    return node("accumulator", (operand,), axes, attrs=(("mode", mode), ("axis", axis)))


def block(nodes: list[Node], outputs: tuple[int, ...], **roles: Role) -> Graph:
    """A block graph; `t_grid=W` gives a role to the partial axis t.grid."""
    named = tuple((a.replace("_grid", ".grid"), r) for a, r in roles.items())
    return Graph(Level.BLOCK, tuple(nodes), tuple(Ref(i) for i in outputs), named)


def kernel(graph: Graph, operands: tuple[Ref, ...], *dims: AxisDims) -> Node:
    return Node("graph", operands, dims, graph=graph)


def mugraph(p: AxisProgram, kernels: list[Node], *outputs: Ref, name: str | None = None) -> MuGraph:
    """A muGraph whose first kernel-level nodes are the program's inputs."""
    nodes = (*reads(*(x.dims for x in p.inputs)), *kernels)
    return MuGraph(name or p.name, p.axes, p.inputs, Graph(Level.KERNEL, nodes, outputs), p.outputs, p.dtype)


def attention_program() -> Program:
    """Group-query attention (Mirage, Fig. 4a): 8 query heads share one key and value head."""
    b = ProgramBuilder("attention")
    q = b.input("q", tensor("b", "8*h", "s", 64))
    k = b.input("k", tensor("b", "h", "t", 64))
    v = b.input("v", tensor("b", "h", "t", 64))
    keys = b.op("transpose", b.op("repeat", k, axis=1, times=8), perm=(0, 1, 3, 2))
    scores = b.op("mul", b.op("matmul", q, keys), b.op("constant", value=Fraction(1, 8)))
    values = b.op("repeat", v, axis=1, times=8)
    return b.finish([b.op("matmul", b.op("softmax", scores), values)])


ROWS = ("b", "h", "d8", "s")
OUT = (*ROWS, "d64_2")
ATTENTION_SIZES = {"b": 2, "h": 2, "s": 3, "t": 5}


def _attention_loop(p: AxisProgram) -> list[Node]:
    """In one loop over keys: the sum of exponents (node 8) and the unnormalized result (node 10)."""
    return [
        *reads(*(x.dims for x in p.inputs)),
        node("matmul", (0, 1), (*ROWS, "t"), reduce=("d64",)),
        node("constant", (), (), attrs=(("value", Fraction(1, 8)),)),
        node("mul", (3, 4), (*ROWS, "t")),
        node("exp", (5,), (*ROWS, "t")),
        node("sum", (6,), ROWS, reduce=("t",)),
        accumulate(7, "t", ROWS),
        node("matmul", (6, 2), OUT, reduce=("t",)),
        accumulate(9, "t", OUT),
    ]


def flash_attention() -> Case:
    """FlashAttention: one kernel that loops over keys."""
    program = attention_program()
    p = to_axes(program)
    nodes = [*_attention_loop(p), node("div", (10, 8), OUT)]
    body = block(nodes, (11,), b=P, h=P, d8=W, s=P, d64=W, t=L, d64_2=W)
    graph = mugraph(
        p, [kernel(body, (Ref(0), Ref(1), Ref(2)), p.outputs[0].dims)], Ref(3), name="flash_attention"
    )
    tiles = (("b", 1), ("h", 1), ("s", 2), ("t", 2))
    return Case(program, graph, Schedule((KernelSchedule(tiles),)), ATTENTION_SIZES)


def flash_decoding() -> Case:
    """FlashDecoding (Mirage, Fig. 4b): keys split over the grid, a second kernel combines the results."""
    program = attention_program()
    p = to_axes(program)
    first = block(_attention_loop(p), (8, 10), b=P, h=P, d8=W, s=P, d64=W, t=S, d64_2=W)
    sums, values = one("t.grid", *ROWS), one("t.grid", *OUT)
    second = block(
        [
            *reads(sums, values),
            node("sum", (0,), ROWS, reduce=("t.grid",)),
            node("sum", (1,), OUT, reduce=("t.grid",)),
            node("div", (3, 2), OUT),
        ],
        (4,),
        b=P, h=P, d8=P, s=P, t_grid=W, d64_2=P,
    )  # fmt: skip
    kernels = [
        kernel(first, (Ref(0), Ref(1), Ref(2)), sums, values),
        kernel(second, (Ref(3, 0), Ref(3, 1)), p.outputs[0].dims),
    ]
    schedule = Schedule(
        (
            KernelSchedule((("b", 1), ("h", 1), ("s", 2), ("t", 1)), (("t", 4),)),
            KernelSchedule((("b", 1), ("h", 1), ("d8", 3), ("s", 2), ("d64_2", 50))),
        )
    )
    return Case(program, mugraph(p, kernels, Ref(4), name="flash_decoding"), schedule, ATTENTION_SIZES)


def gated_program() -> Program:
    b = ProgramBuilder("gated")
    x = b.input("x", tensor("m", "k"))
    w, u = b.input("w", tensor("k", "n")), b.input("u", tensor("k", "n"))
    return b.finish([b.op("mul", b.op("silu", b.op("matmul", x, w)), b.op("matmul", x, u))])


def gated() -> Case:
    """Two matmuls in one loop and, after it, a thread graph that fuses the elementwise operators."""
    program = gated_program()
    p = to_axes(program)
    mn = ("m", "n")
    thread = Graph(
        Level.THREAD,
        (*reads(one(*mn), one(*mn)), node("silu", (0,), mn), node("mul", (2, 1), mn)),
        (Ref(3),),
        (("m", P), ("n", P)),
    )
    nodes = [
        *reads(*(x.dims for x in p.inputs)),
        node("matmul", (0, 1), mn, reduce=("k",)),
        accumulate(3, "k", mn),
        node("matmul", (0, 2), mn, reduce=("k",)),
        accumulate(5, "k", mn),
        Node("graph", (Ref(4), Ref(6)), (one(*mn),), graph=thread),
    ]
    body = block(nodes, (7,), m=P, n=P, k=L)
    graph = mugraph(p, [kernel(body, (Ref(0), Ref(1), Ref(2)), one(*mn))], Ref(3))
    return Case(
        program,
        graph,
        Schedule((KernelSchedule((("m", 2), ("n", 3), ("k", 2)), (), 2),)),
        {"m": 3, "n": 7, "k": 5},
    )


def joined_program() -> Program:
    b = ProgramBuilder("joined")
    x, y = b.input("x", tensor("m", "n")), b.input("y", tensor("m", "k"))
    both = b.op("concat", x, b.op("exp", y), axis=1)
    return b.finish([b.op("div", both, b.op("sum", both, axes=(1,), keepdims=True))])


def joined() -> Case:
    """A concat accumulator (exponents of `y`, tile by tile), a concat, and sums of rows after the loop."""
    program = joined_program()
    p = to_axes(program)
    x, y = (v.dims for v in p.inputs)
    n, k = x[1][0], y[1][0]
    j = p.outputs[0].dims[1][0]
    nodes = [
        *reads(x, y),
        node("exp", (1,), ("m", k)),
        accumulate(2, k, ("m", k), "concat"),
        node("concat", (0, 3), ("m", j), joined=(j, (n, k))),
        node("sum", (4,), ("m",), reduce=(j,)),
        node("div", (4, 5), ("m", j)),
    ]
    body = block(nodes, (6,), **{"m": P, n: W, k: L, j: W})
    graph = mugraph(p, [kernel(body, (Ref(0), Ref(1)), p.outputs[0].dims)], Ref(2))
    return Case(program, graph, Schedule((KernelSchedule((("m", 2), (k, 2))),)), {"m": 3, "n": 4, "k": 5})


def as_library(p: AxisProgram) -> MuGraph:
    """The muGraph of predefined kernel operators, one per value of the program: what a framework runs."""
    nodes: list[Node] = []
    index = 0
    for n in p.nodes:
        if n.op == "input":
            nodes.append(Node("input", (), (p.inputs[index].dims,), (("index", index),)))
            index += 1
        else:
            operands = tuple(Ref(j) for j in n.operands)
            nodes.append(Node(n.op, operands, (one(*n.axes),), n.attrs, n.reduce, n.joined))
    outputs = tuple(Ref(o.value) for o in p.outputs)
    return MuGraph(
        "library", p.axes, p.inputs, Graph(Level.KERNEL, tuple(nodes), outputs), p.outputs, p.dtype
    )


def library() -> Case:
    """Predefined kernel operators only."""
    program = gated_program()
    return Case(program, as_library(to_axes(program)), Schedule(()), {"m": 3, "n": 7, "k": 5})


def pooled() -> Case:
    """The largest of 3 columns each of relu(x @ w), in a kernel that loops over the rows of w."""
    b = ProgramBuilder("pooled")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "3*n"))
    y = b.op("relu", b.op("matmul", x, w))
    program = b.finish([b.op("max", b.op("reshape", y, shape=("m", "n", 3)), axes=(2,))])
    p = to_axes(program)
    nodes = [
        *reads(*(i.dims for i in p.inputs)),
        node("matmul", (0, 1), ("m", "n", "d3"), reduce=("k",)),
        accumulate(2, "k", ("m", "n", "d3")),
        node("relu", (3,), ("m", "n", "d3")),
        node("max", (4,), ("m", "n"), reduce=("d3",)),
    ]
    body = block(nodes, (5,), m=P, k=L, n=P, d3=W)
    graph = mugraph(p, [kernel(body, (Ref(0), Ref(1)), p.outputs[0].dims)], Ref(2))
    schedule = Schedule((KernelSchedule((("m", 2), ("k", 4), ("n", 3))),))
    return Case(program, graph, schedule, {"m": 5, "k": 7, "n": 11})


CASES = {f.__name__: f for f in (flash_attention, flash_decoding, gated, joined, library, pooled)}
