"""The cost model: what it counts, what must not be cheaper than what, and that it says the same twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mirage.kernels.cpu.model.cost import FEATURES, CostModel, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.kernels import cut
from tests.mugraph.graphs import Case, flash_attention, flash_decoding, gated, joined
from tests.programs import axes, program

MACHINE = Machine(2, 32 << 10, 1 << 20, 32 << 20)
SIZES = {
    "flash_attention": {"b": 1, "h": 8, "s": 32, "t": 4096},
    "flash_decoding": {"b": 1, "h": 8, "s": 1, "t": 4096},
    "gated": {"m": 8, "n": 4096, "k": 4096},
    "joined": {"m": 128, "n": 256, "k": 512},
}
CASES = [flash_attention, flash_decoding, gated, joined]
every_case = pytest.mark.parametrize("make", CASES)


def counts(case: Case, schedule: Schedule, sizes: dict[str, int], machine: Machine = MACHINE) -> dict[str, float]:
    found = Scheduler(case.graph, sizes, CostModel(machine)).counts(schedule)
    return dict(zip(FEATURES, found, strict=True))


def ns(case: Case, schedule: Schedule, sizes: dict[str, int], machine: Machine = MACHINE) -> float:
    return Scheduler(case.graph, sizes, CostModel(machine)).ns(schedule)


def gated_with(m: int, n: int, k: int, packed: tuple[tuple[int, str], ...] = ()) -> Schedule:
    return Schedule((KernelSchedule((("m", m), ("n", n), ("k", k)), packed=packed),))


@every_case
def test_counts_are_finite_and_the_same_every_time(make: Callable[[], Case]) -> None:
    case, sizes = make(), SIZES[make.__name__]
    for schedule in Scheduler(case.graph, sizes, CostModel(MACHINE)).best(4):
        found = counts(case, schedule, sizes)
        assert all(np.isfinite(c) and c >= 0 for c in found.values())
        assert found == counts(case, schedule, sizes)
        assert found["launch"] == len(case.graph.kernels)


@every_case
def test_larger_programs_take_longer(make: Callable[[], Case]) -> None:
    case, sizes = make(), SIZES[make.__name__]
    (schedule,) = Scheduler(case.graph, sizes, CostModel(MACHINE)).best(1)
    for s in sizes:
        more = sizes | {s: 4 * sizes[s]}
        assert ns(case, schedule, more) > ns(case, schedule, sizes)


@every_case
def test_better_machines_take_no_longer(make: Callable[[], Case]) -> None:
    case, sizes = make(), SIZES[make.__name__]
    (schedule,) = Scheduler(case.graph, sizes, CostModel(MACHINE)).best(1)
    time = ns(case, schedule, sizes)
    # the work of the busiest thread is what is counted
    assert ns(case, schedule, sizes, replace(MACHINE, threads=4)) <= time
    assert ns(case, schedule, sizes, replace(MACHINE, threads=1)) > time
    assert ns(case, schedule, sizes, replace(MACHINE, l1_bytes=1 << 30, l2_bytes=1 << 30, l3_bytes=1 << 34)) <= time
    tiny = ns(case, schedule, sizes, replace(MACHINE, l1_bytes=1 << 6, l2_bytes=1 << 6, l3_bytes=1 << 6))
    assert tiny > time


def test_an_idle_thread_costs_twice_the_time() -> None:
    case, sizes = gated(), SIZES["gated"]
    halves, whole = gated_with(8, 2048, 64), gated_with(8, 4096, 64)
    assert counts(case, whole, sizes)["fma"] == pytest.approx(2 * counts(case, halves, sizes)["fma"])
    # three cells take two threads as long as four
    assert counts(case, gated_with(8, 1366, 64), sizes)["fma"] > 1.2 * counts(case, halves, sizes)["fma"]


def test_short_rows_of_long_ones_cost_runs_of_memory_unless_packed() -> None:
    case, sizes = gated(), SIZES["gated"]
    wide, narrow = counts(case, gated_with(8, 2048, 64), sizes), counts(case, gated_with(8, 64, 64), sizes)
    assert narrow["far_run"] > 20 * wide["far_run"] > 0
    assert narrow["memory"] == pytest.approx(wide["memory"])
    graph = case.graph.kernels[0]
    weights = [k for k, r in enumerate(graph.operands) if "n" in case.graph.kernel.nodes[r.node].axes()]
    assert len(weights) == 2
    packed = counts(case, gated_with(8, 64, 64, tuple((k, "n") for k in weights)), sizes)
    # of the weights none are left
    assert packed["far_panel"] == 0.0 and packed["far_run"] < narrow["far_run"] / 10


def test_what_fits_a_cache_does_not_come_from_memory() -> None:
    case = gated()
    schedule = gated_with(8, 64, 64)
    levels = [
        [name for name in ("l2", "l3", "memory") if counts(case, schedule, {"m": 8, "n": n, "k": n})[name]]
        for n in (256, 1024, 4096)
    ]
    assert [found[-1] for found in levels] == ["l2", "l3", "memory"]


def test_library_calls_are_counted_as_such() -> None:
    parts = [i for i, n in enumerate(axes("adapter_mlp").nodes) if n.op not in ("input", "constant")]
    own = cut(program("adapter_mlp"), *((i,) for i in parts))
    library = with_predefined(own)
    found = CostModel(MACHINE).library(library, Schedule(()).axis_sizes(library, {"b": 7}))
    count = dict(zip(FEATURES, found, strict=True))
    operators = [n for n in library.kernel.nodes if n.op not in ("input", "constant", "size")]
    assert count["library"] == len(operators) and count["library_fma"] > 0
    assert {name for name, c in count.items() if c} == {"library", "library_fma", "library_access"}
