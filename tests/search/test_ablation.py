"""What each pruning saves, and that it loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mirage.mugraph.graph import Graph
from mirage.search import closure
from mirage.search.generate import SearchOptions, SearchResult, generate
from mirage.search.plan import KernelPlan
from mirage.verify.proof import prove
from tests.programs import axes, close, search, sizes
from tests.search.test_structures import is_flash_attention

#: keep everything, so that searches can be compared graph by graph
ALL = 100_000


def proved(name: str, r: SearchResult) -> set[Graph]:
    return {g.kernel for g in r.graphs if prove(axes(name), g) == "proved"}


def find(name: str, **options: Any) -> SearchResult:
    return search(name, max_kernels=1, keep=ALL, budget=60.0, **options)


# Nothing is lost.

#: with limits at which all prefixes can be written out
TINY = [
    ("matmul", 3),
    ("normalized", 3),
    ("chain", 3),
    ("neg", 4),
    ("scale", 3),
    ("dot", 3),
    ("two outputs", 4),
    ("outputs of other axes", 4),
    pytest.param("sum then matmul", 3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "limit"), TINY)
def test_pruning_loses_no_graph_that_can_be_proved(monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    """Every equal graph of up to `limit` operators that exists at all is found with pruning, and no other is."""
    monkeypatch.setattr(closure, "MAX_VALUES", 50_000)
    pruned = find(name, max_operators=limit)
    everything = find(name, max_operators=limit, pruner=None)
    assert pruned.stats.stop_reason == everything.stats.stop_reason == "complete"
    assert pruned.stats.prefixes < everything.stats.prefixes
    found = proved(name, pruned)
    assert found and len(found) == len(pruned.graphs)
    assert proved(name, everything) == found


@pytest.mark.parametrize("name", ["matmul", "normalized", "neg", "sum then matmul", "two outputs", "dot"])
def test_the_smt_pruner_finds_the_same(name: str) -> None:
    pruned, smt = find(name, max_operators=4), find(name, max_operators=4, pruner="smt")
    assert smt.stats.stop_reason == "complete"
    assert proved(name, smt) == proved(name, pruned) != set()


def test_the_smt_pruner_finds_no_more() -> None:
    """It may find less: what it does not prove within its limit of instances is pruned, here by associativity."""
    pruned, smt = find("chain", max_operators=3), find("chain", max_operators=3, pruner="smt")
    assert proved("chain", smt) < proved("chain", pruned)


@pytest.mark.parametrize("kernel", [KernelPlan(), KernelPlan("d64")])
def test_indices_lose_no_value_that_leads_to_a_proof(kernel: KernelPlan) -> None:
    for name in ("normalized", "softmax matmul"):
        with_indices, without = close(name, kernel), close(name, kernel, indices=False)
        assert {v.poly.text() for v in with_indices.values} < {v.poly.text() for v in without.values}
    assert proved("normalized", find("normalized")) == proved("normalized", find("normalized", pruner="smt"))


# What it saves.


def prefixes(limit: int, **options: Any) -> int:
    given = SearchOptions(max_kernels=1, max_operators=limit, budget=20.0, **options)
    r = generate(axes("gqa_decode"), sizes("gqa_decode"), given)
    assert "budget" not in r.stats.stop_reason
    return r.stats.prefixes


def test_without_abstract_expressions_there_are_more_prefixes() -> None:
    """Fewer operators than the graph needs, since without pruning the number explodes (paper, section 8.5)."""
    with_it, without = ([prefixes(n, pruner=p) for n in (1, 2, 3)] for p in ("normal-form", None))
    assert all(a < b for a, b in zip(with_it, without, strict=True))
    growth = [b / a for a, b in zip(with_it, without, strict=True)]
    assert growth == sorted(growth)


def test_without_canonical_values_there_are_more_prefixes() -> None:
    with_it, without = ([prefixes(n, canonical=c) for n in (4, 5, 6)] for c in (True, False))
    assert all(a < b for a, b in zip(with_it, without, strict=True))


def test_without_canonical_values_the_same_graphs_are_found() -> None:
    for name in ("matmul", "normalized", "sum then matmul"):
        each = find(name, canonical=False)
        assert proved(name, each) >= proved(name, find(name))


def test_smt_finds_flash_attention() -> None:
    r = generate(
        axes("gqa_decode"),
        sizes("gqa_decode"),
        SearchOptions(pruner="smt", max_kernels=1, max_operators=8, budget=30.0),
    )
    assert any(map(is_flash_attention, r.graphs))
    assert all(prove(axes("gqa_decode"), g) == "proved" for g in r.graphs if is_flash_attention(g))
    assert r.stats.seconds < 30
