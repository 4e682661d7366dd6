"""Which of several kernels of one program runs: the one that is measured to be the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.kernels.profile import interleave, score
from mirage.search.accuracy import random_inputs


def fastest(
    program: Program, kernels: Mapping[str, MuGraphKernel], anchors: Sequence[Mapping[str, int]], seconds: float
) -> str:
    """The name of the kernel that takes the least time at these sizes (dim symbol -> elements), in the geometric mean, by races
    of so many seconds together.
    """
    logarithms = dict.fromkeys(kernels, 0.0)
    for sizes in anchors:
        inputs = random_inputs(program, sizes, 0)
        outs = [np.empty(t.bind(sizes), DTYPES[t.dtype]) for t in program.output_types]
        runs = {name: partial(kernel, inputs, sizes, outs) for name, kernel in kernels.items()}
        timings = interleave(runs, seconds=seconds / len(anchors), min_runs=3, spinning=list(kernels), clear=True)
        for name, t in timings.items():
            logarithms[name] += math.log(score(t))
    for kernel in kernels.values():
        kernel.forget()
    return min(logarithms, key=logarithms.__getitem__)
