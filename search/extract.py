"""Extraction: the block graphs of one kernel for given results, among all derivations of a closure.

The values of a closure and their derivations form an acyclic AND-OR graph. A block graph chooses one derivation per
needed value. Values are decided in reverse topological order, so what remains to be done depends only on the set of
values still *open*: of all ways to reach the same open set only those on the Pareto front of costs are kept, and the set
of all graphs is never written out. Choices are explored cheapest first.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mirage.ir.axes import AxisNode
from mirage.mugraph.graph import partial_axis
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.cost import Cost, CostModel, Place
from mirage.search.pareto import Front, Fronts


@dataclass(frozen=True)
class Choice:
    """A block graph: the derivation of every computed value, and the leaves that it reads.

    `parallel` are the axes of its grid; `exps` the chosen results of exp, in topological order; `foreign` tells whether it
    takes a difference that the program does not take.
    """

    goals: tuple[Value, ...]
    chosen: Mapping[Value, Derivation]
    leaves: tuple[Value, ...]
    cost: Cost
    parallel: tuple[str, ...]
    exps: tuple[Value, ...]
    foreign: bool


class Order:
    """The values of a closure, numbered operands first, leaves before all others."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.values: list[Value] = [v for v in values if v.source is not None]
        self.leaves = len(self.values)
        self.number = {v: i for i, v in enumerate(self.values)}
        for v in values:
            self._visit(v)

    def below(self, values: Sequence[Value]) -> list[int]:
        """The numbers of these values and of all from which they may be computed, leaves excluded, in order."""
        needed: set[Value] = set()
        stack = list(values)
        while stack:
            v = stack.pop()
            if v not in needed:
                needed.add(v)
                stack.extend(u for d in v.derivations for u in d.operands)
        return sorted(self.number[v] for v in needed if v.source is None)

    def _visit(self, value: Value) -> None:
        stack = [value]
        while stack:
            v = stack[-1]
            if v in self.number:
                stack.pop()
                continue
            missing = [u for d in v.derivations for u in d.operands if u not in self.number]
            if missing:
                stack.extend(missing)
            else:
                self.number[v] = len(self.values)
                self.values.append(v)
                stack.pop()


@dataclass(eq=False, slots=True)
class _Label:
    """A partial choice: the open values (bit set), what is spent, and how it was reached."""

    open: int
    cost: Cost
    exps: int
    foreign: bool
    parent: _Label | None = None
    value: Value | None = None
    derivation: Derivation | None = None
    front: Front | None = None
    member: int = 0


class Extractor:
    """Extracts the block graphs of one closure, of at most `limit` operators and `max_inputs` tensors read each, until
    `deadline`.
    """

    def __init__(self, closure: Closure, model: CostModel, *, limit: int, max_inputs: int) -> None:
        self.plan = closure.plan
        self.model = model
        self.limit = limit
        self.max_inputs = max_inputs
        #: a `perf_counter`
        self.deadline = math.inf
        #: whether no extraction was cut short
        self.complete = True
        self.labels = 0
        self.order = Order(closure.values)
        targets = zip(closure.program.nodes, closure.al.targets, strict=True)
        self._differences = {form for n, (form, _) in targets if n.op == "sub"}
        derivations = [d for v in closure.values for d in v.derivations]
        self._reduced = frozenset(a for d in derivations for a in d.reduce)
        self._joined = frozenset(a for d in derivations if d.joined for a in (d.joined[0], *d.joined[1]))
        inputs = [v for v in self.order.values[: self.order.leaves] if not v.is_scalar_leaf]
        self._inputs = self._bitset(inputs)
        self._bits = {d: self._bitset(d.operands) for d in derivations}

    def _bitset(self, values: Sequence[Value]) -> int:
        found = 0
        for v in values:
            found |= 1 << self.order.number[v]
        return found

    def choices(self, goals: Sequence[Value]) -> list[Choice]:
        """The block graphs that yield these values: the Pareto fronts per set of leaves read and of exps.

        Graphs with different exps, or with exps on different grids, are not compared, because their exponents may not be
        equally safe; and a foreign graph dominates foreign ones only, because it may round worse.
        An axis of the results that the kernel reduces is not parallel: every set of such axes is extracted by itself.
        """
        shared = [a for a in goals[0].axes if all(a in g.axes for g in goals) and a not in self.plan.loops]
        reduced = [a for a in shared if a in self._reduced]
        done: list[tuple[_Label, tuple[str, ...]]] = []
        for count in range(len(reduced) + 1):
            for whole in itertools.combinations(reduced, count):
                parallel = tuple(a for a in shared if a not in self._joined and a not in whole)
                done += [(label, parallel) for label in self._choices(goals, parallel)]
        return [self._choice(goals, label, parallel) for label, parallel in _undominated(done)]

    def _choices(self, goals: Sequence[Value], parallel: tuple[str, ...]) -> list[_Label]:
        """The block graphs, cheapest first, whose grid is these axes, which they therefore do not reduce. What is open is
        what they read, at the cost of reading it.
        """
        pricing = _Pricing(self, goals, parallel)
        start = _Label(self._bitset(goals), pricing.written(), 0, False)
        ticket = itertools.count()
        heap: list[tuple[float, int, _Label]] = [(0.0, next(ticket), start)]
        fronts: dict[tuple[int, int], Fronts] = {}
        done: list[_Label] = []
        while heap:
            _, _, label = heapq.heappop(heap)
            if label.front is not None and not label.front.alive(label.member):
                continue
            self.labels += 1
            if self.labels % 64 == 0 and time.perf_counter() > self.deadline:
                self.complete = False
                break
            number = label.open.bit_length() - 1
            if number < self.order.leaves:
                cost = label.cost + sum(pricing.read(v) for v in self._leaves(label.open))
                done.append(replace(label, cost=cost))
                continue
            value = self.order.values[number]
            rest = label.open ^ (1 << number)
            for d in value.derivations:
                if any(a in parallel for a in d.reduce):
                    continue
                cost = label.cost + pricing.price(value, d)
                if self.model.operators(cost) > self.limit:
                    break
                now = rest | self._bits[d]
                if (now & self._inputs).bit_count() > self.max_inputs:
                    continue
                exps = label.exps | ((d.op == "exp") << number)
                foreign = label.foreign or (d.op == "sub" and value.form not in self._differences)
                rivals = fronts.setdefault((now, exps), Fronts())
                if rivals.dominates(cost, foreign):
                    continue
                new = _Label(now, cost, exps, foreign, label, value, d, *rivals.add(cost, foreign))
                # the newest of many equally cheap ones goes first, so that graphs are finished early
                heapq.heappush(heap, (self.model.total(cost) + pricing.rest(now), -next(ticket), new))
        return done

    def fused(self, goals: Sequence[Value]) -> Choice | None:
        """The block graph of the derivations that were found first, which are the program's own; None if it exceeds a limit, or
        reads what another kernel yields.
        """
        chosen: dict[Value, Derivation] = {}
        leaves: dict[Value, None] = {}
        stack = list(goals)
        while stack:
            v = stack.pop()
            if v.source is not None:
                if not isinstance(v.source, AxisNode):
                    return None
                leaves[v] = None
            elif v not in chosen:
                chosen[v] = v.derivations[0]
                stack.extend(chosen[v].operands)
        if len(chosen) > self.limit or sum(not v.is_scalar_leaf for v in leaves) > self.max_inputs:
            return None
        chosen = {v: chosen[v] for v in sorted(chosen, key=self.order.number.__getitem__)}
        reduced = {a for d in chosen.values() for a in d.reduce}.union(self._joined, self.plan.loops)
        parallel = tuple(a for a in goals[0].axes if a not in reduced and all(a in g.axes for g in goals))
        pricing = _Pricing(self, goals, parallel)
        cost = pricing.written() + sum(pricing.price(v, d) for v, d in chosen.items())
        cost = cost + sum(pricing.read(v) for v in leaves)
        exps = tuple(v for v, d in chosen.items() if d.op == "exp")
        foreign = any(d.op == "sub" and v.form not in self._differences for v, d in chosen.items())
        read = tuple(sorted(leaves, key=self.order.number.__getitem__))
        return Choice(tuple(goals), chosen, read, cost, parallel, exps, foreign)

    def least(self, goals: Sequence[Value]) -> Cost:
        """What every kernel with these results costs: its launch and its writes."""
        return self.model.of_kernel(_Pricing(self, goals, goals[0].axes).written())

    def _leaves(self, bits: int) -> list[Value]:
        return [v for i, v in enumerate(self.order.values[: self.order.leaves]) if bits >> i & 1]

    def _choice(self, goals: Sequence[Value], label: _Label, parallel: tuple[str, ...]) -> Choice:
        exps = [v for i, v in enumerate(self.order.values) if label.exps >> i & 1]
        chosen: dict[Value, Derivation] = {}
        at: _Label | None = label
        while at is not None and at.value is not None and at.derivation is not None:
            chosen[at.value] = at.derivation
            at = at.parent
        leaves = tuple(self._leaves(label.open))
        return Choice(tuple(goals), chosen, leaves, label.cost, parallel, tuple(exps), label.foreign)


def _undominated(done: Sequence[tuple[_Label, tuple[str, ...]]]) -> list[tuple[_Label, tuple[str, ...]]]:
    """Labels, with their grids, without those for which another one reads no more, costs no more, and may stand for them."""
    kept: list[tuple[_Label, tuple[str, ...]]] = []
    # a rival comes first: it is less in the first entry in which they differ
    order = sorted(done, key=lambda pair: (pair[0].open.bit_count(), pair[0].foreign, pair[0].cost.tolist()))
    for label, parallel in order:
        rivals = [
            k.cost for k, grid in kept
            if not k.open & ~label.open and k.exps == label.exps and (grid == parallel or not label.exps)
            and (label.foreign or not k.foreign)
        ]  # fmt: skip
        if not rivals or not (np.array(rivals) <= label.cost).all(axis=1).any():
            kept.append((label, parallel))
    return kept


class _Pricing:
    """Costs of the operators of one kernel whose grid is the axes `parallel`."""

    def __init__(self, extractor: Extractor, goals: Sequence[Value], parallel: tuple[str, ...]) -> None:
        plan = extractor.plan
        self.goals = goals
        self.model = extractor.model
        self.order = extractor.order
        self.place = Place(parallel, plan.loops, plan.split)
        self._prices: dict[Derivation, Cost] = {}

    @cached_property
    def _least(self) -> list[float]:
        """Per value, a lower bound of the time that its graph takes."""
        found = [0.0] * len(self.order.values)
        for number in self.order.below(self.goals):
            value = self.order.values[number]
            found[number] = min(
                self.model.total(self.price(value, d)) + max(found[self.order.number[u]] for u in d.operands)
                for d in value.derivations
            )
        return found

    def price(self, value: Value, d: Derivation) -> Cost:
        found = self._prices.get(d)
        if found is None:
            varying = any(u.varying for u in d.operands)
            found = self._prices[d] = self.model.operator(
                d.op, [u.axes for u in d.operands], value.axes, self.place, varying=varying, whole=value.after
            )
        return found

    def read(self, leaf: Value) -> Cost:
        return self.model.transfer(leaf.axes, self.place, held=True)

    def written(self) -> Cost:
        """The kernel's launch and its results."""
        plan = self.place
        split = (partial_axis(plan.split),) if plan.split else ()
        return self.model.launch() + sum(self.model.transfer((*split, *g.axes), plan, held=False) for g in self.goals)

    def rest(self, open_: int) -> float:
        """A lower bound of the time that open values still take."""
        found = 0.0
        while open_:
            number = open_.bit_length() - 1
            if self._least[number] > found:
                found = self._least[number]
            open_ ^= 1 << number
        return found


def topological(choice: Choice) -> list[Value]:
    """Leaves and chosen values, operands first; deterministic."""
    return [*choice.leaves, *choice.chosen]
