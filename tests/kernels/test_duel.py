"""What was chosen stays until something else is certainly faster."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mirage.kernels import duel as duels
from mirage.kernels import profile
from mirage.kernels.duel import duel, is_overtaken

MILLISECOND = 1e6


class Clock:
    """A machine on which `holder` and `challenger` take so many ms, times 30 % in every other half second and some noise; what
    sleeps takes as long as it says.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holder: float, challenger: Callable[[int], float]) -> None:
        self.now, self.calls, self.noise = 0.0, 0, random.Random(1)
        self.slept = 0
        self.holder: Callable[[], object] = partial(self.call, lambda _: holder)
        self.challenger: Callable[[], object] = partial(self.call, challenger)
        for module in (profile, duels):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: int(self.now))
        monkeypatch.setattr(duels, "time", self)

    def call(self, milliseconds: Callable[[int], float]) -> None:
        busy = 1.3 if int(self.now / 5e8) % 2 else 1.0
        self.now += milliseconds(self.slept) * MILLISECOND * busy * self.noise.uniform(0.95, 1.05)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds * 1e9


@pytest.mark.parametrize(
    ("holder", "challenger", "won"),
    [(1.0, 0.9, True), (1.0, 0.97, True), (1.0, 1.0, False), (1.0, 0.995, False), (1.0, 1.1, False), (1.0, 0.1, True)],
)
def test_who_is_faster_by_more_than_noise_wins(
    holder: float, challenger: float, won: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, holder, lambda _: challenger)
    found = duel(clock.holder, clock.challenger, seconds=10.0)
    assert found.won is won
    assert clock.slept == (duels.BOUTS - 1 if won else 0)
    assert clock.now < 10.5e9


def test_what_wins_in_one_state_of_the_machine_only_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1.0, lambda slept: 0.8 if slept < duels.BOUTS - 1 else 1.2)
    assert not duel(clock.holder, clock.challenger, seconds=10.0).won
    assert clock.slept == duels.BOUTS - 1


def test_calls_that_take_long_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for challenger, won in ((500.0, True), (950.0, False)):
        clock = Clock(monkeypatch, 1000.0, {0: challenger}.__getitem__)
        found = duel(clock.holder, clock.challenger, seconds=8.0)
        assert found.won is won and found.holder.runs < duels.MANY and not clock.slept


@pytest.mark.parametrize(
    ("rounds", "won"),
    [
        ([], False),
        # a single round says nothing
        ([(100.0, 1.0)], False),
        ([(100.0, 1.0), (90.0, 2.0)], True),
        ([(2.0, 1.0), (2.0, 1.0)], False),
        ([(2.0, 1.0), (2.0, 1.0), (2.1, 1.1)], True),
        # the ranges overlap
        ([(2.0, 1.0), (2.0, 1.0), (1.05, 1.0)], False),
        ([(1.05, 1.0)] * 4, False),
        ([(1.05, 1.0)] * 5, True),
        ([(1.005, 1.0)] * 5, False),
        # in many rounds, a disturbed one changes nothing
        ([(1.05, 1.0)] * 20 + [(1.05, 9.0)], True),
        ([(1.05, 1.0)] * 12 + [(1.0, 1.05)] * 8, False),
        ([(1.005, 1.0)] * 50, False),
    ],
)
def test_certainty(rounds: list[tuple[float, float]], won: bool) -> None:
    assert is_overtaken(rounds) is won


def test_errors_of_functions_are_raised() -> None:
    def fail() -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        duel(fail, fail, seconds=1.0)
