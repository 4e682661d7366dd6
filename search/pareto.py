"""Fronts: the costs of a set of alternatives of which none is dominated by another."""

from __future__ import annotations

import numpy as np

from mirage.search.cost import Cost

#: by how much a sum of costs may differ for the order in which they were added: what is compared to other sums is this much more
ROUNDING = 1 + 1e-12


class Front:
    """Costs, none of which is at most another one in every entry."""

    __slots__ = ("_alive", "_live", "_rows", "_size")

    def __init__(self) -> None:
        self._rows: np.ndarray | None = None
        self._alive: np.ndarray | None = None
        #: the rows that are alive, until one is added
        self._live: np.ndarray | None = None
        self._size = 0

    def dominates(self, cost: Cost) -> bool:
        """Whether some member is at most this cost in every entry."""
        if self._rows is None or self._alive is None:
            return False
        rows = self._rows[: self._size]
        return bool(((rows <= cost).all(axis=1) & self._alive[: self._size]).any())

    def dominates_each(self, costs: np.ndarray) -> np.ndarray:
        """Of several costs (one per row), those that some member is at most in every entry."""
        if self._rows is None or self._alive is None:
            return np.zeros(len(costs), dtype=bool)
        if self._live is None:
            self._live = self._rows[: self._size][self._alive[: self._size]]
        return np.asarray((self._live[:, None, :] <= costs[None, :, :]).all(axis=2).any(axis=0))

    def add(self, cost: Cost) -> int:
        """Add a cost that is not dominated, dropping those that it dominates; its number, for `alive`."""
        if self._rows is None or self._alive is None:
            self._rows = np.empty((4, len(cost)))
            self._alive = np.zeros(4, dtype=bool)
        if self._size == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
        n = self._size
        self._live = None
        if n:
            self._alive[:n] &= ~(cost <= self._rows[:n]).all(axis=1)
        self._rows[n] = cost
        self._alive[n] = True
        self._size += 1
        return n

    def alive(self, number: int) -> bool:
        """Whether a member has not been dropped since."""
        assert self._alive is not None
        return bool(self._alive[number])


class Fronts:
    """Costs of graphs in two fronts: a *foreign* graph takes differences that the program does not take. It may round worse,
    and so dominates foreign ones only.
    """

    __slots__ = ("_foreign", "own")

    def __init__(self) -> None:
        self.own = Front()
        self._foreign = Front()

    def dominates(self, cost: Cost, foreign: bool) -> bool:
        """Whether a member stands for a graph of this cost."""
        return self.own.dominates(cost) or (foreign and self._foreign.dominates(cost))

    def add(self, cost: Cost, foreign: bool) -> tuple[Front, int]:
        """Add a cost that is not dominated; its front and number there."""
        front = self._foreign if foreign else self.own
        return front, front.add(cost)
