"""Which task of a job gets the next step: the one whose tuning promises most for the whole.

The objective of a job is the weighted sum of its tasks' latencies, as in the task scheduler of Ansor (Zheng et al., "Ansor:
Generating High-Performance Tensor Programs for Deep Learning", OSDI 2020, section 6), which TVM's MetaSchedule took over as its
gradient-based one. There is no derivative of a task's latency `g` by the time `t` that it was tuned for, so that
it is estimated by

    w * (ALPHA * (g(t - d) - g(t)) / d + (1 - ALPHA) * g(t) / t)

with the task's weight `w`: what its last `WINDOW` rounds, of `d` seconds together, gained per second; and, as if it could be
tuned to nothing in as much time again, its whole latency, which decays with the time that it was given. The task of the greatest
estimate is next. Before, every task is searched and gets one round.

The rule is a function of the measurements and the seed alone: equal estimates are ordered by the seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from mirage.cache.records import sha256
from mirage.jobs.task import Done, Event, Failed, Kind, Lost, Task

#: the share of what was gained lately in the estimate, and the rounds that this looks back: those of MetaSchedule
ALPHA, WINDOW = 0.2, 3
#: rounds in turn after which a task is done that gained no more than this share in them
PATIENCE, BETTER = 3, 0.01
#: share by which a choice has to be slower than the one that is kept, in proportion to the library version, to be dropped
SLOWER = 0.1


@dataclass
class TaskState:
    """What is known of a task: its search, its rounds, and the step that failed for good, if one did.

    It changes by `take` and `retry` only: what follows from it is kept until then, as a job asks for it of thousands of tasks
    whenever a step ends.
    """

    task: Task
    searched: Done | None = None
    rounds: list[Done] = field(default_factory=list)
    failed: Failed | None = None

    def retry(self) -> None:
        """Forget that it failed."""
        self._changed()
        self.failed = None

    def _changed(self) -> None:
        for name in ("records", "spent", "latencies", "library_us", "ratio", "done", "estimate"):
            self.__dict__.pop(name, None)

    def take(self, event: Event) -> None:
        """Note what happened to the task."""
        self._changed()
        if isinstance(event, Lost):
            self.searched, self.rounds, self.failed = None, [], None
        elif isinstance(event, Failed):
            self.failed = event
        elif event.kind == "search":
            self.searched, self.failed = event, None
        else:
            self.rounds.append(event)
            self.failed = None

    @cached_property
    def records(self) -> list[str]:
        """The keys of what its steps have kept."""
        steps = [*([self.searched] if self.searched else []), *self.rounds]
        return list(dict.fromkeys(key for s in steps for key in s.records))

    @cached_property
    def spent(self) -> float:
        """Seconds of its rounds."""
        return sum(r.seconds for r in self.rounds)

    @cached_property
    def latencies(self) -> list[float]:
        """The best latency (us) after each round.

        The machine may be busier in one round than in another, and rounds may be on different machines: where the library version
        was measured beside, latencies are in proportion to it, at the first round's time of it.
        """
        found: list[float] = []
        base = next((r.library_us for r in self.rounds if r.library_us), None)
        for r in self.rounds:
            if r.best_us is not None:
                us = r.best_us * base / r.library_us if base and r.library_us else r.best_us
                found.append(min([us, *found[-1:]]))
        return found

    @cached_property
    def library_us(self) -> float | None:
        """The library version's latency: what latencies are in proportion to."""
        return next((r.library_us for r in self.rounds if r.library_us), None)

    @cached_property
    def ratio(self) -> float | None:
        """How many times as fast as the library version the best version is."""
        base, found = self.library_us, self.latencies
        return base / found[-1] if base and found else None

    def is_slower(self, done: Done) -> bool:
        """Whether what a round has chosen is clearly slower than what is kept, as it had no time to race that."""
        before, us, library = self.ratio, done.best_us, done.library_us
        return before is not None and us is not None and library is not None and library / us < (1 - SLOWER) * before

    @property
    def is_idle(self) -> bool:
        """Whether its last rounds gained nothing."""
        found = self.latencies
        return len(found) > PATIENCE and found[-1] > (1 - BETTER) * found[-1 - PATIENCE]

    @cached_property
    def done(self) -> str:
        """Why no more is done for it; "" where more is."""
        if self.failed:
            return "failed"
        if self.searched is None:
            return ""
        if self.rounds and self.rounds[-1].complete:
            return "complete"
        if self.task.rounds is not None and len(self.rounds) >= self.task.rounds:
            return "all rounds"
        if self.task.budget is not None and self.spent >= self.task.budget:
            return "budget spent"
        return "no gain" if self.is_idle else ""

    @cached_property
    def estimate(self) -> float:
        """What a second of tuning promises to gain, weighted; infinite before the first round."""
        found = self.latencies
        if not found or not self.spent:
            return float("inf") if not self.rounds else 0.0
        back = min(WINDOW, len(found) - 1)
        seconds = sum(r.seconds for r in self.rounds[-back:]) if back else 0.0
        lately = (found[-1 - back] - found[-1]) / seconds if seconds else 0.0
        return self.task.weight * (ALPHA * lately + (1 - ALPHA) * found[-1] / self.spent)


def spent(states: Iterable[TaskState]) -> float:
    """Seconds of all rounds."""
    return sum(s.spent for s in states)


class Queue:
    """The tasks that wait for a step, in the order of the rule; those that have one under way are not in it.

    All rounds together may take `budget` seconds; but the first round of each task is not a matter of the budget, as nothing is
    known of the task without it. A step costs about as much with thousands of tasks as with ten.
    """

    def __init__(self, states: Iterable[TaskState], *, budget: float | None, seed: int) -> None:
        self._budget, self._seed = budget, seed
        #: by kind of the next step and target
        self._heaps: dict[tuple[Kind, str], list[tuple[float, float, str, TaskState]]] = {}
        #: seconds of the rounds that are finished, and of those under way
        self._spent = self._under_way = 0.0
        for state in states:
            self._spent += state.spent
            self.add(state)

    def add(self, state: TaskState) -> None:
        """A task waits for its next step, if there is one."""
        if not state.done:
            # equal ones in the order of the seed; no two of these texts are equal
            order = sha256(f"{self._seed} {len(state.rounds)} {state.task.key}")
            heap = self._heaps.setdefault((_next_kind(state), state.task.target), [])
            heapq.heappush(heap, (-state.estimate, -state.task.weight, order, state))

    def peek(self, kind: Kind | None = None, target: str | None = None) -> TaskState | None:
        """The task that comes first of those whose next step is of this kind, and for this target, if they are given."""
        tops = [
            heap[0]
            for (what, where), heap in self._heaps.items()
            if heap and kind in (None, what) and target in (None, where) and (what == "search" or self._may_tune(heap[0][3]))
        ]
        return min(tops)[3] if tops else None

    def _may_tune(self, state: TaskState) -> bool:
        return not state.rounds or self._budget is None or self._spent + self._under_way < self._budget

    def begin(self, state: TaskState, seconds: float) -> Kind:
        """Take out the task that `peek` gave: its next step, of so many seconds, is under way. The kind of that step."""
        kind = _next_kind(state)
        taken = heapq.heappop(self._heaps[kind, state.task.target])[3]
        assert taken is state, "only what is first is begun"
        self._under_way += seconds * (kind == "tune")
        return kind

    def end(self, state: TaskState, kind: Kind, seconds: float, took: float = 0.0) -> None:
        """The step of so many seconds is over, after it took so many; the task waits for the next one."""
        if kind == "tune":
            self._under_way -= seconds
            self._spent += took
        self.add(state)


def _next_kind(state: TaskState) -> Kind:
    return "search" if state.searched is None else "tune"
