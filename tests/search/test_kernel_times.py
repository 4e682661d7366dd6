"""What is measured of single kernels serves all graphs and schedules that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import single_operators, with_predefined
from mirage.mugraph.schedule import Schedule
from mirage.search.kernel_times import KernelTimes
from tests.kernels.kernels import cut
from tests.programs import axes, program
from tests.search.test_explore import MACHINE, explorer, timing

SIZES = {"b": 64}


def parted(*sizes: int) -> MuGraph:
    """The operators of adapter_mlp in kernels of so many."""
    parts = iter([i for i, n in enumerate(axes("adapter_mlp").nodes) if n.op not in ("input", "constant")])
    graph = cut(program("adapter_mlp"), *(tuple(next(parts) for _ in range(n)) for n in sizes))
    return replace(graph, origin=str(sizes))


def scheduler(graph: MuGraph) -> Scheduler:
    return Scheduler(graph, SIZES, CostModel(MACHINE))


def count() -> int:
    return sum(n.op not in ("input", "constant") for n in axes("adapter_mlp").nodes)


def halves(s: Schedule) -> Schedule:
    """Every tile half as long."""
    return Schedule(tuple(replace(k, tiles=tuple((a, max(t // 2, 1)) for a, t in k.tiles)) for k in s.kernels))


def test_graphs_that_share_kernels_share_their_times() -> None:
    n = count()
    times, model = KernelTimes(), CostModel(MACHINE)
    one, other = scheduler(parted(1, n - 1)), scheduler(parted(1, *(1,) * (n - 1)))
    a, b = times.numbers(one), times.numbers(other)
    assert a[0] == b[0] and len({*a, *b}) == len(a) + len(b) - 1
    schedule = one.first()
    assert times.us(one, a, schedule, model, 1.0) is None and times.shares(one, a, schedule) == {}
    times.learn(one, a, schedule, [30.0, 10.0], 41.0)
    assert times.shares(one, a, schedule) == {0: 0.75, 1: 0.25}
    assert times.us(one, a, schedule, model, 1e-3 * one.ns(schedule)) == pytest.approx(40.0)
    # the kernel that both have counts as measured, others as the model has them, as wrong as it was about that one
    there = other.first()
    (first, *rest) = other.parts(there)
    modelled = [1e-3 * float(model.ns(other.part_counts(part))) for part in (first, *rest)]
    found = times.us(other, b, there, model, sum(modelled))
    assert found == pytest.approx(30.0 + sum(modelled[1:]) * 30.0 / modelled[0])
    assert times.shares(other, b, there) == {}, "kernels of its own were not measured"
    assert sorted(times.fastest().values()) == [10.0, 30.0]
    assert all(node.operands == () for node in times.fastest())


def test_one_bad_schedule_says_little_of_others() -> None:
    times, model, graph = KernelTimes(), CostModel(MACHINE), scheduler(parted(*(1,) * count()))
    numbers, first, other = times.numbers(graph), graph.first(), halves(graph.first())
    modelled = [1e-3 * float(model.ns(graph.part_counts(part))) for part in graph.parts(first)]
    # the model is right, but for the first kernel, which takes 100 times as long
    us = [100 * modelled[0], *modelled[1:]]
    times.learn(graph, numbers, first, us, sum(us))
    expected = [1e-3 * float(model.ns(graph.part_counts(part))) for part in graph.parts(other)]
    found = times.us(graph, numbers, other, model, sum(expected))
    assert found == pytest.approx(10 * expected[0] + sum(expected[1:]))


def test_each_kernel_is_taken_as_it_was_fastest() -> None:
    times, graph = KernelTimes(), scheduler(parted(1, count() - 1))
    numbers = times.numbers(graph)
    first = graph.first()
    second = halves(first)
    times.learn(graph, numbers, first, [30.0, 10.0], 41.0)
    assert times.fastest_of(graph, numbers, first) == first
    times.learn(graph, numbers, second, [20.0, 15.0], 36.0)
    best = times.fastest_of(graph, numbers, first)
    assert best.kernels == (second.kernels[0], first.kernels[1])
    assert times.us(graph, numbers, best, CostModel(MACHINE), 1e-3 * graph.ns(best)) == pytest.approx(30.0)
    # what is measured again, and took longer, changes nothing
    times.learn(graph, numbers, best, [90.0, 90.0], 181.0)
    assert times.fastest_of(graph, numbers, first) == best


def test_library_calls_took_what_kernels_did_not() -> None:
    graph = parted(*(1,) * count())
    first, *_ = single_operators(graph)
    times, model = KernelTimes(), CostModel(MACHINE)
    mixed, plain = scheduler(with_predefined(graph, {first})), scheduler(graph)
    schedule = mixed.first()
    calls = 1e-3 * float(model.ns(mixed.library_counts(schedule)))
    assert calls > 0 and not plain.library_counts(plain.first()).any()
    modelled = 1e-3 * mixed.ns(schedule)
    numbers = times.numbers(mixed)
    times.learn(mixed, numbers, schedule, [5.0] * len(numbers), 5.0 * len(numbers) + 3 * calls)
    assert times.us(mixed, numbers, schedule, model, modelled) == pytest.approx(5.0 * len(numbers) + 3 * calls)
    # those of other graphs are expected to take as many times as long as they are modelled
    every = scheduler(with_predefined(graph))
    more = 1e-3 * float(model.ns(every.library_counts(every.first())))
    found = times.us(every, times.numbers(every), every.first(), model, 1e-3 * every.ns(every.first()))
    assert more > calls and found is not None and found >= 3 * more


def test_all_kernels_change_at_once_where_their_times_are_told_apart() -> None:
    found = explorer(parted(1, count() - 1), sizes=SIZES)
    wave = found.wave(1)
    ((_, first),) = wave
    found.learn({wave[0]: timing(40.0)}, {wave[0]: [20.0, 20.0]})
    refined = [s for _, s in found.wave(4) if s not in (first,)]
    assert any(all(x != y for x, y in zip(s.kernels, first.kernels, strict=True)) for s in refined)
    # what was better about one of them goes together with what was better about the other
    changed = next(s for s in refined if all(x != y for x, y in zip(s.kernels, first.kernels, strict=True)))
    found.learn({wave[0]: timing(40.0), (0, changed): timing(42.0)}, {(0, changed): [10.0, 32.0]})
    following = [s for _, s in found.wave(4)]
    assert any(s.kernels == (changed.kernels[0], first.kernels[1]) for s in following)


def test_what_is_known_to_be_slower_waits_for_what_may_be_faster() -> None:
    n = count()
    found = explorer(parted(1, n - 1), parted(*(1,) * n), sizes=SIZES)
    first = found.wave(1)
    ((number, schedule),) = first
    kernels = len(found._rivals[number].scheduler.parts(schedule))
    # nothing that the model knows of the other graph makes up for this
    found.learn({first[0]: timing(0.01)}, {first[0]: [0.01 / kernels] * kernels})
    slow = timing(50.0)
    other = next((1 - number, r.first) for i, r in found._rivals.items() if i != number)
    found.learn({first[0]: timing(0.01), other: slow}, {other: [10.0] * len(found._rivals[1 - number].scheduler.parts(other[1]))})
    waves = [found.wave(2) for _ in range(3)]
    assert all(i == number for wave in waves for i, _ in wave)


def test_kernels_that_take_no_time_keep_their_schedules() -> None:
    found = explorer(parted(1, count() - 1), sizes=SIZES)
    wave = found.wave(1)
    found.learn({wave[0]: timing(40.0)}, {wave[0]: [39.96, 0.04]})
    known = {wave[0][1].kernels[1]}
    refined = [s for _, s in found.wave(2)]
    assert any(s.kernels[1] in known and s != wave[0][1] for s in refined)
