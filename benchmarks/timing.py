"""Fair timing of versions that each have threads of their own."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from benchmarks.fairness import Inputs, Referee, at_rest
from mirage.kernels.profile import Timing

#: a version: a function of no arguments
Run = Callable[[], object]

#: seconds of calls in one turn, and the most of them
_TURN, _CALLS = 0.003, 10
#: the same where caches are emptied before each call, which takes as long as some milliseconds of calls
_COLD_TURN, _COLD_CALLS = 0.015, 5
#: seconds of a call that is repeated once alone before the race
_LONG = 0.3
#: versions so many times slower than the best in their first calls, or in their turns of the first rounds, have no more
_HOPELESS, _TOO_SLOW = 10.0, 3.0
#: seconds of first calls that are never hopeless: other processes may have held up threads that wait for each other
_CHEAP = 0.1
#: rounds at least: fewer calls are no comparison
ROUNDS = 5


@dataclass(frozen=True)
class Cold:
    """How a race is run with caches that hold nothing of what a call reads or writes.

    Before every timed call, `evict` fills the caches with other memory, and then the version's own `copies` entry is called
    untimed: the same version bound to a copy of its inputs. It wakes the version's threads and brings back its code, which
    the eviction has cost all versions, but none of the memory of the call that is timed: its inputs, its weights in
    whatever layout the version keeps them, and its output, as the copy's result is kept until the call is over.
    This is the state of a layer of a model that runs: threads awake, weights and keys long gone from the caches.
    """

    evict: Callable[[], None]
    copies: Mapping[str, Run]


def each(run: Run, calls: int) -> float:
    """Microseconds per call, of so many in a row: for calls that are not much longer than reading the clock."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        run()
    return (time.perf_counter_ns() - start) / 1e3 / calls


def race(
    versions: Mapping[str, Run],
    *,
    seconds: float,
    cold: Cold | None = None,
    beside: Collection[str] = (),
    referee: Referee | None = None,
) -> dict[str, Timing]:
    """Times of the versions, taking turns in an order shuffled with a fixed seed.

    A turn is a pause, so that the threads which the previous version left spinning are asleep (on few cores they slow
    down everyone else's), an untimed call that wakes this version's own, and timed calls: the state of a program that
    runs this version alone, and has in its caches what they hold of its memory. With `cold`, they hold nothing of it.
    Without, calls longer than a turn are not preceded by an untimed one.

    Ends after `seconds`, but not before 5 rounds; a version much slower than the best after these has no more, and one that is
    hopeless in its first calls none, so that its timing is that of one call. Those `beside` the race, which do less than the
    others, are no best, and compute nothing.

    A `referee` has the inputs changed before every round and every call, and at the end examines one more call of each version
    that has had turns, which is timed as the others are.
    """
    start = time.perf_counter()
    inputs = referee.inputs if referee else None
    once = {name: _Once(run, inputs, cold, name) for name, run in versions.items()}
    turn = _hot_turn if cold is None else _cold_turn
    first = {name: _first(run) for name, run in once.items()}
    rated = [name for name in versions if name not in beside]
    hopeless = max(_HOPELESS * min(first[name] for name in rated), _CHEAP)
    turns = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in versions}
    order = raced = [name for name in versions if first[name] <= hopeless]
    rounds = 0
    while rounds < ROUNDS or time.perf_counter() - start < seconds:
        order = turns.sample(order, len(order))
        if inputs:
            inputs.renew()
        for name in order:
            at_rest()
            times[name] += turn(once[name], first[name])
        rounds += 1
        if rounds == ROUNDS:
            best = min(min(times[name]) for name in order if name in rated)
            order = [name for name in order if min(times[name]) <= _TOO_SLOW * best]
    if referee:
        referee.open()
        for name in raced:
            if name in rated:
                at_rest()
                referee.examine(name, once[name].call)
                times[name].append(once[name].seconds)
        referee.judge()
    return {name: _timing(t or [first[name]]) for name, t in times.items()}


class _Once:
    """Times one call of a version, in `seconds`: of values that no call has had, where there are inputs."""

    def __init__(self, run: Run, inputs: Inputs | None, cold: Cold | None, name: str) -> None:
        self._run, self._inputs, self._cold = run, inputs, cold
        self._copy = cold.copies[name] if cold else None
        self.seconds = 0.0

    def __call__(self) -> float:
        if self._inputs:
            self._inputs.vary()
        self.call()
        return self.seconds

    def call(self) -> object:
        """A call with the values that are there, and its result."""
        kept = None
        if self._cold and self._copy:
            self._cold.evict()
            kept = self._copy()
        start = time.perf_counter()
        result = self._run()
        self.seconds = time.perf_counter() - start
        del kept
        return result


def _first(once: Callable[[], float]) -> float:
    """The best of a few calls: a single one may meet anything."""
    at_rest()
    seconds = once()
    return min(seconds, *(once() for _ in range(1 if seconds > _LONG else 3)))


def _hot_turn(once: Callable[[], float], expected: float) -> list[float]:
    if expected < _TURN:
        expected = once()
    return [once() for _ in range(_calls(_TURN, _CALLS, expected))]


def _cold_turn(once: Callable[[], float], expected: float) -> list[float]:
    return [once() for _ in range(_calls(_COLD_TURN, _COLD_CALLS, expected))]


def _calls(seconds: float, most: int, expected: float) -> int:
    return max(1, min(most, int(seconds / max(expected, 1e-9))))


def _timing(seconds: list[float]) -> Timing:
    return Timing(min(seconds) * 1e6, statistics.median(seconds) * 1e6, len(seconds))
