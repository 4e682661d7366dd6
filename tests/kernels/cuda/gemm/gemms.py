"""CUTLASS kernels as NumPy computes them, on the memory that their arguments point to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage.ir.types import DTYPES
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.gemm.gemm import Gemm, GemmCall
from mirage.kernels.cuda.gemm.operator import Gemms
from tests.kernels.cuda.gemm.cases import reference


def view(address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The array at an address, with strides in elements."""
    size = DTYPES[dtype].itemsize
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = np.frombuffer(memoryview((ctypes.c_char * (last * size)).from_address(address)), DTYPES[dtype])
    return np.lib.stride_tricks.as_strided(memory, shape, [s * size for s in strides], writeable=True)


def compute(gemm: Gemm, arguments: Sequence[Any], batch: int) -> None:
    """What a kernel does with its arguments, `Gemm.parameters`."""
    given = {name: int(v) for (name, _), v in zip(gemm.parameters(), arguments, strict=True)}
    m, n, k = given["rows"], given["columns"], given["depth"]
    a = view(
        given["a"],
        gemm.dtype,
        (batch, m, k),
        (given["batch_a"], *((given["lda"], 1) if gemm.a_by_depth else (1, given["lda"]))),
    )
    b = view(
        given["b"],
        gemm.dtype,
        (batch, k, n),
        (given["batch_b"], *((1, given["ldb"]) if gemm.b_by_depth else (given["ldb"], 1))),
    )
    d = view(given["d"], gemm.result, (batch, m, n), (given["batch_d"], given["ldd"], 1))
    operands = []
    for i, dtype in enumerate(gemm.epilogue.operands):
        strides = [given[f"{s}_{i}"] for s in ("batch", "row", "column")]
        operands.append(view(given[f"operand_{i}"], dtype, (batch, m, n), strides))
    total = a.astype(np.float64) @ b.astype(np.float64)
    d[...] = reference(gemm.epilogue, total, [o.astype(np.float64) for o in operands])


class MemoryGemms(Gemms):
    """Kernels whose launches NumPy computes; `launched` are the calls."""

    def __init__(self, present: bool = True) -> None:
        super().__init__(DEVICES["sm_90"])
        self.present = present
        self.launched: list[tuple[Gemm, GemmCall]] = []

    def launch(self, gemm: Gemm, call: GemmCall, held: Sequence[Any]) -> bool:
        if self.present:
            assert len(held) == 3 + len(gemm.epilogue.operands)
            self.launched.append((gemm, call))
            compute(gemm, call.arguments(), call.batch)
        return self.present
