"""Choosing among verified graphs by measurement (paper, section 6): schedules are enumerated, compiled and profiled.

Graphs are taken as they are found. While compilers work on a wave of kernels, the search goes on, the next wave is planned and
results to compare with are made; then the wave is raced, and the fastest kernel so far is the answer at any time.

All rivals of a round run interleaved, so that noise hits them alike. The program as NumPy runs it and its library version
are always among them, so the answer is never slower than what the user had.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from mirage.errors import DegradedWarning, MirageError, UnsafeCacheError
from mirage.ir.interpret import Runner
from mirage.ir.program import Program
from mirage.kernels.cpu.compile.toolchain import find_compiler
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.model.fit import coefficients, keep
from mirage.kernels.cpu.processor import Processor
from mirage.kernels.cpu.schedules.scheduler import Scheduler, machine_of
from mirage.kernels.profile import Timing, interleave, score, wall_ns
from mirage.mugraph.schedule import Schedule
from mirage.search import cold
from mirage.search.accuracy import GIVEN, Trials, reference_seconds
from mirage.search.candidates import Candidate, Candidates, fewest_plain
from mirage.search.explore import Explorer, Pair
from mirage.search.inputs import masks, positions, random_inputs, shares
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME

#: kernels that are compiled at most; a wave of them per core, after the first kernel, which is alone, so that it is measured soon
MAX_KERNELS = 96
WAVE = 2
#: waves without a kernel that is faster by more than this share, after which all is tried that is worth it; those of large
#: programs, of whose kernels each wave changes some
PATIENCE, LARGE_PATIENCE, BETTER = 4, 16, 0.02
#: schedules of one graph that `Tuner.schedules` gives
SCHEDULES = 6
#: seconds of the search at a time, while a compiler may end meanwhile; and the share of the time that the search of a large
#: program has at least, whose best graphs are joined as its pieces are searched
SLICE_S, SEARCH_SHARE = 0.05, 0.1
#: how often each kernel of a wave is called, and the seconds (share of the budget) that this takes at least (at most)
RACE_CALLS, RACE_SECONDS, RACE_SHARE = 30, 0.05, 0.04
#: the fastest kernels, and graphs, that are measured last, with the baselines, and the seconds (share of the budget) that this
#: takes at most
FINALISTS, FINAL_GRAPHS = 6, 3
FINAL_SECONDS, FINAL_SHARE = 2.0, 0.2
#: share of that time that is kept for cold caches
COLD_SHARE = 0.2
#: calls after a race of which it is noted what each kernel takes
KERNEL_CALLS = 3
#: seconds of a race at least, and of what runs alone
RACE_LEAST, ALONE_SECONDS = 0.05, 0.01
#: times as long as the fastest, or the library, that a call takes which is not made again: those of a large program take seconds
HOPELESS = 3.0
#: rounds of the last measurement, where they fit, and seconds of a call that is made in any case
ROUNDS = 5
CHEAP_S = 0.02
#: share of the budget that the program may take in float64 at the given sizes; a trial that takes no longer than so many seconds
#: is made before the first kernel is measured, others after it
EXACT_SHARE, SOON_S = 0.1, 0.1
#: part of the time left that a call in a trial beside the first takes at most
CHECK_SHARE = 8
#: seconds of the last measurement after an interrupt, those without which no compiler is started, and those that a first kernel
#: may take after an interrupt that came before it
HASTE_S = 0.5
COMPILER_S = 0.1
FIRST_S = 3.0
#: what is said where time ended before there was a kernel
UNCOMPILED = "before a kernel was compiled and checked"


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


class Tuner:
    """Tunes the candidates of one program (of `flops` operations) at one set of sizes, within `budget` seconds.

    `baselines` are what competes besides, "library" among them: it is called once at least. `inputs` and `trials` are made
    where none are given. A first kernel may take until `last` (a `perf_counter`). With `decides`, nothing is measured after it,
    so that it also looks at cold caches. `progress` gets lines of text, `better` is called with the tuner whenever there is a
    fastest kernel.
    """

    def __init__(
        self,
        program: Program,
        sizes: Mapping[str, int],
        target: Processor,
        baselines: Mapping[str, Runner],
        *,
        flops: float,
        budget: float,
        seed: int,
        progress: Callable[[str], None] = lambda _: None,
        measured_more: Callable[[Tuner], None] = lambda _: None,
        inputs: Callable[[], list[np.ndarray]] | None = None,
        trials: Trials | None = None,
        constants: Collection[str] = (),
        decides: bool = False,
        last: float = 0.0,
    ) -> None:
        self.decides = decides
        self.budget = budget
        self.deadline = time.perf_counter() + budget
        self.last = max(last, self.deadline)
        self.program = program
        self.sizes = dict(sizes)
        self.target = target
        self.baselines = baselines
        self.constants = constants
        self.progress = progress
        self.measured_more = measured_more
        self.rejected: list[str] = []
        self.compiled = 0
        self.ready: list[Candidate] = []
        #: of these, what was measured last, with those times
        self.final: list[Candidate] = []
        #: whether time ended what is done, and what did in the end; "" where nothing was left to do
        self.cut = False
        self.ended = ""
        #: seconds of a call: of the baselines, as expected, and of checked executables, by their ids, the first one
        self.expected = dict.fromkeys(baselines, reference_seconds(program, self.sizes, flops))
        self.calls: dict[int, float] = {}
        #: in how many of the trials each executable was compared, by their ids
        self._trials_of: dict[int, int] = {}
        self._inputs = inputs or partial(random_inputs, program, sizes, seed)
        self.model = CostModel(machine_of(target), coefficients(target))
        self.explorer = Explorer(self.sizes, self.model, self.rejected, constants)
        #: what was left out
        self.cutoffs = self.explorer.cutoffs
        #: what was raced, with its latency in that race
        self.measured: dict[Pair, Candidate] = {}
        self.trials = trials or Trials(
            program, lambda: self.inputs, self.sizes, flops, self._called_library, seed, EXACT_SHARE * budget
        )

    @cached_property
    def inputs(self) -> list[np.ndarray]:
        """The arguments of all calls, made while the first kernel is compiled: large ones take as long as that."""
        return self._inputs()

    def _called_library(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The results of the library version, whose time is taken."""
        run = _Stopwatch(self.baselines["library"])
        found = run(inputs, sizes)
        self.expected["library"] = run.seconds
        return found

    @property
    def end(self) -> float:
        """When to stop: no share of the time keeps a first kernel from being measured."""
        return self.deadline if self.measured else self.last

    def left(self) -> float:
        return self.end - time.perf_counter()

    def run(self, source: Candidates) -> Tuned:
        """The candidates, measured where time allowed; an interrupt ends the choice among them, and the best so far are
        measured. Raises NoCompilerError before any time is spent, and KeyboardInterrupt for a second interrupt, or for one
        before any graph was found.
        """
        find_compiler()
        interrupted = False
        try:
            self.rank(source)
            self.settle()
        except KeyboardInterrupt:
            interrupted = True
            source.stop()
            if not source.found:
                raise
            if not self.ready:
                self.deadline = self.last = time.perf_counter() + FIRST_S
                self.rank(source, waves=1)
            # what was compiled last has not been raced yet, nor compared in the trials that are quickly made
            while self.trials.needed <= SOON_S:
                self.trials.next()
            self.ready = [checked for c in self.ready if (checked := self._compared(c)) is not None]
        ranked = self.ready
        first = {id(c): c for c in (*ranked[:FINALISTS], *_distinct(ranked)[:FINAL_GRAPHS])}
        final = list(first.values())
        self.trials.first()
        try:
            left = self.left() * (1 - COLD_SHARE * self.decides)
            timings = self.measure(final, HASTE_S if interrupted else left)
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
        if interrupted:
            self.ended = INTERRUPTED
        elif self.cut:
            self.ended = OUT_OF_TIME if self.ready else f"{OUT_OF_TIME} {UNCOMPILED}"
        if not interrupted:
            self.explorer.conclude()
        # what an interrupt left out goes on with the next call
        reason = INTERRUPTED if interrupted else self.cutoffs.reason(self.ended)
        baselines = {name: timings[name] for name in self.baselines if name in timings}
        return Tuned(self.told([*final, *ranked], source), baselines, self.compiled, self.rejected, reason)

    def told(self, ranked: Sequence[Candidate], source: Candidates) -> list[Candidate]:
        """A candidate per graph, with the schedules that were measured: those that are ranked, then the others."""
        tried = self.explorer.tried()
        first = _distinct(ranked)
        seen = {id(c.graph) for c in first}
        measured = [replace(c, tried=tried.get(id(c.graph), ())) for c in first]
        return [*measured, *(c for c in source.found if id(c.graph) not in seen)]

    def rank(self, source: Candidates, waves: float = math.inf) -> None:
        """Compile and race candidates in so many waves; `ready` holds them at any time, the fastest so far first."""
        reserve = min(FINAL_SHARE * self.budget, FINAL_SECONDS) if waves > 1 else 0.0
        explorer = self.explorer
        explorer.add(source.preferred())
        if not source.found:
            # the program's own operators, whatever time is left
            self._search(source)
        stale, size = 0, 1
        patience = PATIENCE if source.pieces is None else LARGE_PATIENCE
        #: seconds in which the last wave was planned
        planning = 0.0
        pairs = explorer.leaders(self.target.cores)
        try:
            while waves > 0:
                left = self.left() - reserve * bool(self.measured)
                if left < planning * bool(self.measured):
                    self.cut = True
                    break
                if not pairs and stale < patience and self.compiled < MAX_KERNELS:
                    self._search_pieces(source)
                    start = time.perf_counter()
                    pairs = explorer.wave(min(size, MAX_KERNELS - self.compiled))
                    planning = time.perf_counter() - start
                if not pairs:
                    # what is found is kept for others, even where no more is compiled
                    if source.done:
                        self.ended = self._limit(stale, patience) if explorer.waits() else ""
                        break
                    if self._search(source) and stale >= patience:
                        stale = patience - 1
                    continue
                before = self.fastest_us
                work = [(explorer.candidates[i], s) for i, s in pairs]
                built = self.compile(work, left, lambda: self._meanwhile(source))
                self._learn(built, source)
                stale = 0 if self.fastest_us < (1 - BETTER) * before else stale + 1
                waves -= 1
                pairs, size = [], WAVE * self.target.cores
                if self.fastest_us < before:
                    self.progress(self._so_far())
                if self.ready:
                    self.measured_more(self)
        finally:
            self._forget([*self.measured.values(), *self.ready])
            keep(self.target, explorer.samples)

    def _limit(self, stale: int, patience: int) -> str:
        """The limit, in words, for which no more is compiled after so many waves without a faster kernel; "" where it is none."""
        if self.compiled >= MAX_KERNELS:
            return f"{MAX_KERNELS} kernels compiled"
        return f"no faster kernel in {patience} waves" if stale >= patience else ""

    @property
    def fastest_us(self) -> float:
        """Microseconds of the fastest kernel so far, as races scaled them; infinite where there is none."""
        return min((self.explorer.times[pair] for pair in self.measured), default=math.inf)

    def _learn(self, built: Sequence[Candidate], source: Candidates) -> None:
        """Race what was built with the fastest so far."""
        explorer = self.explorer
        leaders = sorted(self.measured, key=explorer.times.__getitem__)[:2]
        call = min([1e-6 * self.fastest_us, *self._first_calls(built).values()])
        rivals = len(built) + len(leaders)
        seconds = min(max(RACE_CALLS * call * rivals, RACE_SECONDS), RACE_SHARE * self.budget)
        if rivals == 1:
            # it is measured again beside others
            seconds = ALONE_SECONDS
        numbers = {id(c.graph): i for i, c in enumerate(explorer.candidates)}
        timed = self.race([*(self.measured[pair] for pair in leaders), *built], seconds)
        race = {(numbers[id(c.graph)], c.schedule): c for c in timed if c.schedule and c.timing}
        explorer.learn({pair: c.timing for pair, c in race.items() if c.timing}, self._kernels_us(race))
        source.measured(explorer.kernels.fastest())
        self.measured |= race
        self._order()
        self._forget(c for c in race.values() if c not in self.ready[:2])

    def _kernels_us(self, race: Mapping[Pair, Candidate]) -> dict[Pair, list[float]]:
        """The least microseconds of each kernel in the graphs of several, of which there was a race."""
        found = {}
        least = min((score(c.timing) for c in race.values() if c.timing), default=0.0)
        for pair, c in race.items():
            kernels = self.explorer.kernels_of(pair)
            if kernels < 2 or c.timing is None or score(c.timing) > HOPELESS * least:
                continue
            calls = [pool.kernel_seconds(self.call(c.executable), kernels) for _ in range(KERNEL_CALLS)]
            seconds = zip(*(x for x in calls if x is not None), strict=True)
            if us := [1e6 * min(own) for own in seconds]:
                found[pair] = us
        return found

    def _order(self) -> None:
        """Note what was measured as `ready`, the fastest first; of these, what may run (`Candidates.preferred`)."""
        least = fewest_plain(self.explorer.candidates)
        order = sorted(self.measured, key=self.explorer.times.__getitem__)
        self.ready = [c for c in map(self.measured.__getitem__, order) if len(c.maximum.plain) <= least]

    def _search(self, source: Candidates) -> bool:
        """Let the search go on for a moment; whether it found something."""
        fresh = source.more(SLICE_S)
        least = fewest_plain(source.found)
        self.explorer.add([c for c in fresh if len(c.maximum.plain) <= least])
        if fresh:
            self.progress(self._so_far())
        return bool(fresh)

    def _search_pieces(self, source: Candidates) -> None:
        """Give the search of a large program its first graphs and its share of the time, once there is a kernel: calls of its
        kernels, and checks of its graphs, may have left none.
        """
        start = self.deadline - self.budget
        while self.measured and source.pieces is not None and not source.pieces.done:
            now = time.perf_counter()
            enough = source.pieces.begun and source.seconds["search"] >= SEARCH_SHARE * (now - start)
            if now >= self.deadline or enough:
                return
            self._search(source)

    def _so_far(self) -> str:
        best = f", the fastest takes {self.fastest_us:,.1f} us" if self.measured else ""
        return f"{self.compiled} kernels compiled{best}"

    def _meanwhile(self, source: Candidates) -> bool:
        """Do a little of what there is to do while compilers work; whether there was something."""
        if not self.trials.begun:
            self.trials.first()
            return True
        needed = self._trial_seconds()
        if needed <= SOON_S:
            self.trials.next()
            self._compare_all()
            return True
        if self.explorer.estimate():
            return True
        verifier = source.verifier
        leader = next((c for c in self.ready[:1] if not verifier.is_confirmed(c.graph)), None)
        if not source.done and (leader is None or self.left() > self.budget / 2):
            self._search(source)
            return True
        if leader is not None:
            # it may be what is returned; towards the end that is likely
            verifier.confirm(leader.graph, leader.certificate)
            return True
        if self.measured and needed <= self.left() / 4:
            self.trials.next()
            self._compare_all()
            return True
        return False

    def settle(self) -> None:
        """Compare the kernels with what there was no time to make before."""
        while self.measured and self._trial_seconds() <= self.left() / 2:
            self.trials.next()
        self._compare_all()

    def _trial_seconds(self) -> float:
        """Estimated seconds to make one more trial and compare what was measured with it; infinite where there is none."""
        return self.trials.needed + sum(self.calls[id(c.executable)] for c in self.measured.values())

    def _compare_all(self) -> None:
        """Compare what was measured with trials that it has not been compared with yet, and drop what fails."""
        for pair, c in list(self.measured.items()):
            checked = self._compared(c)
            if checked is None:
                del self.measured[pair]
                self.explorer.drop(pair)
            else:
                self.measured[pair] = checked
        self._order()

    def schedules(self, c: Candidate) -> list[Schedule]:
        """Sizes worth trying, the most promising first; none if a block needs more memory than a core's share of the caches
        (paper, 4.1).
        """
        try:
            scheduler = Scheduler(c.graph, self.sizes, self.model, c.maximum, constants=self.constants)
            return scheduler.within(SCHEDULES, self.model.machine.share)
        except MirageError as e:
            self.rejected.append(f"{c.graph.origin}: {e}")
            return []

    def compile(
        self,
        work: Sequence[tuple[Candidate, Schedule]],
        seconds: float,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> list[Candidate]:
        """Compiled and checked candidates, as many as fit these seconds; one compiler per core.

        `meanwhile` is called again and again while compilers work, until it says that there is nothing to do.
        """
        stop = min(time.perf_counter() + seconds, self.end)
        # a kernel that was compiled in the nick of time may take long to check
        checks = (stop + self.end) / 2
        done: list[Candidate] = []

        def build(c: Candidate, schedule: Schedule) -> Candidate | str | None:
            left = stop - time.perf_counter()
            if left < COMPILER_S:
                return None
            try:
                executable = CpuExecutable(
                    c.graph, schedule, c.maximum, self.sizes, self.constants, seconds=None if left == math.inf else left
                )
                return replace(c, schedule=schedule, sizes=self.sizes, accuracy=()).with_kernels(executable)
            except UnsafeCacheError:
                raise  # no other kernel would fare better
            except MirageError as e:
                return f"{c.graph.origin}: {e}" if time.perf_counter() < stop else None

        with ThreadPoolExecutor(max(self.target.cores, 1)) as pool:
            try:
                builds: list[Future[Candidate | str | None]] = [pool.submit(build, c, s) for c, s in work]
                pending = set(builds)
                while pending:
                    busy = meanwhile()
                    pending = wait(pending, timeout=0.0 if busy else None).not_done
                for built in [b.result() for b in builds]:
                    if isinstance(built, str):
                        self.rejected.append(built)
                    elif built is None or time.perf_counter() > checks:
                        self.cut = True
                    elif (checked := self.checked(built)) is not None:
                        done.append(checked)
                        self.ready.append(checked)
                    self.compiled += built is not None
                    self.progress(self._so_far())
            except BaseException:
                # an interrupt waits for the kernels that are being compiled, not for those in the queue
                pool.shutdown(cancel_futures=True)
                raise
        return done

    def checked(self, c: Candidate) -> Candidate | None:
        """The candidate with its errors; None, so that it is never used, where its results are not the program's, or
        not as near to float64 as NumPy's, in the trials that there are and for which there is time.
        """
        assert c.executable is not None
        self.trials.first()
        self._trials_of[id(c.executable)] = 0
        return self._compared(c)

    def _compared(self, c: Candidate) -> Candidate | None:
        """As `checked`, in the trials that it has not been compared in."""
        executable = c.executable
        assert executable is not None
        run, key, found = _Stopwatch(executable), id(executable), list(c.accuracy)
        while self._trials_of[key] < len(self.trials.made):
            number = self._trials_of[key]
            if number and self.calls[key] > self.left() / CHECK_SHARE:
                # small sizes may take as long as the given ones
                break
            self._trials_of[key] += 1
            case = self.trials.made[number]
            accuracy, passed = case.measure(run)
            if not number:
                self.calls[key] = run.seconds
            if not passed:
                told = "the kernel's results differ from the program's" if case.tells else "a result is nowhere finite"
                message = f"{c.graph.origin}: {told} at {case.name}; it is not used"
                # what hides values may round them away, which is no fault of the compiler's
                if case.name == GIVEN and not (masks(self.program) - shares(self.program) or positions(self.program)):
                    warnings.warn(message, DegradedWarning, stacklevel=2)
                self.rejected.append(message)
                return None
            if case.in_float64:
                found.append(accuracy)
        return replace(c, accuracy=tuple(sorted(found, key=lambda a: a.trial != GIVEN)))

    def race(self, candidates: Sequence[Candidate], seconds: float) -> list[Candidate]:
        """Fastest first, as an interleaved run scores them, or, where one is hopeless or there is no time for a race, as their
        first calls do.
        """
        if not candidates:
            return []
        first, apart = self._first_calls(candidates), self.apart(candidates)
        timings = {name: Timing.once(s) for name, s in first.items()}
        # a first call that makes copies may take longer for these
        least = min([*first.values(), self.expected["library"]])
        racing = [name for name, s in first.items() if name in apart or s <= max(CHEAP_S, HOPELESS * least)]
        if 2 * sum(first[name] for name in racing) >= self.left():
            self.cut = True
        elif racing:
            fns = {name: self.call(candidates[int(name)].executable) for name in racing}
            seconds, spinning = max(seconds, RACE_LEAST if len(racing) > 1 else ALONE_SECONDS), self.spinning(candidates)
            timings |= interleave(fns, seconds=seconds, spinning=spinning, apart=apart)
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

        Others have the times of their races, or of their first calls; baselines but the library are left out then, unless they
        are cheap.
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
        raced = {id(c.executable): c.timing for c in self.measured.values() if c.timing}
        once = {name: Timing.once(s) for name, s in (first | {"library": call["library"]}).items()}
        once |= {str(i): raced[id(c.executable)] for i, c in enumerate(finalists) if id(c.executable) in raced}
        for name in fns.keys() - chosen.keys() - once.keys():
            if call[name] < CHEAP_S:
                once[name] = Timing.once(1e-9 * wall_ns(fns[name]))
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
