"""Superoptimization for the processor: verified graphs become tuned versions, as they are found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage.errors import FormatError
from mirage.ir.interpret import Runner, run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.shared import prepare
from mirage.kernels.cpu.library import CpuLibraryProgram
from mirage.kernels.cpu.processor import Processor
from mirage.kernels.cpu.target import CpuTarget
from mirage.kernels.profile import Timing
from mirage.kernels.target import get_target
from mirage.mugraph.degree import program_is_stable
from mirage.progress import Say, Step
from mirage.results.cpu.result import Superoptimized
from mirage.results.recall import Chosen, Kept, KeptDecision, Memory
from mirage.results.result import FROM_CACHE, FROM_FILE, StoredResult
from mirage.results.turn import held, in_turn
from mirage.results.work import Request, Work, hints_of, pieces
from mirage.runtime.arrays import check_inputs
from mirage.search import succession
from mirage.search.candidates import Candidate, Candidates
from mirage.search.computed import SOURCES
from mirage.search.decision import Decision, Version
from mirage.search.jobs import INTERRUPTED
from mirage.search.large import is_large
from mirage.search.options import SearchOptions
from mirage.search.stream import Search
from mirage.search.tune import Tuned
from mirage.search.versions import VersionTuner
from mirage.verify.equivalence import Verifier

#: share of its budget that a call has at least, where most of it was spent by those before
LEAST_SHARE = 0.1
#: seconds, and share of the budget, at most, that are left for the evidence of what is returned
FINISH_S, FINISH_SHARE = 0.3, 0.05
#: of large programs, whose evidence takes longer: seconds per operator, and share of the budget
OPERATOR_S, LARGE_SHARE = 0.02, 0.3
#: seconds between two times that what is known so far is kept: the evidence of what leads then, which another graph may have
#: overtaken a moment later, takes half a second, in which nothing is searched or compiled
KEEP_S = 2.0
#: seconds of the comparisons with what ran before, after an interrupt
HASTE_S = 0.3


@dataclass(frozen=True)
class Before:
    """What runs so far: a decision with kernels among its versions, and the timings of what competed with them."""

    decision: Decision
    baselines: Mapping[str, Timing]

    @staticmethod
    def of(decision: Decision, baselines: Mapping[str, Timing]) -> Before | None:
        """None without a kernel: NumPy takes part in every race as it is."""
        return Before(decision, baselines) if any(v.candidate for v in decision.versions) else None


def _led_by(decision: Decision, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with all that the decision runs, the version of the first given sizes at the front: the next call begins
    with what is there.
    """
    known = {id(c.graph): c for c in candidates}
    best = decision.at(decision.points[0].sizes)
    for v in (best, *decision.versions):
        if (c := v.candidate) is None:
            continue
        there = known.get(id(c.graph))
        if there is None:
            known[id(c.graph)] = c
        elif v is best and dict(there.sizes) == dict(c.sizes):
            known[id(c.graph)] = replace(c, tried=there.tried)
    first = id(best.candidate.graph) if best.candidate is not None else None
    return sorted(known.values(), key=lambda c: id(c.graph) != first)


class Session:
    """The superoptimization of one program for this machine, which can go on after it has given a result.

    What it finds is kept in `memory`, if there is one: also while it runs, so that a process that is killed loses little. What
    ran `before`, with the timings of what competed then, gives way to what is measured to be faster only. `begun_with` is the
    machine of whose choice there are hints.
    """

    def __init__(
        self,
        work: Work,
        target: Processor,
        *,
        seed: int,
        memory: Memory | None,
        before: Before | None = None,
        begun_with: str = "",
    ) -> None:
        self.work = work
        self.target = target
        self.seed = seed
        self.memory = memory
        self.begun_with = begun_with
        self.library = CpuLibraryProgram(work.verifier.axis_program, work.constants)
        self._kept = time.perf_counter()
        #: whether all graphs of the search are kept
        self._kept_all = False
        self._before = before

    def run(self, budget: float, say: Say) -> Superoptimized:
        """Search, verify and tune for so many seconds; what an earlier call found competes.

        Raises KeyboardInterrupt for an interrupt before anything was found, or for a second one.
        """
        work, source = self.work, self.work.candidates
        program, verifier = work.verifier.program, work.verifier
        start = time.perf_counter()
        # what ends sooner than its deadline has spent it
        deadline = work.elapsed() + budget

        def progress(text: str) -> None:
            search = source.search
            found = f"{len(source.found)} graphs" + ("" if search is None or search.done else ", searching")
            say(Step("tuning", f"{text}; {found}"))

        left = budget - self._finish_seconds(budget)
        compared = min(succession.SHARE * budget, succession.SECONDS) if self._before else 0.0
        tuner = VersionTuner(
            program, verifier.axis_program, work.anchors, self.target, self._baselines, budget=left - compared, seed=self.seed,
            constants=work.constants, progress=progress, keep=self._keep_so_far,
        )  # fmt: skip
        tuned, decision = self._succeeded(tuner, *tuner.run(source), start + left)
        seconds, stats = work.seconds, work.stats
        took = time.perf_counter() - start
        answer = Superoptimized(
            program=program, verifier=verifier, anchors=[dict(a) for a in work.anchors], target=self.target,
            threads=self.target.cores, stats=replace(stats), candidates=stats.candidates, constants=work.constants,
            graphs=tuned.candidates, baselines=tuned.baselines, decision=decision, compiled=tuned.compiled,
            rejected=tuned.rejected, tune_stop=tuned.stop_reason, library=self.library, cache_hit=source.search is None,
            begun_with=self.begun_with, seconds={**seconds, "tune": max(took - sum(seconds.values()), 0.0)}, go_on=self.more,
        )  # fmt: skip
        spent = work.elapsed() if answer.interrupted else max(work.elapsed(), deadline)
        self._before = Before.of(answer.decision, answer.baselines)
        if self.memory is not None:
            self._keep(replace(tuned, candidates=list(answer.graphs)), answer.decision, spent)
            self._keep_graphs(spent)
        work.save()
        # with what was measured, which the next call does not measure again
        source.found = tuned.candidates
        work.spent, work.begun = spent, time.perf_counter()
        return answer

    def _succeeded(self, tuner: VersionTuner, tuned: Tuned, decision: Decision, end: float) -> tuple[Tuned, Decision]:
        """What was tuned, and its decision or that of before, as comparisons until `end` (a `perf_counter`) have it."""
        if self._before is None:
            return tuned, decision
        before, baselines = self._before.decision, self._before.baselines
        # an interrupt leaves little time
        left = HASTE_S if tuned.stop_reason == INTERRUPTED else end - time.perf_counter()
        duels = succession.Duels(left, self._run_of, tuner.arguments)
        decision = succession.succeed(before, decision, self.work.anchors, duels)
        if duels.interrupted:
            tuned = replace(tuned, stop_reason=INTERRUPTED)
        if decision is before:
            # those that its own times were measured beside
            tuned = replace(tuned, baselines={**tuned.baselines, **baselines})
        return replace(tuned, candidates=_led_by(decision, tuned.candidates)), decision

    def _run_of(self, version: Version) -> Runner:
        """What a version runs."""
        if version.candidate is not None:
            executable: Runner = version.executable
            return executable
        return self._baselines[version.kind]

    @property
    def _baselines(self) -> dict[str, Runner]:
        """What competes with kernels, by kind: the program operator by operator, and as library calls."""
        program = self.work.verifier.program
        return {"reference": lambda xs, ss: run_reference(program, xs, ss), "library": self.library}

    def _finish_seconds(self, budget: float) -> float:
        """The seconds of a budget that are left for the evidence of what is returned."""
        axis_program = self.work.verifier.axis_program
        if not is_large(axis_program):
            return min(FINISH_S, FINISH_SHARE * budget)
        operators = sum(n.op not in SOURCES for n in axis_program.nodes)
        return min(OPERATOR_S * operators, LARGE_SHARE * budget)

    def more(self, budget: float, say: Say) -> Superoptimized:
        """Go on for so many seconds more."""
        machine = self.memory.target.machines[0] if self.memory is not None else ""
        with held(self.memory, self.work.anchors, machine):
            self.work.begun = time.perf_counter()
            self.work.candidates.resume(budget)
            return self.run(budget, say)

    def _keep_so_far(self, tuned: Tuned, decision: Decision) -> None:
        """Keep what is known, every few seconds, unless graphs that are kept were not looked at yet: with the decision of before,
        as long as the new one is not final.
        """
        if self.memory is None or time.perf_counter() - self._kept <= KEEP_S or self.work.candidates.unread:
            return
        if self._before is not None:
            decision = self._before.decision
            tuned = replace(
                tuned, candidates=_led_by(decision, tuned.candidates), baselines={**tuned.baselines, **self._before.baselines}
            )
        for c in [v.candidate for v in decision.versions if v.candidate]:
            self.work.verifier.confirm(c.graph, c.certificate)
        self._keep(tuned, decision, self.work.elapsed())
        if self.work.complete:
            self._keep_graphs(self.work.elapsed())
            self.work.save()

    def _keep(self, tuned: Tuned, decision: Decision, spent: float) -> None:
        assert self.memory is not None
        measured = {id(c.graph): c for c in tuned.candidates if c.timing is not None or c.tried}
        # versions may be of graphs that did not do well at the given sizes
        others = {id(v.candidate.graph) for v in decision.versions if v.candidate} - measured.keys()
        graphs = [*measured.values(), *(c for c in tuned.candidates if id(c.graph) in others)]
        chosen = Chosen(decision, graphs, tuned.stop_reason, tuned.baselines)
        self.memory.keep_tuned(self.work.anchors, chosen, self.memory.target.machines[0], self.work.stats, spent)
        self._kept = time.perf_counter()

    def _keep_graphs(self, spent: float) -> None:
        source = self.work.candidates
        if self.memory is not None and source.search is not None and not self._kept_all:
            self._kept_all = self.work.complete
            self.memory.keep_graphs(source.found, self.work.stats, complete=self._kept_all, spent=spent)


def superoptimize(request: Request) -> Superoptimized:
    """The result for the processor: as it was kept in the memory where that took the budget, unless more is wanted; or as a
    session finds it in what is left of the budget.
    """
    machine, memory, axis_program = request.target, request.memory, request.verifier.axis_program
    assert isinstance(machine, CpuTarget)
    kept: Kept[KeptDecision] | None = None

    def session(request: Request) -> Session:
        verifier, value = request.verifier, kept.value if kept else None
        restored = value.try_restored(verifier, machine, request.constants) if value and value.kernels else None
        before = Before.of(restored[1], value.baselines) if value and restored else None
        # where nothing was measured here yet, what was chosen on another processor is tried first
        other = memory.elsewhere(request.anchors) if memory is not None and before is None else None
        begun_with, hints = (other[0], hints_of(other[1])) if other else ("", [])
        work = request.work(kept, hints)
        return Session(work, machine.machine, seed=verifier.seed, memory=memory, before=before, begun_with=begun_with)

    def recall(end: str = "") -> Superoptimized | None:
        nonlocal kept
        kept = memory.tuned(request.anchors) if memory is not None else None
        if kept is None or (request.more and not end):
            return None
        if end:
            wanted = kept.value.kernels > 0
        else:
            wanted = kept.enough(request.budget) and (kept.complete or kept.value.kernels > 0)
        if not wanted:
            return None
        recalled = _recalled(kept.value, request, machine, end or FROM_CACHE, lambda: session(request))
        if recalled is None:
            kept = None
        return recalled

    def search(waited: float) -> Superoptimized:
        narrow = next((x.dtype for x in axis_program.inputs if x.dtype), axis_program.dtype)
        prepare(narrow, products=any(n.op == "matmul" for n in axis_program.nodes))
        # what was waited for took these seconds, which are not spent twice
        since = replace(request, begun=request.begun + waited)
        spent = kept.spent if kept is not None and kept.value.kernels and not request.more else 0.0
        now = time.perf_counter()
        left = request.budget - max(spent + now - since.begun, now - request.begun)
        request.say(Step("searching"))
        return session(since).run(max(left, LEAST_SHARE * request.budget), request.say)

    return in_turn(request, machine.machines[0], recall, search)


def _recalled(
    kept: KeptDecision, request: Request, machine: CpuTarget, why: str, session: Callable[[], Session]
) -> Superoptimized | None:
    """The result that was kept, verified again; None, with a warning, where it is not of this program. `why` there is no more."""
    start = time.perf_counter()
    verifier, constants = request.verifier, request.constants
    if (opened := kept.try_opened(verifier, machine, constants)) is None:
        return None
    graphs, decision = opened
    return Superoptimized(
        program=verifier.program, verifier=verifier, anchors=[dict(a) for a in request.anchors], target=machine.machine,
        threads=machine.machine.cores, stats=kept.stats, candidates=kept.stats.candidates, constants=constants,
        graphs=graphs, baselines=kept.baselines, decision=decision, tune_stop=why, cache_hit=True,
        seconds={"verify": time.perf_counter() - start}, go_on=lambda budget, say: session().more(budget, say),
    )  # fmt: skip


def restored(stored: StoredResult, where: str, seed: int) -> Superoptimized:
    """The result that was stored: its graphs are verified again with this seed, and its kernels compiled for this machine.
    `where` says in errors where it comes from.

    Raises VerificationError for a graph that does not compute the program, FormatError, and the errors of compilation.
    """
    target, program, baselines = get_target(stored.target), stored.program, dict(stored.baselines)
    assert isinstance(target, CpuTarget)
    if "library" not in baselines or not all(v.timing for v in stored.decision.versions):
        raise FormatError(f"{where}: a version has no timing; superoptimize the program again")
    verifier = Verifier(program, seed)
    start = time.perf_counter()
    graphs = stored.rechecked(verifier, where)
    seconds = {"verify": time.perf_counter() - start}

    def go_on(budget: float, say: Say) -> Superoptimized:
        search = Search(verifier.axis_program, stored.anchors[0], safe=program_is_stable(program))
        found = pieces(verifier, stored.anchors[0], SearchOptions(budget=budget))
        work = Work(verifier, stored.anchors, Candidates(verifier, search, stored.graphs, found), stored.constants)
        before = Before.of(decision, baselines)
        return Session(work, target.machine, seed=seed, memory=None, before=before).run(budget, say)

    decision = stored.decision.restored(dict(enumerate(graphs)), target, stored.constants)
    return Superoptimized(
        program=program, verifier=verifier, anchors=stored.anchors, target=target.machine, threads=stored.threads,
        graphs=graphs, baselines=baselines, decision=decision, stats=stored.stats, seconds=seconds, cache_hit=True,
        candidates=stored.candidates, tune_stop=FROM_FILE, constants=stored.constants, go_on=go_on,
    )  # fmt: skip


def shapes(program: Program, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shapes of a program's arguments; raises InputError for what does not fit it."""
    return [a.shape for a in check_inputs(program, arrays)]
