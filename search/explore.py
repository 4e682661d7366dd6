"""Which graph with which schedule is compiled and measured next.

Graphs come as a search finds them. The cost model proposes the cheapest pairs over all graphs so far, those of each plan in
turns. Measurements correct it: its coefficients, and a factor for each measured graph. The schedules of the fastest graphs are
refined, one size at a time.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

import numpy as np

from mirage.errors import MirageError
from mirage.ir.dims import evaluate
from mirage.kernels.cpu.launch.packing import check_packed, packed_variants
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.model.fit import Sample, fit
from mirage.kernels.cpu.schedules.scheduler import Key, Ranking, Scheduler
from mirage.kernels.profile import Timing, score
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.search.candidates import Candidate
from mirage.search.cost import LOOP_TILE, SPLITS
from mirage.search.cutoffs import Cutoffs
from mirage.search.generate import plan_by_plan
from mirage.search.kernel_times import KernelTimes

#: schedules of a graph that the model proposes; others are neighbours of measured ones
_PER_GRAPH = 3
#: what is modelled at so many times the best is not compiled: one call may take longer than the whole tuning
FAR = 8.0
#: the fastest graphs, whose schedules are refined where they are no more than this much slower than the fastest; what is known
#: to be slower than that is compiled last
_LEADERS, _CLOSE = 3, 1.5
#: graphs among which each pair of a wave is chosen, if there are as many
_CHOICE = 2
#: share of the time of a graph from which on the schedule of one of its kernels is refined
_WORTH = 0.02
#: by how much a pair counts as dearer for each earlier one of its plan, of which a few count
_SAME_PLAN, _COUNTED = 0.25, 4

#: a graph's number and its schedule
Pair = tuple[int, Schedule]


def idle_factor(graph: MuGraph, sizes: Mapping[str, int], cores: int) -> float:
    """By how much a graph is slower for want of blocks: cores per block that its least parallel kernel can have."""
    axis_sizes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    cells = [math.prod(axis_sizes.get(a, cores) for a in n.graph.grid) for n in graph.kernels if n.graph is not None]
    return max(1.0, cores / max(min(cells, default=cores), 1))


def is_idle_loop(graph: MuGraph, sizes: Mapping[str, int]) -> bool:
    """Whether a kernel loops over, or splits, an axis that one tile holds: a plan without it does the same."""
    axis_sizes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    return any(axis_sizes.get(a, SPLITS) <= LOOP_TILE for n in graph.kernels if n.graph for a in n.graph.loop)


def priced(c: Candidate, sizes: Mapping[str, int], cores: int) -> float:
    """The modelled cost of a candidate in ns, with what it loses for want of parallelism."""
    return c.cost * idle_factor(c.graph, sizes, cores)


def diverse(
    candidates: Sequence[Candidate], sizes: Mapping[str, int], cores: int, most: float = math.inf
) -> list[Candidate]:
    """The candidates plan by plan, by modelled cost and the parallelism that they allow.

    Candidates that loop over what one tile holds come after all others; those that are priced at more than `most` are left out,
    because one call of them may take longer than the whole tuning.
    """
    of_graph = {id(c.graph): c for c in candidates}
    groups: tuple[list[tuple[MuGraph, float]], ...] = ([], [])
    for c in candidates:
        if (cost := priced(c, sizes, cores)) <= most:
            groups[is_idle_loop(c.graph, sizes)].append((c.graph, cost))
    return [of_graph[id(graph)] for group in groups for graph, _ in plan_by_plan(group)]


@dataclass
class _Rival:
    """One graph: its schedules with what the model counts for them, those yet to be proposed, and the best measured."""

    origin: str
    scheduler: Scheduler
    #: of its kernels, as `KernelTimes` has them, and the schedule that the model finds best
    numbers: Sequence[int]
    first: Schedule
    counts: dict[Schedule, np.ndarray] = field(default_factory=dict)
    proposals: list[Schedule] = field(default_factory=list)
    expanded: bool = False
    #: microseconds and schedule
    best: tuple[float, Schedule] | None = None
    #: schedules near that one, and which one they are near
    neighbours: Iterator[Schedule] = field(default_factory=lambda: iter(()))
    refined: Schedule | None = None

    def propose(self, schedules: Sequence[Schedule]) -> None:
        for s in schedules:
            if s not in self.counts:
                self.counts[s] = self.scheduler.counts(s)
                self.proposals.append(s)

    @property
    def base(self) -> Schedule:
        """The best schedule so far: as measured, or else as modelled."""
        return self.first if self.best is None else self.best[1]

    def has_more(self) -> bool:
        """Whether the model ranks more schedules behind those that it proposed."""
        return self.expanded and self.scheduler.ranked > _PER_GRAPH


class Explorer:
    """Proposes waves of (number of a graph, schedule), and learns from how long they took.

    Graphs that are added are `candidates`, by their numbers. They are estimated one at a time, in the order of `diverse`, by
    `estimate` and as many as a wave needs. What cannot be scheduled is left out, and why goes to `rejected`; what is not worth
    it, or is not looked at, is noted in `cutoffs`. `constants` are the names of arguments whose contents never change.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        model: CostModel,
        rejected: list[str],
        constants: Collection[str] = (),
    ) -> None:
        self.model = model
        self.sizes = sizes
        self.constants = constants
        self.rejected = rejected
        self.cutoffs = Cutoffs()
        self.candidates: list[Candidate] = []
        self.samples: list[Sample] = []
        #: microseconds of what was measured, in proportion to the fastest
        self.times: dict[Pair, float] = {}
        #: those of single kernels of graphs that have several
        self.kernels = KernelTimes()
        self._known = model.coefficients
        self._tried: set[Pair] = set()
        #: schedules that were the fastest on another machine, in that order
        self._hints: list[Pair] = []
        self._name = uuid4().hex[:8]
        self._races = 0
        self._rivals: dict[int, _Rival] = {}
        self._rankings: dict[Key, Ranking] = {}
        #: numbers of graphs that are not estimated yet; and what was estimated, until more is known
        self._pending: list[int] = []
        self._estimated: dict[Pair, float] = {}

    def add(self, candidates: Sequence[Candidate]) -> None:
        """More graphs, but for those that are there. What was measured of one in an earlier run, for these sizes, is known: it is
        not proposed again. A schedule of which nothing was measured is a hint, from another machine: it is proposed first.
        """
        known = {id(c.graph) for c in self.candidates}
        candidates = [c for c in candidates if id(c.graph) not in known]
        first = len(self.candidates)
        self._estimated.clear()
        self.candidates += candidates
        numbers = {id(c): i for i, c in enumerate(self.candidates)}
        waiting = [self.candidates[i] for i in (*self._pending, *range(first, len(self.candidates)))]
        least = min((priced(c, self.sizes, self.model.machine.threads) for c in self.candidates), default=0.0)
        order = diverse(waiting, self.sizes, self.model.machine.threads, FAR * least)
        self._pending = [numbers[id(c)] for c in order]
        dear = {numbers[id(c)] for c in waiting if not c.tried} - set(self._pending)
        self.cutoffs.add(f"graphs modelled at more than {FAR:g} times the cheapest", len(dear))
        for i, c in enumerate(candidates, first):
            if c.tried and dict(c.sizes) == dict(self.sizes) and (rival := self._rival(i)) is not None:
                self._rivals[i] = rival
                self._pending = [j for j in self._pending if j != i]
                for schedule, us in c.tried:
                    rival.counts[schedule] = rival.scheduler.counts(schedule)
                    self.times[i, schedule] = us
                    self._tried.add((i, schedule))
                schedule, us = min(c.tried, key=lambda pair: pair[1])
                rival.best = us, schedule
            elif c.schedule is not None and not c.tried and dict(c.sizes) == dict(self.sizes):
                self._hints.append((i, c.schedule))

    def estimate(self) -> bool:
        """Estimate one more graph; False where none waits."""
        if not self._pending:
            return False
        number = self._pending.pop(0)
        rival = self._rival(number)
        if rival is not None:
            self._rivals[number] = rival
        return True

    def _rival(self, number: int) -> _Rival | None:
        c = self.candidates[number]
        try:
            scheduler = Scheduler(c.graph, self.sizes, self.model, c.maximum, self._rankings, self.constants)
            rival = _Rival(c.graph.origin, scheduler, self.kernels.numbers(scheduler), scheduler.first())
            rival.propose([rival.first])
            return rival
        except MirageError as e:
            self.rejected.append(f"{c.graph.origin}: {e}")
            return None

    def leaders(self, count: int) -> list[Pair]:
        """What an earlier run found the fastest, to race with what is new: its answer, which was measured best, comes first."""
        answers = [(i, c.schedule) for i, c in enumerate(self.candidates) if c.timing and c.schedule]
        known = [pair for pair in answers if pair in self.times][:1]
        return list(dict.fromkeys([*known, *self.fastest]))[:count]

    @property
    def fastest(self) -> list[Pair]:
        """What was measured, fastest first."""
        return sorted(self.times, key=lambda pair: self.times[pair])

    def wave(self, count: int) -> list[Pair]:
        """Up to `count` pairs to measure next: half of them refine what is fastest so far, once something is measured."""
        while sum(bool(r.proposals) for r in self._rivals.values()) < _CHOICE * count and self.estimate():
            pass
        for rival in self._rivals.values():
            self._combine(rival)
        found = self._hinted(count)
        found += self._refinements((count - len(found)) // 2)
        # what is known to be slower waits until nothing else is left
        found += self._fresh(count - len(found), _CLOSE)
        found += self._refinements(count - len(found))
        return [*found, *self._fresh(count - len(found), FAR)]

    def _combine(self, rival: _Rival) -> None:
        """Propose a graph with each kernel as it was fastest, in whatever graph that was."""
        scheduler = rival.scheduler
        schedule = self.kernels.fastest_of(scheduler, rival.numbers, rival.base)
        if schedule not in rival.counts:
            with suppress(MirageError):
                schedule.check(scheduler.mugraph)
                check_packed(scheduler.mugraph, schedule, self.constants)
                rival.propose([schedule])

    def waits(self) -> bool:
        """Whether there is more that a wave would have; asked when there are no more waves, as it may use one of these up."""
        return bool(self._hints or self._pending or any(r.proposals for r in self._rivals.values()) or self._refinements(1))

    def conclude(self) -> None:
        """Note in `cutoffs` what was not looked at, now that nothing more is."""
        rivals = self._rivals.values()
        add = self.cutoffs.add
        add("graphs never estimated", len(self._pending))
        add("schedules proposed but not compiled", sum(len(r.proposals) for r in rivals))
        add(f"graphs with more schedules than the {_PER_GRAPH} that were proposed", sum(r.has_more() for r in rivals))
        unrefined = sum(r.best is not None and r.refined != r.best[1] for r in rivals)
        add("measured graphs of which no neighbouring schedules were tried", unrefined)

    def kernels_of(self, pair: Pair) -> int:
        """How many kernels of a graph run in every call."""
        number, schedule = pair
        return len(self._rivals[number].scheduler.parts(schedule))

    def learn(self, race: Mapping[Pair, Timing], kernels: Mapping[Pair, Sequence[float]] | None = None) -> None:
        """Take note of a race, in which the fastest so far took part, if there is one; and of the microseconds that single
        `kernels` of graphs took just after it.
        """
        self._estimated.clear()
        scores = {pair: score(t) for pair, t in race.items()}
        # the machine may be busier than in the race before
        both = [self.times[pair] / scores[pair] for pair in scores if pair in self.times]
        scale = statistics.median(both) if both else 1.0
        for (i, schedule), t in race.items():
            rival, time = self._rivals[i], scores[i, schedule] * scale
            self.times[i, schedule] = time
            self.samples.append(Sample(rival.counts[schedule], 1e3 * t.min_us, f"{self._name}.{self._races}"))
            rival.best = min(((t, s) for (j, s), t in self.times.items() if j == i), key=lambda item: item[0])
            if own := (kernels or {}).get((i, schedule)):
                self.kernels.learn(rival.scheduler, rival.numbers, schedule, [us * scale for us in own], time)
        self._races += 1
        self.model.coefficients = fit(self.samples, self._known)

    def drop(self, pair: Pair) -> None:
        """Forget the time of a pair that is not used."""
        number, _ = pair
        del self.times[pair]
        self._estimated.clear()
        left = [(us, s) for (j, s), us in self.times.items() if j == number]
        self._rivals[number].best = min(left, key=lambda item: item[0], default=None)

    def tried(self) -> dict[int, tuple[tuple[Schedule, float], ...]]:
        """What was measured, as `Candidate.tried`, by the ids of graphs."""
        found: dict[int, tuple[tuple[Schedule, float], ...]] = {}
        for (number, schedule), us in self.times.items():
            graph = id(self.candidates[number].graph)
            found[graph] = (*found.get(graph, ()), (schedule, us))
        return found

    # estimates

    def _estimate(self, rival: _Rival, schedule: Schedule, otherwise: float) -> float:
        """Estimated microseconds: what was measured of the kernels, or the model's, times by how much it was wrong about this
        graph, `otherwise` about others.
        """
        measured = self._measured(rival, schedule)
        return self._modelled(rival, schedule) * (self._error(rival) or otherwise) if measured is None else measured

    def _measured(self, rival: _Rival, schedule: Schedule) -> float | None:
        """Estimated microseconds by what was measured of the kernels; None where nothing was."""
        return self.kernels.us(rival.scheduler, rival.numbers, schedule, self.model, self._modelled(rival, schedule))

    def _modelled(self, rival: _Rival, schedule: Schedule) -> float:
        return 1e-3 * float(self.model.ns(rival.counts[schedule]))

    def _error(self, rival: _Rival) -> float:
        """Measured over modelled time of the best schedule of a graph; 0 where none was measured."""
        if rival.best is None:
            return 0.0
        time, schedule = rival.best
        # a graph that only returns inputs has nothing that the model counts
        modelled = self._modelled(rival, schedule)
        return time / modelled if modelled else 0.0

    def _otherwise(self) -> float:
        """By how much the model is wrong about a graph of which nothing was measured."""
        errors = [e for r in self._rivals.values() if (e := self._error(r))]
        return statistics.median(errors) if errors else 1.0

    def _estimates(self) -> dict[Pair, float]:
        """Microseconds of what the model proposes."""
        otherwise = self._otherwise()
        known = self._estimated
        found: dict[Pair, float] = {}
        for i, r in self._rivals.items():
            for s in r.proposals:
                found[i, s] = known[i, s] if (i, s) in known else self._estimate(r, s, otherwise)
        self._estimated = dict(found)
        return found

    # proposals

    def _fresh(self, count: int, most: float) -> list[Pair]:
        """The cheapest pairs that the model proposes, where those of other plans count as cheaper; where kernels of a graph were
        measured, only what is estimated at no more than `most` times the fastest.
        """
        if count <= 0:
            return []
        found: list[Pair] = []
        otherwise = self._otherwise()
        estimates = self._estimates()
        least = min([*estimates.values(), *self.times.values()], default=0.0)
        while len(found) < count and estimates:
            plans = [self._rivals[i].origin for i, _ in (*self._tried, *found)]
            # what is measured first is of different graphs, as estimates are worst before any two are compared
            first = len({i for i, _ in self.times}) < 2
            chosen = {i for i, _ in (*self._tried, *found)} if first else set()
            number, schedule = pair = min(
                estimates,
                key=lambda p: (
                    p[0] in chosen, estimates[p] * (1 + _SAME_PLAN * min(plans.count(self._rivals[p[0]].origin), _COUNTED)), p[0],
                ),
            )  # fmt: skip
            rival, estimate = self._rivals[number], estimates.pop(pair)
            if FAR * least >= estimate > most * least and self._measured(rival, schedule) is not None:
                continue
            rival.proposals.remove(schedule)
            if estimate > FAR * least:
                self.cutoffs.add(f"schedules estimated at more than {FAR:g} times the fastest")
                continue
            if not rival.expanded:
                rival.expanded = True
                try:
                    best = rival.scheduler.within(_PER_GRAPH, self.model.machine.share)
                except MirageError as e:
                    self.rejected.append(f"{rival.origin}: {e}")
                    continue
                # weights in panels may be what is best about a graph
                packed = self._packed(rival.scheduler, best[0])
                # as may half of the work
                halved = itertools.islice(rival.scheduler.halved(best[0]), 1)
                rival.propose([*best, *packed[:1], *halved])
                estimates |= {(number, s): self._estimate(rival, s, otherwise) for s in rival.proposals}
                if schedule == rival.first and schedule not in best:
                    # its scratch is too large
                    continue
            if pair not in self._tried:
                self._tried.add(pair)
                found.append(pair)
        return found

    def _refinements(self, count: int) -> list[Pair]:
        """Neighbours of the best schedules of the fastest graphs, those of each graph in turns."""
        if count <= 0:
            return []
        leaders = [i for i in dict.fromkeys(i for i, _ in self.fastest)][:_LEADERS]
        # while something else may be far faster, that is measured first
        least = min([*self.times.values(), *self._estimates().values()], default=0.0)
        leaders = [i for i in leaders if (self._rivals[i].best or (math.inf,))[0] <= _CLOSE * least]
        # what is learnt of kernels serves all graphs that have them
        several = [i for i in leaders if self._shares(self._rivals[i])]
        leaders = [i for i in leaders if i not in several[1:]]
        found: list[Pair] = []
        while leaders and len(found) < count:
            for i in leaders[: count - len(found)]:
                schedule = next((s for s in self._neighbours(self._rivals[i]) if (i, s) not in self._tried), None)
                if schedule is None:
                    leaders.remove(i)
                    continue
                self._rivals[i].counts[schedule] = self._rivals[i].scheduler.counts(schedule)
                self._tried.add((i, schedule))
                found.append((i, schedule))
        return found

    def _hinted(self, count: int) -> list[Pair]:
        """Hints that were not tried yet, of graphs that can be scheduled."""
        found: list[Pair] = []
        while self._hints and len(found) < count:
            number, schedule = pair = self._hints.pop(0)
            if pair in self._tried:
                continue
            self._tried.add(pair)
            rival = self._rivals.get(number) or self._rival(number)
            if rival is None:
                continue
            try:
                rival.counts[schedule] = rival.scheduler.counts(schedule)
            except MirageError as e:
                self.rejected.append(f"{rival.origin}: {e}")
                continue
            self._rivals[number] = rival
            self._pending = [j for j in self._pending if j != number]
            found.append(pair)
        return found

    def _neighbours(self, rival: _Rival) -> Iterator[Schedule]:
        """What is left of the neighbours of the best schedule of a graph; first, the same with packed constants."""
        assert rival.best is not None
        _, best = rival.best
        if rival.refined != best:
            rival.refined = best
            rival.neighbours = self._near(rival, best)
        return rival.neighbours

    def _near(self, rival: _Rival, best: Schedule) -> Iterator[Schedule]:
        scheduler = rival.scheduler
        if not any(s.packed for s in best.kernels):
            yield from self._packed(scheduler, best)
        if shares := self._shares(rival):
            # what each kernel takes is told apart
            worth = [k for k, share in shares.items() if share >= _WORTH]
            yield from scheduler.together(best, worth, partial(self.kernels.has, rival.numbers))
        else:
            yield from scheduler.neighbours(best)

    def _shares(self, rival: _Rival) -> dict[int, float]:
        """The shares of the best time of a graph that its kernels have, by their places; empty where these are not told apart."""
        shares = self.kernels.shares(rival.scheduler, rival.numbers, rival.base)
        return shares if len(shares) > 1 else {}

    def _packed(self, scheduler: Scheduler, schedule: Schedule) -> list[Schedule]:
        return packed_variants(scheduler.mugraph, schedule, self.constants, self.sizes, scheduler.once)
