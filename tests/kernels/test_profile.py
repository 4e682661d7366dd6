"""Interleaved timing: order, limits, dropping, errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import pytest

from mirage.errors import BudgetError
from mirage.kernels import profile
from mirage.kernels.profile import Timing, interleave, score, settle

MILLISECOND = 1_000_000


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls made, on a clock that only they advance: "b" takes 2 ms, "c10" 10 ms, others 1 ms."""
    made: list[str] = []
    monkeypatch.setattr(profile, "perf_counter_ns", lambda: sum(_cost(c) for c in made))
    return made


def _cost(name: str) -> int:
    return {"b": 2, "c10": 10}.get(name, 1) * MILLISECOND


def functions(calls: list[str], *names: str) -> dict[str, Callable[[], object]]:
    return {n: partial(calls.append, n) for n in names}


def test_times_and_order(calls: list[str]) -> None:
    timings = interleave(functions(calls, "a", "b"), seconds=0.030)
    assert calls[:2] == ["a", "b"], "one untimed call each"
    rounds = [set(calls[i : i + 2]) for i in range(2, len(calls), 2)]
    assert rounds == [{"a", "b"}] * 9, "30 ms are ten calls each of 3 ms, the untimed ones included"
    assert (timings["a"].min_us, timings["a"].median_us, timings["a"].runs) == (1000, 1000, 9)
    assert (timings["b"].min_us, timings["b"].median_us, timings["b"].runs) == (2000, 2000, 9)
    assert len({tuple(calls[i : i + 2]) for i in range(2, len(calls), 2)}) == 2, "neither is always first"


def test_the_order_is_the_same_every_time(calls: list[str]) -> None:
    interleave(functions(calls, "a", "b", "d"), seconds=0.1)
    first = calls.copy()
    calls.clear()
    interleave(functions(calls, "a", "b", "d"), seconds=0.1)
    assert calls == first


def test_minimum_and_median(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([9, 3, 7, 5, 100, 4, 1])
    now = [0]

    def fn() -> None:
        now[0] += next(durations) * MILLISECOND

    monkeypatch.setattr(profile, "perf_counter_ns", lambda: now[0])
    timing = interleave({"f": fn}, seconds=0.1)["f"]
    assert (timing.min_us, timing.median_us, timing.runs) == (3000, 5000, 5), "9 is untimed, 1 never runs"


def test_much_slower_functions_are_called_seldom(calls: list[str]) -> None:
    timings = interleave(functions(calls, "a", "b", "c10"), seconds=0.5)
    assert timings["c10"].runs == 9, "rounds 1, 2, 3, 4, 8, 16, 32, 64 and 128"
    assert timings["c10"].min_us == 10000
    assert timings["b"].runs > 50, "2 times slower is called in every round"
    assert abs(timings["a"].runs - timings["b"].runs) <= 1


def test_an_unlucky_start_is_recovered_from(monkeypatch: pytest.MonkeyPatch) -> None:
    now, count = [0], [0]

    def unlucky() -> None:
        count[0] += 1
        now[0] += (50 if count[0] <= 4 else 1) * MILLISECOND

    def steady() -> None:
        now[0] += MILLISECOND

    monkeypatch.setattr(profile, "perf_counter_ns", lambda: now[0])
    timings = interleave({"unlucky": unlucky, "steady": steady}, seconds=1.0)
    assert timings["unlucky"].min_us == 1000
    assert timings["unlucky"].runs > 100, "once its least time is near the best, it is called in every round again"


def test_a_function_slower_than_the_limit_is_timed_once(calls: list[str]) -> None:
    assert interleave(functions(calls, "a", "c10"), seconds=0.001)["c10"].runs == 1


def test_minimum_of_rounds_extends_the_limit_at_most_twofold(calls: list[str]) -> None:
    assert interleave(functions(calls, "a"), seconds=0.004)["a"].runs == 5
    calls.clear()
    assert interleave(functions(calls, "a"), seconds=0.004, min_runs=2)["a"].runs == 3
    calls.clear()
    assert interleave(functions(calls, "b"), seconds=0.003)["b"].runs == 2, "6 ms, one untimed"


def test_real_time() -> None:
    timing = interleave({"sleep": lambda: time.sleep(0.002)}, seconds=0.02)["sleep"]
    assert 2000 <= timing.min_us <= timing.median_us
    assert 1 <= timing.runs <= 20


def test_spinning_threads_are_waited_for(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "settle", lambda seconds: calls.append("pause"))
    timings = interleave(functions(calls, "a", "b", "blas"), seconds=0.05, spinning=["blas"])
    turns = " ".join(calls[3:]).split("pause")[1:]
    assert {tuple(sorted(set(t.split()))) for t in turns[:-1]} == {("a", "b", "blas")}
    assert all(t.split().index("blas") > t.split().index(n) for t in turns[:-1] for n in "ab"), "it is the last"
    assert all(t.split().count("a") == 2 for t in turns[1:-1]), "as many calls as fit in 2 ms"
    assert timings["blas"].min_us == timings["a"].min_us == 1000


def test_what_spins_alone_is_not_waited_for(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "settle", lambda seconds: calls.append("pause"))
    interleave(functions(calls, "a", "blas"), seconds=0.05, spinning=["a", "blas"])
    interleave(functions(calls, "a", "b"), seconds=0.05, spinning=["blas"])
    assert "pause" not in calls


def test_who_reads_memory_of_his_own_gains_and_loses_nothing_by_who_came_before(calls: list[str]) -> None:
    times = interleave(functions(calls, "a", "b", "d"), seconds=0.1, apart=["b"])
    assert calls[:4] == ["b", "a", "b", "d"], "copies are made before the time begins"
    turns = [calls[i : i + 2] for i in range(4, len(calls), 2)]
    assert all(first == second for first, second in turns), "an untimed call, and a timed one"
    assert sum(t.runs for t in times.values()) == len(turns)


@pytest.mark.parametrize(("spinning", "waited"), [(0.08, 0.09), (5.0, 0.2), (0.0, 0.01)])
def test_threads_that_spin_are_waited_for_but_not_for_ever(
    spinning: float, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: min(now[0], spinning))
    monkeypatch.setattr(time, "sleep", sleep)
    settle()
    assert now[0] == pytest.approx(waited)


def test_nothing_to_time() -> None:
    assert interleave({}, seconds=1) == {}


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_wrong_budget(seconds: float) -> None:
    with pytest.raises(BudgetError, match="positive number of seconds"):
        interleave({}, seconds=seconds)


def test_errors_of_functions_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        interleave({"f": lambda: 1 // 0}, seconds=1)


def test_scores_are_between_minimum_and_median() -> None:
    assert score(Timing(4.0, 9.0, 3)) == 6.0


class Machine:
    """Functions that take 1 ms times a factor, on a machine whose speed changes from one second to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **factors: float) -> None:
        self.now, self.factors = 0.0, factors
        self.calls: dict[str, int] = dict.fromkeys(factors, 0)
        self.noise = random.Random(1)
        monkeypatch.setattr(profile, "perf_counter_ns", lambda: int(self.now))

    def functions(self) -> dict[str, Callable[[], object]]:
        return {name: partial(self.call, name) for name in self.factors}

    def call(self, name: str) -> None:
        self.calls[name] += 1
        # 30 % slower in every other half second, and 5 % of noise
        busy = 1.3 if int(self.now / 5e8) % 2 else 1.0
        self.now += self.factors[name] * MILLISECOND * busy * self.noise.uniform(0.95, 1.05)


def test_a_race_ends_when_the_fastest_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, a=1.0, b=1.2, c=1.5)
    timings = interleave(machine.functions(), seconds=60.0, clear=True)
    assert min(timings, key=lambda name: score(timings[name])) == "a"
    assert machine.now < 2e9


def test_close_rivals_have_the_time_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, a=1.0, b=1.03, c=1.5, d=1.6)
    timings = interleave(machine.functions(), seconds=60.0, clear=True)
    assert min(timings, key=lambda name: score(timings[name])) == "a"
    assert machine.calls["b"] > 2 * machine.calls["c"]
    assert machine.calls["d"] >= 9, "what is left out has lost significantly"


def test_equals_end_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, a=1.0, b=1.001)
    interleave(machine.functions(), seconds=600.0, clear=True)
    assert machine.now < 60e9


def test_what_was_left_out_early_is_told_as_if_it_had_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, a=1.0, b=1.003, c=1.25)
    start = machine.functions()

    def call(name: str) -> None:
        before = machine.now
        start[name]()
        # c leaves in a quiet time; then everything takes twice as long
        machine.now += (machine.now - before) * (before > 1e8)

    timings = interleave({name: partial(call, name) for name in start}, seconds=10.0, clear=True)
    assert timings["c"].runs < timings["a"].runs / 10
    assert timings["a"].median_us > 1900
    assert 1.15 < timings["c"].median_us / timings["a"].median_us < 1.35


def test_without_spinning_rivals_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, a=1.0, b=1.005, blas=1.5)
    pauses: list[int] = []
    monkeypatch.setattr(profile, "settle", lambda seconds: pauses.append(machine.calls["a"]))
    interleave(machine.functions(), seconds=10.0, spinning=["blas"], clear=True)
    assert machine.calls["a"] > 10 * pauses[-1], "the pauses end with the turns of what spins"


def test_a_race_with_what_spins_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, a=1.0, blas=1.5)

    def wait(seconds: float) -> None:
        machine.now += 1e9 * min(seconds, 0.2)

    monkeypatch.setattr(profile, "settle", wait)
    interleave(machine.functions(), seconds=1.0, min_runs=1, spinning=["blas"])
    assert machine.now <= 1.01e9


def test_a_single_function_is_clear(calls: list[str]) -> None:
    assert interleave(functions(calls, "a"), seconds=60.0, clear=True)["a"].runs == 10
