"""Schedules for CUDA: their checks, and their JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirage.errors import FormatError, ScheduleError
from mirage.ir.dims import to_dim
from mirage.kernels.cuda.cutlass_gemm import configs
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.schedule import CudaKernelSchedule, CudaSchedule, next_power
from tests.mugraph.graphs import flash_decoding, gated

GATED = CudaKernelSchedule((("m", 16), ("n", 64), ("k", 32)), num_warps=8, num_stages=2, order=("n", "m"))


def test_json_is_read_back() -> None:
    schedule = CudaSchedule((GATED, replace(GATED, splits=(("k", 3),), rooms=(("t", 128),), dot=False, swap=True)))
    assert CudaSchedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiles": [["m", 16]]}, "tiles must be of type dict"),
        ({"tiles": {"m": 16.0}}, "tiles must map axis names to integers"),
        ({"num_warps": True}, "num_warps must be of type int"),
        ({"order": [1]}, "order must list axis names"),
        ({"lanes": 4}, "expected an object with"),
    ],
)
def test_other_json_is_refused(change: dict[str, Any], message: str) -> None:
    whole = CudaSchedule((GATED,)).to_json()
    (kernel,) = whole["kernels"]
    with pytest.raises(FormatError, match=message):
        CudaSchedule.from_json({**whole, "kernels": [{**kernel, **change}]})
    with pytest.raises(FormatError, match="expected a list"):
        CudaSchedule.from_json(kernel)


def test_configurations_of_predefined_products() -> None:
    for config in configs(DEVICES["sm_90"]):
        schedule = CudaSchedule((GATED,), config)
        assert CudaSchedule.from_json(schedule.to_json()) == schedule
        assert schedule.without_descriptors.gemm == config
    other = schedule.to_json() | {"gemm": {**config.to_json(), "stages": 100}}
    with pytest.raises(FormatError, match="there is no configuration"):
        CudaSchedule.from_json(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_warps": 3}, "num_warps is 3"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"order": ("n",)}, "order n does not name the grid axes m, n"),
        ({"rooms": (("k", 48),)}, "axis k has a tile or room of 48"),
        ({"tiles": (("m", 16), ("n", 64))}, "axis k .* needs a positive tile"),
    ],
)
def test_impossible_schedules_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        CudaSchedule((replace(GATED, **change),)).check(gated().graph)


def test_kernels_of_one_split_agree() -> None:
    case = flash_decoding()
    first = CudaKernelSchedule((("b", 1), ("h", 1), ("s", 1), ("t", 16)), (("t", 0),))
    second = CudaKernelSchedule((("b", 1), ("h", 1), ("d8", 1), ("s", 1), ("d64_2", 64)))
    with pytest.raises(ScheduleError, match="number of splits"):
        CudaSchedule((first, second)).check(case.graph)


def test_extents_of_literal_axes_are_no_larger_than_needed() -> None:
    graph = gated().graph.kernels[0].graph
    assert graph is not None
    assert GATED.extent(graph, "n", to_dim(20)) == 32
    assert GATED.extent(graph, "n", to_dim("n")) == 64
    assert [next_power(n) for n in (0, 1, 2, 3, 4, 5)] == [1, 1, 2, 4, 4, 8]


def test_order_of_blocks() -> None:
    graph = gated().graph.kernels[0].graph
    assert graph is not None
    assert GATED.grid(graph) == ("n", "m")
    assert replace(GATED, order=()).grid(graph) == ("m", "n")
