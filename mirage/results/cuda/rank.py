"""The last step of a superoptimization for a CUDA device: verified graphs become ranked and compiled versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mirage.kernels.cuda.device import CudaDevice
from mirage.results.cuda.recall import CudaMemory
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.cuda.gemms import library_candidate, why_none
from mirage.search.cuda.rank import Ranker
from mirage.search.cuda.versions import CudaDecision
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate
from mirage.verify.equivalence import Verifier


def rank_for_device(
    verifier: Verifier,
    anchors: Sequence[Mapping[str, int]],
    device: CudaDevice,
    graphs: Sequence[Candidate],
    preferred: Sequence[Candidate],
    stats: SearchStats,
    seconds: dict[str, float],
    *,
    found: int,
    cache_hit: bool,
    budget: float,
    memory: CudaMemory | None,
    constants: tuple[str, ...] = (),
    progress: Callable[[str], None],
) -> CudaSuperoptimized:
    """The result for a device: as it was kept in `memory`, or with the `preferred` ones of the verified graphs compiled and
    ranked within `budget` seconds and kept there.

    `constants` are inputs whose contents never change: packed copies of them compete. `stats` and `seconds` (per phase) are
    those of the search, which found so many graphs before verification. Raises
    NoCompilerError without Triton, SearchError if no graph compiles for the device.
    """

    def keep(decision: CudaDecision, stop_reason: str = "") -> None:
        if memory is not None:
            memory.keep_ranked(anchors, decision, stop_reason)

    made = partial(
        CudaSuperoptimized, program=verifier.program, verifier=verifier, anchors=[dict(a) for a in anchors], device=device,
        stats=stats, seconds=seconds, candidates=found, constants=constants, keep=keep,
    )  # fmt: skip
    recalled = memory.ranked(verifier, anchors, graphs) if memory is not None and cache_hit else None
    if recalled is not None:
        candidates, decision = recalled
        return made(graphs=candidates, decision=decision, cache_hit=True, tune_stop="from the cache")
    start = time.perf_counter()
    if not why_none(verifier.program) and (library := library_candidate(verifier, graphs)) is not None:
        preferred, graphs = [*preferred, library], [*graphs, library]
    ranked = Ranker(verifier.program, anchors, device, budget=budget, constants=constants, progress=progress).run(preferred)
    seconds["tune"] = time.perf_counter() - start
    answer = made(
        graphs=list(graphs), decision=ranked.decision, cache_hit=cache_hit, compiled=ranked.compiled, rejected=ranked.rejected,
        tune_stop=ranked.stop_reason,
    )  # fmt: skip
    if not answer.interrupted:
        keep(answer.decision, ranked.stop_reason)
    return answer
