"""The last step of a superoptimization for the processor: verified graphs become tuned versions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mirage.ir.interpret import Runner, run_reference
from mirage.kernels.library import LibraryProgram
from mirage.kernels.target import Target
from mirage.results.cpu.recall import CpuMemory
from mirage.results.cpu.result import Superoptimized
from mirage.results.verified import Verified
from mirage.search.jobs import INTERRUPTED
from mirage.search.versions import VersionTuner


def tune_for_processor(
    search: Verified,
    target: Target,
    *,
    budget: float,
    grace: float,
    seed: int,
    memory: CpuMemory | None,
    progress: Callable[[str], None],
) -> Superoptimized:
    """The result for this machine: as it was kept in `memory`, or with the preferred ones of the verified graphs compiled and
    measured within `budget` seconds and kept there.

    `grace` are the seconds that the first kernel may take beyond the budget. Raises KeyboardInterrupt for another interrupt
    after that of the search.
    """
    verifier, anchors, haste = search.verifier, search.anchors, search.interrupted
    program = verifier.program
    made = partial(
        Superoptimized, program=program, verifier=verifier, anchors=[dict(a) for a in anchors], target=target,
        threads=target.cores, stats=search.stats, seconds=search.seconds, candidates=search.found, constants=search.constants,
        cache_hit=search.cache_hit,
    )  # fmt: skip
    recalled = memory.tuned(verifier, anchors, search.graphs) if memory is not None and search.cache_hit else None
    if recalled is not None:
        tuned, decision = recalled
        return made(
            graphs=tuned.candidates, baselines=tuned.baselines, decision=decision, tune_stop=tuned.stop_reason
        )
    start = time.perf_counter()
    library = LibraryProgram(verifier.axis_program)
    baselines: dict[str, Runner] = {"reference": lambda xs, ss: run_reference(program, xs, ss), "library": library}
    tuner = VersionTuner(
        program, verifier.axis_program, anchors, target, baselines, budget=budget, seed=seed, haste=haste,
        grace=math.inf if haste else grace, constants=search.constants, progress=progress,
    )  # fmt: skip
    tuned, decision = tuner.run(search.preferred)
    if haste and tuned.stop_reason == INTERRUPTED:
        raise KeyboardInterrupt
    search.seconds["tune"] = time.perf_counter() - start
    answer = made(
        graphs=tuned.candidates, baselines=tuned.baselines, decision=decision, compiled=tuned.compiled,
        rejected=tuned.rejected, tune_stop=tuned.stop_reason, library=library,
    )  # fmt: skip
    if memory is not None and tuned.stop_reason != INTERRUPTED:
        memory.keep_tuned(anchors, replace(tuned, candidates=answer.graphs), answer.decision)
    return answer
