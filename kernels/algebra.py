"""Infix expressions of a target language: what the algebras of C and of Triton have in common."""

from __future__ import annotations

from collections.abc import Sequence


class InfixAlgebra:
    """Operators as parenthesized infix expressions.

    `shifts` are subtracted from the arguments of the node's exps, in order; `arguments` records these arguments.
    """

    def __init__(self, shifts: Sequence[str] = ()) -> None:
        self.shifts = list(shifts)
        self.arguments: list[str] = []

    def add(self, x: str, y: str) -> str:
        return f"({x} + {y})"

    def sub(self, x: str, y: str) -> str:
        return f"({x} - {y})"

    def mul(self, x: str, y: str) -> str:
        return f"({x} * {y})"

    def div(self, x: str, y: str) -> str:
        return f"({x} / {y})"

    def neg(self, x: str) -> str:
        return f"(-{x})"

    def shifted(self, x: str) -> str | None:
        """Note the argument of an exp; what is left of it after its shift, None where it has none."""
        self.arguments.append(x)
        at = len(self.arguments) - 1
        return f"{x} - {self.shifts[at]}" if at < len(self.shifts) else None
