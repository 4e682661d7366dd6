"""The cheapest partitions, compared with all there are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.search.cuts import Atoms, Cuts
from mirage.search.partitions import Partition, Way, cheapest, most_promising
from tests.random_programs import random_program, random_sizes


def chain(length: int) -> Cuts:
    """A program of so many matmuls, one after another: an atom each."""

    def product(x: object, *weights: object) -> object:
        for w in weights:
            x = x @ w  # type: ignore[operator]
        return x

    def fn(x: object, w0: object, w1: object, w2: object, w3: object, w4: object, w5: object) -> object:
        return product(x, *(w0, w1, w2, w3, w4, w5)[:length])

    dims = [f"d{k}" for k in range(7)]
    specs = {f"w{k}": mi.tensor(dims[k], dims[k + 1]) for k in range(6)}
    ap = to_axes(mi.trace(fn, "chain", x=mi.tensor("m", "d0"), **specs))
    cuts = Cuts(ap, dict.fromkeys(ap.axes, 8))
    assert len(cuts.atoms) == length
    return cuts


def every_partition(
    cuts: Cuts, ways: dict[Atoms, list[Way]], done: Partition, prefix: Atoms = 0
) -> Iterator[Partition]:
    if prefix == cuts.all:
        yield done
    for piece in ways:
        if cuts.nodes(piece) and not piece & prefix and prefix | piece in cuts.prefixes:
            for way in ways[piece]:
                if not way.splits & done.splits:
                    yield from every_partition(cuts, ways, done.followed_by(piece, way), prefix | piece)


def random_ways(rng: Random, cuts: Cuts) -> dict[Atoms, list[Way]]:
    """One way without a split for every piece, and some with one."""
    return {
        piece: [
            Way(rng.random() * piece.bit_count()),
            *(Way(rng.random(), frozenset(rng.sample("abc", rng.randint(1, 2)))) for _ in range(rng.randint(0, 2))),
        ]
        for piece in cuts.pieces
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_cheapest_partitions_of_a_chain(seed: int) -> None:
    rng = Random(seed)
    cuts = chain(rng.randint(2, 6))
    ways = random_ways(rng, cuts)
    everything = {p.key: p.cost for p in every_partition(cuts, ways, Partition())}
    found = cheapest(cuts, ways, 4)
    assert [p.cost for p in found] == pytest.approx(sorted(everything.values())[:4])
    for p in found:
        assert p.cost == pytest.approx(everything[p.key])


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_partition_of_a_random_program(seed: int) -> None:
    rng = Random(seed)
    p = random_program(rng, 4)
    ap = to_axes(p)
    sizes = random_sizes(rng, p)
    cuts = Cuts(ap, {a: evaluate(d, sizes) for a, d in ap.axes.items()})
    ways = random_ways(rng, cuts)
    best = min(p.cost for p in every_partition(cuts, ways, Partition()))
    found = cheapest(cuts, ways, 2)
    assert found[0].cost == pytest.approx(best)
    assert len({p.key for p in found}) == len(found)


def test_no_axis_is_split_in_two_pieces() -> None:
    cuts = chain(2)
    whole, split = Way(2.0), Way(1.0, frozenset("a"))
    (p, *_) = cheapest(cuts, {0b01: [whole, split], 0b10: [whole, split]}, 1)
    assert p.cost == 3.0 and p.splits == {"a"}
    assert not cheapest(cuts, {0b01: [split], 0b10: [split]}, 1)


def test_the_piece_that_promises_most_is_on_the_best_way_through_it() -> None:
    cuts = chain(3)
    known = {0b001: 4.0, 0b010: 4.0, 0b100: 4.0}
    assert most_promising(cuts, known, {0b011: 3.0, 0b110: 2.0, 0b111: 7.0}) == (0b110, 6.0)
    assert most_promising(cuts, known, {0b011: 3.0, 0b110: 2.0, 0b111: 5.0}) == (0b111, 5.0)
    assert most_promising(cuts, known, {}) is None


def test_no_piece_promises_anything_without_a_way_to_it() -> None:
    assert most_promising(chain(3), {0b001: 1.0}, {0b110: math.inf}) is None
    assert most_promising(chain(3), {}, {0b110: 1.0}) is None
