"""Choosing among verified graphs by measurement (paper, section 6): schedules are enumerated, compiled and profiled.

All rivals of a round run interleaved, so that noise hits them alike. The program as NumPy runs it and its library version
are always among them, so the answer is never slower than what the user had.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from mirage.errors import MirageError, UnsafeCacheError
from mirage.ir.dims import evaluate
from mirage.ir.interpret import Runner
from mirage.ir.program import Program
from mirage.kernels.cpu.compile.toolchain import find_compiler
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.model.fit import coefficients, keep
from mirage.kernels.cpu.schedules.scheduler import Scheduler, machine_of
from mirage.kernels.profile import Timing, interleave, score, wall_ns
from mirage.kernels.target import Target
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.search import cold
from mirage.search.accuracy import (
    Accuracy,
    Trial,
    accuracy_trials,
    random_inputs,
    reference_seconds,
    small_trial_seconds,
)
from mirage.search.cost import LOOP_TILE, SPLITS
from mirage.search.explore import FAR, Explorer, Pair
from mirage.search.generate import plan_by_plan
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.verify.certificate import Certificate

#: kernels that are compiled at most; a wave of them per core, and twice that at first
MAX_KERNELS = 96
WAVE = 2
#: waves without a kernel that is faster by more than this share, after which all is tried that is worth it
PATIENCE, BETTER = 4, 0.02
#: schedules of one graph that `Tuner.schedules` gives
SCHEDULES = 6
#: share of the budget in which graphs are modelled
MODEL_SHARE = 0.1
#: how often each kernel of a wave is called, and the seconds (share of the budget) that this takes at least (at most)
RACE_CALLS, RACE_SECONDS, RACE_SHARE = 30, 0.05, 0.04
#: the fastest kernels, and graphs, that are measured last, with the baselines, and the seconds (share of the budget) that this
#: takes at most
FINALISTS, FINAL_GRAPHS = 6, 3
FINAL_SECONDS, FINAL_SHARE = 2.0, 0.2
#: share of that time that is kept for cold caches
COLD_SHARE = 0.2
#: seconds of a race at least
RACE_LEAST = 0.05
#: rounds of the last measurement, where they fit, and seconds of a call that is made in any case
ROUNDS = 5
CHEAP_S = 0.02
#: share of the budget that the program may take in float64 at the given sizes, and that it may take to make all trials:
#: where these take longer, no kernel could be checked
EXACT_SHARE, TRIALS_SHARE = 0.1, 0.4
#: seconds of the last measurement after an interrupt, and those without which no compiler is started
HASTE_S = 0.5
COMPILER_S = 0.1
#: what is said where time ended before there was a kernel
UNCOMPILED = "before a kernel was compiled"


@dataclass(frozen=True)
class Candidate:
    """A verified graph with its evidence, and, once tuned, its schedule, kernel, latency and errors per trial.

    `sizes` (dim symbol -> elements) are those that the schedule and the layouts of the kernel were chosen for; empty for
    one that is not tuned. `timing` is at the first sizes that the program was tuned at.
    """

    graph: MuGraph
    certificate: Certificate
    maximum: RunningMaximum
    cost: float
    schedule: Schedule | None = None
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    executable: CpuExecutable | None = field(default=None, compare=False, repr=False)
    timing: Timing | None = None
    accuracy: tuple[Accuracy, ...] = ()


@dataclass
class Tuned:
    """Candidates with the measured ones first, fastest first, and the latencies of the baselines: of "library", and of others
    that there was time for.
    """

    candidates: list[Candidate]
    baselines: dict[str, Timing]
    compiled: int
    rejected: list[str]
    stop_reason: str


def idle_factor(graph: MuGraph, sizes: Mapping[str, int], cores: int) -> float:
    """By how much a graph is slower for want of blocks: cores per block that its least parallel kernel can have."""
    axis_sizes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    cells = [math.prod(axis_sizes.get(a, cores) for a in n.graph.grid) for n in graph.kernels if n.graph is not None]
    return max(1.0, cores / max(min(cells, default=cores), 1))


def is_idle_loop(graph: MuGraph, sizes: Mapping[str, int]) -> bool:
    """Whether a kernel loops over, or splits, an axis that one tile holds: a plan without it does the same."""
    axis_sizes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    return any(axis_sizes.get(a, SPLITS) <= LOOP_TILE for n in graph.kernels if n.graph for a in n.graph.loop)


def diverse(candidates: Sequence[Candidate], count: int, sizes: Mapping[str, int], cores: int) -> list[Candidate]:
    """Up to `count` candidates, plan by plan, by modelled cost and the parallelism that they allow.

    Candidates that loop over what one tile holds come after all others; those that are modelled at more than `FAR` times the
    least cost are left out, because one call of them may take longer than the whole tuning.
    """
    of_graph = {id(c.graph): c for c in candidates}
    priced = [(c.graph, c.cost * idle_factor(c.graph, sizes, cores)) for c in candidates]
    least = min((cost for _, cost in priced), default=0.0)
    priced = [(graph, cost) for graph, cost in priced if cost <= FAR * least]
    groups: tuple[list[tuple[MuGraph, float]], ...] = ([], [])
    for item in priced:
        groups[is_idle_loop(item[0], sizes)].append(item)
    return [of_graph[id(graph)] for group in groups for graph, _ in plan_by_plan(group)][:count]


class Tuner:
    """Tunes the candidates of one program (of `flops` operations) at one set of sizes, within `budget` seconds.

    `baselines` are what competes besides, "library" among them: it is called once at least. `inputs` and `trials` are made
    where none are given; where that would take too much of the time, no kernel is tried. The first kernel may take `grace`
    seconds more than the budget. With `decides`, nothing is measured after it, so that it also looks at cold caches.
    """

    def __init__(
        self,
        program: Program,
        sizes: Mapping[str, int],
        target: Target,
        baselines: Mapping[str, Runner],
        *,
        flops: float,
        budget: float,
        seed: int,
        progress: Callable[[str], None] = lambda _: None,
        inputs: list[np.ndarray] | None = None,
        trials: Sequence[Trial] = (),
        constants: Collection[str] = (),
        grace: float = 0.0,
        decides: bool = False,
    ) -> None:
        self.grace = grace
        self.decides = decides
        self.budget = budget
        self.deadline = time.perf_counter() + budget
        self.program = program
        self.sizes = dict(sizes)
        self.target = target
        self.baselines = baselines
        self.constants = constants
        self.progress = progress
        self.rejected: list[str] = []
        self.compiled = 0
        self.ready: list[Candidate] = []
        #: of these, what was measured last, with those times
        self.final: list[Candidate] = []
        #: whether time ended what is done
        self.cut = False
        #: seconds of a call: of the baselines, as expected, and of checked executables, by their ids, the first one
        self.expected = dict.fromkeys(baselines, reference_seconds(program, self.sizes, flops))
        self.calls: dict[int, float] = {}
        self.inputs = random_inputs(program, sizes, seed) if inputs is None else inputs
        self.model = CostModel(machine_of(target), coefficients(target))
        self.trials = list(trials) or self._trials(flops, seed)

    def _trials(self, flops: float, seed: int) -> list[Trial]:
        """What kernels are compared with; only the library's results where there is no time for more."""
        library, given = self.baselines["library"], self.inputs
        start = time.perf_counter()
        own = library(given, self.sizes)
        self.expected["library"] = time.perf_counter() - start
        small = small_trial_seconds(self.program, self.sizes, flops)
        if small > min(TRIALS_SHARE * self.budget, self.left()) + self.grace:
            self.cut = True
            return [Trial.beside("the given sizes", lambda *_: own, given, self.sizes)]
        seconds = min(EXACT_SHARE * self.budget, self.left() / 2)
        return accuracy_trials(self.program, given, self.sizes, flops, lambda *_: own, seed, seconds)

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def run(self, candidates: Sequence[Candidate]) -> Tuned:
        """The candidates, measured where time allowed; an interrupt ends the choice among them, and the best so far are
        measured. Raises NoCompilerError before any time is spent.
        """
        find_compiler()
        interrupted = False
        try:
            self.rank(candidates)
        except KeyboardInterrupt:
            interrupted = True
        ranked = self.ready
        first = {id(c): c for c in (*ranked[:FINALISTS], *_distinct(ranked)[:FINAL_GRAPHS])}
        final = list(first.values())
        try:
            left = self.left() * (1 - COLD_SHARE * self.decides)
            timings = self.measure(final, HASTE_S if interrupted else max(left, min(self.grace / 2, HASTE_S)))
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            timings = self.measure(final, HASTE_S)
        times = {name: score(t) for name, t in timings.items()}
        if self.decides and not interrupted:
            try:
                times |= self.cold(final, times)
            except KeyboardInterrupt:
                interrupted = True
        order = sorted(range(len(final)), key=lambda i: times[str(i)])
        self.final = final = [replace(final[i], timing=timings[str(i)]) for i in order]
        done = {id(c.graph) for c in final}
        others = [c for c in ranked if id(c.graph) not in done]
        seen = done | {id(c.graph) for c in others}
        rest = [c for c in candidates if id(c.graph) not in seen]
        reason = INTERRUPTED if interrupted else OUT_OF_TIME if self.cut else "complete"
        if reason == OUT_OF_TIME and not self.compiled:
            reason = f"{OUT_OF_TIME} {UNCOMPILED}"
        baselines = {name: timings[name] for name in self.baselines if name in timings}
        return Tuned([*_distinct(final), *_distinct(others), *rest], baselines, self.compiled, self.rejected, reason)

    def rank(self, candidates: Sequence[Candidate]) -> None:
        """Compile and race candidates in waves; `ready` holds them at any time, the fastest so far first."""
        order = diverse(candidates, len(candidates), self.sizes, self.target.cores)
        numbers = {id(c.graph): i for i, c in enumerate(order)}
        modelled = time.perf_counter() + MODEL_SHARE * self.budget
        until = self.deadline - min(FINAL_SHARE * self.budget, FINAL_SECONDS)
        graphs = [(c.graph, c.maximum) for c in order]
        explorer = Explorer(
            graphs, self.sizes, self.model, self.rejected, lambda: time.perf_counter() > modelled, self.constants
        )
        measured: dict[Pair, Candidate] = {}
        stale, wave = 0, 2 * WAVE * self.target.cores
        try:
            while stale < PATIENCE and self.compiled < MAX_KERNELS:
                waits = self.grace > 0 and not self.compiled
                if (self.cut and not waits) or time.perf_counter() > (self.deadline + self.grace if waits else until):
                    self.cut = True
                    break
                pairs = explorer.wave(min(wave, MAX_KERNELS - self.compiled))
                if not pairs:
                    break
                leaders = explorer.fastest[:2]
                before = explorer.times[leaders[0]] if leaders else math.inf
                built = self.compile([(order[i], [s]) for i, s in pairs], until - time.perf_counter())
                least = RACE_CALLS * before * 1e-6 * (len(built) + len(leaders)) if leaders else math.inf
                seconds = min(max(least, RACE_SECONDS), RACE_SHARE * self.budget)
                timed = self.race([*(measured[pair] for pair in leaders), *built], seconds)
                race = {(numbers[id(c.graph)], c.schedule): c for c in timed if c.schedule and c.timing}
                explorer.learn({pair: c.timing for pair, c in race.items() if c.timing})
                measured |= race
                self._forget(c for pair, c in race.items() if pair not in explorer.fastest[:2])
                self.ready = [measured[pair] for pair in explorer.fastest]
                best = explorer.times[explorer.fastest[0]] if measured else math.inf
                stale = 0 if best < (1 - BETTER) * before else stale + 1
                wave = WAVE * self.target.cores
        finally:
            self._forget([*measured.values(), *self.ready])
            keep(self.target, explorer.samples)

    def schedules(self, c: Candidate) -> list[Schedule]:
        """Sizes worth trying, the most promising first; none if a block needs more memory than a core's share of the caches
        (paper, 4.1).
        """
        try:
            return Scheduler(c.graph, self.sizes, self.model, c.maximum).within(SCHEDULES, self.model.machine.share)
        except MirageError as e:
            self.rejected.append(f"{c.graph.origin}: {e}")
            return []

    def compile(self, work: Sequence[tuple[Candidate, Sequence[Schedule]]], seconds: float) -> list[Candidate]:
        """Compiled and checked candidates, as many as fit these seconds; one compiler per core."""
        stop = min(time.perf_counter() + seconds, self.deadline)
        # a kernel that was compiled in the nick of time may take long to check
        checks = (stop + self.deadline) / 2
        jobs = [
            (c, s)
            for rank in range(max((len(ss) for _, ss in work), default=0))
            for c, ss in work
            for s in ss[rank : rank + 1]
        ]
        done: list[Candidate] = []
        first = max(stop, self.deadline + self.grace) if self.grace and not self.compiled else stop

        def build(job: tuple[Candidate, Schedule]) -> Candidate | str | None:
            left = (first if job is jobs[0] else stop) - time.perf_counter()
            if left < COMPILER_S:
                return None
            c, schedule = job
            try:
                seconds = None if left == math.inf else left
                executable = CpuExecutable(c.graph, schedule, c.maximum, self.sizes, self.constants, seconds=seconds)
                return replace(c, schedule=schedule, sizes=self.sizes, executable=executable)
            except UnsafeCacheError:
                raise  # no other kernel would fare better
            except MirageError as e:
                return f"{c.graph.origin}: {e}" if time.perf_counter() < stop else None

        with ThreadPoolExecutor(max(self.target.cores, 1)) as pool:
            try:
                for built in pool.map(build, jobs):
                    if isinstance(built, str):
                        self.rejected.append(built)
                    elif built is None or time.perf_counter() > (checks if self.compiled else max(checks, first)):
                        self.cut = True
                    elif (checked := self.checked(built)) is not None:
                        done.append(checked)
                        self.ready.append(checked)
                    self.compiled += built is not None
                    self.progress(f"{self.compiled} kernels compiled")
            except BaseException:
                # an interrupt waits for the kernels that are being compiled, not for those in the queue
                pool.shutdown(cancel_futures=True)
                raise
        return done

    def checked(self, c: Candidate) -> Candidate | None:
        """The candidate with its errors; None, so that it is never used, where its results are not the program's, or
        not as near to float64 as NumPy's.
        """
        assert c.executable is not None
        found: list[Accuracy] = []
        run = _Stopwatch(c.executable)
        for case in self.trials:
            accuracy, passed = case.measure(run)
            if case is self.trials[0]:
                self.calls[id(c.executable)] = run.seconds
            if not passed:
                message = (
                    f"{c.graph.origin}: the kernel's results differ from the program's at {case.name}; it is not used"
                )
                if case is self.trials[0]:
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
                self.rejected.append(message)
                return None
            if case.in_float64:
                found.append(accuracy)
        return replace(c, accuracy=tuple(found))

    def race(self, candidates: Sequence[Candidate], seconds: float) -> list[Candidate]:
        """Fastest first, as an interleaved run scores them, or, where there is no time for one, as their first calls do."""
        if not candidates:
            return []
        fns = {str(i): self.call(c.executable) for i, c in enumerate(candidates) if c.executable is not None}
        first = self._first_calls(candidates)
        if 2 * sum(first.values()) < self.left():
            seconds, spinning = max(seconds, RACE_LEAST), self.spinning(candidates)
            timings = interleave(fns, seconds=seconds, spinning=spinning, apart=self.apart(candidates))
        else:
            self.cut = True
            timings = {name: _once(s) for name, s in first.items()}
        timed = [replace(c, timing=timings[str(i)]) for i, c in enumerate(candidates)]
        return sorted(timed, key=lambda c: score(c.timing) if c.timing else np.inf)

    def _forget(self, candidates: Iterable[Candidate]) -> None:
        """Drop packed copies of inputs: those of all kernels together could fill the memory."""
        for c in candidates:
            if c.executable is not None:
                c.executable.forget()

    def measure(self, finalists: Sequence[Candidate], seconds: float) -> dict[str, Timing]:
        """Finalists (by position) and baselines (by name) in one interleaved run, until it is clear which is the fastest, as far
        as two calls of each fit the time.

        Others have the times of their first calls; baselines but the library are left out then, unless they are cheap.
        """
        fns = {str(i): self.call(c.executable) for i, c in enumerate(finalists) if c.executable is not None}
        fns |= {name: self.call(run) for name, run in self.baselines.items()}
        first = self._first_calls(finalists)
        call = first | self.expected
        # the best kernel and the library are what is compared; NumPy takes longest
        chosen: dict[str, Callable[[], object]] = {}
        for name in sorted(fns, key=lambda name: (name not in ("0", "library"), call[name])):
            if 2 * sum(call[n] for n in (*chosen, name)) < seconds:
                chosen[name] = fns[name]
        self.cut |= len(chosen) < len(fns)
        once = {name: _once(s) for name, s in (first | {"library": call["library"]}).items()}
        for name in fns.keys() - chosen.keys() - once.keys():
            if call[name] < CHEAP_S:
                once[name] = _once(1e-9 * wall_ns(fns[name]))
        if not chosen:
            return once
        # a first call may have been slow by chance
        seconds = min(seconds, FINAL_SECONDS)
        rounds = ROUNDS if (1 + ROUNDS) * sum(call[n] for n in chosen) < seconds else 1
        spinning = {*self.baselines, *self.spinning(finalists)}
        apart = self.apart(finalists)
        return once | interleave(chosen, seconds=seconds, min_runs=rounds, spinning=spinning, apart=apart, clear=True)

    def cold(self, finalists: Sequence[Candidate], times: Mapping[str, float]) -> dict[str, float]:
        """The times (by position) of the closest finalists, changed by how they do with cold caches."""
        kernels = {str(i): c.executable for i, c in enumerate(finalists) if c.executable is not None}
        return cold.in_both_states(times, kernels, self.inputs, self.sizes, self.target.cache_bytes, self.left())

    def _first_calls(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Seconds of the first call of each checked candidate, by its position."""
        return {str(i): self.calls[id(c.executable)] for i, c in enumerate(candidates)}

    def spinning(self, candidates: Sequence[Candidate]) -> list[str]:
        """Those (by position) that call BLAS, whose threads spin for a while and slow down what comes next."""
        return [str(i) for i, c in enumerate(candidates) if c.executable is not None and c.executable.calls_library]

    def apart(self, candidates: Sequence[Candidate]) -> list[str]:
        """Those (by position) that read packed copies of the inputs that others share."""
        return [str(i) for i, c in enumerate(candidates) if c.executable is not None and c.executable.keeps_copies]

    def call(self, run: Runner | CpuExecutable | None) -> Callable[[], object]:
        assert run is not None
        if isinstance(run, CpuExecutable):
            return run.prepared(self.inputs, self.sizes)
        return lambda: run(self.inputs, self.sizes)


def _once(seconds: float) -> Timing:
    """The timing of a single call."""
    return Timing(1e6 * seconds, 1e6 * seconds, 1)


class _Stopwatch:
    """A runner, and the seconds of its last call."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.seconds = 0.0

    def __call__(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        start = time.perf_counter()
        found = self.run(inputs, sizes)
        self.seconds = time.perf_counter() - start
        return found


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    best: dict[int, Candidate] = {}
    for c in candidates:
        best.setdefault(id(c.graph), c)
    return list(best.values())
