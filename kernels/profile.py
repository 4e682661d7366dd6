"""Timing of alternatives side by side."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Annotated, TypeVar

from mirage.errors import BudgetError
from mirage.ir.codec import above_zero

#: after so many rounds, functions slower than the best by the factor are called seldom
_TRIAL_ROUNDS, _TOO_SLOW = 3, 3.0
#: seconds of sleep in which a process whose threads are all asleep uses no more than the share of a processor's time, and
#: the seconds after which its threads are taken for busy ones: OpenBLAS waits 2^28 cycles for its next call
_STEP_S, _IDLE_SHARE, _BUSY_S = 0.01, 0.3, 0.2
#: nanoseconds of calls in a turn of its own, and the most of them
_TURN_NS, _TURN_CALLS = 2_000_000, 20
#: rounds after which a race for the fastest may first be clear, and by how much more of them it is looked at again
_CLEAR_ROUNDS, _LOOKS = 10, 1.4
#: standard deviations by which an order has to be certain, and the share of the time that makes no difference
_CERTAIN, _EQUAL = 3.0, 0.01

Run = TypeVar("Run", bound=Callable[[], object])


@dataclass(frozen=True)
class Timing:
    """Times of one function, in microseconds per call."""

    min_us: Annotated[float, above_zero]
    median_us: Annotated[float, above_zero]
    runs: int

    @staticmethod
    def once(seconds: float) -> Timing:
        """The timing of a single call."""
        return Timing(1e6 * seconds, 1e6 * seconds, 1)


def score(t: Timing) -> float:
    """Microseconds by which kernels are compared: between the minimum, which noise hardly touches, and the median, which
    most calls meet.
    """
    return math.sqrt(t.min_us * t.median_us)


def wall_ns(fn: Callable[[], object]) -> int:
    """Nanoseconds that a call takes."""
    before = perf_counter_ns()
    fn()
    return perf_counter_ns() - before


def settle(seconds: float = _BUSY_S) -> bool:
    """Sleep until all threads of this process do, for so many seconds at most, and 0.2; whether they do then.

    Threads of BLAS, OpenMP and the like spin for a while after a call, on the cores of whatever runs next: those of NumPy's
    OpenBLAS for 0.1 s and more, which makes a kernel on two cores half as slow again.
    """
    stop = time.monotonic() + min(seconds, _BUSY_S)
    while time.monotonic() < stop:
        before, used = time.monotonic(), time.process_time()
        time.sleep(_STEP_S)
        if time.process_time() - used <= _IDLE_SHARE * (time.monotonic() - before):
            return True
    return False


def interleave(
    fns: Mapping[str, Run],
    *,
    seconds: float,
    min_runs: int = 5,
    spinning: Collection[str] = (),
    apart: Collection[str] = (),
    measure: Callable[[Run], int] = wall_ns,
    clear: bool = False,
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

    The names in `apart` read memory of their own, while others leave in the caches what the next one reads, too: with them, a
    turn begins with an untimed call. One more call of each of these, in which it may make its copies, is before the time begins.

    `measure` calls a function and returns its nanoseconds; it is the wall clock's by default.

    With `clear`, the fastest is looked for: a function that is slower than the fastest in significantly more rounds than not
    (a sign test, as disturbed rounds slow everyone) has no more turns, and what it took is told as if it had had them. The
    race ends when one function is left, or when all that are left are as fast to within 1 % (racing, Maron and Moore, 1994).

    Raises BudgetError if `seconds` is not positive.
    """
    return race(fns, seconds, min_runs, spinning, apart, measure, clear).timings()


def race(
    fns: Mapping[str, Run],
    seconds: float,
    min_runs: int,
    spinning: Collection[str],
    apart: Collection[str],
    measure: Callable[[Run], int],
    clear: bool,
) -> Field:
    """What `interleave` measures, round by round."""
    if not seconds > 0:
        raise BudgetError(f"interleave: seconds={seconds!r}; give a positive number of seconds")
    for name, fn in fns.items():
        if name in apart:
            fn()
    start = perf_counter_ns()
    limit = seconds * 1e9
    for fn in fns.values():
        fn()
    times: dict[str, list[int]] = {name: [] for name in fns}
    least = dict.fromkeys(fns, math.inf)
    field = Field(times)
    shuffle = random.Random(0).shuffle
    rounds = 0
    order = list(fns)
    look = _CLEAR_ROUNDS

    def left() -> float:
        """Seconds until the next call is not made."""
        return (limit * (1 if rounds >= min_runs else 2) - (perf_counter_ns() - start)) / 1e9

    spun = _mixed(order, spinning)
    while order:
        shuffle(order)
        if spun:
            if rounds and left() <= 0:
                return field
            settle(left() if rounds else _BUSY_S)
        mixed = spun = _mixed(order, spinning)
        if mixed:
            order.sort(key=lambda name: name in spinning)
        warm = any(name in apart for name in field.left)
        for name in order:
            if rounds and left() <= 0:
                return field
            fn = fns[name]
            calls = min(int(_TURN_NS / max(least[name], 1)), _TURN_CALLS) if mixed else 1
            if warm:
                fn()
            turn = [measure(fn) for _ in range(max(calls, 1))]
            times[name] += turn
            least[name] = min(least[name], *turn)
            field.turns[name][rounds] = statistics.median(turn)
        rounds += 1
        best = min(least[name] for name in field.left)
        if clear and rounds >= max(look, min_runs):
            look = math.ceil(rounds * _LOOKS)
            field.drop()
            if field.is_clear([name for name in field.left if least[name] <= _TOO_SLOW * best]):
                return field
        order = list(field.left)
        if rounds >= _TRIAL_ROUNDS and (rounds + 1) & rounds:
            order = [name for name in order if least[name] <= _TOO_SLOW * best]
    return field


def _mixed(names: Collection[str], spinning: Collection[str]) -> bool:
    """Whether some of these spin, on the cores of others."""
    return 0 < len(set(names) & set(spinning)) < len(set(names))


class Field:
    """The functions that are `left` in a race, the nanoseconds of all their calls, and of a call in each of their `turns`,
    by round.
    """

    def __init__(self, times: Mapping[str, list[int]]) -> None:
        self.times = times
        self.turns: dict[str, dict[int, float]] = {name: {} for name in times}
        self.left = list(times)
        #: of what was dropped, the times of all by then
        self._dropped: dict[str, dict[str, Timing]] = {}

    def drop(self) -> None:
        """Leave out what is significantly slower than the fastest."""
        fastest = self._fastest(_timings(self.times))
        for name in self.left.copy():
            ahead = [r for r in self._ratios(name, fastest) if r != 0.0]
            n = len(ahead)
            if n >= _CLEAR_ROUNDS - 1 and 2 * sum(r > 0 for r in ahead) - n >= _CERTAIN * math.sqrt(n):
                self._dropped[name] = _timings(self.times)
                self.left.remove(name)

    def is_clear(self, rivals: Sequence[str]) -> bool:
        """Whether these are as fast as one another, for all that matters."""
        fastest = self._fastest({name: t for name, t in _timings(self.times).items() if name in rivals})
        for name in rivals:
            ratios = sorted(self._ratios(name, fastest))
            margin = math.ceil(_CERTAIN / 2 * math.sqrt(len(ratios)))
            middle = ratios[len(ratios) // 2 - margin : (len(ratios) + 1) // 2 + margin]
            # the confidence interval of the median
            if len(ratios) < 2 * margin or not -_EQUAL <= middle[0] <= middle[-1] <= _EQUAL:
                return False
        return True

    def _fastest(self, timings: Mapping[str, Timing]) -> str:
        return min((name for name in self.left if name in timings), key=lambda name: score(timings[name]))

    def _ratios(self, name: str, other: str) -> list[float]:
        """By how much one is slower than the other in each round that they have in common, as logarithms."""
        mine, its = self.turns[name], self.turns[other]
        return [math.log(max(mine[r], 1.0) / max(its[r], 1.0)) for r in mine.keys() & its.keys()]

    def timings(self) -> dict[str, Timing]:
        """The times of all; of what was dropped, those that it would have had by now as the fastest had."""
        found = _timings(self.times)
        now = found[self._fastest(found)] if found else None
        for name, then in self._dropped.items():
            assert now is not None
            t, before = found[name], then[self._fastest(found)]
            least, median = now.min_us / before.min_us, now.median_us / before.median_us
            found[name] = Timing(t.min_us * least, t.median_us * median, t.runs)
        return found


def _timings(times: Mapping[str, list[int]]) -> dict[str, Timing]:
    return {name: Timing(min(t) / 1e3, statistics.median(t) / 1e3, len(t)) for name, t in times.items()}
