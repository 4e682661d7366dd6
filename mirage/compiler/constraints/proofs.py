"""Proofs about dims from facts in solved form: by normalization, by intervals, else by Z3.

Before Z3 is asked, a few sizes that satisfy the facts are tried: most of what is not true has a small counterexample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sympy

from mirage.compiler.constraints.smt import refuted
from mirage.compiler.constraints.solved import Solved
from mirage.errors import DimError
from mirage.ir.dim_bounds import Interval, interval
from mirage.ir.dims import Dim, FloorDiv, Modulo, value_at
from mirage.ir.polynomials import common_monomial, divide, terms

#: sizes that are tried, and sympy nodes of a dim that Z3 is asked about
_TRIED, _LARGEST = 32, 100


@dataclass
class Stats:
    """How often queries were answered from the cache, by normalization, by intervals, by a counterexample and by Z3,
    and how many questions Z3 could not answer.
    """

    cached: int = 0
    normalization: int = 0
    intervals: int = 0
    counterexamples: int = 0
    z3: int = 0
    unknown: int = 0


class Prover:
    """What follows from facts in solved form for dims that they have reduced; answers False where it finds no proof."""

    def __init__(self, facts: Solved, stats: Stats) -> None:
        self.facts = facts
        self.stats = stats

    def zero(self, d: Dim) -> bool:
        """Whether a dim expression is 0 for all sizes that satisfy the facts."""
        if d == 0 or self.facts.reduce(_without_modulo(d)) == 0 or self._by_equations(d) == 0:
            self.stats.normalization += 1
            return True
        if not self.values(d).has(0):
            self.stats.intervals += 1
            return False
        return self._search(d, lambda value: value != 0, Interval(), excluded=0)

    def not_zero(self, d: Dim) -> bool:
        """Whether a dim expression is 0 for no sizes that satisfy the facts."""
        if d.is_Integer:
            self.stats.normalization += 1
            return bool(d != 0)
        if not self.values(d).has(0):
            self.stats.intervals += 1
            return True
        return self._search(d, lambda value: value == 0, Interval(0, 0))

    def not_negative(self, d: Dim) -> bool:
        """Whether a dim expression is 0 or more for all sizes that satisfy the facts."""
        values = self.values(d)
        if d.is_Integer:
            self.stats.normalization += 1
            return bool(d >= 0)
        if (values.low is not None and values.low >= 0) or self._factor_not_negative(d):
            self.stats.intervals += 1
            return True
        return self._search(d, lambda value: value < 0, Interval(None, -1))

    def divisible(self, d: Dim, k: int) -> bool:
        """Whether k divides a dim for all sizes that satisfy the facts."""
        return self.zero(self.facts.reduce(Modulo(d, sympy.Integer(k))))

    def values(self, dim: Dim) -> Interval:
        """An interval that holds every value of a dim, from ranges and from bounds of a part of it."""
        found = interval(dim, self.facts.ranges)
        coefficients = {monomial: c for c, monomial in terms(dim)}
        for bounded, allowed in self.facts.bounds:
            c, monomial = terms(bounded)[0]
            times, remainder = divmod(coefficients.get(monomial, 0), c)
            if times and not remainder:
                rest = interval(sympy.expand(dim - times * bounded), self.facts.ranges)
                found = found.meet(rest.plus(allowed.times(Interval(times, times))))
        return found

    def _factor_not_negative(self, d: Dim) -> bool:
        """Whether d is a product of sizes and what is 0 or more where they are 1 or more: where one is 0, d is 0."""
        sizes = [s for f in sympy.Mul.make_args(common_monomial(d)) if (s := f.as_base_exp()[0]).is_Symbol]
        positive = {s: self.facts.range(s).meet(Interval(1, None)) for s in sizes}
        low = interval(sympy.expand(d / sympy.Mul(*sizes)), {**self.facts.ranges, **positive}).low
        return low is not None and low >= 0

    def _by_equations(self, dim: Dim) -> Dim:
        """The dim with the first term of each equation replaced by the others, wherever it is a factor of a term."""
        for e in self.facts.equations:
            first = max(sympy.Add.make_args(e), key=_order)
            others = first - e
            for _ in terms(dim):
                found = next((q for t in sympy.Add.make_args(dim) if (q := divide(t, first)) is not None), None)
                if found is None:
                    break
                dim = sympy.expand(dim + found * (others - first))
        return dim

    # --- search for a counterexample, then for a proof -----------------------------------------------------

    def _search(self, d: Dim, contrary: Callable[[int], bool], allowed: Interval, excluded: int | None = None) -> bool:
        if any(contrary(value) for value in self._tried(d)):
            self.stats.counterexamples += 1
            return False
        if sum(1 for _ in sympy.preorder_traversal(d)) > _LARGEST:
            self.stats.unknown += 1
            return False
        proved = refuted(self.facts, d, allowed, excluded)
        self.stats.z3 += 1
        self.stats.unknown += not proved
        return proved

    def _tried(self, d: Dim) -> Iterator[int]:
        """Values of a dim at sizes that satisfy the facts."""
        for sizes in self.sizes(d):
            try:
                yield value_at(d, sizes)
            except DimError:
                # a divisor is 0
                continue

    def sizes(self, d: Dim) -> Iterator[dict[str, int]]:
        """Some sizes of the symbols in a dim, and of those that facts relate to them, that satisfy the facts."""
        symbols = self.facts.connected(d)
        draw = random.Random(0)
        for k in range(_TRIED):
            sizes = {s.name: _some(self.facts.range(s), draw, k) for s in sorted(symbols, key=lambda s: s.name)}
            if self._satisfied(symbols, sizes):
                yield sizes

    def _satisfied(self, symbols: set[sympy.Symbol], sizes: dict[str, int]) -> bool:
        facts = self.facts
        try:
            return (
                all(value_at(e, sizes) == 0 for e in facts.equations if e.free_symbols <= symbols)
                and all(values.has(value_at(e, sizes)) for e, values in facts.bounds if e.free_symbols <= symbols)
                and all(value_at(e, sizes) % k == 0 for e, k in facts.congruences if e.free_symbols <= symbols)
            )
        except DimError:
            return False


def _some(values: Interval, draw: random.Random, k: int) -> int:
    """A size in a range: small ones first, later also far from the lower end."""
    low = values.low or 0
    size = low + draw.choice((0, 1, 2, 3, 4, 5, 7) if k < _TRIED // 2 else (0, 1, 6, 8, 12, 16, 100, 1001))
    return size if values.high is None else min(size, values.high) if draw.random() < 0.75 else values.high


def _without_modulo(d: Dim) -> Dim:
    """a % b as a - b * (a // b)."""
    return sympy.expand(d.replace(Modulo, lambda a, b: a - b * FloorDiv(a, b)))


def _order(term: Dim) -> tuple[int, int, str]:
    """Terms by degree; of one degree, those of coefficient 1 are last, then by name."""
    c, monomial = term.as_coeff_Mul()
    powers = [f.as_base_exp()[1] for f in sympy.Mul.make_args(monomial)]
    return (int(sum(powers)) if monomial != 1 else 0, -abs(int(c)), str(monomial))
