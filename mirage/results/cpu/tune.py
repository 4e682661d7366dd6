"""Superoptimization for the processor: verified graphs become tuned versions, as they are found."""

from __future__ import annotations

import time
from dataclasses import replace

from mirage.ir.interpret import Runner, run_reference
from mirage.kernels.cpu.processor import Processor
from mirage.kernels.library import LibraryProgram
from mirage.progress import Say, Step
from mirage.results.cpu.result import Superoptimized
from mirage.results.recall import Chosen, KeptDecision, Memory
from mirage.results.work import Work
from mirage.search.decision import Decision
from mirage.search.tune import Tuned
from mirage.search.versions import VersionTuner

#: seconds, and share of the budget, at most, that are left for the evidence of what is returned
FINISH_S, FINISH_SHARE = 0.3, 0.05
#: seconds between two times that what is known so far is kept
KEEP_S = 0.5


class Session:
    """The superoptimization of one program for this machine, which can go on after it has given a result.

    What it finds is kept in `memory`, if there is one, in the place of what an earlier one `kept`: also while it runs, so that
    a process that is killed loses little.
    """

    def __init__(
        self, work: Work, target: Processor, *, seed: int, memory: Memory | None, kept: KeptDecision | None = None
    ) -> None:
        self.work = work
        self.target = target
        self.seed = seed
        self.memory = memory
        self.library = LibraryProgram(work.verifier.axis_program)
        self._kept = time.perf_counter()
        #: whether all graphs of the search are kept
        self._kept_all = False
        #: kernels of the decision that is kept
        self._kernels = kept.kernels if kept else 0

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

        baselines: dict[str, Runner] = {
            "reference": lambda xs, ss: run_reference(program, xs, ss),
            "library": self.library,
        }
        tuner = VersionTuner(
            program, verifier.axis_program, work.anchors, self.target, baselines,
            budget=budget - min(FINISH_S, FINISH_SHARE * budget), seed=self.seed,
            constants=work.constants, progress=progress, keep=self._keep_so_far,
        )  # fmt: skip
        tuned, decision = tuner.run(source)
        seconds, stats = work.seconds, work.stats
        took = time.perf_counter() - start
        answer = Superoptimized(
            program=program, verifier=verifier, anchors=[dict(a) for a in work.anchors], target=self.target,
            threads=self.target.cores, stats=replace(stats), candidates=stats.candidates, constants=work.constants,
            graphs=tuned.candidates, baselines=tuned.baselines, decision=decision, compiled=tuned.compiled,
            rejected=tuned.rejected, tune_stop=tuned.stop_reason, library=self.library, cache_hit=source.search is None,
            seconds={**seconds, "tune": max(took - sum(seconds.values()), 0.0)}, go_on=self.more,
        )  # fmt: skip
        spent = work.elapsed() if answer.interrupted else max(work.elapsed(), deadline)
        if self.memory is not None:
            self._keep(replace(tuned, candidates=answer.graphs), answer.decision, spent)
            self._keep_graphs(spent)
        work.save()
        # with what was measured, which the next call does not measure again
        source.found = tuned.candidates
        work.spent, work.begun = spent, time.perf_counter()
        return answer

    def more(self, budget: float, say: Say) -> Superoptimized:
        """Go on for so many seconds more."""
        self.work.begun = time.perf_counter()
        self.work.candidates.resume(budget)
        return self.run(budget, say)

    def _keep_so_far(self, tuned: Tuned, decision: Decision) -> None:
        """Keep what is known, every half a second, unless a decision with more kernels is kept, or graphs that are kept were not
        looked at yet.
        """
        kernels = [v.candidate for v in decision.versions if v.candidate]
        if self.memory is None or time.perf_counter() - self._kept <= KEEP_S:
            return
        if len(kernels) < self._kernels or self.work.candidates.unread:
            return
        for c in kernels:
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
        self._kernels = sum(v.candidate is not None for v in decision.versions)

    def _keep_graphs(self, spent: float) -> None:
        source = self.work.candidates
        if self.memory is not None and source.search is not None and not self._kept_all:
            self._kept_all = self.work.complete
            self.memory.keep_graphs(source.found, self.work.stats, complete=self._kept_all, spent=spent)
