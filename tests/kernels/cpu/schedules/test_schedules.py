"""Candidate schedules: valid, within the cache, enough cells for the threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest

from mirage.kernels.cpu.schedules.scheduler import default_schedule, schedules, scratch_bytes
from mirage.mugraph.graph import Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.cpu.check import check
from tests.kernels.kernels import cut
from tests.mugraph.graphs import Case, flash_attention, flash_decoding, gated, joined, library
from tests.mugraph.split import twice_split
from tests.programs import axes, program

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


def test_kernels_that_split_one_axis_split_it_alike() -> None:
    case = twice_split()
    hints = {"m": 4, "n": 8, "k": 100_000}
    found = schedules(case.graph, hints, 1 << 20, 4)
    assert len(found) > 1
    for s in found:
        s.check(case.graph)
        assert s.kernels[0].split["k"] == s.kernels[1].split["k"]
    assert len({s.kernels[0].split["k"] for s in found}) > 1 and found[0].kernels[0].split["k"] >= 4
    # more parts than there are elements too
    for s in found:
        for k in (1, 2, 7, 33):
            check(case.program, case.graph, s, {"m": 3, "n": 5, "k": k})
    check(case.program, case.graph, case.schedule, case.sizes)


def test_predefined_operators_between_kernels_have_no_schedule() -> None:
    p = program("adapter_mlp")
    parts = [i for i, n in enumerate(axes("adapter_mlp").nodes) if n.op not in ("input", "matmul", "constant", "size")]
    graph = cut(p, *((i,) for i in parts))
    sizes = {"b": 7}
    found = schedules(graph, sizes, 1 << 20, 2)
    assert len(graph.kernels) == len(parts) > 1 and graph.kernel.nodes[-2].op == "matmul"
    assert all(len(s.kernels) == len(parts) and len(scratch_bytes(graph, s, sizes)) == len(parts) for s in found)
    check(p, graph, found[0], sizes)


def test_a_graph_without_graph_defined_kernels_has_one_empty_schedule() -> None:
    case = library()
    assert schedules(case.graph, HINTS["gated"], 1 << 20, 2) == [Schedule(())]
    assert scratch_bytes(case.graph, Schedule(()), HINTS["gated"]) == []


def test_scratch_counts_the_parts_that_earlier_kernels_leave() -> None:
    """What the last kernel holds grows with the number of parts only where it stores them."""
    case = flash_decoding()
    hints = HINTS["flash_decoding"]
    first, second = default_schedule(case.graph, hints, 1 << 20).kernels

    def used(splits: int) -> int:
        return scratch_bytes(case.graph, Schedule((replace(first, splits=(("t", splits),)), second)), hints)[1]

    assert used(64) > used(1)
