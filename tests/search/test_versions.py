"""Versions for buckets of sizes: what is raced where, what is kept, and what an interrupt or an empty budget leaves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.interpret import Runner, run_reference
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.fit import fit
from mirage.kernels.cpu.processor import processor
from mirage.kernels.decision import decide, leaves
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing, score
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.reference import reference_graph
from mirage.search import cold, explore, tune, versions
from mirage.search.candidates import Candidate, Candidates
from mirage.search.decision import MAX_VERSIONS, Decision
from mirage.search.jobs import INTERRUPTED
from mirage.search.tune import Tuned, Tuner
from mirage.search.versions import VersionTuner, fastest
from mirage.verify.equivalence import Verifier
from tests.api.small import limit_tuning
from tests.kernels.kernels import cut

#: an adapter of a few thousand operations
PROGRAM = mi.trace(
    lambda x, w, v: mi.relu(x @ w) @ v + x, name="adapter", x=mi.tensor("b", 32), w=mi.tensor(32, 8), v=mi.tensor(8, 32)
)
AXES = to_axes(PROGRAM)
Sizes = Mapping[str, int]


def candidates() -> list[Candidate]:
    """All operators in one kernel, one kernel each, and library calls."""
    operators = [i for i, n in enumerate(AXES.nodes) if n.op not in ("input", "constant")]
    separate = cut(PROGRAM, *([i] for i in operators))
    graphs: list[MuGraph] = [cut(PROGRAM, operators), separate, with_predefined(separate)]
    found = []
    for cost, graph in enumerate(graphs):
        certificate = Verifier(PROGRAM, 0).check(graph)
        assert certificate.equal
        found.append(Candidate(graph, certificate, analyze(graph), 1.0 + cost))
    return found


def source() -> Candidates:
    return Candidates.of(Verifier(PROGRAM, 0), candidates())


def tuner(*anchors: Sizes, budget: float = 60.0, **options: Any) -> VersionTuner:
    baselines: dict[str, Runner] = {
        "reference": lambda xs, ss: run_reference(PROGRAM, xs, ss),
        "library": LibraryProgram(AXES),
    }
    return VersionTuner(
        PROGRAM, AXES, anchors or [{"b": 5}], processor(), baselines, budget=budget, seed=0, **options
    )


def kind_of(run: Any) -> str:
    if isinstance(run, CpuExecutable):
        return "kernel" if run.mugraph.kernels else "calls"
    return "library" if isinstance(run, LibraryProgram) else "reference"


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, Sizes], float]], list[tuple[str, Sizes]]]:
    """`modelled(us)`: times are those of a function of the kind of a version and the sizes; returns what is measured."""

    def install(us: Callable[[str, Sizes], float]) -> list[tuple[str, Sizes]]:
        asked: list[tuple[str, Sizes]] = []

        def interleave(calls: Mapping[str, partial[Any]], *, seconds: float, **_: Any) -> dict[str, Timing]:
            assert seconds > 0
            found = {}
            for name, call in calls.items():
                kind, sizes = kind_of(call.func), call.args[1]
                asked.append((kind, sizes))
                found[name] = Timing(us(kind, sizes), us(kind, sizes), 1)
            return found

        monkeypatch.setattr(versions, "interleave", interleave)
        monkeypatch.setattr(CpuExecutable, "prepared", lambda self, inputs, sizes: partial(self, inputs, sizes))
        # the choice at the given sizes is tested elsewhere
        monkeypatch.setattr(tune, "interleave", lambda calls, **_: dict.fromkeys(calls, Timing(20.0, 20.0, 1)))
        monkeypatch.setattr(tune, "MAX_KERNELS", 12)
        monkeypatch.setattr(cold, "in_both_states", lambda *_: {})
        # nor do these times teach the cost model of other tests
        monkeypatch.setattr(tune, "coefficients", lambda _: fit([]))
        monkeypatch.setattr(tune, "keep", lambda *_: None)
        # how long a real call takes must not decide what is modelled
        monkeypatch.setattr(versions, "FAR", 1e6)
        monkeypatch.setattr(explore, "FAR", 1e6)
        return asked

    return install


def run(t: VersionTuner) -> tuple[Tuned, Decision]:
    tuned, decision = t.run(source())
    check(decision, t)
    return tuned, decision


def check(decision: Decision, t: VersionTuner) -> None:
    """Fail unless the decision is complete: dense, bounded, and of versions that compute the program at all points."""
    assert {v for _, v in leaves(decision.tree)} == set(range(len(decision.versions)))
    assert 0 < len(decision.versions) <= MAX_VERSIONS
    assert [dict(p.sizes) for p in decision.points[: len(t.anchors)]] == t.anchors
    for p in decision.points:
        version = decision.at(p.sizes)
        assert math.isfinite(p.times[decide(decision.tree, p.sizes)])
        if version.candidate is not None:
            assert version.candidate.executable is not None
            assert len(version.candidate.accuracy) >= 4
            inputs = [np.ones(x.bind(p.sizes), np.float32) for x in t.program.input_types]
            wanted = run_reference(t.program, inputs, p.sizes)
            for w, f in zip(wanted, version.candidate.executable(inputs, p.sizes), strict=True):
                np.testing.assert_allclose(f, w, rtol=1e-4)


def test_real_measurements_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    tuned, decision = run(tuner(budget=20.0))
    assert len(decision.points) >= 2
    # versions and graphs are compared in one measurement
    best = decision.at({"b": 5})
    assert tuned.candidates[0].timing is not None
    measured = [tuned.candidates[0].timing, *tuned.baselines.values()]
    # what moves so little is not compared with cold caches
    assert score(best.timing) == min(map(score, measured))


@pytest.mark.usefixtures("all_points")
def test_each_bucket_has_its_fastest(modelled: Any) -> None:
    def us(kind: str, sizes: Sizes) -> float:
        fast = "kernel" if sizes["b"] <= 5 else "calls" if sizes["b"] <= 40 else "library"
        return 10.0 if kind == fast else 30.0

    modelled(us)
    tuned, decision = run(tuner())
    kinds = [
        kind_of(v.candidate.executable) if v.candidate else v.kind
        for v in (decision.at({"b": b}) for b in (1, 5, 40, 320))
    ]
    assert kinds == ["kernel", "kernel", "calls", "library"]
    assert len(decision.versions) == 3
    assert decision.versions[0] == decision.at({"b": 5})
    assert tuned.candidates[0].timing == Timing(10.0, 10.0, 1)


@pytest.mark.parametrize("wanted", ["kernel", "calls"])
def test_of_close_kernels_the_one_that_is_better_with_cold_caches_runs(
    wanted: str, modelled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_both_states(times: Mapping[str, float], kernels: Mapping[str, CpuExecutable], *_: Any) -> dict[str, float]:
        return {n: times[n] * (1.0 if kind_of(run) == wanted else 1.1) for n, run in kernels.items() if n in times}

    modelled(lambda kind, sizes: {"kernel": 10.0, "calls": 10.0}.get(kind, 15.0))
    monkeypatch.setattr(cold, "in_both_states", in_both_states)
    for alone in (False, True):
        t = tuner({"b": 64})
        t.alone = t.first.decides = alone
        _, decision = t.run(source())
        best = decision.at({"b": 64})
        assert best.candidate is not None and kind_of(best.candidate.executable) == wanted


def test_where_one_version_is_always_fastest_there_is_one(modelled: Any) -> None:
    modelled(lambda kind, sizes: 10.0 if kind == "calls" else 30.0)
    _, decision = run(tuner())
    assert decision.tree == 0
    (version,) = decision.versions
    assert version.candidate is not None and not version.candidate.graph.kernels


@pytest.mark.usefixtures("all_points")
def test_between_points_of_different_winners_others_are_measured(modelled: Any) -> None:
    asked = modelled(lambda kind, sizes: 10.0 if (kind == "library") == (sizes["b"] > 60) else 30.0)
    _, decision = run(tuner(budget=60.0))
    # half way between 40 and 320
    assert sorted({sizes["b"] for _, sizes in asked}) == [1, 5, 40, 113, 320, 2560]
    assert [decision.at({"b": b}).kind == "library" for b in (66, 67, 68)] == [False, False, True]


def test_what_was_close_at_given_sizes_is_measured_again(modelled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    us = {"kernel": 20.0, "calls": 22.0, "library": 40.0, "reference": 50.0}

    def unlucky(calls: Mapping[str, Any], **_: Any) -> dict[str, Timing]:
        kinds = {name: kind_of(call.func) for name, call in calls.items()}
        return {name: Timing(us[kind], us[kind], 1) for name, kind in kinds.items()}

    monkeypatch.setattr(Tuner, "call", lambda self, run: partial(run, self.inputs, self.sizes))
    asked = modelled(lambda kind, sizes: 10.0 if kind == "calls" else 30.0)
    monkeypatch.setattr(tune, "interleave", unlucky)
    _, decision = run(tuner({"b": 5}, {"b": 7}))
    for b in (5, 7):
        assert {kind for kind, sizes in asked if sizes["b"] == b} >= {"kernel", "calls", "library"}
        candidate = decision.at({"b": b}).candidate
        assert candidate is not None and not candidate.graph.kernels


def test_a_busier_machine_changes_all_times_of_a_point() -> None:
    visit = versions._Visit({"b": 5}, tuner().first.trials.first(), {"0": 10.0, "1": 11.0, "2": 20.0})
    visit.take({"0": 13.0, "2": 26.0, "3": 14.0})
    assert visit.times == pytest.approx({"0": 13.0, "1": 14.3, "2": 26.0, "3": 14.0})
    assert visit.best() == "0"


def test_the_last_race_keeps_to_what_fits_its_time(modelled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    modelled(lambda kind, sizes: 10.0)
    t = tuner({"b": 5}, {"b": 7})
    for sizes in t.anchors:
        one = t._tuner(sizes, time.perf_counter())
        t._arrive(one, one.run(source()))
    raced: list[list[str]] = []
    monkeypatch.setattr(t, "_race", lambda visit, names, seconds, clear: raced.append(list(names)))
    names, visit = list(t.pool), t.visits[1]
    visit.times = {name: 1e6 * (1 + k) for k, name in enumerate(names)} | dict.fromkeys(t.baselines, 1e3)
    t._settle(visit, names, 10.0)
    # four calls of 1 s and of 2 s fit 20 s, those of 3 s do not
    t._settle(visit, names, 0.1)
    assert raced == [names[:2]]


def test_all_given_sizes_get_their_fastest(modelled: Any) -> None:
    modelled(lambda kind, sizes: 10.0 if (kind == "library") == (sizes["b"] == 7) else 10.2)
    _, decision = run(tuner({"b": 5}, {"b": 7}, {"b": 9}, budget=30.0))
    assert [decision.at({"b": b}).kind for b in (5, 7, 9)] == ["mugraph", "library", "mugraph"]


def test_a_version_for_a_point_is_tuned_at_it(modelled: Any) -> None:
    modelled(lambda kind, sizes: 10.0)
    t = tuner({"b": 64}, budget=20.0)
    run(t)
    sizes = {tuple(c.sizes.values()) for c in t.pool.values()}
    assert (64,) in sizes and len(sizes) > 1
    assert t.compiled >= len(t.pool)


def test_kernels_that_are_wrong_at_a_point_are_never_used(monkeypatch: pytest.MonkeyPatch, modelled: Any) -> None:
    modelled(lambda kind, sizes: 10.0 if kind == "kernel" else 30.0)
    plain = CpuExecutable.__call__

    def wrong(self: CpuExecutable, inputs: Sequence[np.ndarray], sizes: Sizes, *rest: Any) -> list[np.ndarray]:
        found = plain(self, inputs, sizes, *rest)
        return [f + 1 for f in found] if sizes["b"] == 40 and self.mugraph.kernels else found

    monkeypatch.setattr(CpuExecutable, "__call__", wrong)
    t = tuner()
    tuned, decision = t.run(source())
    assert any("differ from the program's at b=40" in why for why in tuned.rejected)
    for c in [*tuned.candidates, *(v.candidate for v in decision.versions if v.candidate)]:
        assert c.executable is None or not c.graph.kernels
    for c in tuned.candidates:
        assert (c.executable is None) == (c.timing is None) == (c.schedule is None)


def interrupt(at: str) -> Callable[[str], None]:
    def progress(text: str) -> None:
        if at in text:
            raise KeyboardInterrupt

    return progress


def test_an_interrupt_keeps_what_was_measured(modelled: Any) -> None:
    modelled(lambda kind, sizes: 10.0)
    tuned, decision = run(tuner(budget=30.0, progress=interrupt("2 of")))
    assert tuned.stop_reason == INTERRUPTED
    assert len(decision.points) == 3
    assert tuned.candidates[0].timing is not None
    assert set(tuned.baselines) == {"reference", "library"}


def test_an_interrupt_at_the_given_sizes_leaves_one_version() -> None:
    tuned, decision = run(tuner(budget=30.0, progress=interrupt("2 kernels compiled")))
    assert tuned.stop_reason == INTERRUPTED
    assert len(decision.points) == len(decision.versions) == 1


def test_without_time_the_given_sizes_decide() -> None:
    t = tuner(budget=0.01)
    tuned, decision = run(t)
    assert decision.tree == 0
    assert tuned.stop_reason.startswith("budget spent")
    assert t.skipped == t.planned
    assert not t.planned or f"{t.skipped} of {t.planned} further sizes" in tuned.stop_reason


def test_fixed_sizes_have_no_further_points() -> None:
    program = mi.trace(lambda x: mi.relu(x) + x, name="fixed", x=mi.tensor(5, 32))
    axes, verifier = to_axes(program), Verifier(program, 0)
    baselines: dict[str, Runner] = {"library": LibraryProgram(axes)}
    t = VersionTuner(program, axes, [{}], processor(), baselines, budget=1.0, seed=0)
    graph = reference_graph(axes)
    _, decision = t.run(Candidates.of(verifier, [Candidate(graph, verifier.admit(graph), analyze(graph), 1.0)]))
    assert (len(decision.points), t.planned) == (1, 0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, modelled: Any) -> None:
    """No further size is visited; at the given ones, kernels win, and at larger ones, the library."""
    modelled(lambda kind, sizes: {"kernel": 1.0 if sizes["b"] <= 5 else 1000.0}.get(kind, 20.0))

    def at_given_sizes(calls: Mapping[str, Any], **_: Any) -> dict[str, Timing]:
        return {name: Timing(20.0, 20.0, 1) if name in ("reference", "library") else Timing(1.0, 1.0, 1) for name in calls}

    monkeypatch.setattr(tune, "interleave", at_given_sizes)
    monkeypatch.setattr(versions, "CALLS", 1e9)


def test_sizes_without_time_for_a_visit_get_a_glance(hasty: None) -> None:
    """What is the fastest for few rows is compared with the library for many, and gives way to it there."""
    t = tuner()
    _, decision = run(t)
    assert t.planned == t.skipped == 0 and len(decision.points) == 3
    few, many = decision.at({"b": 5}), decision.at({"b": 40})
    assert few.candidate is not None and few.candidate.graph.kernels
    assert many.candidate is None or not many.candidate.graph.kernels


def test_no_glance_takes_longer_than_is_left(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "GLANCE_CALLS", 1e9)
    t = tuner()
    tuned, decision = run(t)
    assert t.planned == t.skipped == 0 and len(decision.points) == 1
    assert "2 further sizes too large to be measured in the time left" in tuned.stop_reason


def test_slow_and_large_sizes_are_left_out(modelled: Any) -> None:
    modelled(lambda kind, sizes: 10.0)
    t = tuner()
    tuned = t.first.run(source())
    t._arrive(t.first, tuned)
    allowed = t._allowed(tuned, 1.0)
    assert allowed({"b": 1}) and allowed({"b": 40})
    # 20 us a call at b=5: in memory, but not in time; then in time, but not in memory
    assert not allowed({"b": 1 << 16})
    assert not t._allowed(tuned, 1e9)({"b": 1 << 36})


def test_arguments_of_equal_shape_are_one_array() -> None:
    t = tuner()
    first, second = t.arguments({"b": 5}), t.arguments({"b": 40})
    assert first[0].shape != second[0].shape
    assert [a is b for a, b in zip(first[1:], second[1:], strict=True)] == [True] * (len(first) - 1)
    assert all(a is b for a, b in zip(first, t.first.inputs, strict=True))


def test_the_fastest_of_all_is_the_only_version() -> None:
    measured = [
        replace(c, timing=Timing(1.0, us, 1), make=None) for c, us in zip(candidates(), (3, 2, 1), strict=True)
    ]
    tuned = Tuned(measured, {"library": Timing(5.0, 6.0, 1), "reference": Timing(4.0, 5.0, 1)}, 0, [], "complete")
    # without kernels, graphs are no versions
    assert [v.kind for v in fastest(tuned, {"b": 5}).versions] == ["reference"]
