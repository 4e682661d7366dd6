"""Joined axes that are unified, and partial results without axes."""

from __future__ import annotations

from fractions import Fraction

from mirage.ir.axes import to_axes
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import Ref
from mirage.mugraph.reference import reference_graph
from mirage.verify.equivalence import verify_graph, verify_programs
from tests.verify.graphs import S, W, block, kernel, mugraph, node, one, read, sum_over


def low_rank(joined: bool, swapped: bool = False) -> Program:
    """x w + (x a) b, or (x | x a) times (w over b), where two joined axes are one (paper, section 7.2)."""
    b = ProgramBuilder("low_rank")
    x = b.input("x", tensor("m", 64))
    w = b.input("w", tensor(64, "n"))
    low, up = b.input("a", tensor(64, 16)), b.input("b", tensor(16, "n"))
    xa = b.op("matmul", x, low)
    if joined:
        left, right = ((xa, x), (w, up)) if swapped else ((x, xa), (w, up))
        return b.finish([b.op("matmul", b.op("concat", *left, axis=1), b.op("concat", *right, axis=0))])
    return b.finish([b.op("add", b.op("matmul", x, w), b.op("matmul", xa, up))])


def test_joined_axes_that_are_one_have_one_size() -> None:
    program = low_rank(joined=True)
    c = verify_graph(program, reference_graph(to_axes(program)))
    assert c.equal
    assert verify_programs(low_rank(joined=False), program).equal
    assert not verify_programs(program, low_rank(joined=True, swapped=True)).equal


def test_partial_results_without_axes() -> None:
    """The sum of a matrix, split over its columns: each block leaves one number."""
    b = ProgramBuilder("total")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("div", b.op("sum", x, axes=(0, 1)), b.op("constant", value=3))])
    part = one("n.grid")
    nodes = [read(0, one("m", "n")), node("sum", (0,), (), reduce=("m", "n")), sum_over("n", 1, ())]
    kernels = [
        kernel(block(nodes, (2,), {"m": W, "n": S}), (Ref(0),), part),
        node("sum", (1,), (), reduce=("n.grid",)),
        node("constant", (), (), attrs=(("value", Fraction(3)),)),
        node("div", (2, 3), ()),
    ]
    graph = mugraph(to_axes(p), kernels, Ref(4))
    assert verify_graph(p, graph).equal
