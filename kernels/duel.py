"""Whether one function is faster than another, beyond noise: what has been chosen stays until that is certain."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from mirage.kernels.profile import Run, Timing, race, wall_ns

#: how often in a row a challenger has to win, and the seconds between
BOUTS, PAUSE_S = 3, 0.01
#: rounds of each bout, where they take up to twice its time
ROUNDS = 5
#: so many rounds are many; standard deviations by which the order has to be certain then, and how many times as slow the holder
MANY, CERTAIN, SLOWER = 9, 3.0, 1.01
#: by how many times the ranges of both have to be apart where there are fewer, but at least so many: a single one says nothing
APART = {5: SLOWER, 3: 1.1, 2: 4.0}


@dataclass(frozen=True)
class Duel:
    """The times of two functions that were called in turns, and whether the challenger is certainly the faster."""

    holder: Timing
    challenger: Timing
    won: bool


def duel(
    holder: Run, challenger: Run, *, seconds: float, spinning: Collection[str] = (), apart: Collection[str] = ()
) -> Duel:
    """Call two functions in turns for so many seconds at most, as `interleave` does with `clear`; in its arguments they are
    "holder" and "challenger".

    What is clear after a blink has seen one state of the machine, so the challenger has to win again after a moment, and once
    more, as far as that fits the time.
    """
    end = perf_counter_ns() + seconds * 1e9
    for more in reversed(range(BOUTS)):
        field = race({"holder": holder, "challenger": challenger}, seconds, ROUNDS, spinning, apart, wall_ns, clear=True)
        timings, first, second = field.timings(), field.turns["holder"], field.turns["challenger"]
        won = is_overtaken([(first[r], second[r]) for r in sorted(first.keys() & second.keys())])
        seconds = 1e-9 * (end - perf_counter_ns()) - PAUSE_S
        if not won or not more or seconds <= 0:
            break
        time.sleep(PAUSE_S)
    return Duel(timings["holder"], timings["challenger"], won)


def is_overtaken(rounds: Sequence[tuple[float, float]]) -> bool:
    """Whether the second of two functions is certainly faster than the first, from what both took in the same rounds.

    In many rounds, it is in significantly more of them, and by what makes a difference in the middle one. In a few, each of its
    times is less than each of the other's: by so much more, the fewer they are.
    """
    if len(rounds) >= MANY:
        ratios = [first / second for first, second in rounds]
        ahead = 2 * sum(r > 1.0 for r in ratios) - len(ratios)
        return ahead >= CERTAIN * math.sqrt(len(ratios)) and statistics.median(ratios) > SLOWER
    gap = next((ratio for few, ratio in APART.items() if len(rounds) >= few), math.inf)
    return gap < math.inf and min(first for first, _ in rounds) > gap * max(second for _, second in rounds)
