"""The store of facts about dims that all passes read (BladeDISC, section 3.1).

Facts are equalities of dims, equalities of products (dim collapse: reshape, merge), divisibility and ranges. Every
dim symbol is a size, 0 or more, unless a range says more. A query is answered True only where it is proved: by
normalization first, then by intervals, then by Z3 under a fixed resource limit, so that answers do not depend on time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mirage.compiler.constraints.facts import Fact
from mirage.ir.dims import Dim, DimLike


@dataclass
class Stats:
    """How queries were answered: from the cache, by normalization, by intervals, by Z3, or not (`unknown`)."""

    cached: int = 0
    normalization: int = 0
    intervals: int = 0
    z3: int = 0
    unknown: int = 0


class Constraints:
    """Facts about the dims of one function, and what follows from them.

    `add_*` extend the store in place; `copy()` is cheap and independent. A fact that contradicts earlier ones raises
    ConstraintError naming the reasons of both, and leaves the store as it was. Dims are given as in `to_dim`. `reason`
    names the binding, argument or bound that requires the fact.
    """

    def __init__(self) -> None:
        self.stats = Stats()

    def copy(self) -> Constraints:
        """An independent store of the same facts."""
        raise NotImplementedError

    # --- facts -----------------------------------------------------------------------------------------

    def add_equal(self, a: DimLike, b: DimLike, reason: str) -> None:
        """Two dims are equal: input and output, siblings, or a shape value and the dim that it makes."""
        raise NotImplementedError

    def add_collapse(self, group: Sequence[DimLike], other: DimLike | Sequence[DimLike], reason: str) -> None:
        """The product of a group of dims is a dim, or the product of another group: reshape, merge."""
        raise NotImplementedError

    def add_divisible(self, dim: DimLike, k: int, reason: str) -> None:
        """A positive integer divides a dim."""
        raise NotImplementedError

    def add_range(self, dim: DimLike, low: int | None, high: int | None, reason: str) -> None:
        """low <= dim <= high; None is no bound."""
        raise NotImplementedError

    # --- queries: True only where proved -----------------------------------------------------------------

    def equal(self, a: DimLike, b: DimLike) -> bool:
        """Whether two dims are proved equal."""
        raise NotImplementedError

    def different(self, a: DimLike, b: DimLike) -> bool:
        """Whether two dims are proved different. Neither `equal` nor `different`: unknown."""
        raise NotImplementedError

    def at_most(self, a: DimLike, b: DimLike) -> bool:
        """Whether a <= b is proved."""
        raise NotImplementedError

    def less(self, a: DimLike, b: DimLike) -> bool:
        """Whether a < b is proved; then `at_most(b, a)` is proved false."""
        raise NotImplementedError

    def divisible(self, dim: DimLike, k: int) -> bool:
        """Whether a positive integer is proved to divide a dim."""
        raise NotImplementedError

    def same_shape(self, a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
        """Whether two shapes are proved equal, dim by dim."""
        raise NotImplementedError

    def same_elements(self, a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
        """Whether two shapes are proved to have the same number of elements."""
        raise NotImplementedError

    def lower_bound(self, dim: DimLike) -> int | None:
        """A size that the dim is proved to reach in every case; None where there is none."""
        raise NotImplementedError

    def upper_bound(self, dim: DimLike) -> int | None:
        """A size that the dim is proved never to exceed; None where there is none."""
        raise NotImplementedError

    def largest(self, dims: Sequence[DimLike]) -> Dim | None:
        """The first of the dims that is proved at least as large as each of the others; None where there is none."""
        raise NotImplementedError

    def normalize(self, dim: DimLike) -> Dim:
        """The dim with equal symbols replaced by one of them, and simplified by the facts; equal to the dim."""
        raise NotImplementedError

    # --- what is known -----------------------------------------------------------------------------------

    def guards(self, symbols: Collection[str] | None = None) -> list[Fact]:
        """What the runtime has to check, in the order added; only facts over the given symbols, if given.

        `fact.dim fact.relation fact.value`, with `fact.reason` for the message; `Fact.holds` is the check.
        """
        raise NotImplementedError

    def describe(self) -> list[str]:
        """A line for each fact, with its reason: "n <= 4096 (bounds['n'])"."""
        raise NotImplementedError
