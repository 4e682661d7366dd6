"""What is compiled next: the cheapest pairs first, then what measurements say."""

from __future__ import annotations

from dataclasses import replace

import pytest

import mirage as mi
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.kernels.profile import Timing
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.whole import whole_program
from mirage.search.candidates import Candidate
from mirage.search.explore import Explorer, Pair
from mirage.verify.equivalence import Verifier
from tests.kernels.kernels import cut, single_kernel
from tests.mugraph.graphs import gated
from tests.programs import axes, program

SIZES = {"m": 8, "n": 4096, "k": 4096}
MACHINE = Machine(2, 32 << 10, 1 << 20, 32 << 20)


def timing(us: float) -> Timing:
    return Timing(us, us, 10)


def explorer(
    *graphs: MuGraph,
    sizes: dict[str, int] = SIZES,
    constants: tuple[str, ...] = (),
    machine: Machine = MACHINE,
    rejected: list[str] | None = None,
) -> Explorer:
    found = Explorer(sizes, CostModel(machine), [] if rejected is None else rejected, constants=constants)
    found.add([candidate(g) for g in graphs])
    return found


def candidate(graph: MuGraph) -> Candidate:
    """A graph of which nothing but its cost is looked at, and all cost the same."""
    return Candidate(graph, Verifier(whole_program(graph)).admit(graph), analyze(graph), 1.0)


def variants() -> list[MuGraph]:
    """One operator per kernel, all in one, and library calls only."""
    p = program("adapter_mlp")
    parts = [i for i, n in enumerate(axes("adapter_mlp").nodes) if n.op not in ("input", "constant")]
    split = replace(cut(p, *((i,) for i in parts)), origin="split")
    return [split, replace(cut(p, tuple(parts)), origin="whole"), replace(with_predefined(split), origin="library")]


def test_half_of_a_symmetric_product_is_among_what_is_compiled_first() -> None:
    gram = single_kernel(mi.trace(lambda x: x @ x.mT, x=mi.tensor("n", 256)))
    other = single_kernel(mi.trace(lambda x, y: x @ y.mT, x=mi.tensor("n", 256), y=mi.tensor("n", 256)))
    assert any(s.kernels[0].halved for _, s in explorer(gram, sizes={"n": 1024}).wave(4))
    assert not any(s.kernels[0].halved for _, s in explorer(other, sizes={"n": 1024}).wave(4))


def test_the_cheapest_pair_comes_first_and_none_twice() -> None:
    graphs = variants()
    found = explorer(*graphs, sizes={"b": 8})
    first = found.wave(1)
    estimates = {}
    for i, g in enumerate(graphs):
        scheduler = Scheduler(g, {"b": 8}, CostModel(MACHINE))
        estimates[i] = scheduler.ns(scheduler.best(1)[0])
    assert first[0][0] == min(estimates, key=lambda i: estimates[i])
    seen = list(first)
    while wave := found.wave(4):
        seen += wave
    assert len(set(seen)) == len(seen)
    for i, s in seen:
        s.check(graphs[i])


def weights_added_once() -> tuple[MuGraph, MuGraph]:
    """Two products with weights, and one with their sum, which has a kernel of its own."""
    x, w = mi.tensor("m", 1024), mi.tensor(1024, 1024)
    both = single_kernel(mi.trace(lambda x, a, b: x @ a + x @ b, x=x, a=w, b=w))
    return both, cut(mi.trace(lambda x, a, b: x @ (a + b), x=x, a=w, b=w), (3,), (4,))


def test_what_is_computed_once_costs_nothing() -> None:
    graphs = weights_added_once()
    for constants, first in (("a", "b"), 1), (("a",), 0), ((), 0):
        assert [i for i, _ in explorer(*graphs, sizes={"m": 4}, constants=constants).wave(1)] == [first]


def test_what_is_found_later_and_costs_less_comes_next() -> None:
    both, once = weights_added_once()
    found = explorer(both, sizes={"m": 4}, constants=("a", "b"))
    wave = found.wave(2)
    found.learn({pair: timing(100.0 + k) for k, pair in enumerate(wave)})
    found.add([candidate(once)])
    # half of a wave refines what is fastest
    _, (number, schedule) = found.wave(2)
    assert number == 1
    # and what it computes once is read from a packed copy soon
    found.learn({wave[0]: timing(100.0), (number, schedule): timing(90.0)})
    assert any(i == 1 and s.kernels[1].packed for i, s in found.wave(4))


def test_the_same_times_lead_to_the_same_choices() -> None:
    def run() -> list[Pair]:
        found = explorer(*variants(), sizes={"b": 8})
        chosen: list[Pair] = []
        for _ in range(4):
            wave = found.wave(4)
            chosen += wave
            found.learn({pair: timing(100.0 + chosen.index(pair)) for pair in wave})
        return chosen

    assert run() == run()


def test_what_is_fastest_is_refined() -> None:
    graph = gated().graph
    found = explorer(graph)
    wave = found.wave(3)
    assert len(wave) == 3
    found.learn({pair: timing(10.0 * (k + 1)) for k, pair in enumerate(wave)})
    assert found.fastest == wave
    near = set(Scheduler(graph, SIZES, CostModel(MACHINE)).neighbours(wave[0][1]))
    refined = found.wave(4)
    assert refined and {s for _, s in refined} <= near
    # a faster neighbour is refined in its turn
    found.learn({wave[0]: timing(10.0), refined[-1]: timing(5.0)})
    assert found.fastest[0] == refined[-1]
    (_, following), *_ = found.wave(1) or found.wave(2)
    assert following in set(Scheduler(graph, SIZES, CostModel(MACHINE)).neighbours(refined[-1][1]))


def test_slow_graphs_are_not_refined() -> None:
    first, second, _ = variants()
    found = explorer(first, second, sizes={"b": 8})
    wave: list[Pair] = []
    while fresh := found.wave(8):
        wave += fresh
    found.learn({(i, s): timing(10.0 if i == 0 else 100.0) for i, s in wave})
    assert {i for i, _ in found.wave(50)} == {0}


def test_a_busier_machine_is_taken_into_account() -> None:
    found = explorer(gated().graph)
    a, b, c = found.wave(3)
    found.learn({a: timing(10.0), b: timing(12.0)})
    # everything takes three times as long now
    found.learn({a: timing(30.0), c: timing(27.0)})
    assert found.fastest == [c, a, b]
    assert found.times[c] == pytest.approx(9.0) and found.times[b] == 12.0
    # and the cost model learns from the minima of each race
    assert [s.ns for s in found.samples] == [10e3, 12e3, 30e3, 27e3]
    assert len({s.race for s in found.samples}) == 2


def test_constants_are_packed_first_when_the_fastest_is_refined() -> None:
    graph = gated().graph
    names = tuple(x.argument for x in graph.inputs)
    for constants in ((), names):
        found = explorer(graph, constants=constants)
        (best, *_) = wave = found.wave(3)
        found.learn({pair: timing(10.0 + k) for k, pair in enumerate(wave)})
        packed = [any(k.packed for k in s.kernels) for _, s in found.wave(4)]
        assert packed[:1] == [bool(constants)] and best[1].kernels[0].packed == ()


def test_graphs_are_estimated_as_waves_need_them_and_misfits_are_told() -> None:
    found = explorer(*variants(), sizes={"b": 8})
    assert len(found.wave(1)) == 1
    assert found.estimate() and not found.estimate(), "a wave of one chooses between two of three graphs"
    rejected: list[str] = []
    assert explorer(gated().graph, machine=Machine(2, 64, 64, 128), rejected=rejected).wave(4) == []
    assert "scratch" in rejected[0]


def test_the_first_wave_is_of_different_graphs() -> None:
    for count in (2, 3):
        assert len({i for i, _ in explorer(*variants(), sizes={"b": 8}).wave(count)}) == count


def test_graphs_that_come_later_compete() -> None:
    first, *others = variants()
    found = explorer(first, sizes={"b": 8})
    wave = found.wave(2)
    assert {i for i, _ in wave} == {0}
    found.add([candidate(g) for g in others])
    assert {i for i, _ in found.wave(6)} >= {1, 2}


def test_graphs_that_are_there_are_not_added_again() -> None:
    """As after an interrupt: what was built of one is then measured under its number."""
    graphs = [candidate(gated().graph), candidate(gated().graph)]
    found = explorer()
    before = len(found.candidates)
    found.add(graphs)
    found.add(graphs)
    assert found.candidates[before:] == graphs


def test_what_an_earlier_run_measured_is_not_proposed_again() -> None:
    before = explorer(gated().graph)
    wave = before.wave(3)
    before.learn({pair: timing(10.0 + k) for k, pair in enumerate(wave)})
    (tried,) = before.tried().values()
    assert {s for s, _ in tried} == {s for _, s in wave}
    after = Explorer(SIZES, CostModel(MACHINE), [])
    after.add([replace(candidate(gated().graph), tried=tried, sizes=SIZES)])
    assert after.fastest == wave
    assert not set(after.wave(4)) & set(wave)
    # at other sizes they say nothing
    elsewhere = Explorer({**SIZES, "m": 64}, CostModel(MACHINE), [])
    elsewhere.add([replace(candidate(gated().graph), tried=tried, sizes=SIZES)])
    assert elsewhere.fastest == []


def test_the_answer_of_an_earlier_run_leads() -> None:
    graph, other = variants()[:2]
    a, b, c = explorer(graph, sizes={"b": 8}).wave(3)
    tried = ((a[1], 10.0), (b[1], 8.0), (c[1], 9.0))
    # the race that decided was another one than those of the waves
    answer = replace(candidate(graph), schedule=c[1], sizes={"b": 8}, timing=timing(7.0), tried=tried)
    found = Explorer({"b": 8}, CostModel(MACHINE), [])
    found.add([candidate(other), answer])
    assert found.leaders(2) == [(1, c[1]), (1, b[1])]
    assert found.leaders(9) == [(1, c[1]), (1, b[1]), (1, a[1])]
    assert not {s for i, s in found.wave(20) if i == 1} & {s for s, _ in tried}
