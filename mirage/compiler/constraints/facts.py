"""Facts about dims: what a store assumes, and what the runtime checks at function boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from mirage.ir.dims import Dim, dim_text, value_at


class Relation(StrEnum):
    """How a fact relates its two sides."""

    EQUAL = "=="
    AT_LEAST = ">="
    AT_MOST = "<="
    DIVISIBLE = "%"


class Fact(NamedTuple):
    """`dim` is related to `value`; `reason` says whose requirement it is (a binding, an argument, a bound).

    For `Relation.DIVISIBLE` the value is a positive integer that divides the dim, for the bounds an integer.
    """

    dim: Dim
    relation: Relation
    value: Dim
    reason: str

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the fact is true of sizes; raises DimError where a symbol is missing or a divisor is 0."""
        left, right = value_at(self.dim, sizes), value_at(self.value, sizes)
        match self.relation:
            case Relation.EQUAL:
                return left == right
            case Relation.AT_LEAST:
                return left >= right
            case Relation.AT_MOST:
                return left <= right
            case Relation.DIVISIBLE:
                return left % right == 0

    def __str__(self) -> str:
        if self.relation is Relation.DIVISIBLE:
            return f"{dim_text(self.value)} divides {dim_text(self.dim)}"
        return f"{dim_text(self.dim)} {self.relation} {dim_text(self.value)}"
