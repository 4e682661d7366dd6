"""The store of facts about dims that all passes read (BladeDISC, section 3.1).

Facts are equalities of dims, equalities of products (dim collapse: reshape, merge), divisibility and ranges. Every
dim symbol is a size, 0 or more, unless a range says more. A query is answered True only where it is proved: by
normalization first, then by intervals, then by Z3 under a fixed resource limit, so that answers do not depend on time.
Facts and queries are about sizes for which no divisor in them is 0, as evaluation checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import sympy

from mirage.compiler.constraints.facts import Fact, Relation
from mirage.compiler.constraints.proofs import Prover, Stats
from mirage.compiler.constraints.smt import refuted
from mirage.compiler.constraints.solved import Contradiction, Solved
from mirage.errors import ConstraintError, DimError
from mirage.ir.dim_bounds import Interval, interval
from mirage.ir.dims import Dim, DimLike, Modulo, symbols_of, to_dim


class Constraints:
    """Facts about the dims of one function, and what follows from them.

    `add_*` extend the store in place; `copy()` is cheap and independent. A fact that contradicts earlier ones raises
    ConstraintError naming the reasons of all that it contradicts, and leaves the store as it was. Dims are given as in
    `to_dim`. `reason` names the binding, argument or bound that requires the fact. `stats` counts how queries were
    answered.
    """

    def __init__(self) -> None:
        self.stats = Stats()
        self._facts: list[Fact] = []
        self._solved = Solved()
        self._answers: dict[tuple[str, Dim, int], bool] = {}

    def copy(self) -> Constraints:
        """An independent store of the same facts, with counts of its own."""
        new = Constraints()
        new._facts, new._solved, new._answers = list(self._facts), self._solved, dict(self._answers)
        return new

    # --- facts -----------------------------------------------------------------------------------------

    def add_equal(self, a: DimLike, b: DimLike, reason: str) -> None:
        """Two dims are equal: input and output, siblings, or a shape value and the dim that it makes."""
        self._add(Fact(to_dim(a, reason), Relation.EQUAL, to_dim(b, reason), reason))

    def add_collapse(self, group: Sequence[DimLike], other: DimLike | Sequence[DimLike], reason: str) -> None:
        """The product of a group of dims is a dim, or the product of another group: reshape, merge."""
        others = other if isinstance(other, Sequence) and not isinstance(other, str) else (other,)
        self._add(Fact(_product(group, reason), Relation.EQUAL, _product(others, reason), reason))

    def add_divisible(self, dim: DimLike, k: int, reason: str) -> None:
        """A positive integer divides a dim."""
        self._add(Fact(to_dim(dim, reason), Relation.DIVISIBLE, _divisor(k, reason), reason))

    def add_range(self, dim: DimLike, low: int | None, high: int | None, reason: str) -> None:
        """low <= dim <= high; None is no bound."""
        d = to_dim(dim, reason)
        for bound in (low, high):
            if bound is not None and (isinstance(bound, bool) or not hasattr(bound, "__index__")):
                raise DimError(f"{reason}: {bound!r} is not a bound of {d}; use an integer or None")
        if low is not None and high is not None and low > high:
            raise ConstraintError(f"{reason}: {d} from {low} to {high} is an empty range; swap the bounds")
        for relation, bound in ((Relation.AT_LEAST, low), (Relation.AT_MOST, high)):
            if bound is not None:
                self._add(Fact(d, relation, sympy.Integer(bound), reason))

    def _add(self, fact: Fact) -> None:
        if _implied(self._solved, fact):
            return
        solved = _assumed(self._solved, fact)
        if solved is None:
            raise ConstraintError(_conflict(self._facts, fact))
        self._solved = solved
        self._facts.append(fact)
        # what was proved stays proved
        self._answers = {query: True for query, answer in self._answers.items() if answer}

    # --- queries: True only where proved -----------------------------------------------------------------

    def equal(self, a: DimLike, b: DimLike) -> bool:
        """Whether two dims are proved equal."""
        return self._ask("zero", to_dim(a) - to_dim(b), Prover.zero)

    def different(self, a: DimLike, b: DimLike) -> bool:
        """Whether two dims are proved different. Neither `equal` nor `different`: unknown."""
        return self._ask("not zero", to_dim(a) - to_dim(b), Prover.not_zero)

    def at_most(self, a: DimLike, b: DimLike) -> bool:
        """Whether a <= b is proved."""
        return self._ask("not negative", to_dim(b) - to_dim(a), Prover.not_negative)

    def less(self, a: DimLike, b: DimLike) -> bool:
        """Whether a < b is proved; then `at_most(b, a)` is proved false."""
        return self._ask("not negative", to_dim(b) - to_dim(a) - 1, Prover.not_negative)

    def divisible(self, dim: DimLike, k: int) -> bool:
        """Whether a positive integer is proved to divide a dim."""
        divisor = int(_divisor(k, "divisible"))
        return self._ask("divisible", to_dim(dim), lambda p, d: p.divisible(d, divisor), divisor)

    def same_shape(self, a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
        """Whether two shapes are proved equal, dim by dim."""
        return len(a) == len(b) and all(self.equal(x, y) for x, y in zip(a, b, strict=True))

    def same_elements(self, a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
        """Whether two shapes are proved to have the same number of elements."""
        return self.equal(_product(a, "dim"), _product(b, "dim"))

    def lower_bound(self, dim: DimLike) -> int | None:
        """A size that the dim is proved to reach in every case; None where there is none."""
        return self._values(dim).low

    def upper_bound(self, dim: DimLike) -> int | None:
        """A size that the dim is proved never to exceed; None where there is none."""
        return self._values(dim).high

    def largest(self, dims: Sequence[DimLike]) -> Dim | None:
        """The first of the dims that is proved at least as large as each of the others; None where there is none."""
        found = [to_dim(d) for d in dims]
        return next((d for d in found if all(self.at_most(other, d) for other in found)), None)

    def normalize(self, dim: DimLike) -> Dim:
        """The dim with equal symbols replaced by one of them, and simplified by the facts; equal to the dim."""
        d = to_dim(dim)
        reduced = self._reduced(d)
        return d if reduced is None else self._solved.shown(reduced)

    def _values(self, dim: DimLike) -> Interval:
        reduced = self._reduced(to_dim(dim))
        return Interval() if reduced is None else Prover(self._solved, self.stats).values(reduced)

    def _reduced(self, dim: Dim) -> Dim | None:
        """The dim in normal form; None where the facts make a divisor in it 0, so that it has no value."""
        try:
            return self._solved.reduce(dim)
        except DimError:
            return None

    def _ask(self, query: str, dim: Dim, proved: Callable[[Prover, Dim], bool], k: int = 0) -> bool:
        given = query, sympy.expand(dim), k
        if given in self._answers:
            self.stats.cached += 1
            return self._answers[given]
        reduced = self._reduced(given[1])
        if reduced is None:
            return False
        normal = query, reduced, k
        if normal in self._answers:
            self.stats.cached += 1
        else:
            self._answers[normal] = proved(Prover(self._solved, self.stats), reduced)
        self._answers[given] = self._answers[normal]
        return self._answers[given]

    # --- what is known -----------------------------------------------------------------------------------

    def guards(self, symbols: Collection[str] | None = None) -> list[Fact]:
        """What the runtime has to check, in the order added; only facts over the given symbols, if given.

        `fact.dim fact.relation fact.value`, with `fact.reason` for the message; `Fact.holds` is the check. A fact that
        followed from those before it, by normalization or intervals, is not among them.
        """
        return [f for f in self._facts if symbols is None or symbols_of(f.dim) | symbols_of(f.value) <= set(symbols)]

    def describe(self) -> list[str]:
        """A line for each fact, with its reason: "n <= 4096 (bounds['n'])"."""
        return [f"{fact} ({fact.reason})" for fact in self._facts]


def _product(dims: Sequence[DimLike], where: str) -> Dim:
    return sympy.expand(sympy.Mul(*(to_dim(d, where) for d in dims)))


def _divisor(k: int, where: str) -> Dim:
    divisor = to_dim(k, where)
    if not divisor.is_Integer or divisor == 0:
        raise DimError(f"{where}: {k!r} is not a divisor; use a positive integer")
    return divisor


def _implied(solved: Solved, fact: Fact) -> bool:
    """Whether a fact follows from others by normalization or intervals."""
    try:
        difference = solved.reduce(fact.dim - fact.value)
    except DimError:
        return False
    match fact.relation:
        case Relation.EQUAL:
            return bool(difference == 0)
        case Relation.DIVISIBLE:
            return bool(solved.reduce(Modulo(solved.reduce(fact.dim), fact.value)) == 0)
    values = interval(difference, solved.ranges)
    end = values.low if fact.relation is Relation.AT_LEAST else values.high
    return end is not None and (end >= 0 if fact.relation is Relation.AT_LEAST else end <= 0)


def _assumed(solved: Solved, fact: Fact) -> Solved | None:
    """The facts and one more; None where no sizes are found to satisfy all of them."""
    new = solved.copy()
    try:
        new.assume(fact)
        related = sympy.Add(*new.reduce(sympy.Add(fact.dim, fact.value)).free_symbols)
    except (Contradiction, DimError):
        # or a divisor in the fact is 0
        return None
    # solving finds most contradictions; Z3 is asked only where none of the sizes tried satisfies what is left
    if new.about(related) and next(Prover(new, Stats()).sizes(related), None) is None:
        return None if refuted(new, related, Interval()) else new
    return new


def _conflict(facts: Sequence[Fact], fact: Fact) -> str:
    """The message for a fact that contradicts others: those of them that are enough for it."""
    core = [fact]
    while (solved := _all_assumed(core)) is not None:
        for other in [f for f in facts if f not in core]:
            extended = _assumed(solved, other)
            if extended is None:
                core.append(other)
                break
            solved = extended
        else:
            # together they contradict each other only in the order in which they were added
            core.extend(f for f in facts if f not in core)
            break
    if len(core) == 1:
        return f"{fact.reason}: {fact} is true of no sizes; correct it"
    others = " and ".join(f"{f} ({f.reason})" for f in core[1:])
    return f"{fact.reason}: {fact} contradicts {others}; make them agree"


def _all_assumed(facts: Sequence[Fact]) -> Solved | None:
    solved: Solved | None = Solved()
    for fact in facts:
        solved = solved and _assumed(solved, fact)
    return solved
