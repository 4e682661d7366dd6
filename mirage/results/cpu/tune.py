"""The last step of a superoptimization for the processor: verified graphs become tuned versions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mirage.ir.interpret import Runner, run_reference
from mirage.kernels.library import LibraryProgram
from mirage.kernels.target import Target
from mirage.results.cpu.recall import CpuMemory
from mirage.results.cpu.result import Superoptimized
from mirage.search.jobs import INTERRUPTED
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate
from mirage.search.versions import VersionTuner
from mirage.verify.equivalence import Verifier


def tune_for_processor(
    verifier: Verifier,
    anchors: Sequence[Mapping[str, int]],
    target: Target,
    graphs: Sequence[Candidate],
    preferred: Sequence[Candidate],
    stats: SearchStats,
    seconds: dict[str, float],
    *,
    found: int,
    cache_hit: bool,
    budget: float,
    haste: bool,
    grace: float,
    seed: int,
    memory: CpuMemory | None,
    constants: tuple[str, ...] = (),
    progress: Callable[[str], None],
) -> Superoptimized:
    """The result for this machine: as it was kept in `memory`, or with the `preferred` ones of the verified graphs compiled and
    measured within `budget` seconds and kept there.

    `haste` is whether the search was interrupted; `grace` are the seconds that the first kernel may take beyond the budget.
    `constants` are inputs whose contents never change: packed copies of them compete. `stats` and `seconds` (per phase) are
    those of the search, which found so many graphs before verification. Raises KeyboardInterrupt for another interrupt in haste.
    """
    program = verifier.program
    made = partial(
        Superoptimized, program=program, verifier=verifier, anchors=[dict(a) for a in anchors], target=target,
        threads=target.cores, stats=stats, seconds=seconds, candidates=found, constants=constants, cache_hit=cache_hit,
    )  # fmt: skip
    recalled = memory.tuned(verifier, anchors, graphs) if memory is not None and cache_hit else None
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
        grace=math.inf if haste else grace, constants=constants, progress=progress,
    )  # fmt: skip
    tuned, decision = tuner.run(preferred)
    if haste and tuned.stop_reason == INTERRUPTED:
        raise KeyboardInterrupt
    seconds["tune"] = time.perf_counter() - start
    answer = made(
        graphs=tuned.candidates, baselines=tuned.baselines, decision=decision, compiled=tuned.compiled,
        rejected=tuned.rejected, tune_stop=tuned.stop_reason, library=library,
    )  # fmt: skip
    if memory is not None and tuned.stop_reason != INTERRUPTED:
        memory.keep_tuned(anchors, replace(tuned, candidates=answer.graphs), answer.decision)
    return answer
