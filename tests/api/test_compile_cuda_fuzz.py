"""Random graphs compiled for CUDA, on a device that is not there, against the reference interpreter."""

from __future__ import annotations

from typing import Any

import pytest

import mirage as mi
from tests.api.cuda_programs import interpreter
from tests.kernels.cuda.strict_lab import StrictLab, strict
from tests.random_graphs import assert_close, random_case

__all__ = ["interpreter", "strict"]

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")

#: what is left out, by the seed's remainder: with fused kernels, and with every operator by CuPy
LEFT_OUT = (("superoptimize",), ("superoptimize",), ("superoptimize", "libraries", "fuse"))
#: elements of all arguments together, which the interpreter has to get through
MOST_ELEMENTS = 6000


def on_host(value: Any) -> Any:
    return tuple(map(on_host, value)) if isinstance(value, tuple) else value.get() if hasattr(value, "get") else value


def check(lab: StrictLab, seeds: range) -> None:
    """Three equal calls of each: of which a recorded graph may do the last two."""
    for seed in seeds:
        case = random_case(seed)
        if sum(a.size for a in case.args) > MOST_ELEMENTS:
            continue
        executable = mi.compile(case.module, without=LEFT_OUT[seed % 3], target="cuda:sm_90", cache=False)
        given = [lab.cupy.asarray(a) for a in case.copies()]
        for _ in range(3):
            for to, a in zip(given, case.args, strict=True):
                to[...] = lab.cupy.asarray(a)
            assert_close(case, on_host(executable(*given)), [a.get() for a in given])


@pytest.mark.parametrize("first", [0, 4])
def test_random_graphs(strict: StrictLab, first: int) -> None:
    check(strict, range(first, first + 4))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 20))
def test_many_random_graphs(strict: StrictLab, first: int) -> None:
    check(strict, range(first, first + 20))
