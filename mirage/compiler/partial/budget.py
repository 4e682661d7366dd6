"""How much a partial evaluation may do, in counts: of bindings that are evaluated, and of those that are written."""

from __future__ import annotations

from dataclasses import dataclass

#: bindings that are evaluated, and that are written, where a user asks for a specialized program
STEPS, BINDINGS = 400_000, 40_000


class Spent(Exception):
    """The part of the budget is spent that a recursion, or the rounds of a loop, may use: it is taken back, and left."""


@dataclass
class Budget:
    """What is left to evaluate and to write.

    A recursion may use half of what is left when it begins, so that one without an end leaves something to what comes behind it.
    """

    steps: int = STEPS
    bindings: int = BINDINGS

    def step(self) -> None:
        """Count a binding that is evaluated."""
        self.steps -= 1

    def write(self) -> None:
        """Count a binding that is written."""
        self.bindings -= 1

    @property
    def is_spent(self) -> bool:
        return self.steps <= 0 or self.bindings <= 0

    def reserve(self) -> tuple[int, int]:
        """Put half of what is left aside, for what comes later."""
        aside = self.steps // 2, self.bindings // 2
        self.steps -= aside[0]
        self.bindings -= aside[1]
        return aside

    def release(self, aside: tuple[int, int]) -> None:
        """Give back what was put aside."""
        self.steps = max(self.steps, 0) + aside[0]
        self.bindings = max(self.bindings, 0) + aside[1]
