"""Composition: kernel graphs from the block graphs of their kernels.

As within a kernel, tensors are decided in reverse topological order, so what remains depends on the set of open tensors
only, and only the Pareto front of costs is kept per set. A kernel yields one or several of the open tensors.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.mugraph.graph import MuGraph
from mirage.search.closure import Value
from mirage.search.cost import Cost, CostModel
from mirage.search.extract import Choice, Extractor
from mirage.search.options import Limits
from mirage.search.pareto import Front, Fronts
from mirage.search.plan import KernelPlan
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
    """Block graphs of one plan and its results: with their costs, a row each, and the tensors (bit sets) that they read."""

    choices: list[Choice]
    costs: np.ndarray
    reads: list[int]


@dataclass(eq=False, slots=True)
class _Label:
    open: int
    kernels: int
    cost: Cost
    exps: Exps
    foreign: bool
    splits: frozenset[str]
    parent: _Label | None = None
    kernel: Kernel | None = None
    front: Front | None = None
    member: int = 0


class Composer:
    """Composes the kernel graphs of a program within some limits, until `deadline` (a `perf_counter`)."""

    def __init__(
        self,
        tensors: Tensors,
        model: CostModel,
        limits: Limits,
        deadline: float,
    ) -> None:
        self.tensors = tensors
        self.model = model
        self.max_results = limits.results
        self.labels = 0
        self.complete = True
        self.extractors = [
            Extractor(c, model, limit=limits.operators, max_inputs=limits.inputs) for c in tensors.closures
        ]
        self.until(deadline)
        self.accepted: list[Accepted] = []
        self._finished = Fronts()
        self._least: dict[int, Cost] = {}
        self._floors: dict[KernelTensor, Cost] = {}
        self._writes: dict[tuple[int, tuple[Value, ...]], Cost] = {}
        self._choices: dict[tuple[int, tuple[Value, ...]], _Kernels] = {}
        self._order = self._topological()
        self._number = {t: i for i, t in enumerate(self._order)}

    def until(self, deadline: float) -> None:
        """Go on until another time."""
        self.deadline = deadline
        self.complete = True
        for e in self.extractors:
            e.deadline = deadline
            e.complete = True

    def _topological(self) -> list[KernelTensor]:
        """All tensors, each after those that its producers may read."""
        below: dict[Value, frozenset[KernelTensor]] = {}

        def reads(v: Value) -> frozenset[KernelTensor]:
            found = below.get(v)
            if found is None:
                if v.source is not None:
                    found = frozenset((v.source,)) if isinstance(v.source, KernelTensor) else frozenset()
                else:
                    found = frozenset().union(*(reads(u) for d in v.derivations for u in d.operands))
                below[v] = found
            return found

        done: dict[KernelTensor, None] = {}

        def visit(t: KernelTensor) -> None:
            if t in done:
                return
            # a kernel that reads its own result only copies it (`kernels` drops it)
            needed = {u for _, v in t.producers for u in reads(v) if u is not t}
            for u in sorted(needed, key=lambda u: u.number):
                visit(u)
            done[t] = None

        for t in self.tensors.all:
            visit(t)
        return list(done)

    def _bit(self, t: KernelTensor) -> int:
        return 1 << self._number[t]

    def kernels(self, closure: int, values: tuple[Value, ...], tensors: tuple[KernelTensor, ...]) -> _Kernels:
        """The block graphs that yield these values."""
        key = (closure, values)
        found = self._choices.get(key)
        if found is None:
            extractor = self.extractors[closure]
            choices = [c for c in extractor.choices(values) if not any(v.source in tensors for v in c.leaves)]
            costs = [self.model.of_kernel(c.cost) for c in choices]
            found = self._choices[key] = _Kernels(
                choices, np.array(costs).reshape(-1, self.model.length), [self._read(c) for c in choices]
            )
            if not extractor.complete:
                self.complete = False
                del self._choices[key]
        return found

    def _written(self, closure: int, values: tuple[Value, ...]) -> Cost:
        """What every kernel with these results costs."""
        found = self._writes.get((closure, values))
        if found is None:
            found = self._writes[closure, values] = self.extractors[closure].least(values)
        return found

    def _read(self, choice: Choice) -> int:
        found = 0
        for v in choice.leaves:
            if isinstance(v.source, KernelTensor):
                found |= self._bit(v.source)
        return found

    def fused(self, accept: Accept) -> None:
        """Look at the graph of one kernel with the program's own operators, per plan; takes no time, whatever the program."""
        outputs = tuple(dict.fromkeys(t for t in self.tensors.outputs() if t is not None))
        if not self._possible() or len(outputs) > self.max_results:
            return
        for k, extractor in enumerate(self.extractors):
            values = [next((v for c, v in t.producers if c == k), None) for t in outputs]
            choice = None if None in values else extractor.fused([v for v in values if v is not None])
            if choice is None:
                continue
            cost = self.model.of_kernel(choice.cost)
            if not self._hopeless(cost, 0, choice.foreign):
                self._finish([Kernel(extractor.plan, choice, outputs)], cost, choice.foreign, accept)

    def _finish(self, kernels: list[Kernel], cost: Cost, foreign: bool, accept: Accept) -> None:
        graphs = accept(kernels)
        if graphs:
            self._finished.add(cost, foreign)
            self.accepted.append(Accepted(kernels, cost, foreign, graphs, time.time()))

    def _possible(self) -> bool:
        """Whether there are outputs to compute, and kernels for all of them: not for x / x, whose form has lost its axes."""
        found = [t for t, trivial in zip(self.tensors.outputs(), self.tensors.trivial, strict=True) if trivial is None]
        return bool(found) and None not in found

    def compose(self, count: int, last: KernelPlan, accept: Accept) -> None:
        """Look at the graphs of up to `count` kernels, the last of which has the plan `last`: in order of modelled cost, and
        none dominated by one accepted before. As within a kernel, a foreign graph dominates foreign ones only.
        """
        if not self._possible():
            return
        start = 0
        for t in self.tensors.outputs():
            if t is not None:
                start |= self._bit(t)
        ticket = itertools.count()
        nothing = _Label(start, 0, np.zeros(self.model.length), (), False, frozenset())
        heap: list[tuple[float, int, _Label]] = [(0.0, next(ticket), nothing)]
        fronts: dict[tuple[int, Exps, frozenset[str]], Fronts] = {}
        while heap:
            _, _, label = heapq.heappop(heap)
            if label.front is not None and not label.front.alive(label.member):
                continue
            self.labels += 1
            if self.labels % 16 == 0 and time.perf_counter() > self.deadline:
                self.complete = False
                return
            if not label.open:
                if not self._hopeless(label.cost, 0, label.foreign):
                    self._finish(self._kernels_of(label), label.cost, label.foreign, accept)
                continue
            if label.kernels == count or self._hopeless(label.cost, label.open, label.foreign):
                continue
            for closure, values, tensors in self._next(label.open):
                plan = self.tensors.closures[closure].plan
                if not label.kernels and plan != last:
                    continue
                if plan.split in label.splits:
                    continue  # its partial results would be those of another division of the axis
                splits = label.splits | {plan.split} if plan.split else label.splits
                taken = label.open
                for t in tensors:
                    taken &= ~self._bit(t)
                if self._hopeless(label.cost + self._written(closure, values), taken, label.foreign):
                    continue
                found = self.kernels(closure, values, tensors)
                totals = label.cost + found.costs
                for i in np.flatnonzero(~self._finished.own.dominates_each(totals)):
                    choice, read, total = found.choices[i], found.reads[i], totals[i]
                    now = taken | read
                    if now and label.kernels + 1 == count:
                        continue
                    exps = label.exps
                    if choice.exps:
                        exps = tuple(sorted((*exps, (closure, choice.parallel, tuple(v.number for v in choice.exps)))))
                    foreign = label.foreign or choice.foreign
                    if self._hopeless(total, now, foreign):
                        continue
                    kernel = Kernel(plan, choice, tensors)
                    new = _Label(now, label.kernels + 1, total, exps, foreign, splits, label, kernel)
                    # a finished graph dominates others once it is accepted
                    if now:
                        rivals = fronts.setdefault((now, exps, splits), Fronts())
                        if rivals.dominates(total, foreign):
                            continue
                        new.front, new.member = rivals.add(total, foreign)
                    heapq.heappush(heap, (self.model.total(total), -next(ticket), new))

    def _hopeless(self, cost: Cost, open_: int, foreign: bool) -> bool:
        """Whether an accepted graph is at least as good as all that a graph of this cost with these open tensors may grow
        to.
        """
        return self._finished.dominates(cost + self._yet(open_), foreign)

    def _yet(self, open_: int) -> Cost:
        """What open tensors still cost at least: of every resource, what the most demanding of them needs by itself."""
        found = self._least.get(open_)
        if found is None:
            tensors = [t for i, t in enumerate(self._order) if open_ >> i & 1]
            launches = -(-len(tensors) // self.max_results)
            found = launches * self.model.launch() + sum(self.model.written(t.axes) for t in tensors)
            for t in tensors:
                found = np.maximum(found, self._floor(t))
            self._least[open_] = found
        return found

    def _floor(self, tensor: KernelTensor) -> Cost:
        """Per resource, the least that the kernels up to a tensor can need."""
        found = self._floors.get(tensor)
        if found is None:
            found = np.full(self.model.length, np.inf)
            for closure, value in tensor.producers:
                kernels = self.kernels(closure, (value,), (tensor,))
                for choice, cost in zip(kernels.choices, kernels.costs, strict=True):
                    below = [self._floor(v.source) for v in choice.leaves if isinstance(v.source, KernelTensor)]
                    found = np.minimum(found, cost + np.max(below, axis=0) if below else cost)
            self._floors[tensor] = found
        return found

    def _next(self, open_: int) -> Iterator[tuple[int, tuple[Value, ...], tuple[KernelTensor, ...]]]:
        """The ways to yield the last open tensor: (number of the closure, its values, the tensors that they are)."""
        indices = [i for i in range(open_.bit_length()) if open_ >> i & 1]
        first = self._order[indices[-1]]
        others = [self._order[i] for i in indices[:-1]]
        for closure, value in first.producers:
            yield closure, (value,), (first,)
            partners = [(v, t) for t in others for c, v in t.producers if c == closure]
            for count in range(1, self.max_results):
                for chosen in itertools.combinations(partners, count):
                    if len({t for _, t in chosen}) == count:
                        yield closure, (value, *(v for v, _ in chosen)), (first, *(t for _, t in chosen))

    @staticmethod
    def _kernels_of(label: _Label) -> list[Kernel]:
        found: list[Kernel] = []
        at: _Label | None = label
        while at is not None and at.kernel is not None:
            found.append(at.kernel)
            at = at.parent
        return found
