"""Candidate schedules: valid, within the cache, enough cells for the threads."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest

from mirage.kernels.cpu.schedules import default_schedule, schedules, scratch_bytes
from mirage.mugraph.graph import Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.kernels import check
from tests.mugraph.graphs import Case, flash_attention, flash_decoding, gated, joined

HINTS = {
    "flash_attention": {"b": 1, "h": 8, "s": 1, "t": 4096},
    "flash_decoding": {"b": 1, "h": 8, "s": 1, "t": 4096},
    "gated": {"m": 8, "n": 1000, "k": 500},
    "joined": {"m": 100, "n": 30, "k": 70},
}


@pytest.mark.parametrize("make", [flash_attention, flash_decoding, gated, joined])
def test_candidates_fit_and_run(make: Callable[[], Case]) -> None:
    case = make()
    hints = HINTS[make.__name__]
    found = schedules(case.graph, hints, 1 << 20, 2)
    assert 1 < len(found) <= 6 and len(set(found)) == len(found)
    assert found == schedules(case.graph, hints, 1 << 20, 2)
    for s in found:
        s.check(case.graph)
        assert max(scratch_bytes(case.graph, s, hints)) <= 1 << 20
    check(case.program, case.graph, default_schedule(case.graph, hints, 1 << 20), case.sizes)


def test_long_reductions_are_split_over_the_threads() -> None:
    case = flash_decoding()
    hints = {"b": 1, "h": 1, "s": 1, "t": 8192}
    schedule = default_schedule(case.graph, hints, 1 << 20, threads=8)
    (graph, _) = (n.graph for n in case.graph.kernels)
    assert graph is not None
    sizes = schedule.axis_sizes(case.graph, hints)
    assert prod(schedule.kernels[0].bounds(graph, a, sizes[a])[0] for a in graph.grid) >= 8


def test_scratch_follows_the_tiles_and_the_padding() -> None:
    case = gated()
    (graph,) = (n.graph for n in case.graph.kernels)
    assert graph is not None and graph.role["k"] is Role.LOOP

    def used(m: int, n: int) -> int:
        schedule = Schedule((KernelSchedule((("m", m), ("n", n), ("k", 4))),))
        (found,) = scratch_bytes(case.graph, schedule, HINTS["gated"])
        return found

    assert used(4, 16) == used(4, 2) == 4 * 16 * 4 * 2  # two accumulators of padded rows
    assert used(8, 17) == 8 * 32 * 4 * 2


def test_where_nothing_fits_the_smallest_is_given() -> None:
    case = gated()
    (only,) = schedules(case.graph, HINTS["gated"], 1, 2)
    only.check(case.graph)
