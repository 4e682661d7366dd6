"""Extraction: the block graphs of one kernel for given results, among all derivations of a closure.

The values of a closure and their derivations form an acyclic AND-OR graph. A block graph chooses one derivation per
needed value; `labels.py` finds those that no other one dominates, and the set of all graphs is never written out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mirage.ir.axes import AxisNode
from mirage.mugraph.graph import partial_axis
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.cost import Cost, CostModel, Place
from mirage.search.labels import Derivations, Finished, Problem, finished, members
from mirage.search.native import NativeDerivations, native_labels
from mirage.search.pareto import Fronts
from mirage.search.steps import Steps
from mirage.search.tensors import KernelTensor

#: ways that are looked at between two steps
FEW = 64


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


class Extractor:
    """Extracts the block graphs of one closure, of at most `limit` operators and `max_inputs` tensors read each.

    With `most`, only of those that take at most so many ns as modelled, with the kernels before them (`comes_after`), and of
    those that read the same tensors only the one that takes least.
    """

    def __init__(
        self, closure: Closure, model: CostModel, *, limit: int, max_inputs: int, most: float = math.inf
    ) -> None:
        self.plan = closure.plan
        self.model = model
        self.limit = limit
        self.max_inputs = max_inputs
        self.most = most
        self.cheapest = most < math.inf
        #: by the number of a leaf, how long the kernels take that come before it
        self._after: dict[int, float] = {}
        self.labels = 0
        self.order = Order(closure.values)
        targets = zip(closure.program.nodes, closure.al.targets, strict=True)
        self._differences = {form for n, (form, _) in targets if n.op == "sub"}
        derivations = [d for v in closure.values for d in v.derivations]
        self._reduced = frozenset(a for d in derivations for a in d.reduce)
        self._joined = frozenset(a for d in derivations if d.joined for a in (d.joined[0], *d.joined[1]))
        self._grids: dict[tuple[str, ...], _Grid] = {}

    def _bitset(self, values: Sequence[Value]) -> int:
        found = 0
        for v in values:
            found |= 1 << self.order.number[v]
        return found

    def _is_foreign(self, value: Value, d: Derivation) -> bool:
        """Whether a derivation is a difference that the program does not take."""
        return d.op == "sub" and value.form not in self._differences

    def comes_after(self, tensor: KernelTensor, ns: float) -> None:
        """A kernel that reads a result of others comes after so many ns of theirs, at least."""
        for v in self.order.values[: self.order.leaves]:
            if v.source is tensor:
                self._after[self.order.number[v]] = ns
                for grid in self._grids.values():
                    grid.comes_after(self.order.number[v], ns)

    def _grid(self, parallel: tuple[str, ...]) -> _Grid:
        found = self._grids.get(parallel)
        if found is None:
            found = self._grids[parallel] = _Grid(self, parallel)
        return found

    def choices(self, goals: Sequence[Value]) -> Steps[list[Choice]]:
        """The block graphs that yield these values: the Pareto fronts per set of leaves read and of exps.

        Graphs with different exps, or with exps on different grids, are not compared, because their exponents may not be
        equally safe; and a foreign graph dominates foreign ones only, because it may round worse.
        An axis of the results that the kernel reduces is not parallel: every set of such axes is extracted by itself.
        """
        shared = [a for a in goals[0].axes if all(a in g.axes for g in goals) and a not in self.plan.loops]
        reduced = [a for a in shared if a in self._reduced]
        done: list[tuple[Finished, _Grid]] = []
        for count in range(len(reduced) + 1):
            for whole in itertools.combinations(reduced, count):
                grid = self._grid(tuple(a for a in shared if a not in self._joined and a not in whole))
                written = grid.written(goals)
                # the cost of a label is its time where the cheapest are wanted
                least = np.zeros(1) if self.cheapest else written
                goal = self._bitset(goals)
                problem = Problem(grid.derivations, goal, least, self.limit, self.max_inputs, self.most)
                for found in (yield from self._finished(problem, grid)):
                    cost = written + grid.prices[found.derivations].sum(axis=0) if self.cheapest else found.cost
                    done.append((replace(found, cost=cost + grid.read(found.leaves)), grid))
                yield
        choices = []
        for count, (found, grid) in enumerate((yield from _undominated(done))):
            if count % FEW == 0:
                yield
            choices.append(self._choice(goals, found, grid))
        return choices

    def _finished(self, problem: Problem, grid: _Grid) -> Steps[list[Finished]]:
        """By the compiled loop, from the moment at which it is there."""
        found: list[Finished]
        native = native_labels()
        if native is None:
            steps = finished(problem)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    found, looked = end.value
                    break
                native = native_labels()
                if native is not None:
                    break
                yield
        if native is not None:
            found, looked = yield from native.finished(problem, grid.arrays)
        self.labels += looked
        return found

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
        place = Place(parallel, self.plan.loops, self.plan.split)
        cost = _written(self.model, place, goals) + sum(_price(self.model, place, v, d) for v, d in chosen.items())
        cost = cost + sum(self.model.transfer(v.axes, place, held=True) for v in leaves)
        exps = tuple(v for v, d in chosen.items() if d.op == "exp")
        foreign = any(self._is_foreign(v, d) for v, d in chosen.items())
        read = tuple(sorted(leaves, key=self.order.number.__getitem__))
        return Choice(tuple(goals), chosen, read, cost, parallel, exps, foreign)

    def least(self, goals: Sequence[Value]) -> Cost:
        """What every kernel with these results costs: its launch and its writes."""
        place = Place(goals[0].axes, self.plan.loops, self.plan.split)
        return self.model.of_kernel(_written(self.model, place, goals))

    def _choice(self, goals: Sequence[Value], found: Finished, grid: _Grid) -> Choice:
        values = self.order.values
        exps = [values[i] for i in members(found.exps)]
        leaves = tuple(values[i] for i in members(found.leaves))
        chosen = dict(grid.pairs[d] for d in found.derivations)
        return Choice(tuple(goals), chosen, leaves, found.cost, grid.place.parallel, tuple(exps), found.foreign)


def _undominated(done: Sequence[tuple[Finished, _Grid]]) -> Steps[list[tuple[Finished, _Grid]]]:
    """Ways, with their grids, without those for which another one reads no more, costs no more, and may stand for them."""
    kept: list[tuple[Finished, _Grid]] = []
    #: the costs of what is kept, by what may stand for one another, and then by the leaves read
    rivals: dict[tuple[int, _Grid | None], dict[int, Fronts]] = {}
    # a rival comes first: it is less in the first entry in which they differ
    order = sorted(done, key=lambda pair: (pair[0].leaves.bit_count(), pair[0].foreign, pair[0].cost.tolist()))
    for count, (way, grid) in enumerate(order):
        if count % FEW == 0:
            yield
        fronts = rivals.setdefault((way.exps, grid if way.exps else None), {})
        if not any(f.dominates(way.cost, way.foreign) for leaves, f in fronts.items() if not leaves & ~way.leaves):
            fronts.setdefault(way.leaves, Fronts()).add(way.cost, way.foreign)
            kept.append((way, grid))
    return kept


def _price(model: CostModel, place: Place, value: Value, d: Derivation) -> Cost:
    varying = any(u.varying for u in d.operands)
    return model.operator(d.op, [u.axes for u in d.operands], value.axes, place, varying=varying, whole=value.after)


def _written(model: CostModel, place: Place, goals: Sequence[Value]) -> Cost:
    """A kernel's launch and its results."""
    split = (partial_axis(place.split),) if place.split else ()
    return model.launch() + sum(model.transfer((*split, *g.axes), place, held=False) for g in goals)


class _Grid:
    """The derivations of a closure in kernels whose grid is the axes `parallel`, which they therefore do not reduce."""

    def __init__(self, extractor: Extractor, parallel: tuple[str, ...]) -> None:
        plan, order = extractor.plan, extractor.order
        self.model = model = extractor.model
        self.place = Place(parallel, plan.loops, plan.split)
        #: the derivations, with their values
        self.pairs: list[tuple[Value, Derivation]] = []
        first = [0]
        for v in order.values:
            self.pairs += [(v, d) for d in v.derivations if v.source is None and not set(d.reduce) & set(parallel)]
            first.append(len(self.pairs))
        prices = [_price(model, self.place, v, d) for v, d in self.pairs]
        self.prices = np.array(prices).reshape(-1, model.length)
        times = [model.total(p) for p in prices]
        least = [0.0] * order.leaves
        for leaf, ns in extractor._after.items():
            least[leaf] = ns
        for number in range(order.leaves, len(order.values)):
            least.append(
                min(
                    (
                        times[d] + max(least[order.number[u]] for u in self.pairs[d][1].operands)
                        for d in range(first[number], first[number + 1])
                    ),
                    default=math.inf,
                )
            )
        leaves = order.values[: order.leaves]
        self._reads = [model.transfer(v.axes, self.place, held=True) for v in leaves]
        self.derivations = Derivations(
            order.leaves, first, np.array(times).reshape(-1, 1) if extractor.cheapest else self.prices, times,
            [extractor._bitset(d.operands) for _, d in self.pairs], [d.op == "exp" for _, d in self.pairs],
            [extractor._is_foreign(v, d) for v, d in self.pairs], least,
            extractor._bitset([v for v in leaves if not v.is_scalar_leaf]),
        )  # fmt: skip

    @cached_property
    def arrays(self) -> NativeDerivations:
        return NativeDerivations(self.derivations)

    def comes_after(self, leaf: int, ns: float) -> None:
        self.derivations.least[leaf] = ns
        if "arrays" in vars(self):
            self.arrays.least[leaf] = ns

    def read(self, leaves: int) -> Cost:
        """What it costs to read these leaves."""
        return sum((self._reads[i] for i in members(leaves)), np.zeros(self.model.length))

    def written(self, goals: Sequence[Value]) -> Cost:
        return _written(self.model, self.place, goals)


def topological(choice: Choice) -> list[Value]:
    """Leaves and chosen values, operands first; deterministic."""
    return [*choice.leaves, *choice.chosen]
