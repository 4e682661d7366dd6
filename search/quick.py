"""Quick rejection: which pairs of values cannot combine into a subexpression, by counting factors, many at a time.

Necessary conditions of `AbstractAlgebra.is_subexpression` only; what passes is still decided there. In a product the
largest counts of a factor add up and must fit into one site of the target (the target, a function's argument, a
denominator); both operands of a sum must fit into one site; a divisor must fit into a denominator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mirage.search.abstract import Factor, Poly


class QuickFilter:
    """Factor counts of the values of one closure, in the order in which they are added."""

    def __init__(self, targets: Sequence[Poly]) -> None:
        sites = list(dict.fromkeys(s for t in targets for s in t.sites))
        inner = {m.denominator for s in sites for m in s.terms if m.denominator is not None}
        factors = list(dict.fromkeys(f for s in sites for m in s.terms for f in m.factors))
        self._column: dict[Factor, int] = {f: i for i, f in enumerate(factors)}
        self._limits = np.stack([self._counts(s) for s in sites])
        self._is_denominator = np.array([s in inner for s in sites])
        self._values = np.zeros((64, len(factors)), dtype=np.int16)
        self._fits = np.zeros((64, len(sites)), dtype=bool)
        self._size = 0

    def _counts(self, poly: Poly) -> np.ndarray:
        found = np.zeros(len(self._column), dtype=np.int16)
        for m in poly.terms:
            for f, n in Counter(m.factors).items():
                i = self._column.get(f)
                if i is not None:
                    found[i] = max(found[i], n)
        return found

    def add(self, poly: Poly) -> None:
        """The next value."""
        if self._size == len(self._values):
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            self._fits = np.concatenate([self._fits, np.zeros_like(self._fits)])
        self._values[self._size] = counts = self._counts(poly)
        self._fits[self._size] = (counts <= self._limits).all(axis=1)
        self._size += 1

    def products(self, v: int, count: int) -> np.ndarray:
        """Which of the first `count` values may be multiplied by value `v`."""
        total = self._values[:count] + self._values[v]
        return np.asarray((total[:, None, :] <= self._limits[None, :, :]).all(axis=2).any(axis=1))

    def sums(self, v: int, count: int) -> np.ndarray:
        """Which of the first `count` values may be added to value `v`."""
        return np.asarray((self._fits[:count] & self._fits[v]).any(axis=1))

    def divisors(self, count: int) -> np.ndarray:
        """Which of the first `count` values may be divided by."""
        return np.asarray(self._fits[:count, self._is_denominator].any(axis=1))
