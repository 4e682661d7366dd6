"""Emitted kernels compiled ahead of time, without a GPU: they fit registers, and use the tensor cores of the architecture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage.kernels.cuda.compile.functions import compile_triton
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import cuda_device
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from tests.mugraph.graphs import CASES, Case
from tests.mugraph.loops import CASES as LOOPS
from tests.sampled import crossed

pytest.importorskip("triton", reason="Triton compiles the kernels: pip install 'triton>=3.5'")

K = CudaKernelSchedule
ATTENTION = {"b": 1, "h": 8, "s": 128, "t": 4096}
SCHEDULES = {
    "flash_attention": ((K((("b", 1), ("h", 1), ("s", 16), ("t", 64)), num_warps=8, num_stages=2),), ATTENTION),
    "flash_decoding": (
        (
            K((("b", 1), ("h", 1), ("s", 2), ("t", 64)), (("t", 16),)),
            K((("b", 1), ("h", 1), ("d8", 1), ("s", 1), ("d64_2", 64))),
        ),
        ATTENTION,
    ),
    "gated": ((K((("m", 64), ("n", 64), ("k", 64))),), {"m": 256, "n": 4096, "k": 4096}),
    "shares_after": (
        (K((("m", 1), ("t", 64)), (("t", 4),), (("t", 1024),)), K((("m", 1), ("t", 64)))),
        {"m": 8, "t": 4096},
    ),
}
GATED = {"m": 16, "n": 4096, "k": 4096}


def compiled(
    case: Case, schedule: CudaSchedule, sizes: dict[str, int], target: str, dtype: str = "float16"
) -> tuple[CompiledKernel, ...]:
    return compile_triton(emit(replace(case.graph, dtype=dtype), schedule), cuda_device(target), sizes)


@pytest.mark.parametrize(
    ("name", "target"), crossed([n for n in SCHEDULES if n != "shares_after"], ["cuda:sm_80", "cuda:sm_90"])
)
def test_kernels_keep_to_registers(name: str, target: str) -> None:
    kernels, sizes = SCHEDULES[name]
    for k in compiled(CASES[name](), CudaSchedule(kernels), sizes, target):
        assert not k.spill_bytes


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("name", ("flash_attention", "gated"))
def test_products_of_64_rows_use_wgmma(name: str, dtype: str) -> None:
    kernels, sizes = SCHEDULES[name]
    (found,) = compiled(CASES[name](), CudaSchedule(kernels), sizes, "cuda:sm_90", dtype)
    assert "wgmma.mma_async" in found.ptx


def test_swapped_operands_give_few_rows_wgmma() -> None:
    tiles = (("m", 16), ("n", 64), ("k", 128))
    for swap, expected in ((False, False), (True, True)):
        (found,) = compiled(CASES["gated"](), CudaSchedule((K(tiles, swap=swap),)), GATED, "cuda:sm_90")
        assert ("wgmma.mma_async" in found.ptx) is expected
        assert not found.spill_bytes


def test_sums_along_rows_take_few_registers() -> None:
    """Those of a softmax: 128 rows of queries are rows of the products, or columns, of which a thread has many."""
    tiles = (("b", 1), ("h", 1), ("s", 16), ("t", 64))
    registers = []
    for swap in (False, True):
        schedule = CudaSchedule((K(tiles, num_warps=8, num_stages=2, swap=swap),))
        (found,) = compiled(CASES["flash_attention"](), schedule, ATTENTION, "cuda:sm_90")
        assert "wgmma.mma_async" in found.ptx
        registers.append(found.registers)
    assert 1.3 * registers[0] < registers[1]


def test_sums_of_products_use_no_tensor_cores_and_fetch_ahead() -> None:
    schedule = CudaSchedule((K((("m", 1), ("n", 64), ("k", 64)), dot=False),))
    (found,) = compiled(CASES["gated"](), schedule, {**GATED, "m": 1}, "cuda:sm_90")
    assert "mma" not in found.ptx
    assert "cp.async" in found.ptx
    assert not found.spill_bytes


def test_float32_products_are_not_rounded_to_tf32() -> None:
    (found,) = compiled(
        CASES["gated"](), CudaSchedule((K((("m", 32), ("n", 32), ("k", 32))),)), GATED, "cuda:sm_90", "float32"
    )
    assert "tf32" not in found.ptx


def test_parts_of_split_axes_in_a_block() -> None:
    kernels, sizes = SCHEDULES["shares_after"]
    schedule = CudaSchedule(kernels[: len(LOOPS["shares_after"].graph.kernels)])
    for k in compiled(LOOPS["shares_after"], schedule, sizes, "cuda:sm_90"):
        assert not k.spill_bytes
