"""Which predefined operators CUTLASS kernels compute, and how long that takes by the model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.gemm.gemm import Gemm, GemmConfig, configs
from mirage.kernels.cuda.gemm.model import PredefinedGemms, gemm_us
from mirage.kernels.cuda.model.cost import floor_us
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from tests.kernels.cuda.gemm.cases import ALL_OPERANDS, PLAIN

H200 = DEVICES["sm_90"]
GEMM = Gemm("float16", "float16", True, False, PLAIN, configs(H200)[0])


def _best(rows: int, columns: int = 4096, depth: int = 4096) -> GemmConfig:
    return min(configs(H200), key=lambda c: gemm_us(H200, replace(GEMM, config=c), (1, rows, columns, depth)))


def test_configurations_by_rows() -> None:
    """Few rows have many blocks of few columns, many rows the tiles of wgmma."""
    assert [_best(b).tile[0] for b in (1, 8)] == [16, 16]
    assert _best(512).wgmma and _best(4096).wgmma and _best(4096).tile[0] == 128


@pytest.mark.parametrize("config", configs(H200), ids=str)
def test_no_time_is_less_than_the_floor(config: GemmConfig) -> None:
    gemm = replace(GEMM, config=config)
    for b, m, n, k in ((1, 1, 4096, 4096), (4, 512, 512, 64), (1, 8192, 8192, 8192)):
        moved, flops = 2 * b * (m * k + k * n + m * n), 2 * b * m * n * k
        us = gemm_us(H200, gemm, (b, m, n, k))
        assert floor_us(H200, moved, flops, "float16") < us < math.inf
        assert gemm_us(H200, replace(gemm, epilogue=ALL_OPERANDS), (b, m, n, k)) > us


def test_a_block_that_does_not_fit() -> None:
    assert (
        gemm_us(H200, replace(GEMM, config=GemmConfig((256, 256, 64), 8, (2, 1), wgmma=True)), (1, 8, 8, 8)) == math.inf
    )


def _predefined(make: Any, **inputs: tuple[Any, ...]) -> PredefinedGemms:
    program = mi.program(**{k: mi.tensor(*v, dtype="float16") for k, v in inputs.items()})(make).trace()
    graph = reference_graph(to_axes(program))
    emitted = emit(graph, CudaSchedule((), configs(H200)[0]), analyze(graph))
    return PredefinedGemms(graph, emitted, analyze(graph), H200)


def test_a_gate_is_two_kernels() -> None:
    found = _predefined(lambda x, w, v: mi.silu(x @ w) * (x @ v), x=("b", 64), w=(64, "n"), v=(64, "n"))
    assert found.is_complete and len(found.steps) == len(found.gemms) == 2
    sizes = {"b": 8, "n": 128}
    assert found.us(sizes) == sum(gemm_us(H200, g, (1, 8, 128, 64)) for g in found.gemms)
    assert found.us({"b": 8, "n": 9}) == math.inf, "which no kernel takes"


def test_what_is_left_to_other_calls() -> None:
    found = _predefined(lambda x, w: mi.softmax(x @ w), x=("b", 64), w=(64, "n"))
    assert not found.is_complete and len(found.gemms) == 1
    assert found.us({"b": 8, "n": 128}) > gemm_us(H200, found.gemms[0], (1, 8, 128, 64))
