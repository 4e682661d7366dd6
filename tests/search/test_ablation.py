"""What each pruning saves, and that it loses nothing; with the program's own operators, as all prefixes are to be written out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mirage.mugraph.graph import MuGraph
from mirage.search.assemble import Assembler
from mirage.search.compose import Kernel
from mirage.search.cost import Cost
from mirage.search.generate import SearchResult, generate
from mirage.search.options import SearchOptions
from mirage.verify.proof import prove
from tests.programs import axes, search, sizes, space
from tests.sampled import thinned
from tests.search.test_structures import is_flash_attention


def best(name: str, kernels: int, **options: Any) -> list[tuple[bool, Cost]]:
    """The costs of what is found, and whether it takes differences that the program does not take."""
    s = space(name, max_kernels=kernels, vocabulary="program", **options)
    assembler = Assembler(s.program)

    def proved(found: list[Kernel]) -> list[MuGraph]:
        graph = assembler.graph(found, s.tensors.outputs())
        return [graph] if prove(axes(name), graph) == "proved" else []

    accepted = filter(None, s.composer().compose(1, kernels, proved))
    found = [(any(k.choice.foreign for k in a.kernels), a.cost) for a in accepted]
    return [
        (f, c)
        for f, c in found
        if not any(d is not c and (d <= c).all() and (d < c).any() and g <= f for g, d in found)
    ]


def same(a: list[tuple[bool, Cost]], b: list[tuple[bool, Cost]]) -> bool:
    """Whether each has, for everything of the other, something that is as good."""
    return all(
        any((e <= d + 1e-6).all() and np.allclose(e, d) and g <= f for g, e in y)
        for x, y in ((a, b), (b, a))
        for f, d in x
    )


# Nothing is lost.

#: with limits at which all prefixes can be written out
TINY = [
    ("matmul", 3),
    pytest.param("normalized", 3, marks=pytest.mark.slow),
    ("chain", 3),
    ("neg", 3),
    ("dot", 3),
    ("two outputs", 3),
    ("outputs of other axes", 3),
    pytest.param("scale", 3, marks=pytest.mark.slow),
    pytest.param("mean", 3, marks=pytest.mark.slow),
    pytest.param("sum then matmul", 3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "limit"), TINY)
def test_pruning_loses_no_graph_that_can_be_proved(name: str, limit: int) -> None:
    """Of all equal graphs with kernels of up to `limit` operators, the best are found with pruning."""
    pruned = best(name, 1, max_operators=limit)
    everything = best(name, 1, max_operators=limit, pruner=None)
    assert same(pruned, everything)
    few, many = (
        space(name, max_kernels=1, max_operators=limit, pruner=p, vocabulary="program").stats for p in ("normal-form", None)
    )
    assert few.prefixes < many.prefixes


@pytest.mark.parametrize("name", thinned(["matmul", "normalized", "sum then matmul", "neg", "two outputs", "dot"]))
def test_the_smt_pruner_finds_the_same(name: str) -> None:
    assert same(best(name, 1, max_operators=4), best(name, 1, max_operators=4, pruner="smt"))


def test_the_smt_pruner_finds_no_more() -> None:
    """It may find less: what it does not prove within its limit of instances is pruned."""
    ours, smt = best("chain", 1, max_operators=3), best("chain", 1, max_operators=3, pruner="smt")
    assert ours
    assert all(any((d <= c + 1e-6).all() for _, d in ours) for _, c in smt)


@pytest.mark.parametrize("name", ["matmul", "normalized", "sum then matmul", "mean", "difference then matmul"])
def test_without_canonical_values_the_same_graphs_are_found(name: str) -> None:
    once, each = (best(name, 1, canonical=c, max_operators=5) for c in (True, False))
    assert same(once, each)


def test_canonical_values_do_not_change_compositions() -> None:
    for name in ("softmax", "two outputs", "matmul"):
        once, each = (best(name, 2, canonical=c, max_operators=4) for c in (True, False))
        assert same(once, each)


# What it saves.


def prefixes(limit: int, **options: Any) -> int:
    given = SearchOptions(max_kernels=1, max_operators=limit, budget=600.0, vocabulary="program", **options)
    r = generate(axes("gqa_decode"), sizes("gqa_decode"), given)
    assert "budget" not in r.stats.stop_reason
    return r.stats.prefixes


def test_without_abstract_expressions_there_are_more_prefixes() -> None:
    assert prefixes(1) < prefixes(1, pruner=None)


@pytest.mark.slow
def test_without_abstract_expressions_their_number_explodes() -> None:
    """Shown at fewer operators than the graph needs, for that reason (paper, section 8.5)."""
    with_it, without = ([prefixes(n, pruner=p) for n in (1, 2)] for p in ("normal-form", None))
    assert all(a < b for a, b in zip(with_it, without, strict=True))
    growth = [b / a for a, b in zip(with_it, without, strict=True)]
    assert growth == sorted(growth)


def test_without_canonical_values_there_are_more_prefixes() -> None:
    with_it, without = ([prefixes(n, canonical=c) for n in (4, 5, 6)] for c in (True, False))
    assert all(a < b for a, b in zip(with_it, without, strict=True))


def test_pruning_grows_with_the_limit() -> None:
    found = [prefixes(n) for n in (2, 4, 6, 8)]
    assert all(a <= b for a, b in itertools.pairwise(found))


# beside `test_the_smt_pruner_finds_the_same`, which always runs
@pytest.mark.slow
def test_smt_finds_flash_attention() -> None:
    r: SearchResult = search("gqa_decode", pruner="smt", max_kernels=1, max_operators=8)
    assert any(map(is_flash_attention, r.graphs))
    assert all(prove(axes("gqa_decode"), g) == "proved" for g in r.graphs if is_flash_attention(g))
