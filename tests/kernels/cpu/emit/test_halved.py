"""Of results that are symmetric, one triangle is computed, and written twice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import mirage as mi
from mirage.errors import FormatError, ScheduleError
from mirage.ir.axes import to_axes
from mirage.ir.codec import decode, encode
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Role
from mirage.mugraph.rename import rename_schedule
from mirage.mugraph.schedule import Schedule
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from tests.kernels.cpu.check import check
from tests.kernels.kernels import cut, operators, single_kernel, tiles
from tests.mugraph.test_symmetry import ALIKE, SYMMETRIC, X

MODEL = CostModel(Machine(2, 32 << 10, 1 << 20, 32 << 20))
GRAM = mi.trace(lambda x: x @ x.mT, **X)


def halved(graph: MuGraph, rows: str, columns: str, tile: dict[str, int], k: int = -1) -> Schedule:
    schedule = tiles(graph, tile)
    k %= len(schedule.kernels)
    return schedule.with_kernel(k, replace(schedule.kernels[k], halved=(rows, columns)))


def test_any_sizes_and_tiles_compute_all() -> None:
    graph = single_kernel(GRAM)
    for rows, columns, tilings in (("n", "n_2", ((1, 1), (8, 8), (3, 48))), ("n_2", "n", ((48, 16),))):
        for r, c in tilings:
            schedule = halved(graph, rows, columns, {rows: r, columns: c})
            exe = CpuExecutable(graph, schedule, analyze(graph), {"n": 64})
            assert f"half of {rows} and {columns}" in exe.source
            for n, k in itertools.product((0, 1, 7, 16, 17, 49, 97), (1, 5)):
                x = np.random.default_rng(n).standard_normal((n, k)).astype("f4")
                want = x.astype("f8") @ x.T.astype("f8")
                # a triangle that nobody writes stays what it was
                out = np.full((n, n), np.nan, "f4")
                exe([x], {"n": n, "k": k}, [out])
                np.testing.assert_allclose(out, want, atol=1e-5)
                # what is written by columns
                across = np.full((n, n), np.nan, "f4").T
                exe([x], {"n": n, "k": k}, [across])
                np.testing.assert_allclose(across, want, atol=1e-5)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_what_comes_before_and_after_the_product_is_halved_with_it(name: str) -> None:
    f, inputs, pair = SYMMETRIC[name]
    p = mi.trace(f, **inputs)
    graph = single_kernel(p)
    rows, columns = pair.split()
    schedule = halved(graph, rows, columns, {rows: 8, columns: 16, "b": 2})
    check(p, graph, schedule, {"n": 37, "k": 37, "b": 3})


@pytest.mark.parametrize("name", ALIKE)
def test_what_only_looks_symmetric_is_refused(name: str) -> None:
    f, inputs = ALIKE[name]
    graph = single_kernel(mi.trace(f, **inputs))
    grid = [a for a, role in next(n.graph for n in graph.kernels if n.graph).roles if role is Role.PARALLEL]
    assert not any(any(k.halved for k in s.kernels) for s in Scheduler(graph, {"n": 512, "k": 512}, MODEL).best(3))
    for rows, columns in itertools.permutations(grid or ["n", "k"], 2):
        with pytest.raises(ScheduleError, match=f"axes {rows} and {columns} are halved, but .*; leave it"):
            halved(graph, rows, columns, {}).check(graph)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_are_halved(dtype: str) -> None:
    p = mi.trace(lambda x: mi.relu(x @ x.mT), x=mi.tensor("n", "k", dtype=dtype))
    graph = single_kernel(p)
    check(p, graph, halved(graph, "n", "n_2", {"n": 8, "n_2": 24}), {"n": 45, "k": 9})


def test_rows_of_results_that_lie_across_the_two_axes_are_halved() -> None:
    p = mi.trace(lambda x: mi.transpose(x @ x.mT, (1, 2, 0)), x=mi.tensor("h", "n", "k"))
    graph = single_kernel(p)
    assert graph.outputs[0].dims[-1] == ("h",)
    check(p, graph, halved(graph, "n", "n_2", {"n": 4, "n_2": 8, "h": 4}), {"h": 6, "n": 21, "k": 5})


def test_sizes_that_are_known_when_it_is_printed_are_halved() -> None:
    p = mi.trace(lambda x: x @ x.mT, x=mi.tensor(48, 32))
    graph = single_kernel(p)
    a, b = (x.axes[0] for x in graph.inputs)
    for r, c in ((16, 16), (48, 16), (1, 48)):
        check(p, graph, halved(graph, a, b, {a: r, b: c}), {})


def test_loops_are_halved() -> None:
    p = mi.trace(lambda x: mi.relu(x.mT @ x), **X)
    graph = single_kernel(p, n=Role.LOOP)
    check(p, graph, halved(graph, "k", "k_2", {"k": 8, "k_2": 16, "n": 16}), {"n": 75, "k": 37})


def test_partial_results_are_halved() -> None:
    p, sizes = mi.trace(lambda x: x.mT @ x, **X), {"n": 750, "k": 37}
    found = generate(to_axes(p), sizes, SearchOptions()).graphs
    graph = next(g for g in found if any(n.graph and Role.SPLIT in n.graph.role.values() for n in g.kernels))
    check(p, graph, halved(graph, "k", "k_2", {"k": 8, "k_2": 16}, k=0), sizes)


def test_one_kernel_of_several_is_halved() -> None:
    p = mi.trace(lambda x: mi.exp(x) @ mi.exp(x).mT, **X)
    *first, product = operators(p)
    graph = cut(p, *([i] for i in first), [product])
    check(p, graph, halved(graph, "n", "n_2", {"n": 8, "n_2": 16}), {"n": 37, "k": 19})
    with pytest.raises(ScheduleError, match="kernel 0: axes n and n_2 are halved"):
        halved(graph, "n", "n_2", {}, k=0).check(graph)


def test_a_scheduler_offers_half_and_goes_back() -> None:
    graph, sizes = single_kernel(GRAM), {"n": 512, "k": 256}
    scheduler = Scheduler(graph, sizes, MODEL)
    (best,) = scheduler.best(1)
    (half,) = scheduler.halved(best)
    assert half.kernels[0].halved in (("n", "n_2"), ("n_2", "n"))
    near = list(scheduler.neighbours(best))
    assert near[0] == half and scheduler.ns(half) < 0.75 * scheduler.ns(best)
    assert replace(half.kernels[0], halved=None) in [s.kernels[0] for s in scheduler.neighbours(half)]
    # tiles of it change, too
    assert sum(s.kernels[0].halved == half.kernels[0].halved for s in scheduler.neighbours(half)) > 3


def test_half_is_saved_and_renamed() -> None:
    schedule = halved(single_kernel(GRAM), "n", "n_2", {})
    stored = encode(schedule)
    assert decode(Schedule, stored, "schedule") == schedule
    renamed = rename_schedule(schedule, {"n": "a", "n_2": "b", "k": "c"})
    assert renamed.kernels[0].halved == ("a", "b")
    # as it was stored before there was a choice
    del stored["kernels"][0]["halved"]
    assert decode(Schedule, stored, "schedule").kernels[0].halved is None
    stored["kernels"][0]["halved"] = ["n"]
    with pytest.raises(FormatError, match="halved"):
        decode(Schedule, stored, "schedule")
