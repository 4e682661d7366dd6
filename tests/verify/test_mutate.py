"""Mutants of the hand-written muGraphs: every wrong one is rejected."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

import mirage as mi
from benchmarks.search.mutants import difference_in_floats, judged
from benchmarks.search.mutate import CHANGES, mutants
from mirage.ir.axes import to_axes
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import Graph, MuGraph, Ref
from mirage.mugraph.reference import reference_graph
from mirage.verify.equivalence import Verifier
from tests.verify.graphs import PAIRS, attention, flash, flash_decoding, replace_node

#: per hand-written graph
COUNT = 60


@pytest.mark.parametrize(("make_program", "make_graph"), PAIRS)
def test_mutants_are_rejected_or_equal(
    make_program: Callable[[], Program],
    make_graph: Callable[[], MuGraph],
    record_property: Callable[..., None],
) -> None:
    program = make_program()
    v = Verifier(program)
    counts: Counter[tuple[str, str]] = Counter()
    for kind, mutant in itertools.islice(mutants(make_graph(), Random(11)), COUNT):
        fate, reason = judged(v, mutant)
        counts[kind, fate] += 1
        assert fate in ("malformed", "different", "equal"), f"{kind}: {fate}, {reason}"
    text = ", ".join(f"{kind} {fate}: {n}" for (kind, fate), n in sorted(counts.items()))
    print(text)
    record_property("mutants", text)
    assert sum(n for (_, fate), n in counts.items() if fate == "different") >= COUNT // 6


def test_every_kind_occurs() -> None:
    kinds = {kind for _, make in PAIRS for kind, _ in itertools.islice(mutants(make(), Random(1)), 200)}
    assert kinds == set(CHANGES)


def block_of(graph: MuGraph, kernel: int) -> Graph:
    found = graph.kernel.nodes[kernel].graph
    assert found is not None
    return found


def of_kind(graph: MuGraph, kind: str, count: int = 400) -> list[MuGraph]:
    return [m for k, m in itertools.islice(mutants(graph, Random(3)), count) if k == kind]


def test_a_dropped_sum_takes_its_axes_along() -> None:
    """The accumulator then has the axis too, so that only the rules of the loop are broken, not the dims."""
    blocks = [block_of(m, 3) for m in of_kind(flash(), "dropped sum")]
    assert any("t" in n.axes() for b in blocks for n in b.nodes if n.op == "accumulator")


def test_exchanged_outputs_and_inputs_read_twice_change_what_a_kernel_gets() -> None:
    g = flash_decoding()
    inner = block_of(g, 3)
    assert len(inner.outputs) == 2
    assert {block_of(m, 3).outputs for m in of_kind(g, "exchanged outputs")} == {inner.outputs[::-1]}
    twice = of_kind(g, "input read twice")
    assert twice and all(any(len(set(n.operands)) < len(n.operands) for n in m.kernels) for m in twice)


def test_wrong_accumulators_put_side_by_side_what_is_to_be_added() -> None:
    for m in of_kind(flash(), "wrong accumulator"):
        assert "concat" in [n.attr["mode"] for n in block_of(m, 3).nodes if n.op == "accumulator"]


def test_roles_are_exchanged_between_two_axes() -> None:
    before = block_of(flash(), 3).role
    for m in of_kind(flash(), "exchanged roles"):
        after = block_of(m, 3).role
        assert len([a for a in before if after[a] is not before[a]]) in (0, 2)
        assert Counter(after.values()) == Counter(before.values())


def test_mutants_differ_from_their_graph_and_are_reproducible() -> None:
    for _, make in PAIRS:
        first, second = (list(itertools.islice(mutants(make(), Random(2)), 30)) for _ in range(2))
        assert first == second
        assert all(m != make() for _, m in first)


def test_the_float_check_can_fail() -> None:
    program, graph = attention(), flash()
    wrong = replace_node(graph, (3, 11), op="mul")
    assert difference_in_floats(program, graph) == ""
    assert "output 0 differs in float64" in difference_in_floats(program, wrong)


def test_the_float_check_gives_an_argument_to_all_inputs_that_read_it() -> None:
    program = mi.trace(lambda x, w: mi.sum((x @ (w @ w.mT)) * x, axis=1), x=mi.tensor("n", 4), w=mi.tensor(4, 2))
    graph = reference_graph(to_axes(program))
    assert len(graph.inputs) > len(program.inputs)
    assert difference_in_floats(program, graph) == ""


def test_a_verifier_that_accepts_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    v = Verifier(attention())
    good = v.check(flash())
    monkeypatch.setattr(v, "check", lambda graph: good)
    monkeypatch.setattr(v, "confirm", lambda graph, certificate: certificate)
    fate, reason = judged(v, replace_node(flash(), (3, 11), op="mul"))
    assert fate == "wrong" and reason
    scale = Fraction(1, 8) * (1 + Fraction(1, 1 << 40))
    # float64 cannot see this one, and the proof does
    assert judged(v, replace_node(flash(), (3, 4), attrs=(("value", scale),))) == ("not proved", "")


def test_a_graph_that_allows_no_change_has_no_mutants() -> None:
    b = ProgramBuilder("same")
    x = b.input("x", tensor("m"))
    program = b.finish([b.op("tanh", x)])
    kernel = reference_graph(to_axes(program)).kernel
    graph = replace(
        reference_graph(to_axes(program)), kernel=replace(kernel, nodes=kernel.nodes[:1], outputs=(Ref(0),))
    )
    assert list(mutants(graph, Random(0))) == []
