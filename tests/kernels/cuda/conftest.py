"""What the tests of the CUDA backend share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from tests.kernels.cuda.lab import cupy as cupy
from tests.kernels.cuda.lab import lab as lab


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Triton's interpreter, in one process for all tests."""
    pytest.importorskip("triton", reason="the Triton interpreter needs triton: pip install 'triton>=3.5'")
    with Interpreter() as found:
        yield found
