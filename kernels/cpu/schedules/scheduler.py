"""Schedules of a muGraph: those that the cost model finds most promising, and the neighbours of one.

The model only orders candidates; the best few are for a profiler to time (Mirage, section 6: tile sizes are chosen after
the search).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from mirage.errors import ScheduleError
from mirage.ir.types import DTYPES, compute_dtype
from mirage.kernels.cpu.emit.mugraph import Emitter, bind_hints
from mirage.kernels.cpu.emit.mugraph import scratch_bytes as _scratch_bytes
from mirage.kernels.cpu.emit.plan import VECTOR_BYTES
from mirage.kernels.cpu.emit.stages import computed_once
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.processor import L1_BYTES, L3_BYTES, Processor
from mirage.kernels.cpu.schedules.space import Space, distance
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph, Node, Ref, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule, Schedule, is_handed_on, kernel_numbers
from mirage.mugraph.symmetry import exchangeable_axes

#: how far apart (in factors of 2) the schedules are that are offered for one kernel
_APART = 2.0
#: other layouts and vector axes of one schedule that are tried, at most, and up to so many times the estimate of those that are
#: planned; the planned ones are good ones, so that sizes whose estimate is that much larger are tried before
_DECISIONS, _FAR, _BEFORE = 12, 1.5, 1.02
#: candidates of a kernel, by increasing cost, among which such are looked for
_LOOKED_AT = 256


def scratch_bytes(mugraph: MuGraph, schedule: Schedule, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of scratch of a cell of each kernel, at these sizes of the dim symbols, for 64-byte vectors."""
    return _scratch(mugraph, schedule, analyze(mugraph), sizes)


def _scratch(mugraph: MuGraph, schedule: Schedule, maximum: RunningMaximum, sizes: Mapping[str, int]) -> list[int]:
    emitter = Emitter(mugraph, schedule, maximum, sizes)
    return [_scratch_bytes(emitter, k, sizes) for k in range(len(schedule.kernels))]


def schedules(
    mugraph: MuGraph, hints: Mapping[str, int], l2_bytes: int, threads: int, count: int = 6
) -> list[Schedule]:
    """At most `count` schedules for these typical sizes of the dim symbols, the most promising first.

    The scratch of a cell fits `l2_bytes`, where any candidate's does; the k-th schedule has the k-th best
    sizes of every kernel. Kernels that split one axis split it as the first of them does.
    """
    machine = Machine(threads, L1_BYTES, l2_bytes, max(L3_BYTES, l2_bytes * threads))
    return Scheduler(mugraph, hints, CostModel(machine)).best(count)


def default_schedule(mugraph: MuGraph, hints: Mapping[str, int], cache_bytes: int, threads: int = 2) -> Schedule:
    """The most promising schedule for these typical sizes of the dim symbols, with scratch that fits `cache_bytes`."""
    return schedules(mugraph, hints, cache_bytes, threads, 1)[0]


def machine_of(target: Processor) -> Machine:
    """What the cost model has to know of a target."""
    return Machine(target.cores, target.l1_bytes, target.l2_bytes, max(target.l3_bytes, target.cache_bytes))


@dataclass(frozen=True)
class Ranking:
    """The candidates of one kernel: their tiles and splits per axis, and their numbers by increasing estimate."""

    tiles: dict[str, np.ndarray]
    splits: dict[str, np.ndarray]
    order: np.ndarray


#: axes, and how often each is split
Splits = tuple[tuple[str, int], ...]
#: a kernel, how often its axes are split by earlier ones, where the tensors are, and the bytes of elements of its narrow inputs
Key = tuple[Node, Splits, str, tuple[tuple[int, int], ...]]
#: which kernel, its schedule, how often axes are split, and which operands have another last axis than their own
Part = tuple[int, KernelSchedule, Splits, tuple[tuple[int, str], ...]]


class Scheduler:
    """Schedules of one muGraph for typical sizes (`hints`) of its dim symbols, as the model orders them.

    `maximum` is the muGraph's, where the caller knows it; `known` the rankings of kernels that graphs share, at the same
    hints and in the same model. Operators that follow from the `constants` alone run `once`: they cost nothing, and their sizes
    are not varied.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        hints: Mapping[str, int],
        model: CostModel,
        maximum: RunningMaximum | None = None,
        known: dict[Key, Ranking] | None = None,
        constants: Collection[str] = (),
    ) -> None:
        self.mugraph = mugraph
        self.model = model
        self.maximum = analyze(mugraph) if maximum is None else maximum
        self.bound = bind_hints(mugraph, hints)
        self.itemsize = DTYPES[mugraph.dtype].itemsize
        self.nodes: list[Node] = list(mugraph.kernels)
        #: numbers of operators
        self.once = computed_once(mugraph, constants, self.maximum)
        #: whether each kernel runs in every call
        self._runs = [i not in self.once for i in kernel_numbers(mugraph)]
        self._sizes = Schedule(()).axis_sizes(mugraph, self.bound)
        self._known: dict[Key, Ranking] = {} if known is None else known
        #: candidates of the kernel of which most were ranked, so far
        self.ranked = 0
        self._chosen: dict[tuple[int, Splits], list[KernelSchedule]] = {}
        #: by how often axes are split: the sizes of all, where the tensors are, and what is counted for library calls
        self._split: dict[Splits, tuple[dict[str, int], str, np.ndarray]] = {}
        #: counts of single kernels: schedules of many kernels that are compared differ in one
        self._counted: dict[Part, np.ndarray] = {}

    # estimates

    def counts(self, schedule: Schedule) -> np.ndarray:
        """What the model counts for the whole muGraph with this schedule: [features].

        Where it decides about layouts or vector axes, the others are counted as they are planned, too.
        """
        if any(s.layouts or s.vectors for s in schedule.kernels):
            return self._counts(self._planned(schedule))
        return self._counts(schedule)

    def _planned(self, schedule: Schedule) -> Schedule:
        """The schedule with the layouts and vector axes that are chosen where it gives none."""
        return Schedule(tuple(k.decisions.planned for k in self._emitter(schedule).kernels))

    def _emitter(self, schedule: Schedule) -> Emitter:
        return Emitter(self.mugraph, schedule, self.maximum, self.bound)

    def _counts(self, schedule: Schedule) -> np.ndarray:
        found = self.library_counts(schedule)
        for part in self.parts(schedule):
            found = found + self.part_counts(part)
        return found

    def parts(self, schedule: Schedule) -> list[Part]:
        """The kernels that run in every call, in order, with all that the time of each one depends on beside the sizes."""
        splits, orders = _splits(schedule), schedule.orders(self.mugraph)
        kernels = enumerate(zip(self.nodes, schedule.kernels, strict=True))
        return [
            (k, s, splits, tuple((j, orders[r]) for j, r in enumerate(node.operands) if r in orders))
            for k, (node, s) in kernels
            if self._runs[k]
        ]

    def library_counts(self, schedule: Schedule) -> np.ndarray:
        """What the model counts for all library calls: [features]."""
        return self._at(_splits(schedule))[2]

    def part_counts(self, part: Part) -> np.ndarray:
        """What the model counts for one kernel: [features]."""
        counts = self._counted.get(part)
        if counts is None:
            k, s, splits, orders = part
            sizes, home, _ = self._at(splits)
            work, stored = self.model.work(self.nodes[k]), self._stored(k)
            counts = self.model.schedule(work, s, sizes, home, self.itemsize, dict(orders), stored)
            self._counted[part] = counts
        return counts

    def _at(self, splits: Splits) -> tuple[dict[str, int], str, np.ndarray]:
        """Where axes are split so often: the sizes of all, where the tensors are, and what is counted for library calls."""
        if splits not in self._split:
            sizes = self._with_parts(dict(splits))
            self._split[splits] = sizes, self._home(sizes), self.model.library(self.mugraph, sizes, self.once)
        return self._split[splits]

    def _stored(self, k: int) -> dict[int, int]:
        """Bytes of an element of those inputs of a kernel that are not of the muGraph's element type."""
        sizes = {j: self.mugraph.itemsize(r.node) for j, r in enumerate(self.nodes[k].operands)}
        return {j: n for j, n in sizes.items() if n != self.itemsize}

    def _home(self, sizes: Mapping[str, int]) -> str:
        return self.model.home(self.mugraph, sizes, self.once)

    def ns(self, schedule: Schedule) -> float:
        """The estimated time of a call in nanoseconds."""
        return float(self.model.ns(self.counts(schedule)))

    def _with_parts(self, splits: Mapping[str, int]) -> dict[str, int]:
        """The size of every axis, where axes are split so often; those that are split later on are not split."""
        roles = (a for n in self.nodes if n.graph for a, r in n.graph.roles if r is Role.SPLIT)
        return {**self._sizes, **{partial_axis(a): splits.get(a, 1) for a in roles}}

    # schedules

    def halved(self, schedule: Schedule) -> Iterator[Schedule]:
        """The schedules that compute one triangle of the results of one kernel, where that is all of them, with as many rows in a
        block as the model finds best; and those that compute all of such a kernel again.
        """
        sizes = self._sizes_of(schedule)
        for k, (own, number) in enumerate(zip(schedule.kernels, kernel_numbers(self.mugraph), strict=True)):
            if own.halved is not None:
                yield schedule.with_kernel(k, replace(own, halved=None))
                continue
            for pair in exchangeable_axes(self.mugraph, number):
                tiles = self._space(k, sizes).tiles
                found = [
                    schedule.with_kernel(k, replace(own.with_tile(rows, t), halved=(rows, columns)))
                    for rows, columns in (pair, pair[::-1])
                    for t in tiles[rows]
                ]
                yield min(found, key=self.ns)

    def first(self) -> Schedule:
        """The most promising schedule as the model sees it: its scratch may exceed the cache."""
        return self._whole(0)

    def best(self, count: int) -> list[Schedule]:
        """At most `count` schedules, the most promising first, as `schedules` gives them."""
        found = list(dict.fromkeys(self._whole(rank) for rank in range(count)))
        l2_bytes = self.model.machine.l2_bytes
        fitting = [s for s in found if self.scratch(s) <= l2_bytes]
        return fitting or [min((self._smallest(), *found), key=self.scratch)]

    def within(self, count: int, limit: int) -> list[Schedule]:
        """Those of the best whose scratch is at most `limit` bytes: a core's share of all caches, as they may not fit the
        second level (paper, 4.1). Raises ScheduleError if there are none.
        """
        needs = {s: self.scratch(s) for s in self.best(count)}
        if (least := min(needs.values())) > limit:
            raise ScheduleError(f"a block needs {least} bytes of scratch, more than the target's {limit} per core")
        return [s for s, need in needs.items() if need <= limit]

    def scratch(self, schedule: Schedule) -> int:
        """Bytes of scratch of a cell, of the kernel that needs most."""
        return max(_scratch(self.mugraph, schedule, self.maximum, self.bound), default=0)

    def _whole(self, rank: int) -> Schedule:
        """The schedule with the candidates of this rank of every kernel."""
        kernels: list[KernelSchedule] = []
        splits: dict[str, int] = {}
        for k in range(len(self.nodes)):
            chosen = self._choices(k, splits, rank + 1)
            kernels.append(chosen[min(rank, len(chosen) - 1)])
            splits |= kernels[-1].splits
        return Schedule(tuple(kernels))

    def _smallest(self) -> Schedule:
        kernels = []
        for n in self.nodes:
            assert n.graph is not None
            tiles = tuple((a, 1) for a, r in n.graph.roles if r is not Role.WHOLE)
            splits = tuple((a, 1) for a, r in n.graph.roles if r is Role.SPLIT)
            kernels.append(KernelSchedule(tiles, splits, self._lanes))
        return Schedule(tuple(kernels))

    @property
    def _lanes(self) -> int:
        return VECTOR_BYTES // compute_dtype(DTYPES[self.mugraph.dtype]).itemsize

    def _space(self, k: int, sizes: Mapping[str, int]) -> Space:
        return Space(self.model.work(self.nodes[k]), sizes, self.model.machine.threads, self._lanes)

    def _choices(self, k: int, splits: Mapping[str, int], count: int) -> list[KernelSchedule]:
        """The `count` best candidates of a kernel that are apart, where earlier kernels split axes so often."""
        graph = self.nodes[k].graph
        assert graph is not None
        fixed = tuple((a, n) for a, n in splits.items() if a in graph.role or partial_axis(a) in graph.role)
        found = self._chosen.setdefault((k, fixed), [])
        if len(found) >= count:
            return found
        sizes = self._with_parts(splits)
        space = self._space(k, sizes)
        key = self.nodes[k], fixed, self._home(sizes), tuple(self._stored(k).items())
        ranked = self._known.get(key)
        if ranked is None:
            ranked = self._known[key] = self._rank(k, space, sizes, dict(splits))
        self.ranked = max(self.ranked, len(ranked.order))
        for i in ranked.order[:_LOOKED_AT]:
            s = space.schedule(ranked.tiles, ranked.splits, i)
            if all(distance(s, t) >= _APART for t in found):
                found.append(s)
                if len(found) >= count:
                    break
        return found

    def _rank(self, k: int, space: Space, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> Ranking:
        tiles, splits = space.candidates(fixed)
        counts, scratch = self.model.kernel(
            space.work, tiles, splits, sizes, self._home(sizes), self.itemsize, stored=self._stored(k)
        )
        cost = self.model.ns(counts)
        # what does not fit comes last, the smallest first
        too_large = np.maximum(scratch - self.model.machine.l2_bytes, 0)
        return Ranking(tiles, splits, np.lexsort((cost, too_large)))

    def _orders(self, schedule: Schedule, sizes: Mapping[str, int]) -> Iterator[Schedule]:
        """The schedules by which one result that kernels hand on is contiguous along another axis."""
        numbers = kernel_numbers(self.mugraph)
        for k, (own, node) in enumerate(zip(schedule.kernels, self.nodes, strict=True)):
            for output in range(len(node.dims)):
                axes = node.axes(output)
                if not is_handed_on(self.mugraph, Ref(numbers[k], output)):
                    continue
                chosen = dict(own.last)
                for axis in axes:
                    if sizes[axis] == 1 or axis not in self.mugraph.axes or axis == chosen.get(output, axes[-1]):
                        continue
                    last = {**chosen, output: axis}
                    if axis == axes[-1]:
                        del last[output]
                    yield schedule.with_kernel(k, replace(own, last=tuple(sorted(last.items()))))

    def _decided(
        self, schedule: Schedule, sizes: Mapping[str, int], numbers: Collection[int]
    ) -> dict[Schedule, float]:
        """The schedules that differ in one vector axis or one layout of a block, in one of these kernels, with their estimates
        beside that of this schedule, whose own choices are estimated in the same way.
        """
        kernels = self._emitter(schedule).kernels
        planned = Schedule(tuple(k.decisions.planned for k in kernels))
        now, least = self.ns(schedule), float(self.model.ns(self._counts(planned)))
        found: dict[Schedule, float] = {}
        seen = {planned}
        for k, (own, kernel) in enumerate(zip(schedule.kernels, kernels, strict=True)):
            if k not in numbers:
                continue
            long = {a for a in kernel.graph.role if own.tile.get(a, sizes[a]) > 1}
            for s in self._space(k, sizes).decisions(own, kernel.decisions, long):
                near = schedule.with_kernel(k, s)
                with suppress(ScheduleError):
                    near.check(self.mugraph)
                    # what a block decides is no matter of the other kernels; two decisions may come to the same
                    whole = planned.with_kernel(k, kernel.with_schedule(s).decisions.planned)
                    if whole not in seen:
                        seen.add(whole)
                        found[near] = now + float(self.model.ns(self._counts(whole))) - least
        best = sorted((s for s, ns in found.items() if ns <= _FAR * now), key=lambda s: (found[s] == now, found[s]))
        return {s: found[s] for s in best[:_DECISIONS]}

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        """The schedules that differ in one size of one kernel (and, for an axis that several split, of all of those), in the
        order of one result, or in the layout of one block tensor or one vector axis, the most promising first; only those whose
        scratch fits.
        """
        sizes, now = self._sizes_of(schedule), self.ns(schedule)
        kernels = [k for k, runs in enumerate(self._runs) if runs]
        found = self._resized(schedule, sizes, kernels)
        orders = {s: self.ns(s) for s in self._orders(schedule, sizes)}
        decided = self._decided(schedule, sizes, kernels)
        # orders that the model has no reason for come last, and what it does not see
        found |= {s: ns for s, ns in orders.items() if ns < now}
        found |= {s: _BEFORE * ns for s, ns in decided.items() if ns != now}
        orders |= decided
        others = [s for s in orders if s not in found]
        yield from filter(self._fits, [*sorted(found, key=lambda s: found[s]), *sorted(others, key=lambda s: orders[s])])

    def together(self, schedule: Schedule, kernels: Collection[int], known: Callable[[Part], bool]) -> Iterator[Schedule]:
        """Schedules that differ from this one in each of these kernels at once, as in one of the neighbours that change it alone:
        for whoever can tell what each kernel takes. What is `known` of a kernel is not among them. Neighbours that change several
        kernels, or the order of what one hands on to others, come in turns with them.
        """
        sizes = self._sizes_of(schedule)
        found = self._resized(schedule, sizes, kernels) | {s: self.ns(s) for s in self._orders(schedule, sizes)}
        yield from self._joined(schedule, sorted(found, key=lambda s: found[s]), known)
        # for many kernels these take long to find
        yield from self._joined(schedule, list(self._decided(schedule, sizes, kernels)), known)

    def _joined(
        self, schedule: Schedule, neighbours: Sequence[Schedule], known: Callable[[Part], bool]
    ) -> Iterator[Schedule]:
        alone: list[deque[KernelSchedule]] = [deque() for _ in self.nodes]
        others: list[Schedule] = []
        for near in neighbours:
            k, *more = (i for i, own in enumerate(schedule.kernels) if near.kernels[i] != own)
            new, old = near.kernels[k], schedule.kernels[k]
            if not more and (new.splits, new.last) == (old.splits, old.last):
                alone[k].append(new)
            else:
                others.append(near)
        rest = filter(self._fits, others)
        parts = {k: (splits, orders) for k, _, splits, orders in self.parts(schedule)}
        while any(alone):
            kernels = list(schedule.kernels)
            for k, left in enumerate(alone):
                while left and known((k, left[0], *parts[k])):
                    left.popleft()
                if left:
                    kernels[k] = left.popleft()
            joint = self._fitting(schedule, Schedule(tuple(kernels)))
            if joint != schedule:
                yield joint
            yield from islice(rest, 1)
        yield from rest

    def _fits(self, schedule: Schedule) -> bool:
        try:
            return self.scratch(schedule) <= self.model.machine.l2_bytes
        except ScheduleError:
            return False

    def _fitting(self, schedule: Schedule, changed: Schedule) -> Schedule:
        """The changed schedule, but for the kernels whose scratch does not fit; the schedule itself where it is none."""
        try:
            needs = _scratch(self.mugraph, changed, self.maximum, self.bound)
        except ScheduleError:
            return schedule
        pairs = zip(needs, changed.kernels, schedule.kernels, strict=True)
        return Schedule(tuple(new if need <= self.model.machine.l2_bytes else old for need, new, old in pairs))

    def _sizes_of(self, schedule: Schedule) -> dict[str, int]:
        return self._with_parts({a: n for s in schedule.kernels for a, n in s.splits})

    def _resized(
        self, schedule: Schedule, sizes: Mapping[str, int], kernels: Collection[int]
    ) -> dict[Schedule, float]:
        """The schedules that differ in one size of one of these kernels, with their estimates, and those that compute half or all
        of a kernel's results.
        """
        # kernels that split one axis have neighbours in common
        found: dict[Schedule, float] = {}
        for k, own in enumerate(schedule.kernels):
            for s in self._space(k, sizes).neighbours(own) if k in kernels else ():
                changed = dict(s.splits)
                others = [
                    replace(t, splits=tuple((a, changed.get(a, n)) for a, n in t.splits)) for t in schedule.kernels
                ]
                whole = Schedule(tuple(others)).with_kernel(k, s)
                if whole not in found:
                    found[whole] = self.ns(whole)
        return found | {s: self.ns(s) for s in self.halved(schedule)}


def _splits(schedule: Schedule) -> Splits:
    return tuple(sorted({pair for s in schedule.kernels for pair in s.splits}))
