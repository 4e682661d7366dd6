"""Schedules for CUDA: their checks, and their JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import mirage as mi
from mirage.errors import FormatError, ScheduleError
from mirage.ir.codec import decode, encode
from mirage.ir.dims import to_dim
from mirage.kernels.cuda.library.libraries import LIBRARIES
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule, next_power
from tests.kernels.kernels import single_kernel
from tests.mugraph.graphs import flash_decoding, gated

GATED = CudaKernelSchedule((("m", 16), ("n", 64), ("k", 32)), num_warps=8, num_stages=2, order=("n", "m"))


def test_json_is_read_back() -> None:
    other = replace(GATED, splits=(("k", 3),), rooms=(("t", 128),), dot=False, swap=True)
    more = replace(
        GATED, group=8, descriptors=(0, 3), packed=((1, "k"), (2, "n")), layouts=((0, "m"),)
    )
    schedule = CudaSchedule((GATED, other, more))
    assert decode(CudaSchedule, encode(schedule), "schedule") == schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiles": {"m": 16}}, "tiles: expected an array"),
        ({"tiles": [["m", 16.0]]}, r"tiles\[0\]\[1\]: expected an integer"),
        ({"num_warps": True}, "num_warps: expected an integer"),
        ({"order": [1]}, r"order\[0\]: expected a text"),
        ({"lanes": 4}, "expected an object of tiles"),
        ({"group": 2.0}, "group: expected an integer"),
        ({"descriptors": ["x"]}, r"descriptors\[0\]: expected an integer"),
        ({"packed": [[1]]}, r"packed\[0\]: expected an array of 2"),
        ({"layouts": [["m", 0]]}, r"layouts\[0\]\[0\]: expected an integer"),
    ],
)
def test_other_json_is_refused(change: dict[str, Any], message: str) -> None:
    whole = encode(CudaSchedule((GATED,)))
    (kernel,) = whole["kernels"]
    with pytest.raises(FormatError, match=message):
        decode(CudaSchedule, {**whole, "kernels": [{**kernel, **change}]}, "schedule")
    with pytest.raises(FormatError, match="expected an object of kernels"):
        decode(CudaSchedule, kernel, "schedule")


def test_libraries_of_predefined_operators() -> None:
    for name in LIBRARIES:
        schedule = CudaSchedule((GATED,), name)
        assert decode(CudaSchedule, encode(schedule), "schedule") == schedule
        assert schedule.without_descriptors.library == name
    with pytest.raises(FormatError, match="is none of cublaslt, cutlass"):
        decode(CudaSchedule, encode(schedule) | {"library": "cudnn"}, "schedule")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_warps": 3}, "num_warps is 3"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"order": ("n",)}, "order n does not name the grid axes m, n"),
        ({"rooms": (("k", 48),)}, "axis k has a tile or room of 48"),
        ({"tiles": (("m", 16), ("n", 64))}, "axis k .* needs a positive tile"),
        ({"group": 0}, "group is 0; use 1 to 64"),
        ({"descriptors": (3, 0)}, "must be increasing numbers of its 3 operands and then its 1 results"),
        ({"descriptors": (4,)}, "must be increasing numbers"),
        ({"packed": ((0, "k"), (0, "m"))}, "layouts must be of different operands, of which it has 3"),
        ({"packed": ((3, "k"),)}, "layouts must be of different operands"),
        ({"packed": ((1, "m"),)}, "operand 1 is packed along m, which it does not have"),
        ({"layouts": ((1, "m"),)}, "layouts must be of different results, of which it has 1"),
        ({"layouts": ((0, "m"),)}, "result 0 is one of the program, which has its order of axes"),
    ],
)
def test_impossible_schedules_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        CudaSchedule((replace(GATED, **change),)).check(gated().graph)


def test_layouts_are_of_inputs_and_of_what_kernels_share() -> None:
    case = flash_decoding()
    first = CudaKernelSchedule((("b", 1), ("h", 1), ("s", 1), ("t", 16)), (("t", 4),))
    second = CudaKernelSchedule((("b", 1), ("h", 1), ("d8", 1), ("s", 1), ("d64_2", 64)))
    turned = replace(first, layouts=((0, "s"), (1, "b")), packed=((1, "t"),))
    CudaSchedule((turned, second)).check(case.graph)
    with pytest.raises(ScheduleError, match="axis q is to be the innermost of result 0, which lacks it"):
        CudaSchedule((replace(first, layouts=((0, "q"),)), second)).check(case.graph)
    with pytest.raises(ScheduleError, match="operand 0 is computed by another kernel; pack inputs only"):
        CudaSchedule((first, replace(second, packed=((0, "s"),)))).check(case.graph)


def test_groups_of_tiles_need_two_axes() -> None:
    program = mi.trace(lambda x: mi.softmax(x), x=mi.tensor("m", "n"))
    graph = single_kernel(program)
    schedule = CudaSchedule((CudaKernelSchedule((("m", 1),), rooms=(("n", 64),), group=2),))
    with pytest.raises(ScheduleError, match="tiles of 2 rows are a group, but the grid has one axis"):
        schedule.check(graph)


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
