"""What a tuning left out is said, each cut with its number; "complete" says that nothing was."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mirage.ir.axes import to_axes
from mirage.kernels.cpu.processor import processor
from mirage.kernels.library import LibraryProgram
from mirage.search import explore, tune
from mirage.search.candidates import Candidates
from mirage.search.cutoffs import COMPLETE, Cutoffs
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.tune import Tuned, Tuner
from mirage.verify.equivalence import Verifier
from tests.programs import program
from tests.search.test_explore import candidate, explorer, timing, variants
from tests.search.test_tune import candidate as verified

NAME = "adapter_mlp"


def test_nothing_left_out_is_complete() -> None:
    found = Cutoffs()
    found.add("graphs never estimated", 0)
    assert found.reason() == COMPLETE and not found.counts
    assert found.reason("interrupted") == "interrupted"


def test_cuts_add_up() -> None:
    found = Cutoffs()
    found.add("graphs never estimated", 2)
    found.add("further sizes not modelled")
    found.take({"graphs never estimated": 1_000, "of 2 given sizes not measured": 1})
    assert found.reason(OUT_OF_TIME) == (
        "budget spent; 1,002 graphs never estimated; 1 further size not modelled; 1 of 2 given sizes not measured"
    )


def test_graphs_that_no_wave_needed_are_never_estimated() -> None:
    found = explorer(*variants(), sizes={"b": 8})
    found.conclude()
    assert found.cutoffs.counts == {"graphs never estimated": 3}
    assert found.waits()


def test_graphs_that_are_dear_are_counted() -> None:
    first, second, third = variants()
    found = explorer(sizes={"b": 8})
    found.add([candidate(first), replace(candidate(second), cost=1e3), replace(candidate(third), cost=1e4)])
    what = "graphs modelled at more than 8 times the cheapest"
    assert found.cutoffs.counts == {what: 2}
    # as new ones come, they are not counted twice
    found.add([candidate(replace(first, origin="again"))])
    assert found.cutoffs.counts == {what: 2}


def test_schedules_that_are_dear_or_left_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explorer(*variants(), sizes={"b": 8})
    wave = found.wave(2)
    found.learn({pair: timing(10.0) for pair in wave})
    left = [s for r in found._rivals.values() for s in r.proposals]
    found.conclude()
    assert left and found.cutoffs.counts["schedules proposed but not compiled"] == len(left)
    assert found.cutoffs.counts["measured graphs of which no neighbouring schedules were tried"] == len({i for i, _ in wave})
    monkeypatch.setattr(explore, "FAR", 0.0)
    assert not found._fresh(50, 0.0)
    assert found.cutoffs.counts["schedules estimated at more than 0 times the fastest"] == len(left)


def test_graphs_with_more_schedules_than_were_proposed_are_counted() -> None:
    split, _, library = variants()
    for graph, more in ((split, 1), (library, 0)):
        found = explorer(graph, sizes={"b": 8})
        found.wave(1)
        found.conclude()
        assert found.cutoffs.counts.get("graphs with more schedules than the 3 that were proposed", 0) == more


def tuned() -> tuple[Tuner, Tuned]:
    baselines = {"library": LibraryProgram(to_axes(program(NAME)))}
    tuner = Tuner(program(NAME), {"b": 5}, processor(), baselines, flops=1e6, budget=60.0, seed=0)
    graphs = [verified(g) for g in variants()]
    return tuner, tuner.run(Candidates.of(Verifier(program(NAME), 0), graphs))


@pytest.mark.slow
def test_a_tuning_that_tries_all_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    # the schedules of three graphs, and no neighbours: few enough to be compiled
    for name, value in (("FAR", math.inf), ("_LEADERS", 0)):
        monkeypatch.setattr(explore, name, value)
    monkeypatch.setattr(tune, "PATIENCE", 10_000)
    monkeypatch.setattr(explore._Rival, "has_more", lambda _: False)
    tuner, found = tuned()
    # all but that neighbours were left out
    measured = sum(c.timing is not None for c in found.candidates)
    what = "measured graphs of which no neighbouring schedules were tried"
    assert tuner.ended == "" and tuner.cutoffs.counts == {what: measured}
    assert found.stop_reason == f"{measured} {what}"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("PATIENCE", 0, "no faster kernel in 0 waves"), ("MAX_KERNELS", 1, "1 kernels compiled")],
)
def test_limits_that_end_a_tuning_are_named(name: str, value: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, name, value)
    tuner, found = tuned()
    assert tuner.ended == reason and found.stop_reason.startswith(f"{reason}; ")
    assert found.compiled == (value if name == "MAX_KERNELS" else 0)
    left = tuner.cutoffs.counts
    # what was not even estimated, or was and is not compiled
    assert left.get("graphs never estimated", 0) + left.get("schedules proposed but not compiled", 0) >= 1

