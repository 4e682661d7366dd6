"""The space of schedules: what is in it, that all of it may run, and neighbourhoods."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage.ir.codec import decode, encode
from mirage.kernels.cpu.model.cost import CostModel, KernelWork, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.kernels.cpu.schedules.space import MOST, Space, distance, tile_options
from mirage.mugraph.graph import Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.cpu.check import check
from tests.mugraph.graphs import Case, flash_attention, flash_decoding, gated, joined
from tests.mugraph.split import twice_split
from tests.sampled import thinned

CASES = [flash_attention, flash_decoding, gated, joined, twice_split]
MACHINE = Machine(2, 32 << 10, 1 << 20, 32 << 20)


def options(size: int, role: Role = Role.PARALLEL, batch: bool = False, contiguous: bool = False) -> tuple[int, ...]:
    return tile_options(size, role, batch=batch, contiguous=contiguous, lanes=16)


def test_known_good_tiles_are_options() -> None:
    # strips of 2048 columns for weights that are streamed; register tiles of 3 vectors
    assert {48, 96, 64, 512, 2048, 4096} <= set(options(4096, contiguous=True))
    assert {8, 16, 32, 64} <= set(options(512))
    assert {32, 64, 128, 256, 512} <= set(options(4096, Role.LOOP))


def test_tiles_that_divide_evenly_are_options() -> None:
    # 100 rows: instead of 64 and 36, twice 50
    assert {25, 50, 100} <= set(options(100))
    assert 500 in options(1000, contiguous=True)
    assert options(7) == (1, 2, 4, 7)


@pytest.mark.parametrize("role", [Role.PARALLEL, Role.LOOP, Role.SPLIT])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 15, 16, 17, 31, 97, 4096, 4097, 1_000_003])
def test_tiles_are_increasing_and_within_the_axis(size: int, contiguous: bool, batch: bool, role: Role) -> None:
    found = options(size, role, batch, contiguous)
    assert found and list(found) == sorted(set(found)) and found[0] >= 1 and found[-1] <= size


@pytest.mark.parametrize("make", CASES)
def test_candidates_are_legal_and_few(make: Callable[[], Case]) -> None:
    case = make()
    rng = random.Random(0)
    for n in (1, 3, 17, 4099):
        sizes = Schedule(()).axis_sizes(case.graph, {s: n for s in case.sizes})
        sizes |= {f"{a}.grid": 4 for a in sizes}
        for node in case.graph.kernels:
            space = Space(KernelWork.of(node), sizes, 2, 16)
            tiles, splits = space.candidates({})
            (count,) = {len(t) for t in (*tiles.values(), *splits.values())} or {1}
            assert 1 <= count <= 2 * MOST
            for k in rng.sample(range(count), min(count, 20)):
                s = space.schedule(tiles, splits, k)
                assert all(1 <= t <= space.sizes[a] for a, t in s.tiles)
                assert all(1 <= p <= -(-space.sizes[a] // s.tile[a]) for a, p in s.splits)
                assert set(s.tile) == {a for a, r in space.graph.roles if r is not Role.WHOLE}


@pytest.mark.parametrize("make", CASES)
def test_neighbours_differ_in_one_size_and_are_legal(make: Callable[[], Case]) -> None:
    case = make()
    sizes = dict.fromkeys(case.sizes, 100)
    scheduler = Scheduler(case.graph, sizes, CostModel(MACHINE))
    (best,) = scheduler.best(1)
    found = list(scheduler.neighbours(best))
    assert found and len(set(found)) == len(found) and best not in found
    assert found == list(scheduler.neighbours(best))
    for s in found:
        s.check(case.graph)
        changed = {(a, n) for x, y in zip(best.kernels, s.kernels, strict=True) for a, n in set(y.tiles) - set(x.tiles)}
        assert len(changed) <= 1
        if any(k.last or k.layouts or k.vectors for k in s.kernels):
            # the order of one result, the layout of one block tensor or one vector axis, and nothing else
            assert sum(len(k.last) + len(k.layouts) + len(k.vectors) for k in s.kernels) == 1
            assert Schedule(tuple(replace(k, last=(), layouts=(), vectors=()) for k in s.kernels)) == best
            continue
        near = [distance(x, y) for x, y in zip(best.kernels, s.kernels, strict=True)]
        leaps = [
            abs(math.log2(n / x.tile[a])) == 4
            for x, y in zip(best.kernels, s.kernels, strict=True)
            for a, n in set(y.tiles) - set(x.tiles)
        ]
        # a shorter axis may also have fewer parts
        assert 0 < max(near) <= 2 or (any(leaps) and max(near) <= 8)


def test_a_tile_leaps_over_sizes_between_two_levels_of_the_caches() -> None:
    case = gated()
    scheduler = Scheduler(case.graph, {"m": 256, "n": 4096, "k": 4096}, CostModel(MACHINE))
    schedule = Schedule((KernelSchedule((("m", 8), ("n", 128), ("k", 1024))),))
    tiles = [s.kernels[0].tile for s in scheduler.neighbours(schedule)]
    assert {t["k"] for t in tiles if not 512 <= t["k"] <= 2048} == {64}
    assert {t["m"] for t in tiles if not 4 <= t["m"] <= 16} == {128}


@pytest.mark.parametrize("make", thinned(CASES))
def test_schedules_of_the_space_run_at_awkward_sizes(make: Callable[[], Case]) -> None:
    case = make()
    rng = random.Random(1)
    scheduler = Scheduler(case.graph, dict.fromkeys(case.sizes, 37), CostModel(MACHINE))
    (schedule,) = scheduler.best(1)
    for n in (1, 17):
        for _ in range(2):
            schedule = rng.choice(list(scheduler.neighbours(schedule)))
        check(case.program, case.graph, schedule, dict.fromkeys(case.sizes, n))


def test_what_does_not_fit_the_cache_is_no_neighbour() -> None:
    case = gated()
    sizes = {"m": 256, "n": 4096, "k": 4096}
    small = Scheduler(case.graph, sizes, CostModel(replace(MACHINE, l2_bytes=48 << 10)))
    schedule = Schedule((KernelSchedule((("m", 8), ("n", 512), ("k", 64))),))
    assert small.scratch(schedule) <= 48 << 10
    found = list(small.neighbours(schedule))
    assert found and all(small.scratch(s) <= 48 << 10 for s in found)
    large = Scheduler(case.graph, sizes, CostModel(MACHINE))
    assert set(found) < set(large.neighbours(schedule))


@pytest.mark.parametrize("make", CASES)
def test_padded_rows_change_no_result(make: Callable[[], Case]) -> None:
    case = make()
    padded = Schedule(tuple(replace(k, padded=True) for k in case.schedule.kernels))
    assert "padded rows" in check(case.program, case.graph, padded, case.sizes).source
    assert decode(Schedule, encode(padded), "schedule") == padded


def test_rows_of_whole_pages_may_be_padded() -> None:
    case = gated()
    sizes = {"m": 256, "n": 4096, "k": 4096}
    scheduler = Scheduler(case.graph, sizes, CostModel(MACHINE))

    def padded(n: int) -> list[Schedule]:
        schedule = Schedule((KernelSchedule((("m", 8), ("n", n), ("k", 64))),))
        return [s for s in scheduler.neighbours(schedule) if s.kernels[0].padded]

    (found,) = padded(1024)
    # two accumulators of 8 rows have a vector more each
    assert scheduler.scratch(found) == 2 * 8 * (1024 + 16) * 4
    assert any(
        not s.kernels[0].padded and s.kernels[0].tiles == found.kernels[0].tiles for s in scheduler.neighbours(found)
    )
    assert not padded(1000)


def test_neighbours_keep_two_elements_of_what_is_packed() -> None:
    case = gated()
    sizes = Schedule(()).axis_sizes(case.graph, dict.fromkeys(case.sizes, 16))
    space = Space(KernelWork.of(case.graph.kernels[0]), sizes, threads=2, lanes=16)
    schedule = KernelSchedule(tuple((a, 16) for a in space.tiles), (), 16)
    assert any(s.tile["m"] == 1 for s in space.neighbours(schedule))
    packed = replace(schedule, packed=((0, "m"),))
    found = list(space.neighbours(packed))
    assert found
    for s in found:
        Schedule((s,)).check(case.graph)
