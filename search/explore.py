"""Which graph with which schedule is compiled and measured next.

The cost model proposes the cheapest pairs over all graphs, those of each plan in turns. Measurements correct it: its
coefficients, and a factor for each measured graph. The schedules of the fastest graphs are refined, one size at a time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.launch.packing import packed_variants
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.model.fit import Sample, fit
from mirage.kernels.cpu.schedules.scheduler import Key, Ranking, Scheduler
from mirage.kernels.profile import Timing, score
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule

#: schedules of a graph that the model proposes; others are neighbours of measured ones
_PER_GRAPH = 3
#: what is modelled at so many times the best is not compiled: one call may take longer than the whole tuning
FAR = 8.0
#: the fastest graphs, whose schedules are refined where they are no more than this much slower than the fastest
_LEADERS, _CLOSE = 3, 1.5
#: by how much a pair counts as dearer for each earlier one of its plan, of which a few count
_SAME_PLAN, _COUNTED = 0.25, 4

#: a graph's number and its schedule
Pair = tuple[int, Schedule]


@dataclass
class _Rival:
    """One graph: its schedules with what the model counts for them, those yet to be proposed, and the best measured."""

    origin: str
    scheduler: Scheduler
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


class Explorer:
    """Proposes waves of (number of a graph, schedule), and learns from how long they took.

    Graphs are estimated in order until `enough()` says that it took long enough; one is in any case. What cannot be
    scheduled is left out, and why goes to `rejected`. `constants` are the names of arguments whose contents never change.
    """

    def __init__(
        self,
        graphs: Sequence[tuple[MuGraph, RunningMaximum]],
        sizes: Mapping[str, int],
        model: CostModel,
        rejected: list[str],
        enough: Callable[[], bool] = lambda: False,
        constants: Collection[str] = (),
    ) -> None:
        self.model = model
        self.sizes = sizes
        self.constants = constants
        self.rejected = rejected
        self.samples: list[Sample] = []
        #: microseconds of what was measured, in proportion to the fastest
        self.times: dict[Pair, float] = {}
        self._known = model.coefficients
        self._tried: set[Pair] = set()
        self._name = uuid4().hex[:8]
        self._races = 0
        self._rivals: dict[int, _Rival] = {}
        rankings: dict[Key, Ranking] = {}
        for i, (graph, maximum) in enumerate(graphs):
            if self._rivals and enough():
                break
            try:
                rival = _Rival(graph.origin, Scheduler(graph, sizes, model, maximum, rankings))
                rival.propose([rival.scheduler.first()])
                self._rivals[i] = rival
            except MirageError as e:
                self.rejected.append(f"{graph.origin}: {e}")

    @property
    def fastest(self) -> list[Pair]:
        """What was measured, fastest first."""
        return sorted(self.times, key=lambda pair: self.times[pair])

    def wave(self, count: int) -> list[Pair]:
        """Up to `count` pairs to measure next: half of them refine what is fastest so far, once something is measured."""
        refined = self._refinements(count // 2)
        fresh = self._fresh(count - len(refined))
        return [*refined, *fresh, *self._refinements(count - len(refined) - len(fresh))]

    def learn(self, race: Mapping[Pair, Timing]) -> None:
        """Take note of a race, in which the fastest so far took part, if there is one."""
        scores = {pair: score(t) for pair, t in race.items()}
        # the machine may be busier than in the race before
        both = [self.times[pair] / scores[pair] for pair in scores if pair in self.times]
        scale = statistics.median(both) if both else 1.0
        for (i, schedule), t in race.items():
            rival, time = self._rivals[i], scores[i, schedule] * scale
            self.times[i, schedule] = time
            self.samples.append(Sample(rival.counts[schedule], 1e3 * t.min_us, f"{self._name}.{self._races}"))
            rival.best = min(((t, s) for (j, s), t in self.times.items() if j == i), key=lambda item: item[0])
        self._races += 1
        self.model.coefficients = fit(self.samples, self._known)

    # estimates

    def _estimate(self, rival: _Rival, schedule: Schedule, otherwise: float) -> float:
        """Estimated microseconds: the model's, times by how much it was wrong about this graph, `otherwise` about others."""
        return float(self.model.ns(rival.counts[schedule])) * 1e-3 * (self._error(rival) or otherwise)

    def _error(self, rival: _Rival) -> float:
        """Measured over modelled time of the best schedule of a graph; 0 where none was measured."""
        if rival.best is None:
            return 0.0
        time, schedule = rival.best
        # a graph that only returns inputs has nothing that the model counts
        modelled = 1e-3 * float(self.model.ns(rival.counts[schedule]))
        return time / modelled if modelled else 0.0

    # proposals

    def _fresh(self, count: int) -> list[Pair]:
        """The cheapest pairs that the model proposes, where those of other plans count as cheaper."""
        found: list[Pair] = []
        errors = [e for r in self._rivals.values() if (e := self._error(r))]
        otherwise = statistics.median(errors) if errors else 1.0
        estimates = {
            (i, s): self._estimate(r, s, otherwise) for i, r in self._rivals.items() for s in r.proposals
        }  # fmt: skip
        least = min([*estimates.values(), *self.times.values()], default=0.0)
        while len(found) < count and estimates:
            plans = [self._rivals[i].origin for i, _ in (*self._tried, *found)]
            number, schedule = pair = min(
                estimates,
                key=lambda p: (
                    estimates[p] * (1 + _SAME_PLAN * min(plans.count(self._rivals[p[0]].origin), _COUNTED)), p[0],
                ),
            )  # fmt: skip
            rival = self._rivals[number]
            rival.proposals.remove(schedule)
            if estimates.pop(pair) > FAR * least:
                continue
            if not rival.expanded:
                rival.expanded = True
                try:
                    best = rival.scheduler.within(_PER_GRAPH, self.model.machine.share)
                except MirageError as e:
                    self.rejected.append(f"{rival.origin}: {e}")
                    continue
                # weights in panels may be what is best about a graph
                packed = packed_variants(rival.scheduler.mugraph, best[0], self.constants, self.sizes)
                rival.propose([*best, *packed[:1]])
                estimates |= {(number, s): self._estimate(rival, s, otherwise) for s in rival.proposals}
                if schedule not in best:
                    # its scratch is too large
                    continue
            if pair not in self._tried:
                self._tried.add(pair)
                found.append(pair)
        return found

    def _refinements(self, count: int) -> list[Pair]:
        """Neighbours of the best schedules of the fastest graphs, those of each graph in turns."""
        leaders = [i for i in dict.fromkeys(i for i, _ in self.fastest)][:_LEADERS]
        least = min(self.times.values(), default=0.0)
        leaders = [i for i in leaders if (self._rivals[i].best or (math.inf,))[0] <= _CLOSE * least]
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

    def _neighbours(self, rival: _Rival) -> Iterator[Schedule]:
        """What is left of the neighbours of the best schedule of a graph; first, the same with packed constants."""
        assert rival.best is not None
        _, best = rival.best
        if rival.refined != best:
            rival.refined = best
            rival.neighbours = self._near(rival.scheduler, best)
        return rival.neighbours

    def _near(self, scheduler: Scheduler, best: Schedule) -> Iterator[Schedule]:
        if not any(s.packed for s in best.kernels):
            yield from packed_variants(scheduler.mugraph, best, self.constants, self.sizes)
        yield from scheduler.neighbours(best)
