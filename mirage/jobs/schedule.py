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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

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
    """What is known of a task: its search, its rounds, and why it failed, "" if it did not."""

    task: Task
    searched: Done | None = None
    rounds: list[Done] = field(default_factory=list)
    failed: Failed | None = None

    def take(self, event: Event) -> None:
        """Note what happened to the task."""
        if isinstance(event, Lost):
            self.searched, self.rounds, self.failed = None, [], None
        elif isinstance(event, Failed):
            self.failed = event
        elif event.kind == "search":
            self.searched, self.failed = event, None
        else:
            self.rounds.append(event)
            self.failed = None

    @property
    def records(self) -> list[str]:
        """The keys of what its steps have kept."""
        steps = [*([self.searched] if self.searched else []), *self.rounds]
        return list(dict.fromkeys(key for s in steps for key in s.records))

    @property
    def spent(self) -> float:
        """Seconds of its rounds."""
        return sum(r.seconds for r in self.rounds)

    @property
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

    @property
    def library_us(self) -> float | None:
        """The library version's latency: what latencies are in proportion to."""
        return next((r.library_us for r in self.rounds if r.library_us), None)

    @property
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

    @property
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

    @property
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


def next_step(
    states: Sequence[TaskState], kind: Kind, busy: Collection[str], *, budget: float | None, seed: int
) -> TaskState | None:
    """The task whose next step is of this kind, None if there is none.

    `busy` are the keys of tasks that have a step under way, `budget` are the seconds that all rounds may take (rounds under way
    are not counted yet).
    """
    if kind == "search":
        waiting = [s for s in states if s.searched is None and not s.done and s.task.key not in busy]
        return max(waiting, key=lambda s: (s.task.weight, _order(s, seed)), default=None)
    left = budget is None or spent(states) < budget
    ready = [s for s in states if s.searched is not None and not s.done and s.task.key not in busy]
    # the first round of each task is not a matter of the budget: without it, nothing is known of the task
    ready = [s for s in ready if left or not s.rounds]
    return max(ready, key=lambda s: (s.estimate, s.task.weight, _order(s, seed)), default=None)


def _order(state: TaskState, seed: int) -> str:
    return sha256(f"{seed} {len(state.rounds)} {state.task.key}")
