"""The threads that programs of torch run on: torch's own, for its operators and our kernels alike.

Between two of its operators its threads stay awake, and keep those of another pool from the processors: a decoding step of a
small GPT-2 on two cores took 20 to 150 ms instead of 13. Other kernels keep their own threads, which wait for nobody whom a busy
machine does not let run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mirage.kernels.cpu.launch.pool import library, openmp_address

#: changes what runs kernels of this thread, by its address, None for their own threads; gives what did before
Use = Callable[[Any], Any]


@functools.cache
def torch_threads() -> tuple[Use, int | None]:
    """What changes threads, and the address of torch's: None where its OpenMP runtime has another interface."""
    paths = sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
    return library().mi_pool_use, next((a for p in paths if (a := openmp_address(p)) is not None), None)


@contextmanager
def on_torch_threads() -> Iterator[None]:
    """Run kernels of this thread on those of torch."""
    use, torchs = torch_threads()
    before = use(torchs)
    try:
        yield
    finally:
        use(before)
