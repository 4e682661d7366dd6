"""The threads that programs of torch run on: torch's own, for its operators and our kernels alike."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from mirage.kernels.cpu.launch.pool import use_openmp


@functools.cache
def share_threads() -> bool:
    """Run our kernels on the threads of torch's OpenMP runtime, if it has one.

    Between two of its operators its threads stay awake, and keep those of another pool from the processors: a decoding step of a
    small GPT-2 on two cores took 20 to 150 ms instead of 13.
    """
    libraries = Path(torch.__file__).parent / "lib"
    return any(use_openmp(path) for path in sorted(libraries.glob("libtorch_cpu.*")))
