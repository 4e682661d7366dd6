"""Extraction: the cheapest graphs among all derivations of the goals, in order of modelled cost.

The values of a closure and their derivations form an acyclic AND-OR graph (an abstract expression strictly grows with
every operator). A graph chooses one derivation per needed value. Choices are explored best first; the bound of an
unfinished graph is what it has chosen plus the cheapest derivation of each value still open.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage.search.closure import Derivation, Value

#: steps of one extraction, beyond which it stops and says so
MAX_STEPS = 20_000


@dataclass(frozen=True)
class Choice:
    """A graph of one kernel: the derivation of every computed value, and the leaves it reads."""

    goals: tuple[Value, ...]
    chosen: Mapping[Value, Derivation]
    leaves: frozenset[Value]
    cost: float


class Extraction:
    """Iterates over `Choice`s in order of cost; `complete` tells whether all were given before it stopped."""

    def __init__(
        self,
        goals: Sequence[Value],
        *,
        limit: int,
        deadline: float,
        leaf_cost: Callable[[Value], float] = lambda _: 0.0,
        accept_leaves: Callable[[frozenset[Value]], bool] = lambda _: True,
    ) -> None:
        self.goals = tuple(goals)
        self.limit = limit
        self.deadline = deadline
        self.leaf_cost = leaf_cost
        self.accept_leaves = accept_leaves
        self.complete = True
        self._least: dict[Value, float] = {}

    def _cheapest(self, value: Value) -> float:
        if value.source is not None:
            return self.leaf_cost(value)
        if value not in self._least:
            self._least[value] = min(d.cost for d in value.derivations)
        return self._least[value]

    def __iter__(self) -> Iterator[Choice]:
        ticket = itertools.count()
        first = frozenset(self.goals)
        start = sum(self._cheapest(v) for v in first)
        # (bound, tie-break, spent, open values, chosen, leaves)
        heap: list[
            tuple[float, int, float, frozenset[Value], dict[Value, Derivation], frozenset[Value]]
        ] = [(start, next(ticket), 0.0, first, {}, frozenset())]
        steps = 0
        while heap:
            bound, _, spent, pending, chosen, leaves = heapq.heappop(heap)
            steps += 1
            if steps > MAX_STEPS or (steps % 64 == 0 and time.perf_counter() > self.deadline):
                self.complete = False
                return
            if not pending:
                yield Choice(self.goals, chosen, leaves, spent)
                continue
            value = max(pending, key=lambda v: v.number)
            rest = pending - {value}
            if value.source is not None:
                grown = leaves | {value}
                if self.accept_leaves(grown):
                    paid = spent + self.leaf_cost(value)
                    heapq.heappush(heap, (bound, next(ticket), paid, rest, chosen, grown))
                continue
            base = bound - self._cheapest(value)
            for d in value.derivations:
                new = [u for u in dict.fromkeys(d.operands) if u not in chosen and u not in leaves and u not in rest]
                open_ = rest.union(new)
                if len(chosen) + 1 + sum(1 for v in open_ if v.source is None) > self.limit:
                    continue
                more = base + d.cost + sum(self._cheapest(u) for u in new)
                heapq.heappush(heap, (more, next(ticket), spent + d.cost, open_, {**chosen, value: d}, leaves))


def topological(choice: Choice) -> list[Value]:
    """Leaves and chosen values, operands first; deterministic."""
    done: dict[Value, None] = {}

    def visit(v: Value) -> None:
        if v in done:
            return
        if v in choice.chosen:
            for u in choice.chosen[v].operands:
                visit(u)
        done[v] = None

    for v in sorted(choice.leaves, key=lambda v: v.number):
        visit(v)
    for g in choice.goals:
        visit(g)
    return list(done)
