"""Matmuls of concats in C: two products summed into one result, whatever axes their operands have."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage.ir.axes import to_axes
from mirage.ir.operator import Level
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.emit.layout import BlockAxes
from mirage.kernels.cpu.emit.matmul import Product, plan_products
from mirage.kernels.cpu.emit.mugraph import emit
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, Node, Ref, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.mugraph.thread import construct_threads, thread_groups
from mirage.mugraph.validate import validate
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.kernels.cpu.check import check
from tests.kernels.kernels import tiles
from tests.mugraph.graphs import Case, L, P, W, accumulate, block, kernel, mugraph, node, one, reads
from tests.mugraph.loops import CASES
from tests.sampled import crossed

#: axes of w, x, y, z; the result has those that are not summed (k, l first, r second)
SHAPES = {
    "matrices": ("mk", "mr", "kn", "rn"),
    "transposed": ("km", "mr", "nk", "nr"),
    "batches": ("bmk", "mr", "bkn", "brn"),
    "a vector": ("mk", "rm", "k", "r"),
    "numbers": ("k", "r", "k", "r"),
    "rows in both operands": ("mnk", "nmr", "mnk", "mr"),
    "no column in common": ("acdk", "abcr", "bcdk", "abdr"),
    "two summed axes": ("mkl", "rm", "nlk", "nr"),
}


def case(name: str, role: Role = W) -> Case:
    """sum(w * y) + sum(x * z) as one kernel; the axes of the result have this role, others are whole."""
    shapes = SHAPES[name]
    axes = sorted({a for s in shapes for a in s})
    summed = [a for a in axes if a in "klr"]
    out = tuple(a for a in axes if a not in summed)
    b = ProgramBuilder("products")
    inputs = [b.input(v, tensor(*(axes_of(s, axes)))) for v, s in zip("wxyz", shapes, strict=True)]
    where = tuple(axes.index(a) for a in summed)
    sums = [b.op("sum", b.op("mul", inputs[i], inputs[i + 2]), axes=where) for i in (0, 1)]
    program = b.finish([b.op("add", *sums)])
    p = to_axes(program)
    nodes = [
        *reads(*(x.dims for x in p.inputs)),
        node("concat_matmul", (0, 1, 2, 3), out, reduce=tuple(summed)),
    ]
    body = block(nodes, (4,), **{a: role if a in out else W for a in axes})
    graph = mugraph(p, [kernel(body, tuple(map(Ref, range(4))), p.outputs[0].dims)], Ref(4))
    validate(graph)
    return Case(program, graph, tiles(graph, 5), {})


def axes_of(shape: str, axes: list[str]) -> list[str | int]:
    return [a if a in shape else 1 for a in axes]


@pytest.mark.parametrize(("name", "size"), crossed(SHAPES, [1, 7, 17]))
def test_products_of_any_axes(name: str, size: int) -> None:
    c = case(name)
    check(c.program, c.graph, c.schedule, {a: size + (a in "mkr") for a in "abcdmnklr"})


def test_a_looped_axis_that_both_products_sum() -> None:
    b = ProgramBuilder("both")
    x = b.input("x", tensor("m", "k"))
    products = [b.op("matmul", x, b.input(v, tensor("k", "n"))) for v in "yz"]
    program = b.finish([b.op("add", *products)])
    p = to_axes(program)
    nodes = [
        *reads(*(v.dims for v in p.inputs)),
        node("concat_matmul", (0, 0, 1, 2), ("m", "n"), reduce=("k",)),
        accumulate(3, "k", ("m", "n")),
    ]
    graph = mugraph(p, [kernel(block(nodes, (4,), m=P, n=P, k=L), (Ref(0), Ref(1), Ref(2)), one("m", "n"))], Ref(3))
    validate(graph)
    for size in (1, 4, 6, 13):
        check(program, graph, tiles(graph, 5), {"m": size, "n": 7, "k": size})


def test_the_second_product_is_added_to_the_first_in_place() -> None:
    c = CASES["lora"]
    text = emit(c.graph, c.schedule, analyze(c.graph), {"m": 64, "n": 256, "k": 256, "r": 16})
    title = text.index("/* v5[m, n] = concat_matmul(")
    calls = [line.strip() for line in text[title:].splitlines() if "mi_gemm" in line]
    assert len(calls) == 2 and all(line.endswith("1);") for line in calls), calls
    # x a is the only result that is stored: neither a concat nor a product has memory of its own
    assert re.findall(r"count \+= .* /\* (m\d+) \*/", text) == ["m4"]
    # without a loop the first product starts the result
    whole = case("matrices", P)
    text = emit(whole.graph, whole.schedule, analyze(whole.graph), {})
    calls = [line.strip() for line in text.splitlines() if "mi_gemm" in line]
    assert [line[-4:] for line in calls] == [" 0);", " 1);"]


def test_an_operand_that_does_not_change_with_the_loop_is_packed_before_it() -> None:
    c = CASES["lora"]
    text = emit(c.graph, c.schedule, analyze(c.graph), {"m": 64, "n": 1024, "k": 4096, "r": 16})
    assert text.count("made contiguous") == 1
    assert text.index("/* v3 made contiguous along r */") < text.index("/* the for-loop */")


def test_an_operand_of_both_products_is_packed_once() -> None:
    c = CASES["shared_factor"]
    text = emit(c.graph, c.schedule, analyze(c.graph), {"m": 64, "n": 256, "k": 256, "l": 64})
    comments = [line.strip() for line in text.splitlines() if "made contiguous" in line]
    assert len(set(comments)) == len(comments)


def plans(*shapes: str, out: str) -> list[tuple[str | None, tuple[str, ...]]]:
    """Column axis and loops of each product, its operands contiguous along their last axes; all axes have size 64."""
    names = {a: a for s in shapes for a in s}
    graph = block([], (), **dict.fromkeys(names, W))
    axes = BlockAxes(graph, KernelSchedule(), {}, dict.fromkeys(names, 64), names)
    products = [
        Product((x, y), (x[-1], y[-1]), tuple(a for a in x if a in y and a not in out))
        for x, y in zip(shapes[::2], shapes[1::2], strict=True)
    ]
    return [(p.n, p.loops) for p in plan_products(axes, tuple(out), products, False, None, 16)]


def test_products_of_one_result_share_the_column_axis() -> None:
    assert [n for n, _ in plans("mk", "kn", "mr", "rn", out="mn")] == ["n", "n"]
    # the second alone would take m
    assert [n for n, _ in plans("mk", "kn", "rm", "nr", out="mn")] in (["n", "n"], ["m", "m"])
    # where one product has no such column, the column is a loop of it
    found = plans("acdk", "bcdk", "abcr", "abdr", out="abcd")
    assert sum(n is None for n, _ in found) == 1
    (column,) = [n for n, _ in found if n is not None]
    assert any(column in loops for n, loops in found if n is None)


def test_schedules_of_lora() -> None:
    c = CASES["lora"]
    hints = {"m": 16, "n": 300, "k": 500, "r": 16}
    found = schedules(c.graph, hints, 1 << 20, 2)
    assert len(found) > 1
    for s in found[:2]:
        check(c.program, c.graph, s, {"m": 5, "n": 33, "k": 70, "r": 3})


def test_in_a_thread_graph() -> None:
    c = CASES["lora"]
    (n,) = c.graph.kernels
    assert n.graph is not None
    nodes = list(n.graph.nodes)
    reading = reads(*(nodes[i].dims[0] for i in (0, 4, 1, 3)))
    matmul = replace(nodes[5], operands=tuple(map(Ref, range(4))))
    thread = Graph(Level.THREAD, (*reading, matmul), (Ref(4),), (("m", P), ("n", P), ("k", W), ("r", W)))
    nodes[5] = Node("graph", nodes[5].operands, nodes[5].dims, graph=thread)
    p = to_axes(c.program)
    body = replace(n.graph, nodes=tuple(nodes))
    graph = mugraph(p, [kernel(body, tuple(map(Ref, range(4))), one("m", "n"))], Ref(4))
    validate(graph)
    assert prove(p, graph) == "proved" and Verifier(c.program).check(graph).equal
    check(c.program, graph, c.schedule, c.sizes)


def test_in_a_block_graph_with_thread_graphs() -> None:
    c = CASES["shared_factor"]
    (n,) = c.graph.kernels
    assert n.graph is not None
    threaded = construct_threads(n.graph, thread_groups(n.graph))
    assert [m.op for m in threaded.nodes].count("graph") == 1
    p = to_axes(c.program)
    graph = mugraph(p, [kernel(threaded, tuple(map(Ref, range(4))), one("m", "n"))], Ref(4))
    check(c.program, graph, Schedule((KernelSchedule((("m", 2), ("n", 3), ("l", 2))),)), c.sizes)
