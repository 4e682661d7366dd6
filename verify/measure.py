"""Sizes of dims as values of the fields, and a few elements that stand for an axis of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from mirage.ir.dims import Dim
from mirage.verify.primes import Primes
from mirage.verify.words import keys, mix

#: values mod p and mod q
Residue = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Measure:
    """How often the elements of axes count in sums, so that a few elements stand for an axis of any size.

    `axes` maps an axis to its size and to the number of its elements in the arrays. In every test each dim symbol is a random
    value of the fields, and an axis' elements have random weights that add up to its size. With natural numbers as weights, that
    is the program on larger arrays, in which elements are repeated. An axis of as many elements as its literal size has no
    weights. `joined` maps an axis that puts others side by side to these, in order: its weights are theirs.
    """

    axes: Mapping[str, tuple[Dim, int]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def is_exact(size: Dim, elements: int) -> bool:
    """Whether an axis of that size has so many elements, each of which counts once."""
    return bool(size == elements)


@lru_cache(maxsize=4096)
def _monomials(size: Dim) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """A polynomial dim as coefficients and symbols, each as often as its power says."""
    found = []
    for monomial, c in size.as_coefficients_dict().items():
        powers = monomial.as_powers_dict().items()
        found.append((int(c), tuple(b.name for b, n in powers if b.is_Symbol for _ in range(int(n)))))
    return tuple(found)


class DrawnMeasure:
    """The values of a measure in some tests, which are made of the number of the test (its root) and the seed alone."""

    def __init__(self, measure: Measure, primes: Primes, numbers: np.ndarray, seed: int) -> None:
        self.measure = measure
        self.moduli = primes.p, primes.q
        self.numbers = numbers
        self.seed = seed
        self._symbols: dict[str, Residue] = {}

    def size(self, size: Dim) -> Residue:
        """A polynomial of the sizes of symbols, of shape [tests]."""
        parts = []
        for k, m in enumerate(self.moduli):
            total = np.zeros(len(self.numbers), dtype=np.int64)
            for c, names in _monomials(size):
                term = np.full(len(self.numbers), c % m, dtype=np.int64)
                for name in names:
                    term = term * self._symbol(name)[k] % m
                total = (total + term) % m
            parts.append(total)
        return parts[0], parts[1]

    @cached_property
    def weights(self) -> dict[str, Residue]:
        """By axis, weights of shape [tests, elements]; an axis whose elements count once is left out."""
        found: dict[str, Residue] = {}
        for a, (size, n) in self.measure.axes.items():
            if not is_exact(size, n) and a not in self.measure.joined:
                found[a] = self._weights(a, self.size(size), n)
        for a, parts in self.measure.joined.items():
            if any(v in found for v in parts):
                each = [found.get(v) or self._ones(self.measure.axes[v][1]) for v in parts]
                found[a] = np.concatenate([p for p, _ in each], axis=1), np.concatenate([q for _, q in each], axis=1)
        return found

    def _weights(self, axis: str, size: Residue, count: int) -> Residue:
        """Random weights that add up to the size."""
        drawn = self._random(f"weights of {axis}", count)
        for w, n, m in zip(drawn, size, self.moduli, strict=True):
            w[:, -1] = (n - w[:, :-1].sum(axis=1)) % m
        return drawn

    def _ones(self, count: int) -> Residue:
        ones = np.ones((len(self.numbers), count), dtype=np.int64)
        return ones, ones

    def _symbol(self, name: str) -> Residue:
        if name not in self._symbols:
            p, q = self._random(f"size {name}", 1)
            self._symbols[name] = p[:, 0], q[:, 0]
        return self._symbols[name]

    def _random(self, what: str, count: int) -> Residue:
        """Random values of shape [tests, count]."""
        first, second = keys(f"{what} {self.seed}")
        h = mix(mix(self.numbers ^ first)[:, None] + np.arange(count, dtype=np.uint64))
        p, q = (x % np.uint64(m) for x, m in zip((h, mix(h ^ second)), self.moduli, strict=True))
        return p.astype(np.int64), q.astype(np.int64)
