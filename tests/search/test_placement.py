"""Placements: what they rule out is never a part of a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.search.abstract import AbstractAlgebra, Poly
from mirage.search.placement import Placements, all_sites
from tests.search.terms import Term, interpret, random_term, rewritten, subterms

SEEDS = st.integers(0, 2**32 - 1)


def is_part(al: AbstractAlgebra, e: Poly, targets: Sequence[Poly]) -> bool:
    return any(al.is_subexpression(e, t) for t in targets)


def case(seed: int) -> tuple[AbstractAlgebra, list[Poly], list[Term]]:
    """Targets, and terms of which many are parts of them."""
    rng, al = Random(seed), AbstractAlgebra()
    terms = [random_term(rng, rng.randint(2, 5)) for _ in range(rng.randint(1, 2))]
    pool = [s for t in terms for s in subterms(rewritten(rng, t, rng.randint(0, 6)))]
    pool += [random_term(rng, rng.randint(1, 3)) for _ in range(4)]
    return al, [interpret(t, al) for t in terms], list(dict.fromkeys(pool))


def pairs(polys: Sequence[Poly], rng: Random) -> Iterator[tuple[Poly, Poly]]:
    for _ in range(12):
        yield rng.choice(polys), rng.choice(polys)


@given(SEEDS)
def test_placed_exactly_where_it_is_a_part(seed: int) -> None:
    al, targets, pool = case(seed)
    placements = Placements(al, all_sites(targets))
    for term in pool:
        poly = interpret(term, al)
        assert (placements.of(poly) != 0) == is_part(al, poly, targets), (term, targets)


@given(SEEDS)
def test_a_part_restricts_its_operands(seed: int) -> None:
    al, targets, pool = case(seed)
    placements = Placements(al, all_sites(targets))
    rng = Random(seed)
    made = [(t[0], interpret(t[1], al), interpret(t[2], al)) for t in pool if t[0] in ("add", "mul", "div")]
    polys = [interpret(t, al) for t in pool]
    for x, y in pairs(polys, rng):
        made += [("add", x, y), ("mul", x, y), ("div", x, y)]
    for op, x, y in made:
        placed_x, placed_y = placements.of(x), placements.of(y)
        if not is_part(al, getattr(al, op)(x, y), targets):
            continue
        # a result is only possible between two parts of the targets
        assert placed_x
        match op:
            case "add":
                assert placements.of(al.add(x, y)) & ~(placed_x & placed_y) == 0
                assert placed_x & placed_y
            case "mul":
                assert placed_x & placements.multiples(y)
                assert placed_y & placements.multiples(x)
            case "div":
                assert placed_x & placements.ratios(y)


@given(SEEDS)
def test_a_difference_restricts_its_operands(seed: int) -> None:
    al, _, pool = case(seed)
    rng = Random(seed)
    for x, y in pairs([interpret(t, al) for t in pool], rng):
        difference = al.sub(x, y)
        placements = Placements(al, all_sites([al.mul(al.tensor("W"), difference)]))
        assert placements.of(difference) & ~(placements.of(x) & placements.of(al.neg(y))) == 0
        assert placements.of(x) & placements.of(al.neg(y))


def test_the_numbers_of_a_product() -> None:
    """In x z + y z, z is at x and at y, x and y are at z, and their sum is where both are."""
    al = AbstractAlgebra()
    x, y, z = map(al.tensor, "XYZ")
    target = al.mul(al.add(x, y), z)
    p = Placements(al, all_sites([target]))
    assert p.of(x) == p.of(y) == p.of(al.add(x, y)) != 0
    assert p.of(z).bit_count() == 2 and not p.of(z) & p.of(x)
    assert p.of(target).bit_count() == 1
    # z may be multiplied by x or y; x, y and their sum by z; nothing by itself
    assert p.of(z) & p.multiples(x) and p.of(z) & p.multiples(y)
    assert p.of(al.add(x, y)) & p.multiples(z)
    assert not p.of(x) & p.multiples(x) and not p.of(x) & p.multiples(y)
    assert not p.of(x) & p.ratios(y)
    assert p.of(al.mul(x, y)) == 0


def test_what_is_asked_early_counts_scales_that_come_late() -> None:
    """The bit sets of divisors grow with the scales: an answer from before a new scale is not kept for it."""
    al = AbstractAlgebra()
    x, y, z = map(al.tensor, "XYZ")
    p = Placements(al, all_sites([al.div(al.mul(x, y), z)]))
    assert p.multiples(y) == p.ratios(z) == 0, "nothing is placed yet"
    assert p.of(x) & p.multiples(y)
    assert p.of(al.mul(x, y)) & p.ratios(z)


@pytest.mark.parametrize("name", ["X", "Y", "W"])
def test_admits_and_counts(name: str) -> None:
    al = AbstractAlgebra()
    p = Placements(al, all_sites([al.add(al.tensor("X"), al.tensor("Y"))]))
    assert p.admits(al.tensor(name)) == (name != "W")
    assert (p.checks, p.pruned) == (1, int(name == "W"))
