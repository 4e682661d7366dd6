"""Which of some kernels that are close with warm caches to choose, as not every call finds these warm.

A layer of a model meets its weights in memory, a loop over one kernel meets them in the caches. Kernels that are equally fast in
the second case may differ by a third in the first, where one of them has tensors between its operators.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from mirage.kernels.cpu.launch.cold import ColdCall, can_flush, flush
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.profile import interleave, score, wall_ns

#: what is no more than this much slower than the fastest is close, and so many are compared
CLOSE, RIVALS = 1.2, 6
#: bytes of the arguments from which on a call waits for memory longer than for anything else
LEAST_BYTES = 64 << 10
#: seconds that a comparison takes at most, and those that it is not begun without
SECONDS, LEAST_SECONDS = 0.5, 0.1


def in_both_states(
    times: Mapping[str, float],
    kernels: Mapping[str, CpuExecutable],
    inputs: Sequence[np.ndarray],
    sizes: Mapping[str, int],
    cache_bytes: int,
    seconds: float,
) -> dict[str, float]:
    """The times (us, with warm caches) of the fastest kernels, multiplied by the square root of how much slower than the fastest
    each is while no cache holds its arrays: in this order, the geometric means of both times are.

    Empty where there is nothing to choose: no caches that hold the arguments, none that can be flushed, kernels that are not
    close, that call a library (whose threads spin), or are slower than something else in `times`, or no time for it.
    """
    moved = sum(a.nbytes for a in inputs)
    least = min(times.values(), default=math.inf)
    close = [n for n in times if n in kernels and times[n] <= CLOSE * least and not kernels[n].calls_library]
    close = sorted(close, key=times.__getitem__)[:RIVALS]
    if len(close) < 2 or times[close[0]] > least or not LEAST_BYTES <= moved <= cache_bytes:
        return {}
    end = time.perf_counter() + min(seconds, SECONDS)
    # what flushes is compiled when it is first asked for
    if seconds < LEAST_SECONDS or not can_flush() or (left := end - time.perf_counter()) <= 0:
        return {}
    # every call is preceded by this, for the arguments and what is packed of them, in two rounds at least
    flushed = sum(wall_ns(partial(flush, a)) for a in inputs) * 1e-9
    close = close[: math.floor(left / max(4 * flushed, 1e-9))]
    if len(close) < 2:
        return {}
    calls = {name: ColdCall(kernels[name], inputs, sizes) for name in close}
    # the least number of rounds may take twice as long
    found = interleave(calls, seconds=left / 2, measure=ColdCall.nanoseconds, clear=True)
    fastest = score(found[close[0]])
    return {name: times[name] * math.sqrt(score(t) / fastest) for name, t in found.items()}
