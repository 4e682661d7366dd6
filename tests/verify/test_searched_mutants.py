"""Mutants of graphs that the search found: every wrong one is rejected."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest

from benchmarks.programs import PROGRAMS
from mirage.errors import MirageError
from mirage.mugraph.graph import MuGraph
from mirage.search.generate import SearchOptions, generate
from mirage.verify.equivalence import Verifier
from mirage.verify.mutate import mutants
from tests.verify.test_mutate import equal_in_floats

#: programs, with sizes that only order the search
SIZES = {
    "gqa_decode": {"b": 1, "h": 8, "s": 1, "t": 4096},
    "rmsnorm_linear": {"b": 8, "n": 4096},
    "gated_mlp": {"b": 8, "n": 4096},
    "lora": {"b": 8, "n": 4096},
    "softmax": {"m": 1024, "n": 1024},
}
#: of each program: graphs, and mutants of each
GRAPHS, COUNT = 2, 20
Counts = Counter[tuple[str, str]]


def found_graphs(name: str, verifier: Verifier, count: int) -> list[MuGraph]:
    """Verified graphs of different plans, some of two kernels where there are."""
    graphs = generate(verifier.axis_program, SIZES[name], SearchOptions(budget=2.0)).graphs
    by_plan = {(len(g.kernels), g.origin): g for g in reversed(graphs[:60]) if verifier.check(g).equal}
    ordered = [g for n in (1, 2) for (kernels, _), g in by_plan.items() if kernels == n]
    return [*ordered[: -(-count // 2)], *ordered[::-1][: count // 2]]


def judge(verifier: Verifier, graph: MuGraph, count: int, seed: int) -> Counts:
    """What became of so many mutants of a graph; fails where one passes that floats tell from the program."""
    counts: Counts = Counter()
    for kind, mutant in itertools.islice(mutants(graph, Random(seed)), count):
        try:
            verdict = "equal" if verifier.check(mutant).equal else "different"
        except MirageError:
            verdict = "malformed"
        counts[kind, verdict] += 1
        if verdict == "equal":
            assert equal_in_floats(verifier.program, mutant), f"{kind} of {graph.origin} was accepted"
    return counts


def text_of(counts: Counts) -> str:
    return ", ".join(f"{kind} {verdict}: {n}" for (kind, verdict), n in sorted(counts.items()))


@pytest.mark.parametrize("name", SIZES)
def test_mutants_of_searched_graphs_are_rejected_or_equal(name: str) -> None:
    verifier = Verifier(PROGRAMS[name].trace())
    counts: Counts = Counter()
    graphs = found_graphs(name, verifier, GRAPHS)
    assert graphs
    for i in range(GRAPHS):
        counts += judge(verifier, graphs[i % len(graphs)], COUNT, seed=i)
    print(name, text_of(counts))
    rejected = sum(n for (_, verdict), n in counts.items() if verdict != "equal")
    assert sum(counts.values()) == GRAPHS * COUNT
    assert rejected >= GRAPHS * COUNT // 2, text_of(counts)
    assert any(verdict == "different" for _, verdict in counts), text_of(counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_many_mutants(name: str) -> None:
    verifier = Verifier(PROGRAMS[name].trace())
    counts: Counts = Counter()
    for i, graph in enumerate(found_graphs(name, verifier, 8)):
        counts += judge(verifier, graph, 150, seed=100 + i)
    print(name, text_of(counts))
    assert any(verdict == "different" for _, verdict in counts), text_of(counts)
