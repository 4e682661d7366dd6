"""The last step of a superoptimization for a CUDA device: verified graphs become ranked and compiled versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from mirage.kernels.cuda.target import CudaTarget
from mirage.kernels.target import Target
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.results.recall import Chosen, Memory
from mirage.results.result import FROM_CACHE
from mirage.results.work import Work
from mirage.search.decision import Decision
from mirage.search.rank import Ranker, library_candidate

#: shares of the budget: for search and verification, and what ranking has at least
SEARCH_SHARE, LEAST_SHARE = 0.6, 0.1
#: seconds that ranking may take after an interrupt
HASTE_S = 3.0


def rank_for_device(
    work: Work,
    target: Target,
    *,
    budget: float,
    memory: Memory | None,
    more: bool = False,
    progress: Callable[[str], None],
) -> CudaSuperoptimized:
    """The result for a device: as it was kept in `memory`, unless `more` is wanted, or with the preferred ones of the verified
    graphs, as many as are found in `SEARCH_SHARE` of the time, compiled and ranked within `budget` seconds and kept there.

    Raises KeyboardInterrupt for an interrupt before anything was found, NoCompilerError without Triton, SearchError if no graph
    compiles for the device.
    """
    assert isinstance(target, CudaTarget)
    verifier, anchors, source = work.verifier, work.anchors, work.candidates

    def keep(decision: Decision, stop_reason: str = "") -> None:
        if memory is not None:
            graphs = list({id(v.candidate.graph): v.candidate for v in decision.versions if v.candidate}.values())
            chosen = Chosen(decision, graphs, stop_reason, {})
            memory.keep_tuned(anchors, chosen, decision.measured_on, work.stats, work.elapsed())

    made = partial(
        CudaSuperoptimized, program=verifier.program, verifier=verifier, anchors=[dict(a) for a in anchors], device=target.device,
        constants=work.constants, keep=keep,
    )  # fmt: skip
    kept = memory.tuned(anchors, budget) if memory is not None and not more else None
    recalled = kept.value.try_restored(verifier, target, work.constants) if kept is not None else None
    if recalled is not None:
        candidates, decision = recalled
        return made(
            graphs=candidates, decision=decision, stats=work.stats, seconds=work.seconds, candidates=work.stats.candidates,
            cache_hit=True, tune_stop=FROM_CACHE,
        )  # fmt: skip
    cache_hit = source.search is None
    end = time.perf_counter() + budget
    try:
        source.all(SEARCH_SHARE * budget)
    except KeyboardInterrupt:
        source.stop()
        if not source.found:
            raise
    if not source.stopped and memory is not None and not cache_hit:
        memory.keep_graphs(source.found, work.stats, complete=work.complete, spent=work.elapsed())
    work.save()
    start = time.perf_counter()
    graphs, preferred = list(source.found), source.preferred()
    left = HASTE_S if source.stopped else max(end - start, LEAST_SHARE * budget)
    ranker = Ranker(verifier.program, anchors, target, budget=left, constants=work.constants, progress=progress)
    if len(ranker.tuning.libraries) > 1 and (library := library_candidate(verifier, graphs)) is not None:
        preferred, graphs = [*preferred, library], [*graphs, library]
    ranked = ranker.run(preferred)
    answer = made(
        graphs=graphs, decision=ranked.decision, stats=work.stats,
        seconds={**work.seconds, "tune": time.perf_counter() - start}, candidates=work.stats.candidates,
        cache_hit=cache_hit, compiled=ranked.compiled, rejected=ranked.rejected, tune_stop=ranked.stop_reason,
    )  # fmt: skip
    if not answer.interrupted:
        keep(answer.decision, ranked.stop_reason)
    return answer
