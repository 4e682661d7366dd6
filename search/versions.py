"""The versions of a program that run at different sizes, and the decision among them, by measurement.

Graphs are tuned at the given sizes (`Tuner`). Then, at further sizes around these (`sample_points`), the kernels that exist and
the library version are raced, and the graphs that do best there are compiled with schedules of their own. The winners are
measured at all points, and a decision tree of least regret is learnt from that table; what no leaf runs is dropped.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.dims import sizes_text
from mirage.ir.interpret import Runner
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.cpu.processor import Processor, memory_bytes
from mirage.kernels.decision import decide, leaves, relabel
from mirage.kernels.profile import Timing, interleave, score
from mirage.search import cold
from mirage.search.accuracy import Trial, Trials, trial_seconds
from mirage.search.buckets import RATIO, Sizes, bytes_needed, is_empty, sample_points
from mirage.search.candidates import Candidate, Candidates
from mirage.search.cutoffs import Cutoffs
from mirage.search.decide import LEAF_PRICE, learn
from mirage.search.decision import MAX_VERSIONS, Decision, Point, Version
from mirage.search.inputs import Inputs, random_inputs
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.search.tune import COLD_SHARE, Tuned, Tuner

#: share of the budget for the given sizes, where there are others
GIVEN_SHARE = 0.65
#: and of the rest, for the table of what was found
TABLE_SHARE = 0.45
#: share of the budget for the given sizes where a call takes so long that no others are measured
ONLY_SHARE = 0.85
#: seconds that a race, and the last measurement, at one point take at most; and the last one at given sizes
RACE_SECONDS = 0.15
TABLE_SECONDS, GIVEN_SECONDS = 0.2, 2.0
#: seconds that a visit to a point takes at least, and that a measurement is given; share of a visit for results in float64
VISIT_LEAST, LEAST = 0.25, 1e-3
EXACT_SHARE = 0.25
#: seconds of the last measurement after an interrupt
HASTE_S = 0.2
#: calls of each version that this takes in any case
TABLE_CALLS = 4
#: graphs that are tried at a point, and those of them that are compiled with how many schedules for it
CONTENDERS = 8
COMPILED_GRAPHS, COMPILED_SCHEDULES = 2, 2
#: what is no more than this much slower than the fastest at given sizes is measured there again, and so many of these, at the
#: first and at others
CLOSE, FIRST_RIVALS, RIVALS = 1.2, 6, 4
#: a version this many times as slow as another one in each of so many calls is not raced against it
FAR, TRIES = 4.0, 3
#: calls of the best version, and of the library's, that the time at a point has to suffice for
CALLS, LIBRARY_CALLS = 60, 8
#: one of so many parts of the time for further sizes is what a point takes at most
POINT_PART = 4
#: and, where it does not, for a comparison of one winner with the library, for which one of so many parts of the time is left
GLANCE_CALLS, LIBRARY_GLANCE_CALLS, GLANCE_PART = 6, 3, 5
#: and calls of the library's that the time for given sizes has to suffice for, and where it does not, for their visit
CALLS_GIVEN, CALLS_VISIT = 4, 3
#: operations of the program up to which results at a point are compared with float64
EXACT_FLOPS = 1e7
#: points between those that differ in their best versions
MAX_BETWEEN = 3
#: part of the memory that the arguments and results at one point may take
MEMORY_SHARE = 1 / 32


def fastest(tuned: Tuned, sizes: Mapping[str, int]) -> Decision:
    """The one version for all sizes: the first of the candidates, if any of them is faster than the baselines."""
    measured = [Version("mugraph", c.timing, c) for c in tuned.candidates if c.timing and c.executable]
    versions = measured + [Version(name, timing) for name, timing in tuned.baselines.items()]
    best = min(versions, key=lambda v: score(v.timing))
    best = measured[0] if best.candidate else best
    return Decision((best,), 0, (Point(dict(sizes), (score(best.timing),)),))


@dataclass(eq=False)
class _Visit:
    """A point with its arguments and results (`trial`), and the latencies in us of the versions measured there, by name.

    Candidates are only measured where their results have been compared: they are in `checked`.
    """

    sizes: Sizes
    trial: Trial
    times: dict[str, float] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)

    def best(self) -> str:
        return min(self.times, key=lambda name: self.times[name])

    def take(self, race: Mapping[str, float]) -> None:
        """Take note of a race. What did not take part has the time that it would have had: the machine may be busier now."""
        both = [time / self.times[name] for name, time in race.items() if name in self.times]
        busier = statistics.median(both) if both else 1.0
        self.times = {name: busier * time for name, time in self.times.items()} | dict(race)


class VersionTuner:
    """Tunes the candidates of a program at the given sizes (`anchors`), and chooses versions for all others.

    `baselines` are what competes besides, "library" among them. `budget` is in seconds. `keep` is called with what is known so
    far, again and again, while kernels are measured at the first of the given sizes.
    """

    def __init__(
        self,
        program: Program,
        axis_program: AxisProgram,
        anchors: Sequence[Mapping[str, int]],
        target: Processor,
        baselines: Mapping[str, Runner],
        *,
        budget: float,
        seed: int,
        constants: Collection[str] = (),
        progress: Callable[[str], None] = lambda _: None,
        keep: Callable[[Tuned, Decision], None] = lambda *_: None,
    ) -> None:
        self.program = program
        self.axis_program = axis_program
        self.anchors = [dict(a) for a in anchors]
        self.target = target
        self.baselines = baselines
        self.constants = constants
        start = time.perf_counter()
        self.budget = budget
        self.deadline = start + budget
        self.seed = seed
        self.progress = progress
        self.keep = keep
        #: whether there is only one point
        self.alone = not self.anchors[0]
        self.share = budget if self.alone else GIVEN_SHARE * budget / len(self.anchors)
        self._inputs = Inputs(program)
        self.first = self._tuner(self.anchors[0], start)
        #: latencies at the first given sizes, of baselines and compiled candidates by name
        self.timings: dict[str, Timing] = {}
        #: how many of the given sizes were tuned
        self.tuned = 0
        #: compiled candidates by name, and the points measured, the given ones first
        self.pool: dict[str, Candidate] = {}
        self.visits: list[_Visit] = []
        self.dropped: list[Candidate] = []
        self.rejected: list[str] = []
        self.compiled = 0
        #: further points, and those of them that there was no time for
        self.planned = self.skipped = 0
        #: what was left out, at all sizes together
        self.cutoffs = Cutoffs()

    def _tuner(self, sizes: Sizes, start: float) -> Tuner:
        """What tunes at given sizes, in their share of the time since `start`."""
        _, flops = program_cost(self.axis_program, sizes)
        stop = min(start + self.share, self.deadline)
        return Tuner(
            self.program, sizes, self.target, self.baselines, flops=flops, budget=max(stop - time.perf_counter(), LEAST),
            seed=self.seed, progress=self.progress, inputs=partial(self.arguments, sizes), constants=self.constants,
            decides=self.alone,
            last=self.deadline,
        )  # fmt: skip

    def _so_far(self, source: Candidates, tuner: Tuner) -> None:
        """Tell what was measured at the first given sizes, where only the library's first call was timed."""
        library = {"library": Timing.once(tuner.expected["library"])}
        tuner.deadline = self._end(tuner)
        tuned = Tuned(tuner.told(tuner.ready, source), library, tuner.compiled, [], OUT_OF_TIME)
        self.keep(tuned, fastest(tuned, tuner.sizes))

    def _end(self, tuner: Tuner) -> float:
        """When to stop at the first given sizes: later, if calls at another point, which take no less time than these, do not fit
        what is kept for them.
        """
        if self.alone or len(self.anchors) > 1:
            return tuner.deadline
        seconds = (1 - GIVEN_SHARE) * self.budget * (1 - TABLE_SHARE)
        fit = _calls_seconds(tuner.fastest_us, 1e6 * tuner.expected["library"]) <= seconds / POINT_PART
        return self.deadline - (1 - (GIVEN_SHARE if fit else ONLY_SHARE)) * self.budget

    @cached_property
    def _arrays(self) -> dict[tuple[int, tuple[int, ...]], np.ndarray]:
        """Arguments by input and shape."""
        given = random_inputs(self.program, self.anchors[0], self.seed)
        return {(i, a.shape): a for i, a in enumerate(given)}

    def arguments(self, sizes: Mapping[str, int]) -> list[np.ndarray]:
        """Arguments at some sizes; those that are as large at another point are the same arrays."""
        found = []
        for i, t in enumerate(self.program.input_types):
            key = i, t.bind(sizes)
            if key not in self._arrays:
                rng = np.random.default_rng([self.seed, i])
                self._arrays[key] = self._inputs.draw(i, sizes, rng)
            found.append(self._arrays[key])
        return found

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def run(self, source: Candidates) -> tuple[Tuned, Decision]:
        """The candidates as tuned at the first given sizes, and the choice for all sizes.

        An interrupt ends what is being done; what was measured by then decides. Raises NoCompilerError, and KeyboardInterrupt as
        `Tuner.run`.
        """
        self.first.measured_more = partial(self._so_far, source)
        tuned = self.first.run(source)
        if self.alone or tuned.stop_reason == INTERRUPTED:
            return tuned, fastest(tuned, self.anchors[0])
        self._arrive(self.first, tuned)
        ended = self.first.ended
        slow: list[Sizes] = []
        try:
            for sizes in self.anchors[1:]:
                # the time that others did not need, too
                self.share = GIVEN_SHARE * self.left() / (len(self.anchors) - self.tuned)
                if CALLS_GIVEN * self._call_seconds(tuned, sizes) > self.share:
                    slow.append(sizes)
                    continue
                tuner = self._tuner(sizes, time.perf_counter())
                tuner.trials.share(self.first.trials)
                there = tuner.run(source)
                self._arrive(tuner, there)
                ended = tuner.ended or ended
                if ended == INTERRUPTED:
                    break
            else:
                for i, sizes in enumerate(slow):
                    # what runs there is what was measured there, if only a few times
                    left = self.left() / (len(slow) - i)
                    if CALLS_VISIT * self._call_seconds(tuned, sizes) <= left:
                        self._visit(sizes, left / 2)
                self._explore(tuned)
        except KeyboardInterrupt:
            ended = INTERRUPTED
        if ended == INTERRUPTED:
            return self._conclude(tuned, ended)
        missed = sum(all(v.sizes != sizes for v in self.visits) for sizes in self.anchors)
        self.cutoffs.add(f"of {len(self.anchors)} given sizes not measured", missed)
        self.cutoffs.add(f"of {self.planned} further sizes not measured", self.skipped)
        if missed or self.skipped:
            ended = ended or OUT_OF_TIME
        return self._conclude(tuned, self.cutoffs.reason(ended))

    def _call_seconds(self, tuned: Tuned, sizes: Sizes) -> float:
        """Estimated seconds of a call of the library version, by those at the first given sizes."""
        return 1e-6 * tuned.baselines["library"].min_us * self._ratio(sizes)

    def _ratio(self, sizes: Sizes) -> float:
        """How many times as much work the program is as at the first given sizes, as modelled; 1 at least."""
        moved, flops = program_cost(self.axis_program, self.anchors[0])
        more_moved, more_flops = program_cost(self.axis_program, sizes)
        return max(more_moved / max(moved, 1), more_flops / max(flops, 1), 1.0)

    def _arrive(self, tuner: Tuner, tuned: Tuned) -> None:
        """Take over what was compiled and measured at given sizes."""
        visit = _Visit(tuner.sizes, tuner.trials.given)
        timings = tuned.baselines | {self._admit(c): c.timing for c in tuner.final if c.timing is not None}
        visit.times |= {name: score(t) for name, t in timings.items()}
        self.timings = self.timings or timings
        self.tuned += 1
        # all schedules of all graphs, the fastest first
        for c in tuner.ready:
            visit.checked.add(self._admit(c))
        self.visits.append(visit)
        self.rejected += tuner.rejected
        self.compiled += tuner.compiled
        self.cutoffs.take(tuner.cutoffs.counts)

    def _admit(self, c: Candidate) -> str:
        """The name of a compiled candidate."""
        for name, other in self.pool.items():
            if other.executable is c.executable:
                return name
        name = str(len(self.pool))
        self.pool[name] = c
        return name

    def _explore(self, tuned: Tuned) -> None:
        """Measure at further sizes, while there is time."""
        seconds = self.left() * (1 - TABLE_SHARE)
        stop = time.perf_counter() + seconds
        allowed = self._allowed(tuned, seconds / POINT_PART)
        points = sample_points(self.anchors, allowed)
        large = [p for p in sample_points(self.anchors, self._fits) if p not in points]
        self.planned = len(points)
        unvisited: Sequence[Sizes] = ()
        for i, sizes in enumerate(points):
            left = stop - seconds / GLANCE_PART - time.perf_counter()
            if left < VISIT_LEAST:
                unvisited = points[i:]
                break
            self._visit(sizes, max(left / (len(points) - i), VISIT_LEAST))
            self.progress(f"{self.compiled} kernels compiled, {i + 1} of {len(points)} further sizes")
        left_out = self._glance([*unvisited, *large], tuned, stop)
        self.skipped = sum(p in unvisited for p in left_out)
        self.cutoffs.add("further sizes too large to be measured in the time left", len(left_out) - self.skipped)
        if unvisited:
            return
        for k, sizes in enumerate(self._between(allowed)):
            if k == MAX_BETWEEN or stop - time.perf_counter() < VISIT_LEAST:
                self.cutoffs.add("gap between sizes where other versions win left open")
                return
            self._visit(sizes, (stop - time.perf_counter()) / MAX_BETWEEN)

    def _least_us(self, tuned: Tuned) -> float:
        """The time of the fastest version at the first given sizes."""
        return min([tuned.baselines["library"].min_us, *(c.timing.min_us for c in tuned.candidates if c.timing)])

    def _allowed(self, tuned: Tuned, seconds: float) -> Callable[[Sizes], bool]:
        """Whether the program at some sizes fits the memory, and, as modelled, some calls of it these seconds."""
        calls = _calls_seconds(self._least_us(tuned), tuned.baselines["library"].min_us)

        return lambda sizes: self._fits(sizes) and calls * self._ratio(sizes) <= seconds

    def _fits(self, sizes: Sizes) -> bool:
        """Whether the program has elements at some sizes, which fit the memory."""
        return not is_empty(self.program, sizes) and bytes_needed(self.program, sizes) <= MEMORY_SHARE * memory_bytes()

    def _glance(self, points: Sequence[Sizes], tuned: Tuned, stop: float) -> Sequence[Sizes]:
        """Compare what wins at the most work so far with the library, by a few calls, the smallest point first: a kernel that was
        chosen for one row may be several times as slow as the library for many. Returns the points without time for that.
        """
        calls = GLANCE_CALLS * self._least_us(tuned) + LIBRARY_GLANCE_CALLS * tuned.baselines["library"].min_us
        ordered = sorted(points, key=self._ratio)
        for i, sizes in enumerate(ordered):
            winner = max(self.visits, key=lambda v: self._ratio(v.sizes)).best()
            if winner not in self.pool or 1e-6 * calls * self._ratio(sizes) > stop - time.perf_counter():
                return ordered[i:]
            visit = _Visit(sizes, Trial.beside(sizes_text(sizes), self.baselines["library"], self.arguments(sizes), sizes))
            self._race(visit, self._willing(visit, [winner]), LEAST)
            self.visits.append(visit)
        return []

    def _visit(self, sizes: Sizes, seconds: float) -> None:
        """Race what there is at these sizes; compile the best graphs for them, and race those too."""
        stop = time.perf_counter() + seconds
        inputs = self.arguments(sizes)
        at = sizes_text(sizes)
        _, flops = program_cost(self.axis_program, sizes)
        if flops <= EXACT_FLOPS and trial_seconds(self.program, sizes, flops) <= EXACT_SHARE * seconds:
            trial = Trial.of(at, self.program, inputs, sizes)
        else:
            trial = Trial.beside(at, self.baselines["library"], inputs, sizes)
        tuner = Tuner(
            self.program, sizes, self.target, self.baselines, flops=flops, budget=seconds, seed=self.seed,
            inputs=lambda: inputs, trials=Trials.of([*self.first.trials.made, trial]), constants=self.constants,
        )  # fmt: skip
        visit = _Visit(sizes, trial)
        least = min(RACE_SECONDS, seconds / 3)
        self._race(visit, self._willing(visit, self._contenders()), least)
        ranked = sorted((n for n in visit.times if n in self.pool), key=visit.times.__getitem__)
        leaders: dict[int, Candidate] = {}
        for name in ranked:
            leaders.setdefault(id(self.pool[name].graph), self.pool[name])
        known = {(id(c.graph), c.schedule) for c in self.pool.values()}
        found = [(c, tuner.schedules(c)[:COMPILED_SCHEDULES]) for c in list(leaders.values())[:COMPILED_GRAPHS]]
        self.cutoffs.add("graphs for which nothing was compiled at a further size", len(leaders) - len(found))
        work = [
            (c, s)
            for rank in range(COMPILED_SCHEDULES)
            for c, schedules in found
            for s in schedules[rank : rank + 1]
            if (id(c.graph), s) not in known
        ]
        if work and (left := stop - time.perf_counter()) > 0:
            new = [self._admit(c) for c in tuner.compile(work, left - least)]
            if new:
                self._race(visit, [*ranked[:3], *self._willing(visit, new)], least)
        self.compiled += tuner.compiled
        self.rejected += tuner.rejected
        self.visits.append(visit)

    def _contenders(self) -> list[str]:
        """What may do well at other sizes: the winners so far, then the fastest kernels of every graph."""
        winners = [v.best() for v in self.visits]
        per_graph = {id(c.graph): name for name, c in reversed(self.pool.items())}
        ordered = sorted(per_graph.values(), key=int)
        found = [n for n in dict.fromkeys([*winners, *ordered]) if n in self.pool]
        self.cutoffs.add("graphs not tried at a further size", len(found[CONTENDERS:]))
        return found[:CONTENDERS]

    def _willing(self, visit: _Visit, names: Sequence[str], until: float = math.inf) -> list[str]:
        """Those that compute the right results at this point, in about the time of the fastest; others are dropped. What is not
        known yet is called `until` then.
        """
        least = min(visit.times.values(), default=math.inf)
        found = []
        for name in names:
            if name in visit.checked and visit.times.get(name, math.inf) <= FAR * least:
                found.append(name)
                continue
            if time.perf_counter() > until:
                continue
            run = self._executable(name)
            if name not in visit.checked and not visit.trial.measure(run)[1]:
                self._drop(
                    name, f"the kernel's results differ from the program's at {visit.trial.name}; it is not used"
                )
                continue
            visit.checked.add(name)
            took = math.inf
            # a busy machine may have slowed one call
            for _ in range(TRIES):
                before = time.perf_counter()
                run(visit.trial.inputs, visit.sizes)
                took = min(took, (time.perf_counter() - before) * 1e6)
                if took <= FAR * least:
                    found.append(name)
                    break
            else:
                visit.times.setdefault(name, took)
            least = min(least, took)
        return found

    def _drop(self, name: str, why: str) -> None:
        c = self.pool.pop(name)
        self.dropped.append(c)
        self.rejected.append(f"{c.graph.origin}: {why}")
        for visit in self.visits:
            visit.times.pop(name, None)

    def _race(self, visit: _Visit, names: Sequence[str], seconds: float, clear: bool = False) -> dict[str, Timing]:
        """Measure these and the baselines that may win at a point, interleaved; at the first given sizes, all baselines. With
        `clear`, until it is clear which is the fastest.
        """
        runs: dict[str, Runner] = {name: self._executable(name) for name in dict.fromkeys(names)}
        runs |= {name: self.baselines[name] for name in self._baselines(visit)}
        calls: dict[str, Callable[[], object]] = {
            name: run.prepared(visit.trial.inputs, visit.sizes)
            if isinstance(run, CpuExecutable)
            else partial(run, visit.trial.inputs, visit.sizes)
            for name, run in runs.items()
        }
        blas = {name for name in runs if name in self.baselines or self._executable(name).calls_library}
        apart = {name for name in runs.keys() & self.pool.keys() if self._executable(name).keeps_copies}
        timings = interleave(calls, seconds=seconds, spinning=blas, apart=apart, clear=clear)
        visit.take({name: score(t) for name, t in timings.items()})
        for name in runs.keys() & self.pool.keys():
            # packed copies for all points together could fill the memory
            self._executable(name).forget()
        return timings

    def _baselines(self, visit: _Visit) -> list[str]:
        """Baselines that may win at a point; all that were measured, at the first given sizes."""
        first = self.visits[0]
        if visit is first:
            return [name for name in self.baselines if name == "library" or name in first.times]
        # the library may do better than at other sizes, until it was measured
        known = {name: visit if name in visit.times else first for name in self.baselines}
        return [
            name
            for name, v in known.items()
            if v.times.get(name, math.inf) <= FAR * min(v.times.values()) or (name == "library" and v is first)
        ]

    def _executable(self, name: str) -> CpuExecutable:
        run = self.pool[name].executable
        assert isinstance(run, CpuExecutable)
        return run

    def _between(self, allowed: Callable[[Sizes], bool]) -> Iterator[Sizes]:
        """Sizes half way (geometrically) between neighbours along a dim where different versions win, wide gaps first, of those
        that are allowed.
        """
        center = self.anchors[0]
        while True:
            gaps: list[tuple[float, Sizes]] = []
            for dim in center:
                line = [v for v in self.visits if {**v.sizes, dim: 0} == {**center, dim: 0}]
                line.sort(key=lambda v: v.sizes[dim])
                for low, high in pairwise(line):
                    a, b = low.best(), high.best()
                    lost = min(low.times.get(b, math.inf) / low.times[a], high.times.get(a, math.inf) / high.times[b])
                    ratio = high.sizes[dim] / low.sizes[dim]
                    if lost > 1 + LEAF_PRICE and ratio > RATIO / 2:
                        middle = {**center, dim: math.isqrt(low.sizes[dim] * high.sizes[dim])}
                        if allowed(middle):
                            gaps.append((ratio, middle))
            if not gaps:
                return
            yield max(gaps, key=lambda gap: gap[0])[1]

    def _conclude(self, tuned: Tuned, reason: str) -> tuple[Tuned, Decision]:
        """Measure the winners at all points, and learn which runs where."""
        first = self.visits[0]
        if len(self.visits) == 1:
            tuned = replace(tuned, stop_reason=reason)
            return tuned, fastest(tuned, first.sizes)
        hasty = reason == INTERRUPTED
        names = self._rivals()
        calls = 2e-6 * sum(first.times.get(n, 0.0) for n in (*names, *self.baselines))
        if hasty or calls < self.left():
            share = self._share()
            timings = self._race(first, names, HASTE_S if hasty else (1 - COLD_SHARE) * share, clear=True)
            if not hasty:
                self._chill(first, COLD_SHARE * share)
        else:
            # those of the tuning, of what was measured then
            timings = self.timings
        for i, visit in enumerate(self.visits[1 : self.tuned], 1):
            if not hasty:
                self._settle(visit, names, (1 - COLD_SHARE) * self._share(i))
                self._chill(visit, COLD_SHARE * self._share(i))
        names = self._winners(timings)
        for i, visit in enumerate(self.visits[self.tuned :], self.tuned):
            least = min(visit.times.values())
            near = [n for n in names if n in self.pool and visit.times.get(n, 0.0) <= FAR * least]
            if hasty or sum(self._needed(visit, n, least) for n in [*near, "library"]) > self.left():
                continue
            seconds = min(TABLE_SECONDS, self.left() / (len(self.visits) - i))
            self._race(visit, self._willing(visit, near), max(seconds, LEAST))
        names = [n for n in names if n in self.pool]
        every = [*names, *(n for n in self.baselines if n in timings)]
        times = [[v.times.get(n, math.inf) for n in every] for v in self.visits]
        points = [v.sizes for v in self.visits]
        tree = learn(list(first.sizes), points, times, wanted=self.tuned)
        # the one for the given sizes first
        used = list(dict.fromkeys([decide(tree, first.sizes), *(v for _, v in leaves(tree))]))
        versions = []
        for k in used:
            c = self.pool.get(every[k])
            timing = timings[every[k]]
            versions.append(
                Version(every[k], timing) if c is None else Version("mugraph", timing, replace(c, timing=timing))
            )
        table = tuple(Point(p, tuple(row[k] for k in used)) for p, row in zip(points, times, strict=True))
        decision = Decision(tuple(versions), relabel(tree, {k: i for i, k in enumerate(used)}), table)
        return self._retimed(tuned, {n: timings[n] for n in every}, reason), decision

    def _share(self, done: int = 0) -> float:
        """Seconds for the last measurement at the next of the given sizes, beside the points."""
        points = TABLE_SECONDS * (len(self.visits) - self.tuned)
        left = max(self.left() - points, self.left() / 2)
        return max(min(GIVEN_SECONDS, left / (self.tuned - done)), LEAST)

    def _rivals(self) -> list[str]:
        """What is the fastest somewhere, and what may be as fast at given sizes: a race may have been unlucky for it. And the
        fastest of each graph that was measured last at the first ones.
        """
        graphs: dict[int, str] = {}
        for name in sorted(self.visits[0].times.keys() & self.pool.keys(), key=self.visits[0].times.__getitem__):
            graphs.setdefault(id(self.pool[name].graph), name)
        found = list(graphs.values())
        for i, visit in enumerate(self.visits[: self.tuned]):
            least = min(visit.times.values())
            close = sorted((n for n in visit.times if n in self.pool), key=visit.times.__getitem__)
            found += [n for n in close if visit.times[n] <= CLOSE * least][: RIVALS if i else FIRST_RIVALS]
        return list(dict.fromkeys([*found, *self._fastest()]))

    def _settle(self, visit: _Visit, names: Sequence[str], seconds: float) -> None:
        """Measure rivals at given sizes until it is clear which is the fastest, those that are known to be fast before others."""
        least = min(visit.times.values())
        until = time.perf_counter() + seconds / 2
        # a race takes up to twice its time for rounds that are wanted in any case
        left = 2 * seconds - sum(self._needed(visit, n, least) for n in self._baselines(visit))
        fitting = []
        for name in sorted((n for n in names if n in self.pool), key=lambda n: visit.times.get(n, math.inf)):
            left -= self._needed(visit, name, least)
            if left > 0 and visit.times.get(name, least) <= FAR * least:
                fitting.append(name)
        if fitting:
            self._race(visit, self._willing(visit, fitting, until), seconds, clear=True)

    def _chill(self, visit: _Visit, seconds: float) -> None:
        """Change the times of the closest rivals by how they do with cold caches."""
        kernels = {name: self._executable(name) for name in visit.times if name in self.pool}
        inputs, cache = visit.trial.inputs, self.target.cache_bytes
        visit.times |= cold.in_both_states(visit.times, kernels, inputs, visit.sizes, cache, seconds)
        for name in kernels:
            self._executable(name).forget()

    def _needed(self, visit: _Visit, name: str, otherwise: float) -> float:
        """Seconds for a few calls of a version, which take so many us if it was not measured at this point."""
        return TABLE_CALLS * 1e-6 * visit.times.get(name, otherwise)

    def _fastest(self) -> list[str]:
        """Compiled candidates by name: at most `MAX_VERSIONS` that win somewhere."""
        chosen: list[str] = []
        for i, visit in enumerate(self.visits):
            best = visit.best()
            known = min((visit.times[n] for n in (*chosen, *self.baselines) if n in visit.times), default=math.inf)
            wanted = i < self.tuned or known > visit.times[best] * (1 + LEAF_PRICE)
            if best in self.pool and wanted and len(chosen) < MAX_VERSIONS:
                chosen.append(best)
        return list(dict.fromkeys(chosen))

    def _winners(self, timings: Mapping[str, Timing]) -> list[str]:
        """What wins somewhere, and, of each graph, the fastest at the first given sizes, of what has timings there."""
        graphs: dict[int, str] = {}
        for name in sorted(timings.keys() & self.pool.keys(), key=lambda name: (score(timings[name]), name)):
            graphs.setdefault(id(self.pool[name].graph), name)
        return [n for n in dict.fromkeys([*self._fastest(), *graphs.values()]) if n in timings]

    def _retimed(self, tuned: Tuned, timings: Mapping[str, Timing], reason: str) -> Tuned:
        """The candidates, the measured ones as they did best in the last measurement at the first given sizes."""
        best: dict[int, Candidate] = {}
        tried = {id(c.graph): c.tried for c in tuned.candidates}
        for name, c in self.pool.items():
            if name in timings and score(timings[name]) < _score(best.get(id(c.graph))):
                best[id(c.graph)] = replace(c, timing=timings[name], tried=tried.get(id(c.graph), ()))
        wrong = {id(c.graph) for c in self.dropped}
        others = []
        for c in tuned.candidates:
            if id(c.graph) in best:
                continue
            if id(c.graph) in wrong:
                c = replace(c, schedule=None, sizes={}, make=None, timing=None, accuracy=(), tried=())
            others.append(c)
        return Tuned(
            [*sorted(best.values(), key=_score), *others],
            {name: timings[name] for name in self.baselines if name in timings}, self.compiled, self.rejected, reason,
        )  # fmt: skip


def _calls_seconds(best_us: float, library_us: float) -> float:
    """Seconds of the calls that the time at a point has to suffice for."""
    return (CALLS * best_us + LIBRARY_CALLS * library_us) * 1e-6


def _score(c: Candidate | None) -> float:
    return math.inf if c is None or c.timing is None else score(c.timing)
