"""The last step of a superoptimization for a CUDA device: verified graphs become ranked and compiled versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from mirage.kernels.cuda.device import CudaDevice
from mirage.results.cuda.recall import CudaMemory
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.results.verified import Verified
from mirage.search.cuda.gemms import library_candidate, why_none
from mirage.search.cuda.rank import Ranker
from mirage.search.cuda.versions import CudaDecision


def rank_for_device(
    search: Verified,
    device: CudaDevice,
    *,
    budget: float,
    memory: CudaMemory | None,
    progress: Callable[[str], None],
) -> CudaSuperoptimized:
    """The result for a device: as it was kept in `memory`, or with the preferred ones of the verified graphs compiled and
    ranked within `budget` seconds and kept there.

    Raises NoCompilerError without Triton, SearchError if no graph compiles for the device.
    """
    verifier, anchors, graphs, preferred = search.verifier, search.anchors, search.graphs, search.preferred

    def keep(decision: CudaDecision, stop_reason: str = "") -> None:
        if memory is not None:
            memory.keep_ranked(anchors, decision, stop_reason)

    made = partial(
        CudaSuperoptimized, program=verifier.program, verifier=verifier, anchors=[dict(a) for a in anchors], device=device,
        stats=search.stats, seconds=search.seconds, candidates=search.found, constants=search.constants, keep=keep,
    )  # fmt: skip
    recalled = memory.ranked(verifier, anchors, graphs) if memory is not None and search.cache_hit else None
    if recalled is not None:
        candidates, decision = recalled
        return made(graphs=candidates, decision=decision, cache_hit=True, tune_stop="from the cache")
    start = time.perf_counter()
    if not why_none(verifier.program) and (library := library_candidate(verifier, graphs)) is not None:
        preferred, graphs = [*preferred, library], [*graphs, library]
    ranker = Ranker(verifier.program, anchors, device, budget=budget, constants=search.constants, progress=progress)
    ranked = ranker.run(preferred)
    search.seconds["tune"] = time.perf_counter() - start
    answer = made(
        graphs=list(graphs), decision=ranked.decision, cache_hit=search.cache_hit, compiled=ranked.compiled,
        rejected=ranked.rejected, tune_stop=ranked.stop_reason,
    )  # fmt: skip
    if not answer.interrupted:
        keep(answer.decision, ranked.stop_reason)
    return answer
