"""Rows of tensors that the rounds of a loop read or write, one each: such a row is used where it is, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mirage.runtime import program as vm


@dataclass(frozen=True)
class Position:
    """An integer that is `step` more in each round: in the first one, the sum of the scalars in registers, each times 1 or -1."""

    step: int = 1
    terms: tuple[tuple[int, int], ...] = ()

    def first(self, value: Callable[[int], np.ndarray]) -> int:
        """What it is in the first round, for the scalars' values."""
        return sum(sign * int(value(register)) for register, sign in self.terms)


@dataclass(frozen=True)
class Row:
    """The row of a tensor, which is in a register, at a position."""

    tensor: int
    position: Position


def position_of(i: vm.CallOperator, positions: Mapping[int, Position]) -> Position | None:
    """What an operator computes, if that is the sum or difference of a position and another integer; the latter may be anything
    yet.
    """
    if i.operator not in ("add", "sub") or not any(r in positions for r in i.args):
        return None
    a, b = (positions.get(r, Position(0, ((r, 1),))) for r in i.args)
    sign = 1 if i.operator == "add" else -1
    return Position(a.step + sign * b.step, (*a.terms, *((r, sign * s) for r, s in b.terms)))


def row_of(i: vm.CallOperator, positions: Mapping[int, Position]) -> Row | None:
    """The row that an operator reads, if it is one at a position."""
    if i.operator != "take" or dict(i.attrs)["axis"] != 0 or i.args[1] not in positions:
        return None
    return Row(i.args[0], positions[i.args[1]])


def within(first: int, step: int, count: int, rows: int) -> bool:
    """Whether the positions of so many rounds are those of rows that there are."""
    last = first + step * (count - 1)
    return min(first, last) >= 0 and max(first, last) < rows

