"""Superoptimization for the processor: verified graphs become tuned versions, as they are found."""

from __future__ import annotations

import time
from dataclasses import replace

from mirage.ir.interpret import Runner, run_reference
from mirage.kernels.library import LibraryProgram
from mirage.kernels.target import Target
from mirage.progress import Say, Step
from mirage.results.cpu.recall import CpuMemory
from mirage.results.cpu.result import Superoptimized
from mirage.results.work import Work
from mirage.search.tune import Tuned
from mirage.search.versions import Decision, VersionTuner

#: seconds, and share of the budget, at most, that are left for the evidence of what is returned
FINISH_S, FINISH_SHARE = 0.3, 0.05
#: seconds between two times that the best so far is kept
KEEP_S = 2.0


class Session:
    """The superoptimization of one program for this machine, which can go on after it has given a result.

    What it finds is kept in `memory`, if there is one: also while it runs, so that a process that is killed loses little.
    """

    def __init__(self, work: Work, target: Target, *, seed: int, memory: CpuMemory | None) -> None:
        self.work = work
        self.target = target
        self.seed = seed
        self.memory = memory
        self.library = LibraryProgram(work.verifier.axis_program)
        self._kept = time.perf_counter()

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
            constants=work.constants, progress=progress, better=self._better,
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
            if source.search is not None:
                self.memory.keep_graphs(source.found, stats, complete=work.complete, spent=spent)
        work.save()
        # with what was measured, which the next call does not measure again
        source.found = tuned.candidates
        work.spent, work.begun = spent, time.perf_counter()
        return answer

    def more(self, budget: float, say: Say) -> Superoptimized:
        """Go on for so many seconds more."""
        self.work.begun = time.perf_counter()
        self.work.candidates.resume()
        return self.run(budget, say)

    def _better(self, tuned: Tuned, decision: Decision) -> None:
        if self.memory is not None and time.perf_counter() - self._kept > KEEP_S:
            for c in tuned.candidates:
                self.work.verifier.confirm(c.graph, c.certificate)
            self._keep(tuned, decision, self.work.elapsed())

    def _keep(self, tuned: Tuned, decision: Decision, spent: float) -> None:
        assert self.memory is not None
        self.memory.keep_tuned(self.work.anchors, tuned, decision, self.work.stats, spent)
        self._kept = time.perf_counter()
