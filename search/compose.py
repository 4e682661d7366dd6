"""Composition: kernel graphs from the block graphs of their kernels.

As within a kernel, tensors are decided in reverse topological order, so what remains depends on the set of open tensors
only, and only the Pareto front of costs is kept per set. A kernel yields one or several of the open tensors.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.mugraph.graph import MuGraph
from mirage.search.closure import Value
from mirage.search.cost import Cost, CostModel
from mirage.search.extract import Choice, Extractor
from mirage.search.labels import members
from mirage.search.options import Limits
from mirage.search.pareto import ROUNDING, Front, Fronts
from mirage.search.plan import KernelPlan
from mirage.search.steps import Steps
from mirage.search.tensors import KernelTensor, Tensors

#: the exps of all kernels: the number of a closure, the grid, and the numbers of the values
Exps = tuple[tuple[int, tuple[str, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel of a composed graph: its plan, its block graph, and the tensors that it yields (the choice's goals)."""

    plan: KernelPlan
    choice: Choice
    tensors: tuple[KernelTensor, ...]


#: the graphs that kernels may be returned as, none where they are refused
Accept = Callable[[list[Kernel]], Sequence[MuGraph]]


@dataclass(frozen=True)
class Accepted:
    """Kernels in order of execution, their cost, what they were accepted as, and when (`time.time()`)."""

    kernels: list[Kernel]
    cost: Cost
    foreign: bool
    graphs: Sequence[MuGraph]
    at: float


@dataclass(frozen=True)
class _Kernels:
    """Block graphs of one plan and its results, their costs (rows), and the rows by the tensors (a bit set) that they read."""

    choices: list[Choice]
    costs: np.ndarray
    by_reads: dict[int, np.ndarray]


@dataclass(frozen=True)
class _Group:
    """The block graphs (numbers, costs as rows) after which the same tensors are open: `now`, for which at least so many launches
    and, with the block graph, the costs `bounds` of the weighted sums `times` are to come.
    """

    now: int
    numbers: np.ndarray
    costs: np.ndarray
    bounds: np.ndarray
    times: np.ndarray
    launches: float


@dataclass(frozen=True)
class _Ways:
    """All ways to yield some results where other tensors stay open, and the least of their bounds per resource."""

    choices: list[Choice]
    groups: list[_Group]
    least: Cost


@dataclass(eq=False, slots=True)
class _Label:
    open: int
    kernels: int
    cost: Cost
    time: float
    exps: Exps
    foreign: bool
    splits: frozenset[str]
    parent: _Label | None = None
    kernel: Kernel | None = None
    front: Front | None = None
    member: int = 0


class Composer:
    """Composes the kernel graphs of a program within some limits.

    With `most`, only of those that take at most so many ns as modelled, and of the block graphs of a kernel that read the same
    tensors only the one that takes least: what is found is the cheapest graph, and some that differ in their kernels.
    """

    def __init__(self, tensors: Tensors, model: CostModel, limits: Limits, most: float = math.inf) -> None:
        self.tensors = tensors
        self.model = model
        self.most = most
        self.max_results = limits.results
        self.labels = 0
        self.extractors = [
            Extractor(c, model, limit=limits.operators, max_inputs=limits.inputs, most=most) for c in tensors.closures
        ]
        self._finished = Fronts()
        self._least: dict[int, Cost] = {}
        self._floors: dict[KernelTensor, Cost] = {}
        self._writes: dict[tuple[int, tuple[Value, ...]], Cost] = {}
        self._choices: dict[tuple[int, tuple[Value, ...]], _Kernels] = {}
        self._ways: dict[tuple[int, tuple[Value, ...], int], _Ways] = {}
        self._below: dict[Value, frozenset[KernelTensor]] = {}
        self._order = self._topological()
        self._number = {t: i for i, t in enumerate(self._order)}

    def know(self, cost: Cost, foreign: bool) -> None:
        """A graph of this cost is there already: what it dominates is not looked at."""
        if not self._finished.dominates(cost, foreign):
            self._finished.add(cost, foreign)

    def _topological(self) -> list[KernelTensor]:
        """All tensors, each after those that its producers may read."""
        done: dict[KernelTensor, None] = {}

        def visit(t: KernelTensor) -> None:
            if t in done:
                return
            # a kernel that reads its own result only copies it (`kernels` drops it)
            needed = {u for _, v in t.producers for u in self._reads(v) if u is not t}
            for u in sorted(needed, key=lambda u: u.number):
                visit(u)
            done[t] = None

        for t in self.tensors.all:
            visit(t)
        return list(done)

    def _reads(self, v: Value) -> frozenset[KernelTensor]:
        """The tensors that a kernel up to a value may read."""
        found = self._below.get(v)
        if found is None:
            if v.source is not None:
                found = frozenset((v.source,)) if isinstance(v.source, KernelTensor) else frozenset()
            else:
                found = frozenset().union(*(self._reads(u) for d in v.derivations for u in d.operands))
            self._below[v] = found
        return found

    def _bit(self, t: KernelTensor) -> int:
        return 1 << self._number[t]

    def kernels(self, closure: int, values: tuple[Value, ...], tensors: tuple[KernelTensor, ...]) -> Steps[_Kernels]:
        """The block graphs that yield these values."""
        key = (closure, values)
        found = self._choices.get(key)
        if found is None:
            yield
            if self.most < math.inf:
                below = frozenset().union(*map(self._reads, values)).difference(tensors)
                # in this order, those that one follows from come before it
                for t in sorted(below, key=self._number.__getitem__):
                    floor = yield from self._floor(t)
                    possible = self.model.launches(floor) < math.inf
                    self.extractors[closure].comes_after(t, self.model.total(floor) if possible else math.inf)
            choices = yield from self.extractors[closure].choices(values)
            # one that reads its own result only copies it
            choices = [c for c in choices if not any(v.source in tensors for v in c.leaves)]
            costs = np.array([c.cost for c in choices]).reshape(-1, self.model.length)
            by_reads: dict[int, list[int]] = {}
            for i, c in enumerate(choices):
                by_reads.setdefault(self._read(c), []).append(i)
            totals = self.model.of_kernels(costs)
            for i, c in enumerate(choices):
                if self._once(c.leaves):
                    totals[i] = 0.0
            found = self._choices[key] = _Kernels(
                choices, totals, {read: np.array(rows) for read, rows in by_reads.items()}
            )
        return found

    def _once(self, leaves: Sequence[Value]) -> bool:
        """Whether a kernel that reads these follows from constants alone, so that it runs once."""
        fixed = [self.tensors.fixed(v) for v in leaves]
        return True in fixed and False not in fixed

    def _written(self, closure: int, values: tuple[Value, ...]) -> Cost:
        """What every kernel with these results costs."""
        found = self._writes.get((closure, values))
        if found is None:
            found = self.extractors[closure].least(values)
            if all(self.tensors.fixed(v) for v in values):
                found = np.zeros_like(found)
            self._writes[closure, values] = found
        return found

    def _read(self, choice: Choice) -> int:
        found = 0
        for v in choice.leaves:
            if isinstance(v.source, KernelTensor):
                found |= self._bit(v.source)
        return found

    def _possible(self) -> bool:
        """Whether there are outputs to compute, and kernels for all of them: not for x / x, whose form has lost its axes."""
        found = [t for t, trivial in zip(self.tensors.outputs(), self.tensors.trivial, strict=True) if trivial is None]
        return bool(found) and None not in found

    def compose(self, fewest: int, most: int, accept: Accept) -> Iterator[Accepted | None]:
        """The graphs of `fewest` to `most` kernels, in order of modelled cost, of which none is dominated by one accepted before;
        None between steps of the work. As within a kernel, a foreign graph dominates foreign ones only.

        Labels are looked at in the order of a lower bound of what their graphs cost (A*: Hart, Nilsson and Raphael, 1968).
        """
        if not self._possible():
            return
        start = 0
        for t in self.tensors.outputs():
            if t is not None:
                start |= self._bit(t)
        ticket = itertools.count()
        nothing = _Label(start, 0, np.zeros(self.model.length), 0.0, (), False, frozenset())
        heap: list[tuple[float, int, _Label]] = [(0.0, next(ticket), nothing)]
        fronts: dict[tuple[int, Exps, frozenset[str]], Fronts] = {}
        while heap:
            _, _, label = heapq.heappop(heap)
            if label.front is not None and not label.front.alive(label.member):
                continue
            self.labels += 1
            yield None
            if self._hopeless(label.cost + (yield from self._yet(label.open)), label.foreign):
                continue
            if not label.open:
                graphs = accept(_kernels_of(label)) if label.kernels >= fewest else ()
                if graphs:
                    self._finished.add(label.cost, label.foreign)
                    yield Accepted(_kernels_of(label), label.cost, label.foreign, graphs, time.time())
                continue
            for closure, values, tensors in self._next(label.open):
                yield None
                plan = self.tensors.closures[closure].plan
                if plan.split in label.splits:
                    continue  # its partial results would be those of another division of the axis
                splits = label.splits | {plan.split} if plan.split else label.splits
                taken = label.open
                for t in tensors:
                    taken &= ~self._bit(t)
                least = self._written(closure, values) + (yield from self._yet(taken))
                if self._hopeless(label.cost + least, label.foreign):
                    continue
                ways = yield from self._ways_to(closure, values, tensors, taken)
                if self._hopeless(label.cost + ways.least, label.foreign):
                    continue
                for group in ways.groups:
                    if label.kernels + 1 + group.launches > most:
                        continue
                    bounds = label.cost + group.bounds
                    hopeless = self._finished.own.dominates_each(bounds * ROUNDING)
                    for i in np.flatnonzero(~hopeless & (label.time + group.times <= self.most)):
                        choice, total = ways.choices[group.numbers[i]], label.cost + group.costs[i]
                        foreign = label.foreign or choice.foreign
                        if foreign and self._hopeless(bounds[i], foreign):
                            continue
                        exps = label.exps
                        if choice.exps:
                            own = (closure, choice.parallel, tuple(v.number for v in choice.exps))
                            exps = tuple(sorted((*exps, own)))
                        kernel = Kernel(plan, choice, tensors)
                        new = _Label(
                            group.now,
                            label.kernels + 1,
                            total,
                            self.model.total(total),
                            exps,
                            foreign,
                            splits,
                            label,
                            kernel,
                        )
                        # a finished graph dominates others once it is accepted
                        if group.now:
                            rivals = fronts.setdefault((group.now, exps, splits), Fronts())
                            if rivals.dominates(total, foreign):
                                continue
                            new.front, new.member = rivals.add(total, foreign)
                        # the newest of many equally cheap ones goes first, so that graphs are finished early
                        heapq.heappush(heap, (label.time + group.times[i], -next(ticket), new))

    def _hopeless(self, bound: Cost, foreign: bool) -> bool:
        """Whether an accepted graph is at least as good as all graphs that cost at least so much."""
        return self._finished.dominates(bound * ROUNDING, foreign)

    def _ways_to(
        self, closure: int, values: tuple[Value, ...], tensors: tuple[KernelTensor, ...], others: int
    ) -> Steps[_Ways]:
        """The ways to yield these values, where the tensors `others` stay open."""
        key = (closure, values, others)
        ways = self._ways.get(key)
        if ways is None:
            found = yield from self.kernels(closure, values, tensors)
            groups: list[_Group] = []
            for read, rows in found.by_reads.items():
                now = others | read
                yet = yield from self._yet(now)
                if self.model.launches(yet) == np.inf:
                    continue  # no kernel yields one of them
                bounds = found.costs[rows] + yet
                times = self.model.totals(bounds)
                groups.append(_Group(now, rows, found.costs[rows], bounds, times, self.model.launches(yet)))
            least = np.full(self.model.length, np.inf)
            for group in groups:
                least = np.minimum(least, group.bounds.min(axis=0))
            ways = self._ways[key] = _Ways(found.choices, groups, least)
        return ways

    def _yet(self, open_: int) -> Steps[Cost]:
        """What open tensors still cost at least: of every resource, what the most demanding of them needs by itself."""
        found = self._least.get(open_)
        if found is None:
            # what is computed once may cost nothing
            tensors = [t for i in members(open_) if not (t := self._order[i]).fixed]
            launches = -(-len(tensors) // self.max_results)
            found = launches * self.model.launch() + sum(
                (self.model.written(t.axes) for t in tensors), np.zeros(self.model.length)
            )
            for t in tensors:
                found = np.maximum(found, (yield from self._floor(t)))
            self._least[open_] = found
        return found

    def _floor(self, tensor: KernelTensor) -> Steps[Cost]:
        """Per resource, the least that the kernels up to a tensor can need."""
        found = self._floors.get(tensor)
        if found is None:
            found = np.full(self.model.length, np.inf)
            for closure, value in tensor.producers:
                kernels = yield from self.kernels(closure, (value,), (tensor,))
                for read, rows in kernels.by_reads.items():
                    least = kernels.costs[rows].min(axis=0)
                    below = np.zeros(self.model.length)
                    for i in members(read):
                        below = np.maximum(below, (yield from self._floor(self._order[i])))
                    found = np.minimum(found, least + below)
            self._floors[tensor] = found
        return found

    def _next(self, open_: int) -> Iterator[tuple[int, tuple[Value, ...], tuple[KernelTensor, ...]]]:
        """The ways to yield the last open tensor: (number of the closure, its values, the tensors that they are)."""
        indices = members(open_)
        first = self._order[indices[-1]]
        others = [self._order[i] for i in indices[:-1]]
        for closure, value in first.producers:
            yield closure, (value,), (first,)
            partners = [(v, t) for t in others for c, v in t.producers if c == closure]
            for count in range(1, self.max_results):
                for chosen in itertools.combinations(partners, count):
                    if len({t for _, t in chosen}) == count:
                        yield closure, (value, *(v for v, _ in chosen)), (first, *(t for _, t in chosen))


def _kernels_of(label: _Label) -> list[Kernel]:
    found: list[Kernel] = []
    at: _Label | None = label
    while at is not None and at.kernel is not None:
        found.append(at.kernel)
        at = at.parent
    return found
