"""What tests of whole programs for CUDA share: a device that is not there, small programs, their checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.gpu.interpret.interpreter import Interpreter
from benchmarks.graphs.programs import GraphProgram
from tests.kernels.cuda.strict_lab import StrictLab

TARGET = "cuda:sm_90"
#: without a search, so that a test takes a second
QUICK: dict[str, Any] = {"without": ("superoptimize",), "target": TARGET}


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Triton's interpreter, in one process for all tests."""
    with Interpreter() as found:
        yield found


def compiled(p: GraphProgram, **options: Any) -> mi.Executable:
    return mi.compile(p.fn, p.specs, bounds=p.bounds, constants=p.constants, **{**QUICK, **options})


def placed(lab: StrictLab, arguments: list[Any]) -> list[Any]:
    return [lab.cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]


def tupled(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def check(
    lab: StrictLab,
    executable: mi.Executable,
    p: GraphProgram,
    count: int,
    calls: int = 1,
    seed: int = 0,
    tolerance: float = 3e-4,
) -> None:
    """Results at random sizes against float64, of as many equal calls at each."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sizes = p.random_sizes(rng)
        arguments = p.arguments(sizes, rng)
        want = p.expected([a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
        given = placed(lab, arguments)
        for _ in range(1 if p.written else calls):
            got = tupled(executable(*given))
            for g, w in zip(got, want, strict=True):
                assert isinstance(g, lab.cupy.ndarray)
                found = lab.cupy.asnumpy(g)
                scale = np.abs(w).max(initial=0) + 1e-3
                assert found.shape == w.shape and np.abs(found - w).max(initial=0) < tolerance * scale, (p.name, sizes)


SCALED = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 8)}


def scaled(x: Any, w: Any) -> Any:
    return mi.softmax(mi.exp(x) @ w), x


def numbers(lab: StrictLab, *shape: int, seed: int = 0) -> Any:
    return lab.cupy.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def softmax(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    e = np.exp(np.exp(x.astype(np.float64)) @ w)
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def executable(strict: StrictLab) -> mi.Executable:
    return mi.compile(scaled, SCALED, bounds={"n": 16}, **QUICK)
