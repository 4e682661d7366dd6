"""Whether what was found now takes the place of what was found before: only where it was measured to be faster.

Two runs of the tuner meet two states of the machine, so their times are not compared. Where both choose different versions, these
are called in turns, and the one of before stays where that does not clearly speak for the new one, or where there is no time for
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.decision import Sizes
from mirage.kernels.duel import Duel, duel
from mirage.kernels.profile import Timing, score
from mirage.search.decision import UNMEASURED, Decision, Point, Version

#: share of the budget, and seconds at most, for all comparisons; seconds for one at given sizes, and at others
SHARE, SECONDS = 0.1, 3.0
GIVEN_SECONDS, FURTHER_SECONDS = 1.0, 0.1
#: calls of both versions for which the time has to suffice
CALLS = 3

#: the comparison of a version of before with a new one at some sizes, given or not; None where there is no time for it
Compare = Callable[[Sizes, Version, Version, bool], Duel | None]


def is_same(a: Version, b: Version) -> bool:
    """Whether two versions run the same kernels."""
    if a.candidate is None or b.candidate is None:
        return a.candidate is b.candidate and a.kind == b.kind
    same = a.candidate.graph is b.candidate.graph and a.schedule == b.schedule
    return same and dict(a.sizes) == dict(b.sizes)


def succeed(before: Decision, after: Decision, anchors: Sequence[Sizes], compare: Compare) -> Decision:
    """The decision of before, the new one, or one between: at each of the given sizes `anchors`, and wherever either of them was
    measured, what ran before runs still, unless `compare` says that the new version is faster.

    Between them is learnt from a table, so a version that is better at few further sizes by less than a leaf of the tree has to
    save may be dropped.
    """
    given = {_key(a) for a in anchors}
    points = {_key(p): p for p in (*anchors, *(p.sizes for d in (before, after) for p in d.points))}
    rounds: list[_Round] = []
    for key, sizes in points.items():
        old, new = before.at(sizes), after.at(sizes)
        same = is_same(old, new)
        rounds.append(_Round(sizes, old, new, same, None if same else compare(sizes, old, new, key in given)))
    if not any(r.lost for r in rounds):
        found = after
    elif not any(r.won for r in rounds):
        found = before
    else:
        found = _between(before, after, rounds, len(given))
    return _as_compared(found, rounds[0])


def _key(sizes: Sizes) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes.items()))


@dataclass(frozen=True)
class _Round:
    """What runs at some sizes before and now, and how they were compared."""

    sizes: Sizes
    old: Version
    new: Version
    same: bool
    found: Duel | None

    @property
    def won(self) -> bool:
        return not self.same and self.found is not None and self.found.won

    @property
    def lost(self) -> bool:
        return not self.same and not self.won


def _between(before: Decision, after: Decision, rounds: Sequence[_Round], given: int) -> Decision:
    """The decision in which the winner of each round runs at its sizes."""
    first = rounds[0]
    versions = list(after.versions)
    kept = [_retimed(v, _ratio(first)) for v in before.versions]
    numbers = []
    for v, retimed in zip(before.versions, kept, strict=True):
        numbers.append(next((i for i, other in enumerate(versions) if is_same(v, other)), len(versions)))
        if numbers[-1] == len(versions):
            versions.append(retimed)
    points, wanted = [], 0
    for i, r in enumerate(rounds):
        old, new = numbers[before.number(r.sizes)], after.number(r.sizes)
        times = _row(before if r.lost else after, numbers if r.lost else range(len(after.versions)), r.sizes, len(versions))
        if r.same and times[new] == math.inf:
            times = _row(before, numbers, r.sizes, len(versions))
        winner = old if r.lost else new
        if r.found is not None:
            # of what ran in the duel, the times in it
            both = {old: score(r.found.holder), new: score(r.found.challenger)}
            scale = both[winner] / times[winner] if times[winner] < math.inf else 1.0
            times = [both.get(k, scale * t) for k, t in enumerate(times)]
        if times[winner] == math.inf:
            # nothing is known here but what ran before
            continue
        # whatever else was measured at another time, the winner of the round is the fastest
        points.append(Point(r.sizes, tuple(max(t, times[winner]) for t in times)))
        wanted += i < given
    decision = Decision.learnt(versions, points, wanted, after.measured_on)
    used = decision.used
    table = tuple(Point(p.sizes, p.times[:used]) for p in decision.points)
    return replace(decision, versions=decision.versions[:used], points=table)


def _as_compared(decision: Decision, first: _Round) -> Decision:
    """The decision with the time of its version at the first given sizes from their comparison, if that has more calls: the time
    so far may be of a single one.
    """
    number = decision.number(first.sizes)
    then = now = decision.versions[number].timing
    if first.found is not None:
        now = first.found.holder if first.lost else first.found.challenger
    if now.runs <= then.runs:
        return decision
    candidate = decision.versions[number].candidate
    version = replace(decision.versions[number], timing=now, candidate=candidate and replace(candidate, timing=now))
    scale, (point, *others) = score(now) / score(then), decision.points
    point = replace(point, times=tuple(scale * t for t in point.times))
    versions = (*decision.versions[:number], version, *decision.versions[number + 1 :])
    return replace(decision, versions=versions, points=(point, *others))


def _row(decision: Decision, places: Sequence[int], sizes: Sizes, count: int) -> list[float]:
    """The times (us) of so many versions at some sizes, as far as a decision has them; `places` are those of its own."""
    times = [math.inf] * count
    for p in decision.points:
        if _key(p.sizes) == _key(sizes):
            for place, us in zip(places, p.times, strict=True):
                times[place] = us
    return times


def _ratio(first: _Round) -> float:
    """By how much the machine is slower now than when the versions of before were timed, from the first given sizes."""
    then, now = score(first.old.timing), score(first.new.timing)
    if first.found is not None:
        now *= score(first.found.holder) / score(first.found.challenger)
    return now / then if 0 < then < math.inf and 0 < now < math.inf else 1.0


def _retimed(version: Version, ratio: float) -> Version:
    """The version with the time that it would have now."""
    timing = Timing(version.timing.min_us * ratio, version.timing.median_us * ratio, version.timing.runs)
    candidate = version.candidate and replace(version.candidate, timing=timing)
    return replace(version, timing=timing, candidate=candidate)


class Duels:
    """Compares versions by calling them in turns, within `seconds` in all; `runner` gives what a version runs, and `arguments`
    the arrays for some sizes. An interrupt ends it.
    """

    def __init__(
        self,
        seconds: float,
        runner: Callable[[Version], Any],
        arguments: Callable[[Mapping[str, int]], list[np.ndarray]],
    ) -> None:
        self._end = time.perf_counter() + seconds
        self._runner = runner
        self._arguments = arguments
        self.interrupted = False

    def __call__(self, sizes: Sizes, old: Version, new: Version, given: bool) -> Duel | None:
        """How the new version does against the one of before; None where there is no time to know."""
        left = min(self._end - time.perf_counter(), GIVEN_SECONDS if given else FURTHER_SECONDS)
        if self.interrupted or left <= 0 or (given and CALLS * _seconds(old, new) > left):
            return None
        try:
            return self._compared(sizes, {"holder": old, "challenger": new}, left)
        except KeyboardInterrupt:
            self.interrupted = True
            return None

    def _compared(self, sizes: Sizes, versions: Mapping[str, Version], seconds: float) -> Duel | None:
        try:
            runs = {name: self._runner(v) for name, v in versions.items()}
        except MirageError:
            # of a file from elsewhere: what cannot be made here does not run here
            return Duel(UNMEASURED, versions["challenger"].timing, won=True)
        inputs = self._arguments(sizes)
        compiled = {name for name, v in versions.items() if v.candidate is not None}
        calls: dict[str, Callable[[], object]] = {}
        took = 0.0
        for name, run in runs.items():
            call = run.prepared(inputs, sizes) if name in compiled else lambda run=run: run(inputs, sizes)
            # the first call may make copies
            call()
            start = time.perf_counter()
            call()
            took += time.perf_counter() - start
            calls[name] = call
        if CALLS * took > 2 * seconds:
            return None
        spinning = [name for name, run in runs.items() if name not in compiled or run.calls_library]
        apart = [name for name in compiled if runs[name].keeps_copies]
        found = duel(calls["holder"], calls["challenger"], seconds=seconds, spinning=spinning, apart=apart)
        for name in compiled:
            runs[name].forget()
        return found


def _seconds(*versions: Version) -> float:
    """Seconds of a call of each at the first given sizes, of those that were timed."""
    return 1e-6 * sum(v.timing.median_us for v in versions if v.timing != UNMEASURED)
