"""Attributes that upstream files do not store, taken from the program that a candidate is for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from mirage.errors import FormatError
from mirage.ir.axes import AxisProgram
from mirage.ir.program import AttrItems

T = TypeVar("T")


@dataclass(frozen=True)
class Constants:
    """The constants of a program, by the operator that needs one.

    `eps` are the constants added under a square root, `clamps` the bounds of clamps, `scales` the factors of products
    (1/c where the program divides by c).
    """

    eps: frozenset[Fraction]
    clamps: frozenset[AttrItems]
    scales: frozenset[Fraction]

    @staticmethod
    def of(program: AxisProgram) -> Constants:
        nodes = program.nodes

        def constant(i: int) -> Fraction | None:
            return nodes[i].attr["value"] if nodes[i].op == "constant" else None

        eps: set[Fraction] = set()
        scales: set[Fraction] = set()
        for n in nodes:
            values = [constant(i) for i in n.operands]
            if n.op in ("sqrt", "rsqrt") and nodes[n.operands[0]].op == "add":
                eps.update(c for i in nodes[n.operands[0]].operands if (c := constant(i)) is not None)
            elif n.op == "mul":
                scales.update(c for c in values if c is not None)
            elif n.op == "div" and values[1]:
                scales.add(1 / values[1])
        return Constants(frozenset(eps), frozenset(n.attrs for n in nodes if n.op == "clamp"), frozenset(scales))

    def norm_eps(self, where: str) -> Fraction:
        """What the program adds under the root of its norms; 0 if nothing."""
        return _only(self.eps or {Fraction(0)}, where, "adds several constants under square roots")

    def clamp(self, where: str) -> AttrItems:
        """The bounds of the program's clamps."""
        return _only(self.clamps, where, "has several clamps" if self.clamps else "has no clamp")

    def scale(self, where: str) -> Fraction:
        """The one constant by which the program multiplies."""
        return _only(self.scales, where, "multiplies by several constants" if self.scales else "has no constant factor")


def _only(found: Collection[T], where: str, problem: str) -> T:
    if len(found) != 1:
        raise FormatError(
            f"{where}: the file does not store the operator's constant, and the program {problem}; pass the program that "
            "the candidate was found for, with one such constant"
        )
    return next(iter(found))
