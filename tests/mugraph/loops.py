"""Hand-written muGraphs with matmuls of concats, concatenating accumulators and loops over two axes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

from mirage.ir.axes import to_axes
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import MuGraph, Node, Ref, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.mugraph.graphs import Case, L, P, S, W, accumulate, block, kernel, mugraph, node, one, reads

MN = ("m", "n")


def awkward(tiles: dict[str, int]) -> list[dict[str, int]]:
    """Sizes 1, a prime, and one more and one less than each tile: all small, all large, and mixed."""
    near = {a: (1, max(t - 1, 1), t + 1, 17) for a, t in tiles.items()}
    rows = [dict(zip(near, row, strict=True)) for row in product(*near.values())]
    return [row for i, row in enumerate(rows) if len(set(row.values())) == 1 or i % 7 == 3]


def turned(graph: MuGraph) -> MuGraph:
    """The graph with the loops of every kernel nested the other way round."""
    nodes = [
        replace(n, graph=replace(n.graph, roles=n.graph.roles[::-1])) if n.graph is not None else n
        for n in graph.kernel.nodes
    ]
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))


def lora_program() -> Program:
    b = ProgramBuilder("lora")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n"))
    a, c = b.input("a", tensor("k", "r")), b.input("c", tensor("r", "n"))
    return b.finish([b.op("add", b.op("matmul", x, w), b.op("matmul", b.op("matmul", x, a), c))])


def lora_nodes(p: Program) -> list[Node]:
    """The loop of LoRA: node 6 accumulates (x || x a) @ (w || c)."""
    return [
        *reads(*(x.dims for x in to_axes(p).inputs)),
        node("matmul", (0, 2), ("m", "r"), reduce=("k",)),
        node("concat_matmul", (0, 4, 1, 3), MN, reduce=("k", "r")),
        accumulate(5, "k", MN),
    ]


LORA_TILES = {"m": 2, "n": 3, "k": 4}


def lora() -> Case:
    """LoRA as one kernel (Mirage, Fig. 9b): two matmuls per iteration, the second over concats that are never made."""
    program = lora_program()
    p = to_axes(program)
    body = block(lora_nodes(program), (6,), m=P, n=P, k=L, r=W)
    graph = mugraph(p, [kernel(body, tuple(map(Ref, range(4))), one(*MN))], Ref(4))
    return Case(
        program, graph, Schedule((KernelSchedule(tuple(LORA_TILES.items())),)), {"m": 3, "n": 7, "k": 5, "r": 2}
    )


def split_lora() -> Case:
    """LoRA with k split over the grid: partial results of both products."""
    program = lora_program()
    p = to_axes(program)
    part = one("k.grid", *MN)
    first = block(lora_nodes(program), (6,), m=P, n=P, k=S, r=W)
    second = block([*reads(part), node("sum", (0,), MN, reduce=("k.grid",))], (1,), m=P, n=P, k_grid=W)
    kernels = [kernel(first, tuple(map(Ref, range(4))), part), kernel(second, (Ref(4),), one(*MN))]
    tiles = tuple(LORA_TILES.items())
    schedule = Schedule((KernelSchedule(tiles, (("k", 3),)), KernelSchedule((("m", 2), ("n", 5)))))
    return Case(program, mugraph(p, kernels, Ref(5)), schedule, {"m": 3, "n": 7, "k": 11, "r": 2})


def shared_factor() -> Case:
    """x @ w + x @ u after a loop, over one axis, with a nonlinear operator before: both products read one operand."""
    b = ProgramBuilder("shared")
    x, y = b.input("x", tensor("m", "l")), b.input("y", tensor("l", "k"))
    w, u = b.input("w", tensor("k", "n")), b.input("u", tensor("n", "k"))
    h = b.op("relu", b.op("matmul", x, y))
    program = b.finish([b.op("add", b.op("matmul", h, w), b.op("matmul", h, b.op("transpose", u, perm=(1, 0))))])
    p = to_axes(program)
    nodes = [
        *reads(*(x.dims for x in p.inputs)),
        node("matmul", (0, 1), ("m", "k"), reduce=("l",)),
        accumulate(4, "l", ("m", "k")),
        node("relu", (5,), ("m", "k")),
        node("concat_matmul", (6, 6, 2, 3), MN, reduce=("k",)),
    ]
    body = block(nodes, (7,), m=P, n=P, k=W, l=L)
    graph = mugraph(p, [kernel(body, tuple(map(Ref, range(4))), one(*MN))], Ref(4))
    schedule = Schedule((KernelSchedule((("m", 2), ("n", 3), ("l", 2))),))
    return Case(program, graph, schedule, {"m": 3, "n": 7, "k": 5, "l": 3})


def softmax() -> Case:
    """Softmax over a looped axis: exponents are concatenated, their sum accumulated in the same loop."""
    b = ProgramBuilder("softmax")
    program = b.finish([b.op("softmax", b.input("x", tensor("m", "t")))])
    p = to_axes(program)
    mt = ("m", "t")
    nodes = [
        *reads(one(*mt)),
        node("exp", (0,), mt),
        node("sum", (1,), ("m",), reduce=("t",)),
        accumulate(2, "t", ("m",)),
        accumulate(1, "t", mt, "concat"),
        node("div", (4, 3), mt),
    ]
    graph = mugraph(p, [kernel(block(nodes, (5,), m=P, t=L), (Ref(0),), one(*mt))], Ref(1))
    return Case(program, graph, Schedule((KernelSchedule((("m", 2), ("t", 4))),)), {"m": 3, "t": 11})


def summed_after() -> Case:
    """Softmax whose denominator is a sum over the concatenated exponents, after the loop."""
    case = softmax()
    mt = ("m", "t")
    nodes = [
        *reads(one(*mt)),
        node("exp", (0,), mt),
        accumulate(1, "t", mt, "concat"),
        node("sum", (2,), ("m",), reduce=("t",)),
        node("div", (2, 3), mt),
    ]
    p = to_axes(case.program)
    graph = mugraph(p, [kernel(block(nodes, (4,), m=P, t=L), (Ref(0),), one(*mt))], Ref(1))
    return replace(case, graph=graph)


def shares() -> Case:
    """x^2 / sum(x^2): squares concatenated over a *split* axis, whose parts the blocks write, beside partial sums."""
    b = ProgramBuilder("shares")
    q = b.op("square", b.input("x", tensor("m", "t")))
    program = b.finish([b.op("div", q, b.op("sum", q, axes=(1,), keepdims=True))])
    graph = split_rows(program, "square")
    tiles = (("m", 2), ("t", 2))
    schedule = Schedule((KernelSchedule(tiles, (("t", 3),)), KernelSchedule(tiles)))
    return Case(program, graph, schedule, {"m": 3, "t": 11})


def shares_after() -> Case:
    """The same with the partial sums of what was concatenated, after the loop."""
    case = shares()
    return replace(case, graph=split_rows(case.program, "square", after=True))


def split_rows(program: Program, op: str, after: bool = False) -> MuGraph:
    """op(x) / sum(op(x)) in two kernels; the first splits the rows and sums their parts in the loop, or `after` it."""
    mt, part = ("m", "t"), one("t.grid", "m")
    first = [
        *reads(one(*mt)),
        node(op, (0,), mt),
        *([] if after else [node("sum", (1,), ("m",), reduce=("t",)), accumulate(2, "t", ("m",))]),
        accumulate(1, "t", mt, "concat"),
        *([node("sum", (2,), ("m",), reduce=("t",))] if after else []),
    ]
    outputs = (2, 3) if after else (4, 3)
    second = [*reads(one(*mt), part), node("sum", (1,), ("m",), reduce=("t.grid",)), node("div", (0, 2), mt)]
    kernels = [
        kernel(block(first, outputs, m=P, t=S), (Ref(0),), one(*mt), part),
        kernel(block(second, (3,), m=P, t=P, t_grid=W), (Ref(1, 0), Ref(1, 1)), one(*mt)),
    ]
    return mugraph(to_axes(program), kernels, Ref(2))


def attention_2d() -> Case:
    """Softmax-weighted sums over two looped axes: keys on a grid of t by u."""
    b = ProgramBuilder("attention_2d")
    x, y = b.input("x", tensor("m", "t", "u")), b.input("y", tensor("t", "u", "n"))
    e = b.op("softmax", b.op("reshape", x, shape=("m", "t*u")))
    program = b.finish([b.op("matmul", e, b.op("reshape", y, shape=("t*u", "n")))])
    p = to_axes(program)
    mtu = ("m", "t", "u")
    nodes = [
        *reads(*(v.dims for v in p.inputs)),
        node("exp", (0,), mtu),
        node("sum", (2,), ("m",), reduce=("t", "u")),
        accumulate(3, "t", ("m",)),
        node("matmul", (2, 1), MN, reduce=("t", "u")),
        accumulate(5, "u", MN),
        node("div", (6, 4), MN),
    ]
    body = block(nodes, (7,), m=P, t=L, u=L, n=P)
    graph = mugraph(p, [kernel(body, (Ref(0), Ref(1)), one(*MN))], Ref(2))
    schedule = Schedule((KernelSchedule((("m", 2), ("t", 2), ("u", 3), ("n", 4))),))
    return Case(program, graph, schedule, {"m": 3, "t": 5, "u": 7, "n": 6})


def split_attention_2d() -> Case:
    """The same with t looped over and u split: partial results, then a kernel that combines them."""
    case = attention_2d()
    p = to_axes(case.program)
    first = case.graph.kernels[0].graph
    assert first is not None
    first = block(list(first.nodes[:7]), (4, 6), m=P, t=L, u=S, n=W)
    low, high = one("u.grid", "m"), one("u.grid", *MN)
    second = [
        *reads(low, high),
        node("sum", (0,), ("m",), reduce=("u.grid",)),
        node("sum", (1,), MN, reduce=("u.grid",)),
        node("div", (3, 2), MN),
    ]
    kernels = [
        kernel(first, (Ref(0), Ref(1)), low, high),
        kernel(block(second, (4,), m=P, n=P, u_grid=W), (Ref(2, 0), Ref(2, 1)), one(*MN)),
    ]
    tiles = (("m", 2), ("t", 2), ("u", 3))
    schedule = Schedule((KernelSchedule(tiles, (("u", 3),)), KernelSchedule((("m", 2), ("n", 5)))))
    return replace(case, graph=mugraph(p, kernels, Ref(3)), schedule=schedule)


def gates() -> Case:
    """sigmoid(x) @ (y @ z) with both contractions looped over: the sigmoid varies with the outer loop only."""
    b = ProgramBuilder("gates")
    x, y, z = b.input("x", tensor("m", "t")), b.input("y", tensor("t", "u")), b.input("z", tensor("u", "n"))
    program = b.finish([b.op("matmul", b.op("sigmoid", x), b.op("matmul", y, z))])
    p = to_axes(program)
    nodes = [
        *reads(*(v.dims for v in p.inputs)),
        node("sigmoid", (0,), ("m", "t")),
        node("matmul", (1, 2), ("t", "n"), reduce=("u",)),
        node("matmul", (3, 4), MN, reduce=("t",)),
        accumulate(5, "t", MN),
    ]
    body = block(nodes, (6,), m=P, t=L, u=L, n=P)
    graph = mugraph(p, [kernel(body, (Ref(0), Ref(1), Ref(2)), one(*MN))], Ref(3))
    schedule = Schedule((KernelSchedule((("m", 2), ("t", 2), ("u", 3), ("n", 4))),))
    return Case(program, graph, schedule, {"m": 3, "t": 5, "u": 7, "n": 6})


def scores() -> Case:
    """softmax(x @ w) with both k and n looped over: sums over k, side by side along n."""
    b = ProgramBuilder("scores")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n"))
    program = b.finish([b.op("softmax", b.op("matmul", x, w))])
    p = to_axes(program)
    nodes = [
        *reads(*(v.dims for v in p.inputs)),
        node("matmul", (0, 1), MN, reduce=("k",)),
        accumulate(2, "n", MN, "concat"),
        node("exp", (3,), MN),
        node("sum", (4,), ("m",), reduce=("n",)),
        node("div", (4, 5), MN),
    ]
    graph = mugraph(p, [kernel(block(nodes, (6,), m=P, k=L, n=L), (Ref(0), Ref(1)), one(*MN))], Ref(2))
    schedule = Schedule((KernelSchedule((("m", 2), ("k", 3), ("n", 4))),))
    return Case(program, graph, schedule, {"m": 3, "k": 5, "n": 7})


def marginals() -> Case:
    """Marginals of a softmax over t and u: sums over t side by side along u, while the maximum of both axes grows."""
    b = ProgramBuilder("marginals")
    e = b.op("exp", b.input("x", tensor("m", "t", "u")))
    total = b.op("sum", e, axes=(1, 2))
    row = b.op("sum", e, axes=(1,))
    program = b.finish([b.op("div", row, b.op("reshape", total, shape=("m", 1)))])
    p = to_axes(program)
    mu = ("m", "u")
    nodes = [
        *reads(p.inputs[0].dims),
        node("exp", (0,), ("m", "t", "u")),
        node("sum", (1,), mu, reduce=("t",)),
        accumulate(2, "u", mu, "concat"),
        node("sum", (1,), ("m",), reduce=("t", "u")),
        accumulate(4, "t", ("m",)),
        node("div", (3, 5), mu),
    ]
    graph = mugraph(p, [kernel(block(nodes, (6,), m=P, t=L, u=L), (Ref(0),), one(*mu))], Ref(1))
    schedule = Schedule((KernelSchedule((("m", 2), ("t", 3), ("u", 4))),))
    return Case(program, graph, schedule, {"m": 3, "t": 5, "u": 7})


def weighted() -> Case:
    """exp(x) * sum(maximum(y, 1)) over its sum: exponents side by side along t, partial sums along u, added up in a loop."""
    b = ProgramBuilder("weighted")
    x, y = b.input("x", tensor("m", "t")), b.input("y", tensor("t", "u"))
    e = b.op("mul", b.op("exp", x), b.op("sum", b.op("maximum", y, value=1), axes=(1,)))
    program = b.finish([b.op("div", e, b.op("sum", e, axes=(1,), keepdims=True))])
    p = to_axes(program)
    mt = ("m", "t")
    first = [
        *reads(*(v.dims for v in p.inputs)),
        node("exp", (0,), mt),
        node("maximum", (1,), ("t", "u"), attrs=(("value", Fraction(1)),)),
        node("sum", (3,), ("t",), reduce=("u",)),
        node("mul", (2, 4), mt),
        node("sum", (5,), ("m",), reduce=("t",)),
        accumulate(5, "t", mt, "concat"),
        accumulate(6, "t", ("m",)),
    ]
    low, high = one("u.grid", "m"), one("u.grid", *mt)
    second = [
        *reads(low, high),
        node("sum", (0,), ("m",), reduce=("u.grid",)),
        accumulate(2, "u.grid", ("m",)),
        node("sum", (1,), mt, reduce=("u.grid",)),
        accumulate(4, "u.grid", mt),
        node("div", (5, 3), mt),
    ]
    kernels = [
        kernel(block(first, (8, 7), m=P, t=L, u=S), (Ref(0), Ref(1)), low, high),
        kernel(block(second, (6,), m=P, t=P, u_grid=L), (Ref(2, 0), Ref(2, 1)), one(*mt)),
    ]
    tiles = (("m", 2), ("t", 4), ("u", 2))
    schedule = Schedule((KernelSchedule(tiles, (("u", 3),)), KernelSchedule((("m", 2), ("t", 5), ("u.grid", 2)))))
    return Case(program, mugraph(p, kernels, Ref(3)), schedule, {"m": 3, "t": 7, "u": 11})


def cases() -> dict[str, Case]:
    """By name; graphs with two loops also nested the other way round."""
    found: dict[str, Case] = {}
    for make in (
        lora, split_lora, shared_factor, softmax, summed_after, shares, shares_after,
        attention_2d, split_attention_2d, gates, scores, marginals, weighted,
    ):  # fmt: skip
        case = make()
        found[make.__name__] = case
        if any(len(n.graph.loop) > 1 for n in case.graph.kernels if n.graph):
            found[f"{make.__name__}_turned"] = replace(case, graph=turned(case.graph))
    return found


CASES = cases()
#: exponents with running maxima
SOFTMAXES = [
    n for n, c in CASES.items() if any(m.op == "exp" for k in c.graph.kernels if k.graph for m in k.graph.nodes)
]


def roles(graph: MuGraph, number: int, /, **changed: Role) -> MuGraph:
    """The graph with other roles in its kernel of this number."""
    at = [i for i, n in enumerate(graph.kernel.nodes) if n.graph is not None][number]
    n = graph.kernel.nodes[at]
    assert n.graph is not None
    new = replace(n, graph=replace(n.graph, roles=tuple({**n.graph.role, **changed}.items())))
    nodes = (*graph.kernel.nodes[:at], new, *graph.kernel.nodes[at + 1 :])
    return replace(graph, kernel=replace(graph.kernel, nodes=nodes))
