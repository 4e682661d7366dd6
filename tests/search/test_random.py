"""Searches of random programs: whatever is returned is a valid graph of the program."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

import mirage as mi
from mirage.errors import AxisError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.mugraph.validate import validate
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.ir.programs import shared_program
from tests.random_programs import random_program

KINDS: dict[str, Callable[[Random, int], Program]] = {"random": random_program, "shared": shared_program}
#: graphs of one search that are checked
MOST = 12


def check(make: Callable[[Random, int], Program], seed: int, budget: float) -> int:
    """Search one program; the number of graphs that were checked. Every one is valid, and proved or equal in finite fields."""
    p = make(Random(seed), 2 + seed % 4)
    try:
        ap = to_axes(p)
    except AxisError:
        return 0
    names = sorted({s.name for d in ap.axes.values() for s in d.free_symbols})
    r = generate(ap, {n: 4 + i for i, n in enumerate(names)}, SearchOptions(budget=budget, max_kernels=1 + seed % 5))
    for g in r.graphs[:MOST]:
        validate(g)
        assert prove(ap, g) == "proved" or Verifier(p).check(g).equal, f"{p}\n{g}"
    compute = any(ap.nodes[o.value].op not in ("input", "constant", "size") for o in ap.outputs)
    # a search without a result has a reason: nothing to compute, or values that lost their axes
    if not r.graphs and compute and len(ap.outputs) <= 2:
        assert "cancelled axes" in r.stats.pruned or not r.stats.stop_reason.startswith("complete"), str(p)
    return min(len(r.graphs), MOST)


@pytest.mark.parametrize("kind", KINDS)
def test_a_few(kind: str) -> None:
    assert sum(check(KINDS[kind], seed, 0.2) for seed in range(40)) > 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hundred", range(1, 6))
def test_many(kind: str, hundred: int) -> None:
    assert sum(check(KINDS[kind], 100 * hundred + k, 0.5) for k in range(100)) > 80


def test_a_fixed_size_is_no_number_to_a_graph() -> None:
    """The mean over an axis of 2 of x + x is the sum of x only at that size, and random tests take another."""
    traced = mi.trace(lambda x: mi.mean(x + x, axis=1), "mean_twice", x=mi.tensor("k", 2))
    found = generate(to_axes(traced), {"k": 8}).graphs
    assert found
    verifier = Verifier(traced)
    assert all(verifier.check(g).equal and prove(verifier.axis_program, g) == "proved" for g in found)
