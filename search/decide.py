"""Learning which version runs at which sizes: a decision tree of least regret over a table of measurements.

The regret of a version at a point is how much slower than the fastest version it is there, relatively. The tree minimizes
the sum of regrets and a price per leaf exactly, among all trees of bounded depth whose thresholds lie between measured
points (as optimal decision trees do, Bertsimas and Dunn, 2017; there are few points, so all are tried, each set of points once).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mirage.kernels.decision import MAX_DEPTH, MAX_THRESHOLD, Split, Tree

#: regret that a leaf more has to save: measurements are not more precise, and compiled versions are not free
LEAF_PRICE = 0.05
#: the regret of a point whose version has not been measured there
UNMEASURED = 1e6
#: how many times as much as at another point a regret at a point counts at which the fastest version is wanted
WANTED = 1e3


def learn(
    symbols: Sequence[str],
    points: Sequence[Mapping[str, int]],
    times: Sequence[Sequence[float]],
    wanted: int = 1,
) -> Tree:
    """The tree of least regret for `times` (per point, of every version; any unit, infinite where not measured).

    At the first `wanted` points the fastest version is chosen where the depth allows it. Some version must have been
    measured at every point. The same table gives the same tree. Of equal trees, the one that compares single dims rather
    than products wins, and then the one with the lower threshold.
    """
    return _Learner(symbols, points, times, wanted).best((1 << len(points)) - 1, MAX_DEPTH)[1]


class _Learner:
    """Sets of points are bit masks."""

    def __init__(
        self,
        symbols: Sequence[str],
        points: Sequence[Mapping[str, int]],
        times: Sequence[Sequence[float]],
        wanted: int,
    ) -> None:
        table = np.asarray(times, dtype=np.float64).reshape(len(points), -1)
        regret = np.minimum(table / table.min(axis=1, keepdims=True) - 1.0, UNMEASURED)
        regret[:wanted] *= WANTED
        self.regret = regret
        self.masks: dict[tuple[int, int], tuple[float, Tree]] = {}
        self.single: dict[int, tuple[float, int]] = {}
        pairs = itertools.combinations(symbols, 2)
        features: list[tuple[str, ...]] = [*((s,) for s in symbols), *pairs]
        #: per feature, the points by its value
        self.features = [(f, self._sorted(f, points)) for f in features]

    @staticmethod
    def _sorted(feature: tuple[str, ...], points: Sequence[Mapping[str, int]]) -> list[tuple[int, int]]:
        """(value of the product of these dims, point), ascending."""
        return sorted((math.prod(p[s] for s in feature), i) for i, p in enumerate(points))

    def leaf(self, mask: int) -> tuple[float, int]:
        """The least regret of one version at all of these points, and the version."""
        found = self.single.get(mask)
        if found is None:
            rows = [i for i in range(len(self.regret)) if mask >> i & 1]
            total = self.regret[rows].sum(axis=0)
            version = int(total.argmin())
            found = self.single[mask] = float(total[version]), version
        return found

    def best(self, mask: int, depth: int) -> tuple[float, Tree]:
        """The least regret and price of a tree for these points, and the tree."""
        key = mask, depth
        if key in self.masks:
            return self.masks[key]
        best: tuple[float, Tree] = self.leaf(mask)
        # no split is worth more than all regret
        if depth and best[0] > LEAF_PRICE:
            seen = {mask}
            for dims, order in self.features:
                inside = [(value, i) for value, i in order if mask >> i & 1]
                low = 0
                for (value, i), (following, _) in itertools.pairwise(inside):
                    low |= 1 << i
                    if (
                        value == following
                        or low in seen
                        or (threshold := math.isqrt(value * following)) > MAX_THRESHOLD
                    ):
                        continue
                    seen |= {low, mask & ~low}
                    below, above = self.best(low, depth - 1), self.best(mask & ~low, depth - 1)
                    cost = below[0] + above[0] + LEAF_PRICE
                    if cost < best[0] - 1e-12:
                        best = cost, Split(dims, threshold, below[1], above[1])
        self.masks[key] = best
        return best
