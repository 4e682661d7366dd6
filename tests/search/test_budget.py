"""Tuning keeps its budget, however slow the program, its kernels and the compiler are: with a clock that only work moves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import CompilerError
from mirage.ir.axes import to_axes
from mirage.ir.interpret import Runner
from mirage.kernels import profile
from mirage.kernels.cpu.processor import processor
from mirage.kernels.decision import leaves
from mirage.kernels.library import LibraryProgram
from mirage.mugraph.degree import analyze
from mirage.search import tune, versions
from mirage.search.candidates import Candidate, Candidates
from mirage.search.decision import Decision
from mirage.search.explore import Explorer
from mirage.search.tune import Tuned
from mirage.search.versions import VersionTuner
from mirage.verify.equivalence import Verifier
from tests.kernels.kernels import cut
from tests.sampled import crossed

PROGRAM = mi.trace(
    lambda x, w, v: mi.relu(x @ w) @ v + x, name="adapter", x=mi.tensor("b", 32), w=mi.tensor(32, 8), v=mi.tensor(8, 32)
)
AXES = to_axes(PROGRAM)
LIBRARY = LibraryProgram(AXES)
Sizes = Mapping[str, int]


class Clock:
    """Seconds that have been worked for; in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._lock = threading.Lock()
        #: when the compilers of a wave began, and how many of them did
        self.wave, self.compilers = 0.0, 0

    def begin_wave(self) -> None:
        self.wave, self.compilers = self.now, 0

    def compile(self, seconds: float) -> None:
        """One of the compilers of a wave, one per core side by side and beside all else, works for so many seconds."""
        with self._lock:
            turn = 1 + self.compilers // processor().cores
            self.compilers += 1
            self.now = max(self.now, self.wave + turn * seconds)

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


class Kernels:
    """What takes the place of `CpuExecutable`: compiling takes so many seconds, and a call."""

    calls_library = keeps_copies = False

    def __init__(self, clock: Clock, compile_s: float, call_s: float, seconds: float) -> None:
        clock.compile(min(compile_s, seconds))
        if compile_s > seconds:
            raise CompilerError("no more time")
        self.clock, self.call_s = clock, call_s

    def __call__(self, inputs: Sequence[np.ndarray], sizes: Sizes) -> list[np.ndarray]:
        self.clock.sleep(self.call_s)
        return LIBRARY(inputs, sizes)

    def prepared(self, inputs: Sequence[np.ndarray], sizes: Sizes) -> Callable[[], list[np.ndarray]]:
        return lambda: self(inputs, sizes)

    def forget(self) -> None:
        pass


def candidates() -> list[Candidate]:
    operators = [i for i, n in enumerate(AXES.nodes) if n.op not in ("input", "constant")]
    graphs = [cut(PROGRAM, operators), cut(PROGRAM, *([i] for i in operators))]
    verifier = Verifier(PROGRAM, 0)
    return [Candidate(g, verifier.check(g), analyze(g), 1.0 + i) for i, g in enumerate(graphs)]


def tuned(
    monkeypatch: pytest.MonkeyPatch,
    budget: float,
    anchors: int,
    library_s: float,
    kernel_s: float,
    compile_s: float,
    first: int = 5,
) -> tuple[float, Tuned, Decision]:
    """Seconds on the clock, and what was chosen, where a call of the library takes so long, and NumPy five times that."""
    clock = Clock()
    for module in (tune, versions):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(profile, "settle", lambda seconds: clock.sleep(min(seconds, 0.1)))
    monkeypatch.setattr(profile, "perf_counter_ns", lambda: int(clock.now * 1e9))

    class Compiled(Kernels):
        def __init__(self, *_: Any, seconds: float) -> None:
            super().__init__(clock, compile_s, kernel_s, seconds)

    def slow(seconds: float) -> Runner:
        def run(inputs: Sequence[np.ndarray], sizes: Sizes) -> list[np.ndarray]:
            clock.sleep(seconds)
            return LIBRARY(inputs, sizes)

        return run

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers: int) -> None:
            clock.begin_wave()
            super().__init__(workers)

    monkeypatch.setattr(tune, "ThreadPoolExecutor", Pool)
    for module in (tune, versions):
        monkeypatch.setattr(module, "CpuExecutable", Compiled)
    # the estimate of NumPy's time is that of the program, not of one that sleeps
    monkeypatch.setattr(tune, "reference_seconds", lambda *_: 5 * library_s)
    sizes = [{"b": b} for b in (first, 40, 320)[:anchors]]
    baselines = {"reference": slow(5 * library_s), "library": slow(library_s)}
    tuner = VersionTuner(PROGRAM, AXES, sizes, processor(), baselines, budget=budget, seed=0)
    result, decision = tuner.run(Candidates.of(Verifier(PROGRAM, 0), candidates()))
    return clock.now, result, decision


@pytest.mark.parametrize(
    ("calls", "machine"),
    crossed(
        [(0.001, 0.0005), (0.05, 0.02), (0.05, 0.3), (0.4, 0.1), (3.0, 1.0)],
        [
            *[(1.0, 1, 0.25), (5.0, 3, 2.0), (1.0, 3, 2.0), (5.0, 1, 0.25)],
            *[(1.0, 1, 2.0), (5.0, 3, 0.25), (1.0, 3, 0.25), (5.0, 1, 2.0)],
        ],
    ),
)
def test_the_budget_is_kept(
    monkeypatch: pytest.MonkeyPatch, calls: tuple[float, float], machine: tuple[float, int, float]
) -> None:
    (library_s, kernel_s), (budget, anchors, compile_s) = calls, machine
    seconds, result, decision = tuned(monkeypatch, budget, anchors, library_s, kernel_s, compile_s)
    # the library is called once in any case, beside the compilers of the first wave, whose time this clock adds to it; and a
    # check or a race that has begun is ended
    assert seconds <= max(1.1 * budget + 0.3 + 2 * kernel_s, 1.1 * library_s + min(compile_s, budget))
    assert "library" in result.baselines and result.baselines["library"].min_us >= 1e6 * library_s * 0.99
    assert {v for _, v in leaves(decision.tree)} == set(range(len(decision.versions)))
    if seconds > 0.95 * budget or library_s > budget:
        assert result.stop_reason.startswith("budget spent")


def test_time_is_used_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result, decision = tuned(monkeypatch, 5.0, 1, 0.05, 0.02, 0.25)
    assert result.compiled > 2
    assert all(v.kind == "mugraph" for v in decision.versions)


def test_a_large_program_has_small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    # as many operations at the given sizes as take minutes in float64, and few elsewhere
    monkeypatch.setattr(versions, "program_cost", lambda _, sizes: (10**6, 10**12 if sizes["b"] > 1000 else 10**3))
    _, result, _ = tuned(monkeypatch, 5.0, 1, 0.05, 0.02, 0.25, first=10_000)
    assert result.compiled > 2


def test_the_library_is_the_answer_where_there_was_no_time_for_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for compile_s, library_s in ((30.0, 0.05), (0.25, 30.0)):
        _, result, decision = tuned(monkeypatch, 2.0, 3, library_s, 0.02, compile_s)
        assert [v.kind for v in decision.versions] == ["library"]
        assert result.stop_reason.startswith("budget spent before a kernel was compiled and checked")
        assert all(c.timing is None and c.certificate.equal for c in result.candidates)


def test_given_sizes_without_time_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _, result, decision = tuned(monkeypatch, 1.0, 3, 0.2, 0.05, 0.25)
    assert "given sizes not measured" in result.stop_reason
    assert len(decision.points) < 3
    assert list(itertools.islice(decision.points[0].sizes.items(), 1)) == [("b", 5)]


def test_given_sizes_where_little_time_is_left_are_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no share of the time that four calls of the library need, but the rest suffices for three."""
    monkeypatch.setattr(versions, "GIVEN_SHARE", 0.1)
    _, result, decision = tuned(monkeypatch, 20.0, 2, 0.1, 0.02, 0.1)
    assert "given sizes not measured" not in result.stop_reason
    assert [p.sizes for p in decision.points[:2]] == [{"b": 5}, {"b": 40}]


def test_no_compiler_is_started_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, result, _ = tuned(monkeypatch, 0.1, 1, 0.01, 0.005, 0.45)
    assert result.compiled == 0 and seconds < 0.15


@pytest.mark.parametrize(
    ("kernel_s", "library_s", "alone", "anchors", "end"),
    [
        (0.1, 0.1, False, 1, 117.0), (0.001, 0.5, False, 1, 117.0), (0.001, 0.01, False, 1, 113.0),
        (0.1, 0.1, True, 1, 111.0), (0.1, 0.1, False, 2, 111.0),
    ],
)  # fmt: skip
def test_what_no_further_size_may_have_is_for_the_given_one(
    kernel_s: float, library_s: float, alone: bool, anchors: int, end: float
) -> None:
    """Where a call takes so long that none could be measured in the time that is kept for them: 7 of the 20 seconds until 120."""
    tuner: Any = SimpleNamespace(deadline=111.0, fastest_us=1e6 * kernel_s, expected={"library": library_s})
    whole: Any = SimpleNamespace(alone=alone, anchors=[{}] * anchors, budget=20.0, deadline=120.0)
    assert VersionTuner._end(whole, tuner) == pytest.approx(end)


def test_the_budget_is_kept_where_no_further_size_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, _, decision = tuned(monkeypatch, 20.0, 1, library_s=0.01, kernel_s=0.1, compile_s=2.0)
    assert seconds <= 22.0
    assert len(decision.points) == 1


@pytest.mark.parametrize("planning", [2.5, 3.5, 4.0, 5.0])
def test_a_wave_that_takes_longer_to_plan_than_is_left_is_not_planned(
    monkeypatch: pytest.MonkeyPatch, planning: float
) -> None:
    begun: list[float] = []
    wave = Explorer.wave

    def slow(self: Explorer, count: int) -> Any:
        clock: Any = vars(tune)["time"]
        begun.append(clock.now)
        clock.sleep(planning)
        return wave(self, count)

    monkeypatch.setattr(Explorer, "wave", slow)
    seconds, _, _ = tuned(monkeypatch, 20.0, 1, library_s=0.01, kernel_s=0.1, compile_s=0.5)
    end = versions.ONLY_SHARE * 20.0 - tune.FINAL_SECONDS
    assert len(begun) >= 2 and all(at + planning <= end for at in begun)
    assert seconds <= 22.0
