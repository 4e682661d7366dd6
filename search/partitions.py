"""The cheapest partitions of a program into pieces, by dynamic programming over the prefixes that its cuts leave.

The cheapest way to a prefix is the cheapest way to a smaller one, and a piece beyond it. What pieces are not known to cost is
estimated, and `most_promising` says whose cost is worth knowing next: that of the piece through which the cheapest partition
might go if its estimate is right, as columns are generated for a linear program by their reduced cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from mirage.mugraph.graph import MuGraph
from mirage.search.cuts import Atoms, Cuts


@dataclass(frozen=True, eq=False)
class Way:
    """A way to run a piece: what it costs (ns), the axes that its kernels split over the grid, and its graph, which an estimate
    has not.
    """

    cost: float
    splits: frozenset[str] = frozenset()
    graph: MuGraph | None = None


@dataclass(frozen=True, eq=False)
class Partition:
    """Pieces, each with a way to run it, in an order in which what each one reads exists. No axis is split in two of them,
    because all parts of a graph divide an axis in the same way.
    """

    steps: tuple[tuple[Atoms, Way], ...] = ()
    cost: float = 0.0
    splits: frozenset[str] = frozenset()

    def followed_by(self, piece: Atoms, way: Way) -> Partition:
        return Partition((*self.steps, (piece, way)), self.cost + way.cost, self.splits | way.splits)

    @property
    def key(self) -> frozenset[tuple[Atoms, Way]]:
        """What two orders of the same pieces share."""
        return frozenset(self.steps)


def cheapest(cuts: Cuts, ways: Mapping[Atoms, Sequence[Way]], count: int) -> list[Partition]:
    """The cheapest partitions of the whole program, at most so many, cheapest first.

    Of all that reach a prefix with the same splits, so many are kept; so they are the cheapest ones where no axis is split.
    """
    reached: dict[Atoms, list[Partition]] = {prefix: [] for prefix in cuts.prefixes}
    reached[0].append(Partition())
    for prefix in cuts.prefixes:
        reached[prefix] = _kept(reached[prefix], count)
        for piece in (p for p in cuts.after(prefix) if p in ways):
            for way in ways[piece]:
                reached[prefix | piece] += [
                    partition.followed_by(piece, way)
                    for partition in reached[prefix]
                    if not partition.splits & way.splits
                ]
    return reached[cuts.all][:count]


def _kept(partitions: Iterable[Partition], count: int) -> list[Partition]:
    """Partitions, cheapest first, without those for which so many cheaper ones split no other axes."""
    kept: list[Partition] = []
    seen: set[frozenset[tuple[Atoms, Way]]] = set()
    for p in sorted(partitions, key=attrgetter("cost")):
        if p.key not in seen and sum(q.splits <= p.splits for q in kept) < count:
            seen.add(p.key)
            kept.append(p)
    return kept


def most_promising(
    cuts: Cuts, known: Mapping[Atoms, float], estimates: Mapping[Atoms, float]
) -> tuple[Atoms, float] | None:
    """Of the pieces with an estimate, the one through which the cheapest partition goes if all others cost what is known, and
    what that would cost; None if there is no estimate, or no partition.
    """
    to = dict.fromkeys(cuts.prefixes, math.inf)
    to[0] = 0.0
    for prefix in cuts.prefixes:
        for piece in cuts.after(prefix):
            to[prefix | piece] = min(to[prefix | piece], to[prefix] + known.get(piece, math.inf))
    rest = dict.fromkeys(cuts.prefixes, math.inf)
    rest[cuts.all] = 0.0
    best: tuple[Atoms, float] | None = None
    for prefix in reversed(cuts.prefixes):
        for piece in cuts.after(prefix):
            after = rest[prefix | piece]
            rest[prefix] = min(rest[prefix], known.get(piece, math.inf) + after)
            through = to[prefix] + estimates.get(piece, math.inf) + after
            if through < (math.inf if best is None else best[1]):
                best = piece, through
    return best
