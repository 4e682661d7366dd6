"""Fair timing of versions that each have threads of their own."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

from mirage.kernels.profile import Timing

#: seconds of sleep before each turn: idle threads of NumPy's BLAS spin for some 25 ms, those of OpenMP for 1 ms
_SETTLE = 0.03
#: seconds of calls in one turn, and the most of them
_TURN, _CALLS = 0.003, 10
#: seconds of a call that is not repeated before the race
_LONG = 0.3
#: versions so many times slower than the best in their first calls, and after some rounds, have no more turns
_HOPELESS, _ROUNDS, _TOO_SLOW = 10.0, 3, 3.0
#: turns that everyone else has, if they fit in three times the given seconds
_MIN_ROUNDS = 5


def race(versions: Mapping[str, Callable[[], object]], *, seconds: float) -> dict[str, Timing]:
    """Times of the versions, taking turns in an order shuffled with a fixed seed.

    A turn is a pause, so that the threads which the previous version left spinning are asleep (on few cores they slow
    down everyone else's), an untimed call that wakes this version's own, and timed calls: the state of a program that
    runs this version alone. Ends after `seconds`, or up to three times that for 5 turns of each; a version much slower than
    the best keeps the times it has, at least one. Calls longer than a turn are not preceded by an untimed one.
    """
    start = time.perf_counter()
    first = {name: _first(run) for name, run in versions.items()}
    turns = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in versions}
    order = [name for name in versions if first[name] <= _HOPELESS * min(first.values())]
    rounds = 0
    while order and (not rounds or time.perf_counter() - start < seconds * (1 if rounds >= _MIN_ROUNDS else 3)):
        turns.shuffle(order)
        for name in order:
            times[name] += _turn(versions[name], first[name])
        rounds += 1
        if rounds == _ROUNDS:
            best = min(min(times[name]) for name in order)
            order = [name for name in order if min(times[name]) <= _TOO_SLOW * best]
    return {name: _timing(t or [first[name]]) for name, t in times.items()}


def _first(run: Callable[[], object]) -> float:
    """The best of a few calls: a single one may meet anything."""
    time.sleep(_SETTLE)
    seconds = _timed(run)
    return seconds if seconds > _LONG else min(seconds, *(_timed(run) for _ in range(3)))


def _turn(run: Callable[[], object], expected: float) -> list[float]:
    time.sleep(_SETTLE)
    if expected < _TURN:
        expected = _timed(run)
    return [_timed(run) for _ in range(max(1, min(_CALLS, int(_TURN / max(expected, 1e-9)))))]


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _timing(seconds: list[float]) -> Timing:
    return Timing(min(seconds) * 1e6, statistics.median(seconds) * 1e6, len(seconds))
