"""Schedules say what they lack, and kernels that split one axis agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage.errors import FormatError, ScheduleError
from mirage.ir.codec import decode, encode
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.mugraph.graphs import flash_decoding, gated, library
from tests.mugraph.split import SPLIT_SIZES, twice_split


def test_the_shared_cases_fit() -> None:
    for case in (flash_decoding(), gated(), library(), twice_split()):
        case.schedule.check(case.graph)
        assert decode(Schedule, encode(case.schedule), "schedule") == case.schedule


def test_one_schedule_for_each_graph_defined_kernel() -> None:
    case = library()
    with pytest.raises(ScheduleError, match="schedule has 1 kernels, the muGraph 0"):
        Schedule((KernelSchedule(),)).check(case.graph)
    case = flash_decoding()
    with pytest.raises(ScheduleError, match="schedule has 1 kernels, the muGraph 2"):
        Schedule(case.schedule.kernels[:1]).check(case.graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": ()}, r"kernel 0: axis t \(split\) needs a positive number of splits, got None"),
        ({"splits": (("t", 0),)}, r"kernel 0: axis t \(split\) needs a positive number of splits, got 0"),
        ({"splits": (("t", 10**6),)}, "kernel 0: axis t is split 1000000 times; split it 4096 times at most"),
        (
            {"tiles": (("b", 1), ("h", 1), ("s", 2), ("t", 1 << 62))},
            "kernel 0: axis t has tiles of 4611686018427387904; make them 1099511627776 at most",
        ),
        ({"tiles": (("b", 1), ("h", 1), ("s", 2))}, r"kernel 0: axis t \(split\) needs a positive tile, got None"),
        ({"lanes": 0}, "kernel 0: lanes=0 must be positive"),
    ],
)
def test_sizes_that_are_missing_or_impossible(change: dict[str, object], message: str) -> None:
    case = flash_decoding()
    first, second = case.schedule.kernels
    with pytest.raises(ScheduleError, match=message):
        Schedule((replace(first, **change), second)).check(case.graph)  # type: ignore[arg-type]


def test_kernels_that_split_one_axis_agree() -> None:
    case = twice_split()
    first, second, last = case.schedule.kernels
    assert case.schedule.axis_sizes(case.graph, SPLIT_SIZES)["k.grid"] == first.split["k"] == second.split["k"] == 3
    other = replace(second, splits=(("k", 2),))
    with pytest.raises(ScheduleError, match="kernel 1: axis k is split 2 times, but 3 times in kernel 0"):
        Schedule((first, other, last)).check(case.graph)
    # nor may a kernel that does not split the axis say so
    stray = replace(last, splits=(("k", 5),))
    with pytest.raises(ScheduleError, match="kernel 2: axis k is split 5 times, but 3 times in kernel 0"):
        Schedule((first, second, stray)).check(case.graph)


WRONG: list[object] = [
    None,
    [],
    {"kernels": [[]]},
    {"kernels": [{"lanes": True}]},
    {"kernels": [{"tiles": {"m": 4}}]},
    {"kernels": [{"tiles": [["m", 4.0]]}]},
    {"kernels": [{"padded": 1}]},
    {"kernels": [{"padded": None}]},
    {"kernels": [{"more": 1}]},
    *({"kernels": [{"packed": x}]} for x in (3, {"w": 1}, [1], [["1", "n"]], [[1, 2]], [[True, "n"]], [[1, "n", 3]])),
    *({"kernels": [{"last": x}]} for x in ([["h", 0]], None)),
    *({"kernels": [{"vectors": x}]} for x in ([["m", 1]], {"1": "m"})),
    *({"kernels": [{"layouts": x}]} for x in ([[1, "m"]], [{"node": True}], [{"node": 1, "last": 2}], None)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_only_what_is_written_is_read(wrong: object) -> None:
    with pytest.raises(FormatError, match="schedule"):
        decode(Schedule, wrong, "schedule")


def test_decisions_that_were_not_made_are_left_out() -> None:
    schedule = gated().schedule
    (kernel,) = encode(schedule)["kernels"]
    assert set(kernel) <= {"tiles", "splits", "lanes"}
    assert decode(Schedule, {"kernels": [kernel]}, "schedule") == schedule
