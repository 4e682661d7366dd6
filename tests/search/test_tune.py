"""Tuning measures graph-defined and predefined kernels against one another."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from mirage.ir.axes import to_axes
from mirage.kernels.cpu.processor import processor
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing, score
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.schedule import Schedule
from mirage.search import explore, tune
from mirage.search.candidates import Candidate, Candidates
from mirage.search.explore import diverse, idle_factor, is_idle_loop
from mirage.search.tune import Tuner
from mirage.verify.equivalence import Verifier
from tests.api.small import limit_tuning
from tests.kernels.kernels import cut
from tests.programs import axes, program
from tests.work import ByHand

NAME, SIZES = "adapter_mlp", {"b": 5}


def candidate(graph: MuGraph, cost: float = 1.0) -> Candidate:
    certificate = Verifier(program(NAME), 0).check(graph)
    assert certificate.equal
    return Candidate(graph, certificate, analyze(graph), cost)


def kernels() -> MuGraph:
    """Every operator in a kernel of its own."""
    return cut(program(NAME), *([i] for i, n in enumerate(axes(NAME).nodes) if n.op not in ("input", "constant")))


def test_a_graph_and_its_predefined_variant_are_both_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    # what other tests taught the cost model does not leave one of them out
    monkeypatch.setattr(explore, "FAR", 1e9)
    own = kernels()
    library = with_predefined(own)
    assert not library.kernels
    baselines = {"library": LibraryProgram(to_axes(program(NAME)))}
    tuner = Tuner(program(NAME), SIZES, processor(), baselines, flops=1e6, budget=60.0, seed=0)
    tuned = tuner.run(Candidates.of(Verifier(program(NAME), 0), [candidate(own), candidate(library)]))
    assert not tuned.rejected and tuned.compiled >= 2
    assert [c.timing is not None and c.executable is not None for c in tuned.candidates] == [True, True]
    assert {c.graph.origin for c in tuned.candidates} == {own.origin, library.origin}
    # of two that are as fast, the one with the smaller median may have the larger minimum
    times = [score(c.timing) for c in tuned.candidates if c.timing]
    assert times == sorted(times)


def test_all_that_was_measured_is_told_after_every_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "MAX_KERNELS", 8)
    told: list[list[tuple[Schedule, float]]] = []
    source = Candidates.of(Verifier(program(NAME), 0), [candidate(kernels())])

    def note(tuner: Tuner) -> None:
        (found,) = tuner.told(tuner.ready, source)
        told.append([*found.tried])
        assert {us for _, us in found.tried} == {*tuner.explorer.times.values()}

    baselines = {"library": LibraryProgram(to_axes(program(NAME)))}
    tuner = Tuner(
        program(NAME), SIZES, processor(), baselines, flops=1e6, budget=600.0, seed=0, measured_more=note
    )
    tuner.rank(source)
    assert len(told) > 1 and all(told)
    # every wave adds to what was known
    assert all({s for s, _ in before} < {s for s, _ in after} for before, after in pairwise(told))


def test_what_is_hopeless_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two kernels, a call of one has taken a second, and of the other as long as the library's."""
    limit_tuning(monkeypatch.setattr)
    baselines = {"library": LibraryProgram(to_axes(program(NAME)))}
    tuner = Tuner(program(NAME), SIZES, processor(), baselines, flops=1e6, budget=600.0, seed=0)
    graph = kernels()
    first, second = (s for s in tuner.schedules(candidate(graph))[:2])
    made = tuner.compile([(candidate(graph), first), (candidate(graph), second)], 600.0)
    slow, fast = (id(c.executable) for c in made)
    # what is raced is a matter of these times alone, and of no machine
    tuner.expected["library"] = 1e-3
    monkeypatch.setattr(tune, "interleave", lambda fns, **_: {name: Timing(1.0, 1.0, 2) for name in fns})
    tuner.calls = {slow: 1.0, fast: tuner.expected["library"]}
    raced = tuner.race(made, 0.1)
    runs = {id(c.executable): c.timing.runs for c in raced if c.timing}
    assert runs[slow] == 1 < runs[fast]
    # all of them are, and none is called
    tuner.calls = {slow: 1.0, fast: 2.0}
    assert [c.timing and c.timing.median_us for c in tuner.race(made, 0.1)] == [1e6, 2e6]
    # what made copies in its first call is
    monkeypatch.setattr(Tuner, "apart", lambda self, candidates: [str(i) for i, _ in enumerate(candidates)])
    assert all(c.timing and c.timing.runs > 1 for c in tuner.race(made, 0.1))


def test_variants_take_turns_with_the_graphs_that_they_are_of() -> None:
    own = kernels()
    library = with_predefined(own)
    (first, second, _) = diverse([candidate(own, 1.0), candidate(own, 2.0), candidate(library, 3.0)], SIZES, 2)
    assert (first.graph, second.graph) == (own, library)


def test_predefined_operators_count_as_busy() -> None:
    library = with_predefined(kernels())
    assert idle_factor(library, SIZES, 64) == 1.0
    assert not is_idle_loop(library, SIZES)
    assert idle_factor(kernels(), {"b": 1}, 1 << 20) > 1.0


@pytest.mark.parametrize("parts", [(), ((3,),)])
def test_schedules_of_mixed_graphs(parts: tuple[tuple[int, ...], ...]) -> None:
    graph = cut(program(NAME), *parts)
    baselines = {"library": LibraryProgram(to_axes(program(NAME)))}
    tuner = Tuner(program(NAME), SIZES, processor(), baselines, flops=1e6, budget=1.0, seed=0)
    found = tuner.schedules(candidate(graph))
    assert found and not tuner.rejected
    assert all(len(s.kernels) == len(parts) for s in found)


@pytest.mark.parametrize(("left", "done"), [(6.0, ["search", "search"]), (4.0, ["confirm", "search"])])
def test_towards_the_end_the_leader_is_tested_before_more_is_searched(left: float, done: list[str]) -> None:
    """Of 10 seconds so many are left; nothing else is to be done while compilers work."""
    found: list[str] = []
    leader = candidate(kernels())
    verifier = SimpleNamespace(
        is_confirmed=lambda graph: "confirm" in found, confirm=lambda graph, certificate: found.append("confirm")
    )
    tuner: Any = SimpleNamespace(
        trials=SimpleNamespace(begun=True), _trial_seconds=lambda: inf, explorer=SimpleNamespace(estimate=lambda: False),
        ready=[leader], measured={}, budget=10.0, left=lambda: left, _search=lambda source: found.append("search"),
    )  # fmt: skip
    source: Any = SimpleNamespace(verifier=verifier, done=False)
    for _ in done:
        assert Tuner._meanwhile(tuner, source)
    assert found == done
    source.done = True
    assert Tuner._meanwhile(tuner, source) == ("confirm" not in done)
    assert "confirm" in found
    assert not Tuner._meanwhile(tuner, source)


@pytest.mark.parametrize(
    ("measured", "pieces", "searched"), [(True, False, 10), (True, True, 0), (False, False, 0), (True, None, 0)]
)
def test_between_waves_the_search_of_a_large_program_has_its_share(
    monkeypatch: pytest.MonkeyPatch, measured: bool, pieces: bool | None, searched: int
) -> None:
    """Of the 10 seconds after which a kernel was measured, a tenth, in slices of 0.1 s; `pieces`: whether the search is done."""
    clock = ByHand()
    monkeypatch.setattr(tune, "time", clock)
    clock.sleep(10.0)
    seconds = {"search": 0.0}
    found: list[float] = []

    def search(source: Any) -> None:
        found.append(clock.now)
        clock.sleep(0.1)
        seconds["search"] += 0.1

    tuner: Any = SimpleNamespace(deadline=30.0, budget=30.0, measured={0: 0} if measured else {}, _search=search)
    source: Any = SimpleNamespace(seconds=seconds, pieces=None if pieces is None else SimpleNamespace(done=pieces, begun=True))
    Tuner._search_pieces(tuner, source)
    assert len(found) == pytest.approx(searched, abs=2) and bool(found) == bool(searched)


def test_the_share_of_the_search_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ByHand()
    monkeypatch.setattr(tune, "time", clock)
    clock.sleep(9.0)
    tuner: Any = SimpleNamespace(deadline=10.0, budget=10.0, measured={0: 0}, _search=lambda source: clock.sleep(0.5))
    Tuner._search_pieces(tuner, SimpleNamespace(seconds={"search": 0.0}, pieces=SimpleNamespace(done=False, begun=True)))  # type: ignore[arg-type]
    assert clock.now == 10.0
