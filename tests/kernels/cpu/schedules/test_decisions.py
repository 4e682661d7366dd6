"""Layouts of block tensors and vector axes are decisions of the schedule (Mirage, section 6), which change no result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from mirage.errors import ScheduleError
from mirage.ir.codec import decode, encode
from mirage.ir.program import Program
from mirage.kernels.cpu.emit.mugraph import Emitter, emit, scratch_bytes
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.rename import rename_schedule
from mirage.mugraph.schedule import BlockLayout, KernelSchedule, Schedule
from mirage.mugraph.thread import with_threads
from tests.kernels.cpu.decisions import all_decided, each_other, planned
from tests.kernels.cpu.sanitize import Kernels
from tests.kernels.kernels import as_exact, random_inputs, tiles
from tests.mugraph.graphs import Case, flash_attention, flash_decoding, gated, joined
from tests.mugraph.split import twice_split
from tests.programs import kernels_only, program
from tests.sampled import thinned

NAMES = ("softmax", "rms_norm", "gated_mlp", "mha_decode", "gqa_decode")
CASES = [flash_attention, flash_decoding, gated, joined, twice_split]
MODEL = CostModel(Machine(2, 32 << 10, 1 << 20, 32 << 20))
#: sizes of the first, second, ... dim symbol: nothing but ones, and more and less than tiles and vectors
SIZES = ((1, 1, 1, 1), (5, 17, 19, 3), (2, 33, 7, 1))


def run(p: Program, graph: MuGraph, schedules: Sequence[Schedule]) -> None:
    """Each of the schedules computes the program, as float64 does."""
    assert schedules
    cases = [dict(zip(p.symbols(), sizes, strict=False)) for sizes in SIZES]
    inputs = [random_inputs(p, sizes) for sizes in cases]
    for s in schedules:
        exe = CpuExecutable(graph, s, analyze(graph), cases[1])
        for x, sizes in zip(inputs, cases, strict=True):
            message = as_exact(p, exe(x, sizes), x, sizes)
            assert not message, f"{graph} {s} {sizes}: {message}"


@pytest.mark.parametrize("name", thinned(NAMES))
def test_all_decisions_at_once(name: str) -> None:
    rng = Random(name)
    for graph in kernels_only(name, 2):
        base, hints = tiles(graph, 6), dict(zip(program(name).symbols(), SIZES[1], strict=False))
        run(program(name), graph, [all_decided(graph, base, hints, rng) for _ in range(2)])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_decision(name: str) -> None:
    for graph in kernels_only(name, 2):
        base, hints = tiles(graph, 6), dict(zip(program(name).symbols(), SIZES[1], strict=False))
        run(program(name), graph, [*each_other(graph, base, hints)])


@pytest.mark.parametrize(
    ("name", "build"), [("gqa_decode", "address"), ("gated_mlp", "address"), ("softmax", "native")]
)
def test_all_decisions_under_sanitizers(name: str, build: str) -> None:
    (graph,) = kernels_only(name, 1)
    cases = [dict(zip(program(name).symbols(), sizes, strict=False)) for sizes in SIZES]
    schedule = all_decided(graph, tiles(graph, 6), cases[1], Random(1))
    Kernels(program(name), graph, schedule, cases[1]).check(build, cases)


@pytest.mark.parametrize("make", CASES)
def test_decisions_that_are_the_plan_s_own_change_nothing(make: Callable[[], Case]) -> None:
    case = make()
    maximum = analyze(case.graph)
    kernels = planned(case.graph, case.schedule, case.sizes).kernels
    own = Schedule(tuple(k.decisions.planned for k in kernels))
    assert own != case.schedule

    def body(schedule: Schedule) -> str:
        # without the head, which describes the schedule
        return emit(case.graph, schedule, maximum, case.sizes).partition("*/")[2]

    assert body(own) == body(case.schedule)
    again = planned(case.graph, own, case.sizes).kernels
    assert [k.decisions.planned for k in again] == list(own.kernels)


@pytest.mark.parametrize("make", CASES)
def test_decisions_are_printed_saved_and_renamed(make: Callable[[], Case]) -> None:
    case = make()
    maximum = analyze(case.graph)
    schedule = all_decided(case.graph, case.schedule, case.sizes, Random(0))
    again = decode(Schedule, encode(schedule), "schedule")
    assert again == schedule
    source = emit(case.graph, again, maximum, case.sizes)
    assert source == emit(case.graph, schedule, maximum, case.sizes)
    for k in schedule.kernels:
        for i, a in k.vectors:
            assert f"vectors along {a} in w{i}" in source
        for x in k.layouts:
            assert f"{x.last} last{' and padded rows' * x.padded} in w{x.node}" in source
    names = {a: f"{a}x" for a in case.graph.axes}
    back = {b: a for a, b in names.items()}
    assert rename_schedule(rename_schedule(schedule, names), back) == schedule


def test_operators_have_the_numbers_of_the_block_graph_without_thread_graphs() -> None:
    case = flash_attention()
    maximum = analyze(case.graph)
    threaded = with_threads(case.graph, maximum)
    hints = case.sizes
    for s in [*each_other(threaded, case.schedule, hints)][:3]:
        CpuExecutable(threaded, s, analyze(threaded), hints)


def softmax() -> tuple[MuGraph, Schedule]:
    """w1 = exp(w0), w2 = sum(w1), w3 = div(w1, w2): groups of w1 and w2, and of w3."""
    (graph,) = kernels_only("softmax", 1)
    return graph, Schedule((KernelSchedule((("m", 4),)),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"vectors": ((1, "k"),)},
            "kernel 0: the vectors of w1 are along k, over which it does not run; choose from m, n",
        ),
        (
            {"vectors": ((0, "m"),)},
            "kernel 0: w0 has a vector axis, but is no operator of the block; choose from w1, w2, w3",
        ),
        ({"vectors": ((9, "m"),)}, "kernel 0: w9 has a vector axis, but is no operator"),
        ({"vectors": ((1, "m"), (1, "n"))}, "kernel 0: w1 has a vector axis twice; give it one"),
        (
            {"vectors": ((2, "m"),)},
            "kernel 0: the vector axis of w2 is that of the group that it runs in; give it to the first of a group, or to a "
            "product: w1, w3",
        ),
        (
            {"layouts": (BlockLayout(1, "k"),)},
            "kernel 0: axis k is stored last in w1, which does not have it; choose from m, n",
        ),
        ({"layouts": (BlockLayout(-1, "m"),)}, "kernel 0: w-1 has a layout, but is no operator of the block"),
        (
            {"layouts": (BlockLayout(1),)},
            "kernel 0: the layout of w1 says nothing; give its last axis, or pad its rows",
        ),
        ({"layouts": (BlockLayout(2, padded=True),)}, "kernel 0: w2 is padded, but has one row only; leave it"),
        ({"layouts": (BlockLayout(1, "m"), BlockLayout(1, "n"))}, "kernel 0: w1 has a layout twice; give it one"),
    ],
)
def test_impossible_decisions_are_refused(change: dict[str, tuple[object, ...]], message: str) -> None:
    graph, schedule = softmax()
    wrong = Schedule((replace(schedule.kernels[0], **change),))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=message):
        CpuExecutable(graph, wrong, analyze(graph), {"m": 8, "n": 64})


def test_impossible_decisions_about_products_are_refused() -> None:
    case = gated()
    (own,) = case.schedule.kernels
    body = next(n.graph for n in case.graph.kernels if n.graph)
    product = next(i for i, n in enumerate(body.nodes) if n.op == "matmul")
    total = next(i for i, n in enumerate(body.nodes) if n.op == "accumulator")
    for change, message in (
        (
            {"layouts": (BlockLayout(product, "n"),)},
            f"w{product} has no memory of its own in scratch; give layouts to w",
        ),
        ({"vectors": ((total, "n"),)}, f"w{total} has a vector axis, but accumulator has none to choose; leave it"),
        (
            {"vectors": ((product, "m"),), "layouts": (BlockLayout(total, "n"),)},
            f"w{total} cannot be stored with n last; choose from m",
        ),
    ):
        with pytest.raises(ScheduleError, match=message):
            planned(case.graph, Schedule((replace(own, **change),)), case.sizes)


def test_neighbours_are_few_differ_in_code_and_lead_back() -> None:
    (graph,) = kernels_only("mha_decode", 1)
    sizes = {"b": 1, "s": 64, "t": 512, "h": 8}
    scheduler = Scheduler(graph, sizes, MODEL)
    (best,) = scheduler.best(1)
    maximum = analyze(graph)

    def decided(schedule: Schedule) -> list[Schedule]:
        return [s for s in scheduler.neighbours(schedule) if any(k.layouts or k.vectors for k in s.kernels)]

    found = decided(best)
    assert {bool(k.vectors) for s in found for k in s.kernels} == {True, False} and len(found) <= 12
    bodies = [emit(graph, s, maximum, sizes).partition("*/")[2] for s in (best, *found)]
    assert len(set(bodies)) == len(bodies)
    for s in found[:3]:
        assert best in list(scheduler.neighbours(s))


@pytest.mark.parametrize("name", ("gated_mlp", "mha_decode"))
def test_a_decision_of_one_kernel_is_planned_as_in_the_whole_graph(name: str) -> None:
    hints = dict(zip(program(name).symbols(), SIZES[1], strict=False))
    graph = next(g for g in kernels_only(name, 100) if len(g.kernels) > 1)
    base = tiles(graph, 6)
    emitter = Emitter(graph, base, analyze(graph), hints)
    changed = 0
    for near in each_other(graph, base, hints):
        whole = [k.decisions.planned for k in Emitter(graph, near, analyze(graph), hints).kernels]
        for number, (kernel, own) in enumerate(zip(emitter.kernels, near.kernels, strict=True)):
            assert kernel.with_schedule(own).decisions.planned == whole[number]
            changed += own != base.kernels[number]
    assert changed


def test_counts_that_schedules_share_are_those_of_each_alone() -> None:
    hints = dict(zip(program("gated_mlp").symbols(), SIZES[1], strict=False))
    graph = next(g for g in kernels_only("gated_mlp", 100) if len(g.kernels) > 1)
    scheduler = Scheduler(graph, hints, MODEL)
    near = list(scheduler.neighbours(scheduler.first()))
    assert near
    for s in near:
        assert scheduler.ns(s) == Scheduler(graph, hints, MODEL).ns(s)


def test_the_model_sees_vectors_across_rows() -> None:
    graph, schedule = softmax()
    scheduler = Scheduler(graph, {"m": 512, "n": 1024}, MODEL)
    (kernel,) = schedule.kernels
    own = Schedule((replace(kernel, vectors=((1, "n"), (3, "n"))),))
    across = Schedule((replace(kernel, vectors=((1, "m"), (3, "n"))),))
    assert scheduler.ns(across) > 2 * scheduler.ns(own)
    # too slow to be tried
    assert all(not k.vectors for s in scheduler.neighbours(schedule) for k in s.kernels)


def test_the_model_sees_the_orientation_of_products() -> None:
    case = gated()
    sizes = {"m": 8, "n": 4096, "k": 4096}
    scheduler = Scheduler(case.graph, sizes, MODEL)
    (best,) = scheduler.best(1)
    body = next(n.graph for n in case.graph.kernels if n.graph)
    products = [i for i, n in enumerate(body.nodes) if n.op == "matmul"]

    def along(axis: str) -> float:
        return scheduler.ns(Schedule((replace(best.kernels[0], vectors=tuple((i, axis) for i in products)),)))

    # weights are contiguous along n: vectors along the contracted axis, or along few rows, cost copies
    assert along("n") < along("k") and along("n") < along("m")


def test_rows_are_padded_one_by_one() -> None:
    case = gated()
    (own,) = case.schedule.kernels
    body = next(n.graph for n in case.graph.kernels if n.graph)
    total = next(i for i, n in enumerate(body.nodes) if n.op == "accumulator")
    padded = Schedule((replace(own, layouts=(BlockLayout(total, padded=True),)),))

    def scratch(schedule: Schedule) -> int:
        return scratch_bytes(Emitter(case.graph, schedule, analyze(case.graph), case.sizes), 0, case.sizes)

    more = scratch(padded) - scratch(case.schedule)
    # a vector of 64 bytes for each row of one accumulator
    assert more == own.tile["m"] * 64
    both = Schedule((replace(own, padded=True),))
    assert scratch(both) == scratch(case.schedule) + 2 * more
