"""Where values fit into the targets, as bit sets: which pairs of values can combine, before their result is built.

An expression `e` is a subexpression of a target iff some monomial `m` times `e` is contained in one of the target's
*sites* (the target itself, a function's argument, a denominator; paper, section 4.3, in normal form). Such a pair
(site, `m`) is a *placement* of `e`. The placements of an operator's result restrict those of its operands:

    x + y   is at (s, m)  only if x and y are both at (s, m)
    x * y   is at (s, m)  only if x is at (s, m * b), for every monomial b of y
    x / y   is at (s, m)  only if x is at (s, m / y)

so that most pairs are ruled out by the intersection of two bit sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage.search.abstract import AbstractAlgebra, Monomial, Poly, Scale
from mirage.search.expansion import Group, takes_whole

#: expressions of which values may be parts, with the groups of their monomials that are taken wholly or not at all
Sites = Mapping[Poly, Sequence[Group]]


def all_sites(targets: Sequence[Poly]) -> Sites:
    """The sites of targets, of which values may take any part."""
    return {s: () for t in targets for s in t.sites}


class Placements:
    """The placements of expressions in the sites of the targets, numbered in the order in which they turn up.

    As a pruner it admits what has a placement: with all sites, exactly what the normal form admits.
    """

    name = "normal-form"

    def __init__(self, algebra: AbstractAlgebra, sites: Sites) -> None:
        self.algebra = algebra
        self.sites = sites
        self.checks = 0
        self.pruned = 0
        self._numbers: dict[tuple[int, Scale], int] = {}
        self._scales: list[Scale] = []
        self._of: dict[Poly, int] = {}
        #: bit set and how many scales it has seen, per monomial that divides a scale
        self._multiples: dict[Monomial, tuple[int, int]] = {}
        #: the same per polynomial that divides a scale's denominator
        self._ratios: dict[Poly, tuple[int, int]] = {}

    def admits(self, expression: Poly) -> bool:
        """Whether the expression may be a subexpression of a target."""
        self.checks += 1
        placed = self.of(expression) != 0
        self.pruned += not placed
        return placed

    def of(self, poly: Poly) -> int:
        """The placements of an expression; 0 if it is no subexpression of a target."""
        found = self._of.get(poly)
        if found is None:
            found = 0
            for k, (site, groups) in enumerate(self.sites.items()):
                for scale, image in self.algebra.images(poly, site):
                    if not takes_whole(image, groups):
                        continue
                    number = self._numbers.setdefault((k, scale), len(self._scales))
                    if number == len(self._scales):
                        self._scales.append(scale)
                    found |= 1 << number
            self._of[poly] = found
        return found

    def multiples(self, poly: Poly) -> int:
        """Placements of an expression that may be multiplied by this one."""
        pivot = max(poly.terms, key=lambda m: (len(m.factors), m.order))
        bits, seen = self._multiples.get(pivot, (0, 0))
        for number in range(seen, len(self._scales)):
            bits |= self.algebra.divides(pivot, self._scales[number]) << number
        self._multiples[pivot] = bits, len(self._scales)
        return bits

    def ratios(self, poly: Poly) -> int:
        """Placements of an expression that may be divided by this one."""
        bits, seen = self._ratios.get(poly, (0, 0))
        for number in range(seen, len(self._scales)):
            bits |= self.algebra.divides_denominator(poly, self._scales[number]) << number
        self._ratios[poly] = bits, len(self._scales)
        return bits
