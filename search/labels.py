"""The loop of extraction: all ways to compute some values, without dominated ones, cheapest first.

Values are decided in reverse topological order, so what remains to be done depends only on the set of values still *open*.
A *label* is such a set, with what is spent and which exps were chosen; of the labels with the same set and exps only those on
the Pareto front of costs are kept. Labels are looked at in the order of what they and what is open take at least.

The loop is here in Python, and in C in `csrc/extract.c` (`native.py`), which gives the same and takes a hundredth of the time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass

import numpy as np

from mirage.search.cost import Cost
from mirage.search.pareto import Front, Fronts
from mirage.search.steps import Steps

#: labels between two steps
STEP = 64


def members(bits: int) -> list[int]:
    """The numbers in a bit set, in order."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


@dataclass(frozen=True)
class Derivations:
    """The derivations of the values of a closure, for one grid. Values are numbered operands first, leaves before all others.

    Derivations are numbered value by value: those of value v from `first[v]` to `first[v + 1]`. Of each, `prices` has the cost (a
    row), `times` the weighted sum of that, `operands` the bit set of values that it needs, `exp` whether it is an exp, `foreign`
    whether it is a difference that the program does not take. `least` has a lower bound of the time that each value takes, of a
    leaf that of what comes before it, infinite where it has no derivation; `inputs` the bit set of the leaves that count as
    inputs.
    """

    leaves: int
    first: list[int]
    prices: np.ndarray
    times: list[float]
    operands: list[int]
    exp: list[bool]
    foreign: list[bool]
    least: list[float]
    inputs: int

    @property
    def values(self) -> int:
        return len(self.least)

    def rest(self, open_: int) -> float:
        """A lower bound of the time that open values still take."""
        return max((self.least[i] for i in members(open_)), default=0.0)


@dataclass(frozen=True)
class Problem:
    """What is to be computed: a bit set of values (`goals`), by at most so many operators that read at most so many inputs and
    take at most so long (ns as modelled, without what is read and written).

    `written` is what every kernel with these results costs.
    """

    derivations: Derivations
    goals: int
    written: Cost
    max_operators: int
    max_inputs: int
    most: float = math.inf


@dataclass(frozen=True)
class Finished:
    """A way to compute the goals: the leaves that it reads and its exps (bit sets), its cost, the derivations, operands first."""

    leaves: int
    exps: int
    cost: Cost
    foreign: bool
    derivations: list[int]


@dataclass(eq=False, slots=True)
class _Label:
    open: int
    exps: int
    cost: Cost
    time: float
    foreign: bool
    operators: int = 0
    parent: _Label | None = None
    derivation: int = -1
    front: Front | None = None
    member: int = 0


def finished(problem: Problem) -> Steps[tuple[list[Finished], int]]:
    """All ways to compute the goals, and how many labels were looked at; a step per `STEP` of them."""
    given = problem.derivations
    ticket = itertools.count()
    start = _Label(problem.goals, 0, problem.written, 0.0, False)
    heap: list[tuple[float, int, _Label]] = [(0.0, next(ticket), start)]
    fronts: dict[tuple[int, int], Fronts] = {}
    done: list[Finished] = []
    looked = 0
    while heap:
        _, _, label = heapq.heappop(heap)
        if label.front is not None and not label.front.alive(label.member):
            continue
        looked += 1
        if looked % STEP == 0:
            yield
        number = label.open.bit_length() - 1
        if number < given.leaves:
            done.append(Finished(label.open, label.exps, label.cost, label.foreign, _chosen(label)))
            continue
        if label.operators == problem.max_operators:
            continue
        others = label.open ^ (1 << number)
        for d in range(given.first[number], given.first[number + 1]):
            now = others | given.operands[d]
            if (now & given.inputs).bit_count() > problem.max_inputs:
                continue
            rest = given.rest(now)
            time = label.time + given.times[d]
            if rest == math.inf or time + rest > problem.most:
                continue
            cost = label.cost + given.prices[d]
            exps = label.exps | (given.exp[d] << number)
            foreign = label.foreign or given.foreign[d]
            rivals = fronts.setdefault((now, exps), Fronts())
            if rivals.dominates(cost, foreign):
                continue
            member = rivals.add(cost, foreign)
            new = _Label(now, exps, cost, time, foreign, label.operators + 1, label, d, *member)
            # the newest of many equally cheap ones goes first, so that graphs are finished early
            heapq.heappush(heap, (time + rest, -next(ticket), new))
    return done, looked


def _chosen(label: _Label) -> list[int]:
    found = []
    at: _Label | None = label
    while at is not None and at.parent is not None:
        found.append(at.derivation)
        at = at.parent
    return found
