"""Timing of alternatives side by side."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

from mirage.errors import BudgetError

#: after so many rounds, functions slower than the best by the factor are called seldom
_TRIAL_ROUNDS, _TOO_SLOW = 3, 3.0
#: seconds of sleep in which a process whose threads are all asleep uses no more than the share of a processor's time, and
#: the seconds after which its threads are taken for busy ones: OpenBLAS waits 2^28 cycles for its next call
_STEP_S, _IDLE_SHARE, _BUSY_S = 0.01, 0.3, 0.2
#: nanoseconds of calls in a turn of its own, and the most of them
_TURN_NS, _TURN_CALLS = 2_000_000, 20


@dataclass(frozen=True)
class Timing:
    """Times of one function, in microseconds per call."""

    min_us: float
    median_us: float
    runs: int


def wall_ns(fn: Callable[[], object]) -> int:
    """Nanoseconds that a call takes."""
    before = perf_counter_ns()
    fn()
    return perf_counter_ns() - before


def settle() -> None:
    """Sleep until all threads of this process do, 0.2 s at most.

    Threads of BLAS, OpenMP and the like spin for a while after a call, on the cores of whatever runs next: those of NumPy's
    OpenBLAS for 0.1 s and more, which makes a kernel on two cores half as slow again.
    """
    stop = time.monotonic() + _BUSY_S
    while time.monotonic() < stop:
        before, used = time.monotonic(), time.process_time()
        time.sleep(_STEP_S)
        if time.process_time() - used <= _IDLE_SHARE * (time.monotonic() - before):
            return


def interleave(
    fns: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    min_runs: int = 5,
    spinning: Collection[str] = (),
    measure: Callable[[Callable[[], object]], int] = wall_ns,
) -> dict[str, Timing]:
    """The times of several functions, measured in turns so that noise hits all equally.

    After one untimed call each, every round calls each function once, in an order shuffled with a fixed seed:
    no function always meets the caches that the same other one leaves. After `seconds`, the untimed calls
    included, it stops; the first round is always completed, and `min_runs` rounds may take up to twice
    `seconds`. From the fourth round on, a function whose least time is over 3 times the best is called only in
    rounds 4, 8, 16 and so on: seldom enough to leave the time to its rivals, and often enough to recover from an
    unlucky start on a busy machine.

    The names in `spinning` leave threads behind that spin for a while (calls of BLAS): they come last in a round, the next
    round begins when their threads are asleep, and a turn is several calls, so that less time is lost with waiting.

    `measure` calls a function and returns its nanoseconds; it is the wall clock's by default.

    Raises BudgetError if `seconds` is not positive.
    """
    if not seconds > 0:
        raise BudgetError(f"interleave: seconds={seconds!r}; give a positive number of seconds")
    start = perf_counter_ns()
    limit = seconds * 1e9
    for fn in fns.values():
        fn()
    times: dict[str, list[int]] = {name: [] for name in fns}
    shuffle = random.Random(0).shuffle
    rounds = 0
    order = list(fns)
    pause = 0 < len(set(fns) & set(spinning)) < len(fns)
    while order:
        shuffle(order)
        if pause:
            order.sort(key=lambda name: name in spinning)
            settle()
        for name in order:
            elapsed = perf_counter_ns() - start
            if rounds and elapsed >= (limit if rounds >= min_runs else 2 * limit):
                return _timings(times)
            fn = fns[name]
            calls = min(_TURN_NS // max(min(times[name]), 1), _TURN_CALLS) if pause and rounds else 1
            for _ in range(max(calls, 1)):
                times[name].append(measure(fn))
        rounds += 1
        order = list(fns)
        if rounds >= _TRIAL_ROUNDS and (rounds + 1) & rounds:
            least = {name: min(t) for name, t in times.items()}
            best = min(least.values())
            order = [name for name in fns if least[name] <= _TOO_SLOW * best]
    return _timings(times)


def _timings(times: Mapping[str, list[int]]) -> dict[str, Timing]:
    return {name: Timing(min(t) / 1e3, statistics.median(t) / 1e3, len(t)) for name, t in times.items()}
