"""Evidence for programs that use an argument along several axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import mirage as mi
from mirage.errors import GraphError, InputError
from mirage.ir.axes import to_axes
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.verify.equivalence import Verifier, verify_graph
from mirage.verify.proof import prove, prove_programs
from tests.shared import SHARED, shared

T = mi.tensor


@pytest.mark.parametrize("name", SHARED)
def test_the_reference_is_proved_and_tested(name: str) -> None:
    program = shared(name)
    graph = reference_graph(to_axes(program))
    assert prove(to_axes(program), graph) == "proved"
    certificate = verify_graph(program, graph)
    assert certificate.equal and certificate.error_bound is not None and certificate.error_bound <= 2.0**-40


def product(x: Any, y: Any) -> Any:
    return x @ mi.transpose(y, (1, 0))


def test_one_argument_is_not_two() -> None:
    """A name that a further input has in one program is a parameter in the other."""
    one = mi.trace(lambda x: product(x, x), "one", x=T("m", "k"))
    two = mi.trace(lambda x, x_2: product(x, x_2), "two", x=T("m", "k"), x_2=T("m", "k"))
    assert [x.name for x in to_axes(one).inputs] == ["x", "x_2"]
    assert prove_programs(one, one) == prove_programs(two, two) == "proved"
    for a, b in ((one, two), (two, one)):
        with pytest.raises(InputError, match="differ in type"):
            prove_programs(a, b)


def of_another(graph: MuGraph) -> MuGraph:
    return replace(graph, inputs=tuple(replace(x, argument=x.name) for x in graph.inputs))


def test_a_graph_that_reads_two_arguments_is_of_another_program() -> None:
    program = shared("gram")
    graph = of_another(reference_graph(to_axes(program)))
    assert prove(to_axes(program), graph) == "not proved"
    with pytest.raises(GraphError, match="has other inputs, axes or results than program gram"):
        Verifier(program).check(graph)


def test_the_wrong_reading_of_an_argument_is_found() -> None:
    """a + a, which is a + a.T only for symmetric arrays."""
    program = shared("symmetric")
    graph = reference_graph(to_axes(program))
    *inputs, total = graph.kernel.nodes
    wrong = replace(total, operands=total.operands[:1] * 2)
    found = replace(graph, kernel=replace(graph.kernel, nodes=(*inputs, wrong)))
    assert prove(to_axes(program), found) == "not proved"
    assert not Verifier(program).check(found).equal
