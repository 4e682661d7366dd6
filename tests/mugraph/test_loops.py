"""Matmuls of concats, concatenating accumulators and loops over two axes: rules, meaning, text and drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import GraphError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import to_axes
from mirage.ir.codec import decode, encode
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.degree import analyze
from mirage.mugraph.draw import to_svg
from mirage.mugraph.graph import MuGraph, Node, Ref
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.mugraph.text import operator_text, print_mugraph
from mirage.mugraph.validate import validate
from tests.mugraph.graphs import Case, L, P, W, accumulate, block, kernel, mugraph, node, one, reads
from tests.mugraph.loops import CASES, MN, lora_nodes, lora_program, roles, split_rows


def error(case: Case, schedule: Schedule, sizes: dict[str, int]) -> float:
    """Largest difference between the muGraph and its program, both in float64."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.bind(sizes)) for t in case.program.input_types]
    wanted = run_reference(case.program, inputs, sizes, "float64")
    found = run_mugraph(case.graph, schedule, inputs, FloatArithmetic(sizes))
    return max(float(np.abs(w - f).max(initial=0)) for w, f in zip(wanted, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str) -> None:
    case = CASES[name]
    validate(case.graph)
    assert error(case, case.schedule, case.sizes) < 1e-13


@pytest.mark.parametrize("name", CASES)
@given(st.data())
def test_any_sizes_tiles_and_splits(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    sizes = {a: data.draw(st.integers(1, 5), label=a) for a in case.sizes}
    kernels = []
    for k in case.schedule.kernels:
        tiles = tuple((a, data.draw(st.integers(1, 6), label=f"tile {a}")) for a, _ in k.tiles)
        kernels.append(KernelSchedule(tiles, tuple((a, data.draw(st.integers(1, 4))) for a, _ in k.splits)))
    assert error(case, Schedule(tuple(kernels)), sizes) < 1e-13


@pytest.mark.parametrize("name", ["lora", "shares", "marginals", "split_attention_2d"])
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"mugraph_{name}.txt", print_mugraph(CASES[name].graph))


@pytest.mark.parametrize("name", CASES)
def test_json_and_drawing(name: str) -> None:
    graph = CASES[name].graph
    assert decode(MuGraph, encode(graph), "muGraph") == graph
    assert to_svg(graph).startswith("<svg")


def test_maps_of_accumulators_and_outputs() -> None:
    (first, _) = (n.graph for n in CASES["shares"].graph.kernels)
    assert first is not None
    # concatenated over t by the loop, and by the blocks; partial sums by blocks
    assert first.fmap(4) == {"t": 1} and first.fmap(3) == {"t": None}
    assert first.omap(0, one("m", "t")) == {"m": 0, "t": 1} and first.omap(1, one("t.grid", "m")) == {"m": 1, "t": 0}
    (both,) = (n.graph for n in CASES["marginals"].graph.kernels)
    assert both is not None
    assert both.fmap(3) == {"t": None, "u": 1} and both.summed_loops(3) == ("t",)
    assert both.fmap(5) == {"t": None, "u": None} and both.summed_loops(5) == ("t", "u")
    assert operator_text(both.nodes[3], both.loop) == "accumulate along u"
    assert operator_text(both.nodes[5], both.loop) == "accumulate over t, u"


def test_depth_is_the_loop_in_which_a_value_is_computed() -> None:
    inner, outer = (CASES[n].graph.kernels[0].graph for n in ("gates", "gates_turned"))
    assert inner is not None and outer is not None
    assert inner.loop == ("t", "u") and inner.depth == (1, 2, 2, 1, 2, 2, 0)
    assert outer.loop == ("u", "t") and outer.depth == (2, 2, 1, 2, 2, 2, 0)


def test_a_matmul_of_concats_in_text_and_json() -> None:
    (k,) = CASES["lora"].graph.kernels
    assert k.graph is not None
    assert operator_text(k.graph.nodes[5]) == "concat_matmul over k, r"
    obj = encode(CASES["lora"].graph)
    (at,) = [n for n in obj["kernel"]["nodes"] if n["op"] == "graph"]
    wanted = {"op": "concat_matmul", "operands": [{"node": k} for k in (0, 4, 1, 3)], "dims": [[["m"], ["n"]]]}
    assert at["graph"]["nodes"][5] == {**wanted, "reduce": ["k", "r"]}
    at["graph"]["nodes"][5]["attrs"] = [["first", ["k"]]]
    with pytest.raises(GraphError, match="first"):
        decode(MuGraph, obj, "muGraph")


# Rules.


def lora_with(i: int, **changes: Any) -> MuGraph:
    """LoRA in one kernel with a node of its block graph changed."""
    return lora_of([replace(n, **changes) if k == i else n for k, n in enumerate(lora_nodes(lora_program()))])


def lora_of(nodes: list[Node]) -> MuGraph:
    """A kernel of these nodes over the inputs of LoRA."""
    p = to_axes(lora_program())
    body = block(nodes, (len(nodes) - 1,), m=P, n=P, k=L, r=W)
    return mugraph(p, [kernel(body, tuple(map(Ref, range(4))), one(*MN))], Ref(4))


def predefined() -> MuGraph:
    """A matmul of concats as a kernel of its own."""
    p = to_axes(lora_program())
    nodes = [
        node("matmul", (0, 2), ("m", "r"), reduce=("k",)),
        node("concat_matmul", (0, 4, 1, 3), MN, reduce=("k", "r")),
    ]
    return mugraph(p, nodes, Ref(5))


BROKEN: dict[str, tuple[Callable[[], MuGraph], str]] = {
    "a kernel of its own": (predefined, r"node 5 \(concat_matmul\): is not allowed in a kernel graph"),
    "two operands": (lambda: lora_with(5, operands=(Ref(0), Ref(1))), "takes 4 to 4 operands, got 2"),
    "attributes": (lambda: lora_with(5, attrs=(("axis", "k"),)), "takes none"),
    "nothing summed": (lambda: lora_with(5, reduce=()), "reduces no axis"),
    "an axis summed twice": (lambda: lora_with(5, reduce=("k", "r", "k")), "reduces an axis twice"),
    "the second product sums nothing": (
        lambda: lora_with(5, reduce=("k",)),
        "the product of operands 2 and 4 sums no axis",
    ),
    "the first product sums nothing": (
        lambda: lora_with(5, reduce=("r",)),
        "the product of operands 1 and 3 sums no axis",
    ),
    "an axis of one operand of the first product": (
        lambda: lora_with(5, operands=(Ref(0), Ref(4), Ref(3), Ref(3)), reduce=("k", "r")),
        "sums axis k, which operand 3 of the product of operands 1 and 3 does not have",
    ),
    "an axis of one operand of the second product": (
        lambda: lora_with(5, operands=(Ref(0), Ref(4), Ref(1), Ref(1)), reduce=("k", "r")),
        "sums axis k, which operand 2 of the product of operands 2 and 4 does not have",
    ),
    "an axis that no operand has": (
        lambda: lora_with(5, operands=(Ref(0), Ref(0), Ref(1), Ref(1)), reduce=("k", "r")),
        "reduces axis r, which its operands",
    ),
    "products with other results": (
        lambda: lora_of(
            [
                *lora_nodes(lora_program())[:5],
                node("concat_matmul", (0, 0, 1, 2), MN, reduce=("k",)),
                accumulate(5, "k", MN),
            ]
        ),
        r"adds a product with axes \['m', 'n'\] to one with axes \['m', 'r'\]",
    ),
    "a parallel axis": (lambda: roles(CASES["lora"].graph, 0, r=P), "reduces axis r, which is parallel"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken(rule: str) -> None:
    make, message = BROKEN[rule]
    with pytest.raises(GraphError, match=message):
        validate(make())


def fixed_product(w_loop: bool) -> MuGraph:
    """x @ w + u @ c where k is looped over (or all of it is seen), and r is whole."""
    b = ProgramBuilder("two")
    x, w = b.input("x", tensor("m", "k")), b.input("w", tensor("k", "n"))
    u, c = b.input("u", tensor("m", "r")), b.input("c", tensor("r", "n"))
    p = to_axes(b.finish([b.op("add", b.op("matmul", x, w), b.op("matmul", u, c))]))
    nodes = [*reads(*(v.dims for v in p.inputs)), node("concat_matmul", (0, 2, 1, 3), MN, reduce=("k", "r"))]
    if w_loop:
        nodes.append(accumulate(4, "k", MN))
    body = block(nodes, (len(nodes) - 1,), m=P, n=P, k=L if w_loop else W, r=W)
    return mugraph(p, [kernel(body, tuple(map(Ref, range(4))), one(*MN))], Ref(4))


def test_a_product_that_does_not_change_with_the_loop_would_be_counted_in_every_iteration() -> None:
    validate(fixed_product(False))
    with pytest.raises(GraphError, match=r"node 4 \(concat_matmul\): acts on a partial sum over axis k and is not lin"):
        validate(fixed_product(True))


def test_an_operator_that_ignores_its_operand_is_no_partial_sum() -> None:
    """x ** 0 is 1: an accumulator would count iterations."""
    case = CASES["lora"]
    p = to_axes(case.program)
    nodes = [
        *reads(*(v.dims for v in p.inputs)),
        node("matmul", (0, 1), MN, reduce=("k",)),
        node("pow", (4,), MN, attrs=(("exponent", Fraction(0)),)),
        accumulate(5, "k", MN),
    ]
    body = block(nodes, (6,), m=P, n=P, k=L, r=W)
    with pytest.raises(GraphError, match=r"node 5 \(pow\): acts on a partial sum over axis k"):
        validate(mugraph(p, [kernel(body, tuple(map(Ref, range(4))), one(*MN))], Ref(4)))


# Exp-degrees.


def exponents(name: str = "softmax") -> Program:
    b = ProgramBuilder(name)
    return b.finish([b.op("softmax", b.input("x", tensor("m", "t")))])


def test_concatenated_exponents_have_the_maximum_of_all_iterations() -> None:
    for name in ("softmax", "summed_after", "scores", "marginals", "marginals_turned", "split_attention_2d"):
        found = analyze(CASES[name].graph)
        assert found.safe, found.reason
        assert [s.rows for s in found.sites] == [("m",)]
    found = analyze(CASES["marginals"].graph)
    assert [found.degree[(1, i), 0] for i in (1, 3, 5, 6)] == [{0: 1}, {0: 1}, {0: 1}, {}]


def test_concatenated_exponents_of_blocks_with_maxima_of_their_own_are_unsafe() -> None:
    graph = split_rows(exponents(), "exp")
    validate(graph)
    found = analyze(graph)
    assert not found.safe
    assert found.reason == (
        "output 0 of kernel 1 scales with exp 0 and holds the parts of all blocks along t, which have maxima of their own"
    )


def two_products(second: str) -> MuGraph:
    """(exp(x) @ v + f @ v) / sum(exp(x)) in one loop, where f is exp(x) * y, exp(x) * exp(x) or exp(y)."""
    b = ProgramBuilder("mixed")
    x, y, v = b.input("x", tensor("m", "t")), b.input("y", tensor("m", "t")), b.input("v", tensor("t", "n"))
    e = b.op("exp", x)
    f = b.op("exp", y) if second == "other" else b.op("mul", e, y if second == "scaled" else e)
    total = b.op("sum", e, axes=(1,), keepdims=True)
    p = to_axes(b.finish([b.op("div", b.op("add", b.op("matmul", e, v), b.op("matmul", f, v)), total)]))
    mt = ("m", "t")
    nodes = [
        *reads(*(i.dims for i in p.inputs)),
        node("exp", (0,), mt),
        node("exp", (1,), mt) if second == "other" else node("mul", (3, 1 if second == "scaled" else 3), mt),
        node("concat_matmul", (3, 4, 2, 2), MN, reduce=("t",)),
        accumulate(5, "t", MN),
        node("sum", (3,), ("m",), reduce=("t",)),
        accumulate(7, "t", ("m",)),
        node("div", (6, 8), MN),
    ]
    body = block(nodes, (9,), m=P, n=P, t=L)
    return mugraph(p, [kernel(body, tuple(map(Ref, range(3))), one(*MN))], Ref(3))


def test_products_that_are_added_need_equal_degrees() -> None:
    same = two_products("scaled")
    validate(same)
    assert analyze(same).safe
    other = analyze(two_products("other"))
    assert not other.safe and "adds terms of degrees 1 in exp 0 and 1 in exp 1, which scale differently" in other.reason
    squared = analyze(two_products("squared"))
    assert not squared.safe and "adds terms of degrees 1 in exp 0 and 2 in exp 0" in squared.reason
