"""Extraction: the cheapest graphs among all derivations of the goals, in order of modelled cost.

The values of a closure and their derivations form an acyclic AND-OR graph (an abstract expression strictly grows with
every operator). A graph chooses one derivation per needed value. Choices are explored best first; the bound of an
unfinished graph is what it has chosen plus the cheapest derivation of each value still open.
"""

from __future__ import annotations

import heapq
import itertools
import math
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
    """Iterates over `Choice`s, cheapest completion first; `complete` tells whether all were given before it stopped.

    `leaf_cost` is the price of reading a leaf, `accept_leaves` limits which may be read together.
    """

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
        self._completions: dict[Value, frozenset[Value]] = {}

    def _complete(self, value: Value) -> frozenset[Value]:
        """The values of the cheapest graph found for a value alone, itself included."""
        found = self._completions.get(value)
        if found is None:
            if value.source is not None:
                self._least[value] = self.leaf_cost(value)
                found = frozenset((value,))
            else:
                best = math.inf
                for d in value.derivations:
                    below = frozenset((value,)).union(*(self._complete(u) for u in d.operands))
                    price = d.cost + math.fsum(self._least[u] for u in below if u is not value)
                    if price < best:
                        best, found = price, below
                        self._least[value] = d.cost
                assert found is not None
            self._completions[value] = found
        return found

    def _bound(self, spent: float, pending: frozenset[Value], chosen: Mapping[Value, Derivation]) -> float:
        """The cost of the graph that completes each pending value in its own cheapest way."""
        missing = frozenset().union(*(self._complete(v) for v in pending))
        # exactly rounded, because the order of a set of values changes from run to run
        return math.fsum((spent, *(self._least[v] for v in missing if v not in chosen)))

    def __iter__(self) -> Iterator[Choice]:
        ticket = itertools.count()
        first = frozenset(self.goals)
        # (bound, tie-break, spent, values still open and leaves, chosen)
        heap: list[tuple[float, int, float, frozenset[Value], dict[Value, Derivation]]]
        heap = [(self._bound(0.0, first, {}), next(ticket), 0.0, first, {})]
        steps = 0
        while heap:
            _, _, spent, pending, chosen = heapq.heappop(heap)
            steps += 1
            if steps > MAX_STEPS or (steps % 64 == 0 and time.perf_counter() > self.deadline):
                self.complete = False
                return
            inner = [v for v in pending if v.source is None]
            if not inner:
                if self.accept_leaves(pending):
                    yield Choice(self.goals, chosen, pending, math.fsum((spent, *map(self.leaf_cost, pending))))
                continue
            value = max(inner, key=lambda v: v.number)
            rest = pending - {value}
            for d in value.derivations:
                new = frozenset(u for u in d.operands if u not in chosen)
                open_ = rest | new
                if len(chosen) + 1 + sum(1 for v in open_ if v.source is None) > self.limit:
                    continue
                if not self.accept_leaves(frozenset(v for v in open_ if v.source is not None)):
                    continue
                now = {**chosen, value: d}
                # the newest of many equally cheap ones goes first, so that graphs are finished early
                bound = self._bound(spent + d.cost, open_, now)
                heapq.heappush(heap, (bound, -next(ticket), spent + d.cost, open_, now))


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
