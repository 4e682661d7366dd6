"""Exp-degrees tested with random factors, and what may be offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage.ir.axes import to_axes
from mirage.ir.functions import EXP
from mirage.ir.operator import REGISTRY, elementwise
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.degree import Site, analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.verify.safety import degree_violation, offered
from tests.mugraph.logs import CASES as LOGS
from tests.verify.graphs import PAIRS, attention, flash, flash_decoding, replace_node


@pytest.mark.parametrize(("program", "graph"), PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_degrees_hold(program: Callable[[], Program], graph: Callable[[], MuGraph], seed: int) -> None:
    g = graph()
    assert degree_violation(to_axes(program()), g, analyze(g), seed) == ""


@pytest.mark.parametrize("make", [attention])
def test_degrees_hold_between_predefined_kernels(make: Callable[[], Program]) -> None:
    ap = to_axes(make())
    g = reference_graph(ap)
    found = analyze(g)
    assert found.safe and found.sites
    assert degree_violation(ap, g, found) == ""


@pytest.mark.parametrize("graph", [flash, flash_decoding])
@pytest.mark.parametrize("node", [8, 10])
@pytest.mark.parametrize("claim", [{}, {0: 2}, {0: -1}])
def test_wrong_degrees_are_noticed(graph: Callable[[], MuGraph], node: int, claim: dict[int, int]) -> None:
    g = graph()
    found = analyze(g)
    wrong = replace(found, degree={**found.degree, ((3, node), 0): claim})
    assert "does not scale" in degree_violation(to_axes(attention()), g, wrong)


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_sums_of_exps_hold(name: str) -> None:
    case = LOGS[name]
    assert degree_violation(to_axes(case.program), case.graph, analyze(case.graph)) == ""


@pytest.mark.parametrize("name", ["one_kernel", "log_in_the_next_kernel", "split_then_a_library", "twice_in_a_loop"])
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_degrees_of_the_arguments_of_logs_are_noticed(name: str, change: int) -> None:
    case = LOGS[name]
    found = analyze(case.graph)
    wrong = {path: {**degree, 0: degree[0] + change} for path, degree in found.logs.items()}
    assert "does not scale" in degree_violation(to_axes(case.program), case.graph, replace(found, logs=wrong))


def test_wrong_rows_are_noticed() -> None:
    g = flash()
    found = analyze(g)
    # one factor per key does not cancel: the keys are summed
    wrong = replace(found, sites=(Site(found.sites[0].path, ("h", "s", "t")),))
    assert "does not scale" in degree_violation(to_axes(attention()), g, wrong)


@pytest.fixture
def user_operators() -> Iterator[None]:
    elementwise("test_exp_squared", lambda al, x: al.mul(al.function(EXP, x), al.function(EXP, x)))
    yield
    del REGISTRY["test_exp_squared"]


@pytest.mark.usefixtures("user_operators")
def test_exps_inside_a_users_operator() -> None:
    b = ProgramBuilder("user")
    e = b.op("test_exp_squared", b.input("x", tensor("m", "n")))
    ap = to_axes(b.finish([b.op("div", e, b.op("sum", e, axes=(1,), keepdims=True))]))
    found = analyze(reference_graph(ap))
    assert found.safe and len(found.sites) == 2
    assert degree_violation(ap, reference_graph(ap), found) == ""


def exponential() -> Program:
    b = ProgramBuilder("exponential")
    x = b.input("x", tensor("m"))
    return b.finish([b.op("mul", b.op("exp", x), b.op("constant", value=Fraction(1, 2)))])


def test_unsafe_graphs_are_offered_only_for_unstable_programs() -> None:
    assert offered(attention(), flash())
    assert not offered(attention(), replace_node(flash(), (3, 11), op="mul"))
    program = exponential()
    graph = reference_graph(to_axes(program))
    assert not analyze(graph).safe
    assert offered(program, graph)
