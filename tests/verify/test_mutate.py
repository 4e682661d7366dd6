"""Mutants of the hand-written muGraphs: every wrong one is rejected."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from mirage.errors import MirageError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import to_axes
from mirage.ir.dims import symbol
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.graph import MuGraph, Ref
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.verify.equivalence import Verifier
from mirage.verify.mutate import CHANGES, mutants
from mirage.verify.sizes import draw_schedule
from tests.verify.graphs import PAIRS, attention, flash

#: per hand-written graph
COUNT = 60


def run_floats(graph: MuGraph, sizes: Mapping[str, int], seed: int) -> list[np.ndarray]:
    """Outputs in float64 at axis sizes of their own, for a random schedule."""
    rng = np.random.default_rng(seed)
    inputs = [
        rng.standard_normal([int(np.prod([sizes[a] for a in d])) for d in x.dims]) for x in graph.inputs
    ]
    own = replace(graph, axes={a: symbol(f"axis_{a}") for a in graph.axes})
    schedule = draw_schedule(graph, sizes, Random(seed))[0] if graph.kernels else Schedule(())
    with np.errstate(all="ignore"):
        return run_mugraph(own, schedule, inputs, FloatArithmetic({f"axis_{a}": n for a, n in sizes.items()}))


def equal_in_floats(program: Program, graph: MuGraph) -> bool:
    ap = to_axes(program)
    for seed in range(3):
        rng = Random(seed)
        sizes = {a: rng.randint(2, 7) for a in ap.axes}
        # sizes that a mean divides by are literal here, and the same on both sides
        for w, f in zip(
            run_floats(reference_graph(ap), sizes, seed), run_floats(graph, sizes, seed), strict=True
        ):
            if not np.allclose(w, f, rtol=1e-9, atol=1e-9, equal_nan=True):
                return False
    return True


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
        try:
            verdict = "equal" if v.check(mutant).equal else "different"
        except MirageError:
            verdict = "malformed"
        counts[kind, verdict] += 1
        if verdict == "equal":
            assert equal_in_floats(program, mutant), f"{kind} was accepted"
    text = ", ".join(f"{kind} {verdict}: {n}" for (kind, verdict), n in sorted(counts.items()))
    print(text)
    record_property("mutants", text)
    assert sum(n for (_, verdict), n in counts.items() if verdict == "different") >= COUNT // 6


def test_every_kind_occurs() -> None:
    kinds = {kind for _, make in PAIRS for kind, _ in itertools.islice(mutants(make(), Random(1)), 60)}
    assert kinds == set(CHANGES)


def test_mutants_differ_from_their_graph_and_are_reproducible() -> None:
    for _, make in PAIRS:
        first, second = (list(itertools.islice(mutants(make(), Random(2)), 30)) for _ in range(2))
        assert first == second
        assert all(m != make() for _, m in first)


def test_the_float_check_can_fail() -> None:
    program, graph = attention(), flash()
    wrong = next(m for kind, m in mutants(graph, Random(0)) if kind == "changed operator")
    assert equal_in_floats(program, graph)
    assert not equal_in_floats(program, wrong)


def test_a_graph_that_allows_no_change_has_no_mutants() -> None:
    b = ProgramBuilder("same")
    x = b.input("x", tensor("m"))
    program = b.finish([b.op("tanh", x)])
    kernel = reference_graph(to_axes(program)).kernel
    graph = replace(reference_graph(to_axes(program)), kernel=replace(kernel, nodes=kernel.nodes[:1], outputs=(Ref(0),)))
    assert list(mutants(graph, Random(0))) == []
