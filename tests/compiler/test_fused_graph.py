"""Groups of operators as one graph-defined kernel, or two, without a search."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import mirage as mi
from mirage.compiler.fused_graph import fused_graph, fused_graphs
from mirage.compiler.staged_graph import staged_graphs
from mirage.ir.axes import to_axes
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, MuGraph, Role
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.validate import validate
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.compiler.groups import GROUPS, group
from tests.random_programs import random_program

T = mi.tensor


def _first(name: str) -> MuGraph:
    found = fused_graph(to_axes(group(name)))
    assert found is not None
    return found


def _block(graph: MuGraph) -> Graph:
    (kernel,) = graph.kernels
    assert kernel.graph is not None
    return kernel.graph


@pytest.mark.parametrize("name", GROUPS)
def test_every_form_is_one_verified_kernel(name: str) -> None:
    verifier = Verifier(group(name))
    found = list(fused_graphs(verifier.axis_program))
    assert found
    for graph in found:
        assert len(graph.kernel.compute_nodes()) == 1
        validate(graph)
        assert verifier.confirm(graph, verifier.check(graph)).equal
        assert prove(verifier.axis_program, graph) == "proved"
        assert analyze(graph).safe


@pytest.mark.parametrize("name", GROUPS)
def test_the_contracted_axis_is_streamed(name: str) -> None:
    loop = GROUPS[name][2]
    assert _block(_first(name)).loop == ((loop,) if loop else ())


def test_blocks_divide_what_all_outputs_have_and_nothing_reduces() -> None:
    roles = _block(_first("linear, residual, norm")).role
    assert roles == {"n": Role.PARALLEL, "k": Role.LOOP, "d96": Role.WHOLE}
    assert _block(_first("linear, gelu")).role["m"] is Role.PARALLEL


def test_a_norm_is_divided_out_after_the_loop_of_its_linear() -> None:
    block = _block(_first("norm, linear"))
    (out,) = block.outputs
    assert out.node in block.after_loop
    accumulated = [i for i, n in enumerate(block.nodes) if n.op == "accumulator"]
    assert len(accumulated) == 2  # the squares and the products


def test_no_block_repeats_the_scores_of_attention() -> None:
    first, second, *_ = fused_graphs(to_axes(group("attention")))
    assert _block(first).role["d64_2"] is Role.WHOLE
    # another form does, and has more blocks
    assert _block(second).role["d64_2"] is Role.PARALLEL


def test_softmax_subtracts_a_running_maximum() -> None:
    graph = _first("attention")
    assert [s.path[0] for s in analyze(graph).sites] == [graph.kernel.nodes.index(graph.kernels[0])]


@pytest.mark.parametrize(
    "fn, types",
    [
        (lambda x: (mi.sum(x, axis=0), mi.sum(x, axis=1)), dict(x=T("n", "m"))),
        (lambda x, y: (mi.exp(x), mi.exp(y)), dict(x=T("n"), y=T("m"))),
        (lambda x: (x + 1, mi.sum(x)), dict(x=T("n", "m"))),
        # one block would hold the matrix
        (lambda x: mi.softmax(x, axis=0) * mi.softmax(x, axis=1), dict(x=T("n", "m"))),
        # nothing to compute
        (lambda x: mi.transpose(x, (1, 0)), dict(x=T("n", "m"))),
    ],
    ids=["rows and columns", "nothing in common", "a scalar beside", "both axes reduced", "a view"],
)
def test_no_form(fn: Any, types: dict[str, Any]) -> None:
    assert fused_graph(to_axes(mi.trace(fn, "group", **types))) is None


def _staged(fn: Any, **types: Any) -> list[MuGraph]:
    program = mi.trace(fn, "group", **types)
    verifier = Verifier(program)
    found = list(staged_graphs(verifier.axis_program))
    for graph in found:
        validate(graph)
        assert verifier.confirm(graph, verifier.check(graph)).equal
        assert prove(verifier.axis_program, graph) == "proved"
        assert analyze(graph).safe
    return found


def test_a_norm_after_a_linear_may_be_a_kernel_of_its_own() -> None:
    types = dict(x=T("n", "k"), w=T("k", 96), r=T("n", 96), g=T(96))
    found = _staged(lambda x, w, r, g: mi.rms_norm(x @ w + r, g), **types)
    assert found
    first, second = found[0].kernels
    assert first.graph is not None and second.graph is not None
    # the residual is added in the first kernel, whose blocks divide columns, too
    assert [n.op for n in first.graph.nodes if n.op not in ("input", "accumulator")] == ["matmul", "add"]
    assert first.graph.role["d96"] is Role.PARALLEL and second.graph.role["d96"] is Role.WHOLE


def test_exponents_are_taken_where_their_rows_are_known() -> None:
    found = _staged(lambda x, w: mi.softmax(x @ w) @ w, x=T("n", 64), w=T(64, 64))
    assert found
    first, second = (k.graph for k in found[0].kernels)
    assert first is not None and second is not None
    assert [n.op for n in first.nodes if n.op == "exp"] == []
    assert [n.op for n in second.nodes if n.op == "exp"] == ["exp"]


def test_values_that_are_results_and_handed_on_are_stored_once() -> None:
    types = dict(x=T("n", 64), w=T(64, 96), r=T("n", 96))
    found = _staged(lambda x, w, r: (x @ w + r, mi.rms_norm(x @ w + r)), **types)
    assert found and [len(k.dims) for k in found[0].kernels] == [1, 1]
    assert [r.node for r in found[0].kernel.outputs] == [3, 4]


def test_what_argument_names_say_does_not_matter() -> None:
    types = dict(kept0=T("n", 64), kept1=T(64, 96), kept2=T("n", 96), kept3=T("n", 96))
    assert _staged(lambda kept0, kept1, kept2, kept3: mi.softmax(kept0 @ kept1 + kept2) * kept3, **types)


@pytest.mark.parametrize("name", ["softmax", "norm, linear", "linear, gelu", "attention", "scalar"])
def test_no_stages(name: str) -> None:
    assert not list(staged_graphs(to_axes(group(name))))


def _checked(seed: int) -> int:
    """The number of fused forms of a random program, all of which compute it."""
    program = random_program(Random(seed), 5)
    verifier = Verifier(program)
    found = [*fused_graphs(verifier.axis_program), *staged_graphs(verifier.axis_program)]
    plain = len(analyze(reference_graph(verifier.axis_program)).plain)
    for graph in found:
        assert verifier.admit(graph).equal, f"seed {seed}: {graph}"
        assert len(analyze(graph).plain) <= plain
    return len(found)


def test_random_programs() -> None:
    assert sum(_checked(seed) > 0 for seed in range(100)) > 50


@pytest.mark.slow
def test_more_random_programs() -> None:
    assert sum(_checked(seed) > 0 for seed in range(100, 1100)) > 500
