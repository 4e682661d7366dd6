"""Exp-degrees of hand-written muGraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.functions import EXP, LOG
from mirage.ir.operator import REGISTRY, elementwise
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.degree import RunningMaximum, SafetyCheck, Site, analyze, program_is_stable
from mirage.mugraph.graph import MuGraph, Ref, Role
from mirage.mugraph.reference import reference_graph
from tests.kernels.kernels import cut
from tests.mugraph.logs import CASES, row
from tests.verify.graphs import (
    PAIRS,
    L,
    P,
    S,
    W,
    attention,
    block,
    flash,
    flash_decoding,
    kernel,
    mugraph,
    node,
    one,
    read,
    replace_node,
    replace_roles,
    sum_over,
)


@pytest.mark.parametrize("make", [g for _, g in PAIRS])
def test_hand_written_graphs_are_safe(make: Callable[[], MuGraph]) -> None:
    assert analyze(make()).safe


def test_flash_attention_has_one_site_with_the_queries_as_rows() -> None:
    found = analyze(flash())
    assert found.sites == (Site((3, 6), ("h", "s")),)
    assert [found.degree[(3, i), 0] for i in (5, 6, 7, 10, 11)] == [{}, {0: 1}, {0: 1}, {0: 1}, {}]


def test_partial_results_of_degree_one_cross_kernels() -> None:
    found = analyze(flash_decoding())
    assert found.safe
    assert found.degree[(3,), 0] == found.degree[(3,), 1] == found.degree[(4, 2), 0] == {0: 1}
    assert found.degree[(4,), 0] == {}


def test_a_softmax_without_normalisation_is_unsafe() -> None:
    found = analyze(replace_node(flash(), (3, 11), op="neg", operands=(Ref(10),)))
    assert not found.safe
    assert "output 0 has degree 1 in exp 0" in found.reason


def test_adding_a_term_that_does_not_scale_is_unsafe() -> None:
    found = analyze(replace_node(flash(), (3, 11), op="add", operands=(Ref(10), Ref(3))))
    assert not found.safe
    assert "add at kernel 3, node 11 adds terms of degrees 1 in exp 0 and 0" in found.reason


@pytest.mark.parametrize("op", ["relu", "sigmoid", "exp", "sqrt"])
def test_a_nonlinear_function_needs_degree_zero(op: str) -> None:
    found = analyze(replace_node(flash(), (3, 11), op=op, operands=(Ref(10),)))
    assert not found.safe
    assert f"{op} at kernel 3, node 11 applies {op} to a term of degree 1" in found.reason


def test_accumulators_of_degree_two_are_unsafe() -> None:
    found = analyze(replace_node(flash(), (3, 9), op="matmul", operands=(Ref(6), Ref(6))))
    assert not found.safe
    assert "accumulates a tensor of degree 2" in found.reason


def elementwise_exp(role: Role) -> MuGraph:
    """exp(x) / exp(x) with y's rows, n under the given role."""
    b = ProgramBuilder("ratio")
    x = b.input("x", tensor("m", "n"))
    e = b.op("exp", x)
    p = b.finish([b.op("div", e, e)])
    mn = ("m", "n")
    nodes = [read(0, one(*mn)), node("exp", (0,), mn), node("div", (1, 1), mn)]
    if role is L:
        nodes.append(node("accumulator", (2,), mn, attrs=(("mode", "concat"), ("axis", "n"))))
    g = block(nodes, (len(nodes) - 1,), {"m": P, "n": role})
    return mugraph(to_axes(p), [kernel(g, (Ref(0),), one(*mn))], Ref(1))


def test_rows_may_not_differ_along_a_loop() -> None:
    assert analyze(elementwise_exp(P)).safe
    found = analyze(elementwise_exp(L))
    assert not found.safe
    assert "n, which is looped over" in found.reason


def softmax_in_two_kernels(first_role: Role) -> MuGraph:
    """exp in one kernel, the sum and quotient in the next."""
    b = ProgramBuilder("softmax")
    p = b.finish([b.op("softmax", b.input("x", tensor("m", "n")))])
    mn = ("m", "n")
    first = block([read(0, one(*mn)), node("exp", (0,), mn)], (1,), {"m": P, "n": first_role})
    nodes = [read(0, one(*mn)), node("sum", (0,), ("m",), reduce=("n",)), node("div", (0, 1), mn)]
    two = block(nodes, (2,), {"m": P, "n": W})
    kernels = [kernel(first, (Ref(0),), one(*mn)), kernel(two, (Ref(1),), one(*mn))]
    return mugraph(to_axes(p), kernels, Ref(2))


def test_blocks_that_share_no_maximum_are_unsafe() -> None:
    assert analyze(softmax_in_two_kernels(W)).safe
    found = analyze(softmax_in_two_kernels(P))
    assert not found.safe
    assert "n is summed, but its blocks share no maximum" in found.reason


def test_a_partial_result_does_not_meet_a_whole_one() -> None:
    g = flash_decoding()
    second = replace_node(g, (4, 4), operands=(Ref(1), Ref(2)), dims=(one("t.grid", "h", "s", "d64_2"),))
    found = analyze(second)
    assert not found.safe
    assert "partial result" in found.reason


def test_a_split_in_one_role_but_not_reduced() -> None:
    # the rows then differ along an axis that the blocks split
    g = replace_roles(elementwise_exp(L), 1, n=S)
    assert "n, which is looped over" in analyze(g).reason


def test_predefined_exp_is_a_site_of_the_kernel_graph() -> None:
    b = ProgramBuilder("softmax")
    p = b.finish([b.op("softmax", b.input("x", tensor("m", "n")))])
    mn = ("m", "n")
    kernels = [node("exp", (0,), mn), node("sum", (1,), ("m",), reduce=("n",)), node("div", (1, 2), mn)]
    found = analyze(mugraph(to_axes(p), kernels, Ref(3)))
    assert found.safe
    assert found.sites == (Site((1,), ("m",)),)


def test_two_exps_whose_scales_do_not_cancel_are_both_plain() -> None:
    ap = to_axes(attention())
    g = flash()
    loop = g.kernel.nodes[3].graph
    assert loop is not None
    nodes = loop.nodes
    twice = [*nodes[:11], node("exp", (3,), ("h", "s", "t")), node("sum", (11,), ("h", "s"), reduce=("t",))]
    twice += [sum_over("t", 12, ("h", "s")), node("div", (10, 13), ("h", "s", "d64_2"))]
    inner = block(twice, (14,), loop.role)
    found = analyze(mugraph(ap, [replace(g.kernel.nodes[3], graph=inner)], Ref(3)))
    assert found.plain == ((3, 6), (3, 11)) and found.sites == ()
    assert not found.safe and "output 0 has degree 1 in exp 0, -1 in exp 1" in found.reason


@pytest.mark.parametrize("first", ["softmax", "exp"])
def test_a_plain_exp_leaves_a_softmax_beside_it_shifted(first: str) -> None:
    b = ProgramBuilder("both")
    x, y = b.input("x", tensor("m", "n")), b.input("y", tensor("m"))
    outputs = [b.op("softmax", x), b.op("exp", y)]
    p = b.finish(outputs if first == "softmax" else outputs[::-1])
    found = analyze(reference_graph(to_axes(p)))
    assert not found.safe and len(found.plain) == 1
    assert [s.rows for s in found.sites] == [found.sites[0].rows] and len(found.sites[0].rows) == 1


def test_an_exp_inside_a_softmax_is_plain() -> None:
    b = ProgramBuilder("inside")
    p = b.finish([b.op("softmax", b.op("exp", b.input("x", tensor("m", "n"))))])
    found = analyze(reference_graph(to_axes(p)))
    assert len(found.plain) == len(found.sites) == 1 and found.plain[0] < found.sites[0].path
    assert "applies exp to a term of degree 1 in exp 0" in found.reason


@pytest.fixture
def user_operators() -> Iterator[None]:
    elementwise("test_shrink", lambda al, x: al.div(x, al.add(x, x)))
    elementwise("test_soft", lambda al, x: al.div(x, al.add(al.constant(Fraction(1)), al.function(EXP, x))))
    yield
    del REGISTRY["test_shrink"], REGISTRY["test_soft"]


@pytest.mark.usefixtures("user_operators")
def test_users_operators_follow_from_their_definition() -> None:
    g = flash()
    assert analyze(replace_node(g, (3, 11), op="test_shrink", operands=(Ref(8),))).safe
    # exps times values may be 0 once they are shifted
    assert not analyze(replace_node(g, (3, 11), op="test_shrink", operands=(Ref(10),))).safe
    assert not analyze(replace_node(g, (3, 11), op="test_soft", operands=(Ref(10),))).safe


def reduced(divisor: Callable[[Any, Any, Any], Any], numerator: Callable[..., Any] = lambda e, z, w: e * z) -> MuGraph:
    """The sum of exps times values over a divisor, of which the exps, the values and weights are given."""

    def f(x: Any, z: Any, w: Any) -> Any:
        e = mi.exp(x)
        return mi.sum(numerator(e, z, w), axis=1, keepdims=True) / divisor(e, z, w)

    xs = {name: tensor("m", "n") for name in "xzw"}
    return reference_graph(to_axes(mi.trace(f, "reduced", **xs)))


#: divisors that hold the largest exp of a row with a factor that is bounded away from 0
SAFE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a sum": lambda e, z, w: row(e),
    "a constant factor": lambda e, z, w: row(0.5 * e),
    "a mean": lambda e, z, w: mi.mean(e, axis=1, keepdims=True),
    "more than the exps": lambda e, z, w: row(e + e * mi.relu(w)),
    "and squares": lambda e, z, w: row(e) + row(e * mi.square(w)),
    "over a constant": lambda e, z, w: row(e / 7),
    "weights that are not below a constant": lambda e, z, w: row(e * mi.maximum(w, 0.5) * mi.clamp(z, 0.1, 2)),
}
UNSAFE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "weights": lambda e, z, w: row(e * w),
    "weights that are not below 0": lambda e, z, w: row(e * mi.relu(w)),
    "clamped weights": lambda e, z, w: row(e * mi.clamp(w, 0, 1)),
    "weights as small as they like": lambda e, z, w: row(e * mi.sigmoid(w)),
    "a difference": lambda e, z, w: row(e) - row(e * mi.square(w)),
    "a negative constant": lambda e, z, w: row(e) + row(-2 * e),
    "over weights": lambda e, z, w: row(e / (mi.square(w) + 1)),
}


@pytest.mark.parametrize("name", SAFE)
def test_a_divisor_may_hold_the_largest_exp_whole(name: str) -> None:
    found = analyze(reduced(SAFE[name]))
    assert found.safe and len(found.sites) == 1 and SafetyCheck().safe(reduced(SAFE[name]))


@pytest.mark.parametrize("name", UNSAFE)
def test_a_divisor_whose_largest_exp_may_be_multiplied_by_0_is_plain(name: str) -> None:
    graph = reduced(UNSAFE[name])
    found = analyze(graph)
    assert not found.safe and len(found.plain) == 1 and not SafetyCheck().safe(graph)
    assert "divides by a tensor that may be 0 where exponents are shifted by their maximum" in found.reason


def logarithm(of: Callable[[Any, Any, Any], Any]) -> MuGraph:
    """The log of what is made of exps, values and weights."""
    xs = {name: tensor("m", "n") for name in "xzw"}
    return reference_graph(to_axes(mi.trace(lambda x, z, w: mi.log(of(mi.exp(x), z, w)), "logarithm", **xs)))


@pytest.mark.parametrize("name", SAFE)
def test_the_log_of_what_holds_the_largest_exp_is_shifted_back(name: str) -> None:
    graph = logarithm(SAFE[name])
    found = analyze(graph)
    assert found.safe and len(found.sites) == 1 and SafetyCheck().safe(graph)
    (log,) = (i for i, n in enumerate(graph.kernel.nodes) if n.op == "log")
    assert found.logs == {(log,): {0: 1}} and found.degree[(log,), 0] == {}


@pytest.mark.parametrize("name", UNSAFE)
def test_the_log_of_what_may_be_0_once_it_is_shifted_is_plain(name: str) -> None:
    graph = logarithm(UNSAFE[name])
    found = analyze(graph)
    assert not found.safe and len(found.plain) == 1 and not found.sites and not found.logs and not SafetyCheck().safe(graph)
    assert "takes the log of a tensor that may be 0 where exponents are shifted by their maximum" in found.reason


def test_logs_of_products_and_powers_of_sums_add_the_maximum_of_each() -> None:
    found = analyze(CASES["twice"].graph)
    assert found.safe and list(found.logs.values()) == [{0: 2, 1: 1}]
    # between kernels, only tensors of degrees 0 and 1 can be rescaled
    assert not analyze(reference_graph(to_axes(CASES["twice"].program))).safe


def test_a_log_of_exps_that_nothing_sums_is_shifted() -> None:
    f = mi.trace(lambda x: mi.log(mi.exp(x)), "alone", x=tensor("m", "n"))
    found = analyze(reference_graph(to_axes(f)))
    assert found.safe and len(found.logs) == 1 and len(found.sites[0].rows) == 2


def test_a_log_of_single_exps_of_a_row_is_plain() -> None:
    """Those far below the largest are 0 once they are shifted, and log(0) is no number."""
    f = mi.trace(lambda x: mi.log(mi.exp(x)) + mi.log(row(mi.exp(x))), "terms", x=tensor("m", "n"))
    found = analyze(reference_graph(to_axes(f)))
    assert not found.safe and not found.sites
    assert "takes the log of a tensor with axis n, but the maximum of exp 0 is taken over n too" in found.reason


def test_a_log_of_a_log_of_a_sum_of_exps_is_shifted() -> None:
    f = mi.trace(lambda x: mi.log(mi.log(row(mi.exp(x)))), "twice", x=tensor("m", "n"))
    found = analyze(reference_graph(to_axes(f)))
    assert found.safe and len(found.logs) == 1


@pytest.mark.usefixtures("user_operators")
def test_a_log_inside_a_users_operator_needs_degree_zero() -> None:
    elementwise("test_half_log", lambda al, x: al.mul(al.constant(Fraction(1, 2)), al.function(LOG, x)))
    try:
        found = analyze(replace_node(flash(), (3, 11), op="test_half_log", operands=(Ref(8),), dims=(one("h", "s"),)))
        assert "applies log to a term of degree 1 in exp 0, not 0" in found.reason
    finally:
        del REGISTRY["test_half_log"]


def looped(role: Role, log_in_loop: bool) -> MuGraph:
    """The log of a sum of exps in a loop over the rows' elements: of the whole sum, or of the sum of each tile."""
    p = to_axes(mi.trace(lambda x: mi.log(mi.sum(mi.exp(x), axis=1)), "lse", x=tensor("m", "n")))
    nodes = [read(0, one("m", "n")), node("exp", (0,), ("m", "n")), node("sum", (1,), ("m",), reduce=("n",))]
    ends = [sum_over("n", 2, ("m",)), node("log", (3,), ("m",))]
    if log_in_loop:
        ends = [node("log", (2,), ("m",)), sum_over("n", 3, ("m",))]
    g = block([*nodes, *ends], (4,), {"m": P, "n": role})
    return mugraph(p, [kernel(g, (Ref(0),), one("m"))], Ref(1))


def test_the_maximum_of_a_row_is_known_after_the_loop() -> None:
    assert analyze(looped(L, False)).safe
    found = analyze(looped(L, True))
    assert not found.safe and "log at kernel 1, node 3: exp 0 has a maximum that is known only after the loop" in found.reason
    assert not SafetyCheck().safe(looped(L, True))


def test_a_library_hands_on_no_maximum_to_a_kernel() -> None:
    case = CASES["all_in_a_library"]
    assert analyze(case.graph).safe
    found = analyze(cut(case.program, (3, 4)))
    assert not found.safe and not found.sites
    assert "exp 0 is a library's, which hands on no maximum" in found.reason


def test_exps_of_two_rows_are_divided_by_one_after_the_other_or_together() -> None:
    def two(divide: Callable[[Any, Any], Any]) -> RunningMaximum:
        xs = {name: tensor("m", "n") for name in "xy"}
        f = mi.trace(lambda x, y: divide(mi.exp(x), mi.exp(y)), "two", **xs)
        return analyze(reference_graph(to_axes(f)))

    assert two(lambda e, f: e / row(e) * (f / row(f))).safe
    assert two(lambda e, f: e * f / (row(e) * row(f))).safe
    # the largest of both may be at different places, so that all products vanish
    found = two(lambda e, f: e * f / row(e * f))
    assert not found.safe and "two exps are largest at other places along n" in found.reason


@pytest.mark.parametrize("weights", [0.0, 1.0])
def test_weights_that_are_0_at_the_largest_exponent_give_what_the_program_gives(weights: float) -> None:
    def f(x: Any, z: Any, w: Any) -> Any:
        return row(mi.exp(x) * z) / row(mi.exp(x) * w)

    p = mi.trace(f, "weighted", **{name: tensor("m", "n") for name in "xzw"})
    x = np.zeros((4, 8), np.float32)
    x[:, 3] = 80
    z = w = np.where(x > 0, np.float32(weights), np.float32(1))
    r = mi.superoptimize(p, sizes={"m": 4, "n": 8}, budget=0.5, cache=False)
    assert all(not c.maximum.safe for c in r.graphs)
    assert np.array_equal(r(x, z, w), np.ones((4, 1), np.float32))


def unary(op: str) -> Program:
    b = ProgramBuilder(op)
    return b.finish([b.op(op, b.input("x", tensor("m", "n")))])


@pytest.mark.usefixtures("user_operators")
def test_stability_of_programs() -> None:
    ops = ("softmax", "silu", "tanh", "gelu", "sigmoid", "exp", "test_soft")
    assert [op for op in ops if not program_is_stable(unary(op))] == ["exp", "test_soft"]


def test_softmaxes_along_different_axes_cannot_share_an_exp() -> None:
    """One maximum for all rows and columns leaves rows far below it without a term: 0 / 0."""
    b = ProgramBuilder("dual")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("mul", b.op("softmax", x, axis=0), b.op("softmax", x, axis=1))])
    found = analyze(reference_graph(to_axes(p)))
    assert not found.safe
    assert "div at kernel 3 divides by a tensor with axis n" in found.reason and "taken over n too" in found.reason


def test_an_exp_that_is_summed_over_all_axes_has_one_maximum() -> None:
    b = ProgramBuilder("whole")
    e = b.op("exp", b.input("x", tensor("m", "n")))
    p = b.finish([b.op("div", e, b.op("sum", b.op("sum", e, axes=(1,), keepdims=True), axes=(0,), keepdims=True))])
    found = analyze(reference_graph(to_axes(p)))
    assert found.safe and found.sites[0].rows == ()
