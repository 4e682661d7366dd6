"""cuBLASLt's arithmetic and CuPy's functions on NumPy's memory, for tests without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

from mirage.ir.types import DTYPES
from mirage.kernels.cuda.library.cublaslt import CublasLt, Matrix, Problem
from mirage.kernels.cuda.library.program import CupyArrays

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}


class MemoryLt(CublasLt):
    """cuBLASLt's arithmetic, as a problem describes it, on NumPy's memory."""

    def __init__(self) -> None:
        self._cupy = np
        self.asked: list[Problem] = []

    def _run(self, asked: Problem, x: Any, y: Any, d: Any, bias: Any) -> None:
        self.asked.append(asked)
        a, b = (_memory(t, m) for t, m in ((y, asked.a), (x, asked.b)))
        result = np.matmul(*(t.astype(np.float64) for t in (a, b)))
        if bias is not None:
            result = result + bias.astype(np.float64)[:, None]
        _memory(d, asked.d)[...] = np.maximum(result, 0) if asked.relu else result


def _memory(array: np.ndarray, m: Matrix) -> np.ndarray:
    """The matrices that cuBLASLt finds at an array's first element."""
    size = array.itemsize
    strides = (m.stride * size, size, m.ld * size)
    found = np.lib.stride_tricks.as_strided(array, (m.batch, m.rows, m.columns), strides)
    return found.swapaxes(1, 2) if m.transposed else found


class MemoryArrays(CupyArrays):
    """What is called of CuPy, which NumPy has too, and cuBLASLt's products on NumPy's memory."""

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            modules = {"cupy": np, "cupyx.scipy.special": special}
            patch.setattr("mirage.kernels.cuda.library.program.import_module", modules.__getitem__)
            super().__init__()
        self.lt = MemoryLt()
        self.matmul = self.lt.matmul


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(DTYPES[dtype])
