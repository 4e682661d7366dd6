"""A job on workers: steps are given out, and what they answer is kept, until nothing is left to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mirage.cache import ResultStore
from mirage.cache.records import Record
from mirage.errors import ExecutorError, FormatError, MirageError
from mirage.ir.codec import JOB_STEP
from mirage.ir.program import Program
from mirage.jobs.interrupts import held
from mirage.jobs.journal import Job, Journal, Writer, drop_lost
from mirage.jobs.schedule import Queue, TaskState
from mirage.jobs.step import memory_of
from mirage.jobs.task import Answer, Asked, Done, Event, Failed, Kind
from mirage.jobs.workers import Workers
from mirage.search.jobs import INTERRUPTED
from mirage.verify.equivalence import Verifier

#: seconds between two looks at whether the job is to stop, and for which a cluster may be without workers
TICK_S, PATIENCE_S = 0.25, 60.0

#: how a run ended: nothing is left to do, for which tasks may have failed; or it was stopped before
Ending: TypeAlias = Literal["complete", "failed", "stopped", "interrupted"]


@dataclass
class View:
    """What a run shows while it goes on: the tasks, and of the steps under way the task, the kind and since when
    (`time.monotonic`).
    """

    job: Job
    states: list[TaskState]
    running: dict[str, tuple[Kind, float]] = field(default_factory=dict)


def run_job(
    job: Job,
    journal: Journal,
    workers: Workers,
    store: ResultStore,
    *,
    told: Callable[[Event], None] = lambda _: None,
    shown: Callable[[View], None] = lambda _: None,
) -> Ending:
    """Run a job, or go on with it: steps that are finished are not repeated; tasks that failed are tried again.

    `told` gets what happens, `shown` what there is, again and again. Ctrl-C, or `Journal.stop`, ends it after the steps under
    way; a second Ctrl-C at once, with KeyboardInterrupt.

    Raises JobBusyError while another process runs it, ExecutorError where workers are missing, CacheError where nothing can be
    kept.
    """
    with journal.writing() as writer:
        journal.begin(job)
        states = journal.states(job.tasks)
        for state in states:
            state.retry()
        drop_lost(states, store, writer, time.time())
        with store.connected():
            return _Run(View(job, states), journal, workers, store, writer, told, shown).run()


@dataclass
class _Run:
    view: View
    journal: Journal
    workers: Workers
    store: ResultStore
    writer: Writer
    told: Callable[[Event], None]
    shown: Callable[[View], None]
    futures: dict[Future[str], Asked] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    missing_since: float | None = None
    #: whether a step has taken note of Ctrl-C, and ended early
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.by_key = {s.task.key: s for s in self.view.states}
        self.targets = sorted({s.task.target for s in self.view.states})
        self.queue = Queue(self.view.states, budget=self.view.job.budget, seed=self.view.job.seed)

    def run(self) -> Ending:
        self.workers.check(sorted({s.task.target for s in self.view.states if not s.done}))
        ended: Ending | None = None
        while True:
            try:
                if ended is None and self.journal.stop_is_wanted:
                    ended = "stopped"
                if ended is None:
                    self._give_out()
                self.shown(self.view)
                if not self.futures:
                    if ended is not None or self.queue.peek() is None:
                        break
                    self._check_workers()
                    time.sleep(TICK_S)
                    continue
                done, _ = wait(self.futures, timeout=TICK_S, return_when=FIRST_COMPLETED)
                with held():
                    # in the order in which they were begun
                    self._take([f for f in self.futures if f in done])
                if self.interrupted:
                    ended = "interrupted"
                self._check_workers()
            except KeyboardInterrupt:
                if ended == "interrupted":
                    raise
                ended = "interrupted"
        if ended is not None and self.queue.peek() is not None:
            return ended
        return "failed" if any(s.failed for s in self.view.states) else "complete"

    # steps

    def _give_out(self) -> None:
        """Begin as many steps as there is room for: searches first, as measuring has to wait for them on the same machine."""
        room = self.workers.free(None) - len(self.futures)
        while room > 0 and (state := self.queue.peek("search")) is not None:
            self._begin(state)
            room -= 1
        for target in self.targets:
            tuning = sum(a.kind == "tune" and a.task.target == target for a in self.futures.values())
            free = min(self.workers.free(target) - tuning, room)
            while free > 0 and (state := self.queue.peek("tune", target)) is not None:
                self._begin(state)
                free, room = free - 1, room - 1

    def _begin(self, state: TaskState) -> None:
        task, job = state.task, self.view.job
        seconds = job.round if state.searched else task.search
        kind = self.queue.begin(state, seconds)
        keys = list(dict.fromkeys([*self._known_keys(state), *state.records]))
        asked = Asked(
            task=task, kind=kind, number=len(state.rounds) if kind == "tune" else 0, seconds=seconds, seed=job.seed,
            records=tuple(r for key in keys if (r := self.store.record(key)) is not None and not r.fault()),
        )  # fmt: skip
        self.view.running[task.key] = kind, time.monotonic()
        try:
            self.shown(self.view)
            # a step that was begun is one whose answer is kept
            with held() if self.workers.apart else nullcontext():
                self.futures[self.workers.submit(asked)] = asked
        except BaseException:
            del self.view.running[task.key]
            self.queue.end(state, kind, seconds)
            raise

    def _known_keys(self, state: TaskState) -> list[str]:
        """What the store may hold of a task that was never begun here."""
        if state.records:
            return []
        task = state.task
        verifier = Verifier(Program.from_text(task.program), self.view.job.seed)
        return memory_of(task, self.store, verifier).keys(task.sizes)

    def _take(self, futures: Collection[Future[str]]) -> None:
        """Keep what steps answered: their records first, so that a line of the journal never stands for what is not there.

        All records with one transaction, and all lines with one: where many workers answer, none of them waits for the disk.
        """
        answers: list[tuple[Asked, Answer]] = []
        failed: list[tuple[Asked, BaseException]] = []
        for future in futures:
            asked = self.futures.pop(future)
            self.view.running.pop(asked.task.key, None)
            try:
                answer = JOB_STEP.from_text(Answer, future.result())
                if fault := next((f for r in answer.records if (f := r.fault())), None):
                    raise FormatError(f"a record of its answer can't be used: {fault}; use the same version everywhere")
            except (Exception, BaseExceptionGroup) as e:
                failed.append((asked, e))
            else:
                answers.append((asked, answer))
        kept: list[Record] = []
        replaced: set[str] = set()
        for asked, answer in answers:
            # the choice of a round that was too short to race the one that is kept is dropped, what it knows of graphs is not
            dropped = asked.kind == "tune" and self.by_key[asked.task.key].is_slower(answer.done)
            kept += [r for r in answer.records if r.best_us is None or not dropped]
            replaced.update(r.payload_sha256 for r in asked.records)
        if answers:
            self.store.add(kept, replaced)
            for asked, answer in answers:
                self.attempts.pop(asked.task.key, None)
                self.interrupted |= INTERRUPTED in answer.done.stopped
            self._note([(asked, answer.done) for asked, answer in answers])
        for asked, error in failed:
            self._fail(asked, error)

    def _fail(self, asked: Asked, error: BaseException) -> None:
        """Try the step again; it has failed after so many attempts, or at once where another one would end in the same way."""
        key = asked.task.key
        self.attempts[key] = attempts = self.attempts.get(key, 0) + 1
        if self.workers.is_lost:
            # no step's fault
            raise ExecutorError(f"the workers are gone ({error}); what was finished is kept: run the same job again") from error
        if attempts < self.workers.attempts and not self.workers.is_final(error):
            self.queue.end(self.by_key[key], asked.kind, asked.seconds)
            return
        died = self.workers.died(error)
        what = "its worker died" if died else "" if isinstance(error, MirageError) else f"{type(error).__name__}: "
        text = f"{what}{f' ({error})' if died and str(error) else '' if died else error}"
        self.attempts.pop(key)
        self._note([(asked, Failed(task=key, kind=asked.kind, ended=time.time(), error=text, attempts=attempts))])

    def _note(self, events: Sequence[tuple[Asked, Done | Failed]]) -> None:
        self.writer.put(*(event for _, event in events))
        for asked, event in events:
            state = self.by_key[asked.task.key]
            state.take(event)
            self.queue.end(state, asked.kind, asked.seconds, event.seconds if isinstance(event, Done) else 0.0)
            self.told(event)

    def _check_workers(self) -> None:
        """Raises ExecutorError where there was no worker for a while."""
        if self.workers.is_lost:
            raise ExecutorError("the workers are gone; what was finished is kept: run the same job again")
        if self.workers.free(None):
            self.missing_since = None
        elif self.missing_since is None:
            self.missing_since = time.monotonic()
        elif time.monotonic() - self.missing_since > PATIENCE_S:
            raise ExecutorError(
                f"no worker for {PATIENCE_S:.0f} seconds; start some: what was finished is kept, run the same job again"
            )
