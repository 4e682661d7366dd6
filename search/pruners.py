"""Pruners: which prefixes of a muGraph can contribute to the targets. One interface, chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mirage.errors import UnknownPruner
from mirage.search.abstract import AbstractAlgebra, Poly
from mirage.search.placement import Placements, all_sites


class Pruner(Protocol):
    """Decides about a prefix from the abstract expression of its newest tensor.

    checks: calls of `admits`; pruned: how many of them answered False.
    """

    name: str
    checks: int
    pruned: int

    def admits(self, expression: Poly) -> bool:
        """Whether the expression may be a subexpression of a target; False prunes."""
        ...


class NoPruner:
    """Admits everything."""

    name = "none"

    def __init__(self) -> None:
        self.checks = 0
        self.pruned = 0

    def admits(self, expression: Poly) -> bool:
        self.checks += 1
        return True


def make_pruner(kind: str | None, algebra: AbstractAlgebra, targets: Sequence[Poly]) -> Pruner:
    """The pruner of that name for a program whose outputs have the abstract expressions `targets`.

    "normal-form" decides on normal forms, "smt" asks Z3, None prunes nothing. Raises UnknownPruner.
    """
    match kind:
        case "normal-form":
            return Placements(algebra, all_sites(targets))
        case "smt":
            # Z3 is imported where it is asked for
            from mirage.search.smt import SmtPruner

            return SmtPruner(targets)
        case None:
            return NoPruner()
    raise UnknownPruner(f"no pruner is called {kind!r}; choose 'normal-form', 'smt' or None")
