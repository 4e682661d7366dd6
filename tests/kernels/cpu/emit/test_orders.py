"""Results that kernels hand to one another are stored in any order that the schedule gives (Mirage, section 6: layouts)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage.errors import ScheduleError
from mirage.ir.codec import decode, encode
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.rename import rename_schedule
from mirage.mugraph.schedule import Schedule
from tests.kernels.cpu.check import check
from tests.kernels.kernels import cut
from tests.mugraph.graphs import flash_attention, flash_decoding
from tests.mugraph.split import twice_split
from tests.programs import axes, program
from tests.sampled import thinned

MODEL = CostModel(Machine(2, 32 << 10, 1 << 20, 32 << 20))
Sizes = dict[str, int]


def separate(name: str) -> tuple[Program, MuGraph, Sizes]:
    """A program with a kernel for each operator."""
    p = program(name)
    units = [[i] for i, n in enumerate(axes(name).nodes) if n.op not in ("input", "constant", "size")]
    return p, cut(p, *units), dict(zip(p.symbols(), (3, 17, 5, 7), strict=False))


def split(make: Callable[[], object]) -> tuple[Program, MuGraph, Sizes]:
    case = make()
    return case.program, case.graph, case.sizes  # type: ignore[attr-defined]


CASES = {
    "adapter_mlp": lambda: separate("adapter_mlp"),
    "gqa_decode": lambda: separate("gqa_decode"),
    "partial results": lambda: split(flash_decoding),
    "two splits": lambda: split(twice_split),
}


def orders(graph: MuGraph, sizes: Sizes) -> list[Schedule]:
    """The neighbours of the best schedule that differ in the order of one result."""
    scheduler = Scheduler(graph, sizes, MODEL)
    (best,) = scheduler.best(1)
    return [s for s in scheduler.neighbours(best) if [k.last for k in s.kernels] != [k.last for k in best.kernels]]


@pytest.mark.parametrize("name", thinned(CASES))
def test_any_order_computes_the_program(name: str) -> None:
    p, graph, sizes = CASES[name]()
    found = orders(graph, sizes)
    assert found and len(set(found)) == len(found)
    for s in found[:: max(len(found) // 4, 1)]:
        s.check(graph)
        exe = check(p, graph, s, sizes)
        ((result, axis),) = [pair for k in s.kernels for pair in k.last]
        assert f"{axis} last in result {result}" in exe.source
        assert any(t[-1:] == (axis,) for t in exe.emitted.tensors[exe.emitted.inputs :])


def test_orders_are_changed_back() -> None:
    _, graph, sizes = CASES["adapter_mlp"]()
    scheduler = Scheduler(graph, sizes, MODEL)
    (best,) = scheduler.best(1)
    changed = orders(graph, sizes)[0]
    assert best in list(scheduler.neighbours(changed))


def test_the_model_knows_which_copies_an_order_saves() -> None:
    _, graph, _ = CASES["adapter_mlp"]()
    sizes = {"b": 512}
    scheduler = Scheduler(graph, sizes, MODEL)
    (best,) = scheduler.best(1)
    times = {scheduler.ns(s) for s in orders(graph, sizes)}
    assert len(times) > 1 or times != {scheduler.ns(best)}


def test_what_only_kernels_read_has_a_free_order() -> None:
    _, graph, sizes = split(flash_decoding)
    (best,) = Scheduler(graph, sizes, MODEL).best(1)
    first, second = best.kernels

    def with_last(k: int, *last: tuple[int, str]) -> Schedule:
        kernels = [first, second]
        kernels[k] = replace(kernels[k], last=last)
        return Schedule(tuple(kernels))

    with_last(0, (0, "h")).check(graph)
    for schedule, message in (
        (with_last(0, (0, "x")), "kernel 0: axis x is last in result 0, which does not have it; choose another"),
        (with_last(0, (0, "t.grid")), "axis t.grid is last in result 0"),
        (with_last(0, (7, "h")), "axis h is last in result 7"),
        (
            with_last(1, (0, "h")),
            "kernel 1: the order of result 0 is not free: others than graph-defined kernels read it",
        ),
        (with_last(0, (0, "h"), (0, "s")), "kernel 0: a result has two last axes; give it one"),
    ):
        with pytest.raises(ScheduleError, match=message):
            CpuExecutable(graph, schedule, analyze(graph))


def test_results_that_library_calls_read_keep_their_order() -> None:
    _, graph, sizes = CASES["adapter_mlp"]()
    assert orders(graph, sizes)
    assert not orders(with_predefined(graph), sizes)
    # one kernel has nothing to hand on
    case = flash_attention()
    assert not orders(case.graph, case.sizes)


def test_orders_are_saved_and_renamed() -> None:
    _, graph, sizes = split(flash_decoding)
    for s in orders(graph, sizes):
        assert decode(Schedule, encode(s), "schedule") == s
        names = {a: f"{a}x" for a in graph.axes}
        renamed = rename_schedule(s, names)
        assert [k.last for k in renamed.kernels] == [tuple((i, f"{a}x") for i, a in k.last) for k in s.kernels]
