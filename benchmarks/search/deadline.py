"""One superoptimization, the seconds of which `benchmarks.search.anytime` measures from the start of this process on.

It imports what a user's program would, and no more.
"""

from __future__ import annotations

import json
import sys
import time

import mirage as mi
from benchmarks.programs import PROGRAMS

#: what a line of progress says once a kernel was measured, and once there is a graph
KERNEL, GRAPH = "the fastest takes", " graphs"


def run(begun: float, result: str, name: str, budget: float) -> None:
    """Superoptimize in this process, which began at `begun` (`time.time()`), save the result and print when what was there."""
    seen: dict[str, float] = {}

    def say(line: str) -> None:
        for what in (GRAPH, KERNEL):
            if what in line:
                seen.setdefault(what, time.time() - begun)

    program = PROGRAMS.get(name) or _large(name)
    # the deadline counts from the call on, after the import
    superoptimize = mi.superoptimize
    start = time.perf_counter()
    found = superoptimize(program, budget=budget, progress=say)
    seconds = time.perf_counter() - start
    found.save(result)
    print(json.dumps([seen.get(GRAPH), seen.get(KERNEL), seconds]))


def _large(name: str) -> mi.TensorFunction:
    from benchmarks.large import LARGE

    return LARGE[name]


if __name__ == "__main__":
    run(float(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
