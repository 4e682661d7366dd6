"""Jobs on workers that answer what they are told to: what is done, in which order, what is kept, and what happens to failures."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from mirage.cache import ResultStore
from mirage.cache.records import Record
from mirage.errors import ExecutorError, FormatError, JobBusyError, SearchError
from mirage.jobs import run
from mirage.jobs.interrupts import held
from mirage.jobs.journal import Job, Journal, Writer
from mirage.jobs.run import run_job
from mirage.jobs.task import Answer, Asked, Event, Failed
from mirage.search.checkpoint import Checkpoint
from tests.jobs.fakes import Fake, answered, record, task


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path}/store.sqlite")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal("job", tmp_path / "jobs")


def job(*names: str, rounds: int = 2, **more: object) -> Job:
    return Job(name="job", tasks=tuple(task(n, rounds=rounds) for n in names), **more)  # type: ignore[arg-type]


class Killed(BaseException):
    """Stands for a signal that cannot be caught."""


def test_a_job_runs_to_its_end_and_is_not_run_again(journal: Journal, store: ResultStore) -> None:
    events: list[Event] = []
    workers = Fake()
    assert run_job(job("a", "b"), journal, workers, store, told=events.append) == "complete"
    assert sorted(workers.log) == [(n, k, i) for n in "ab" for k, i in (("search", 0), ("tune", 0), ("tune", 1))]
    assert len(events) == 6
    assert len(list(store.records())) == 4
    again = Fake()
    assert run_job(job("a", "b"), journal, again, store) == "complete"
    assert again.log == []


def test_a_step_gets_the_records_of_those_before_it(journal: Journal, store: ResultStore) -> None:
    seen: list[list[str]] = []

    def answer(asked: Asked) -> Answer:
        seen.append(sorted(r.payload for r in asked.records))
        return answered(asked)

    run_job(job("a", rounds=3), journal, Fake(answer), store)
    assert seen == [[], ['{"number":0}'], ['{"number":0}'] * 2, ['{"number":0}', '{"number":1}']]


@pytest.mark.parametrize("moment", range(1, 13))
def test_a_kill_at_any_moment_loses_no_finished_step(
    journal: Journal, store: ResultStore, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Killed at every write: before and after records are merged, and before and after the journal has its line."""
    count = itertools.count(1)
    log: list[tuple[str, str, int]] = []
    finished: list[tuple[str, str]] = []

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **options: object) -> object:
            if next(count) == moment:
                raise Killed
            found = call(*args, **options)
            if next(count) == moment:
                raise Killed
            return found

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(ResultStore, "add", dying(ResultStore.add))
        patch.setattr(Writer, "put", dying(Writer.put))
        workers = Fake()
        with pytest.raises(Killed):
            run_job(job("a"), journal, workers, store)
        log += workers.log
        finished += [("a", e.kind) for s in journal.states(job("a").tasks) for e in (s.searched, *s.rounds) if e]
    again = Fake()
    assert run_job(job("a"), journal, again, store) == "complete"
    assert len(finished) + len(again.log) == 3
    assert [s.done for s in journal.states(job("a").tasks)] == ["all rounds"]
    assert sorted(r.payload for r in store.records()) == ['{"number":0}', '{"number":1}']


def test_what_many_workers_answer_is_kept_at_once(
    journal: Journal, store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers answer at the same time, one of them with an error: one transaction, and one write of lines, per round."""
    kept: list[int] = []
    put: list[int] = []
    add, write = ResultStore.add, Checkpoint.put_all

    def counted_add(self: ResultStore, records: Collection[Record], replaces: Collection[str] = ()) -> int:
        kept.append(len(records))
        return add(self, records, replaces)

    def counted_put(self: Checkpoint, payloads: Mapping[str, object], kind: object) -> None:
        put.append(len(payloads))
        write(self, payloads, kind)

    def answer(asked: Asked) -> Answer:
        if asked.task.name == "b" and asked.kind == "tune":
            raise SearchError("no luck")
        return answered(asked)

    monkeypatch.setattr(ResultStore, "add", counted_add)
    monkeypatch.setattr(Checkpoint, "put_all", counted_put)
    assert run_job(job("a", "b", "c", rounds=2), journal, Fake(answer, count=3), store) == "failed"
    # searches; first rounds, of which one failed; second rounds
    assert kept == [3, 2, 2]
    assert put == [3, 2, 1, 2]
    states = journal.states(job("a", "b", "c").tasks)
    assert [(len(s.rounds), bool(s.failed)) for s in states] == [(2, False), (0, True), (2, False)]
    assert len(list(store.sound_records())) == 5


def test_other_limits_and_more_tasks_go_on(journal: Journal, store: ResultStore) -> None:
    run_job(job("a", rounds=1), journal, Fake(), store)
    workers = Fake()
    assert run_job(job("a", "b", rounds=2), journal, workers, store) == "complete"
    assert ("a", "tune", 1) in workers.log
    assert ("a", "search", 0) not in workers.log and ("a", "tune", 0) not in workers.log
    assert ("b", "search", 0) in workers.log


def test_results_that_are_not_in_the_store_any_more_are_found_again(journal: Journal, store: ResultStore) -> None:
    run_job(job("a", "b"), journal, Fake(), store)
    store.discard(record(f"search {task('a').key}", {}).key)
    workers = Fake()
    assert run_job(job("a", "b"), journal, workers, store) == "complete"
    assert {name for name, _, _ in workers.log} == {"a"}
    assert len(workers.log) == 3


def test_a_slower_choice_does_not_replace_the_one_that_is_kept(journal: Journal, store: ResultStore) -> None:
    def answer(asked: Asked) -> Answer:
        found = answered(asked, times=(100.0, 190.0))
        kept = record("tuned", {"number": asked.number}, found.done.best_us)
        return Answer(done=found.done, records=(*found.records, kept))

    run_job(job("a"), journal, Fake(answer), store)
    tuned = next(r for r in store.records() if r.best_us is not None)
    assert tuned.payload == '{"number":0}'


# Failures.


def test_a_worker_that_dies_costs_its_step_and_not_the_job(journal: Journal, store: ResultStore) -> None:
    deaths = itertools.count()

    def answer(asked: Asked) -> Answer:
        if asked.task.name == "a" and asked.kind == "tune" and next(deaths) < 2:
            raise BrokenProcessPool("killed")
        return answered(asked)

    workers = Fake(answer)
    assert run_job(job("a", "b"), journal, workers, store) == "complete"
    assert workers.log.count(("a", "tune", 0)) == 3


def test_a_step_that_always_kills_its_worker_fails_after_some_attempts(journal: Journal, store: ResultStore) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.task.name == "a":
            raise BrokenProcessPool("killed")
        return answered(asked)

    events: list[Event] = []
    workers = Fake(answer)
    assert run_job(job("a", "b"), journal, workers, store, told=events.append) == "failed"
    assert workers.log.count(("a", "search", 0)) == Fake.attempts
    (failed,) = (e for e in events if isinstance(e, Failed))
    assert (failed.attempts, failed.error) == (Fake.attempts, "its worker died (killed)")
    assert [s.done for s in journal.states(job("a", "b").tasks)] == ["failed", "all rounds"]
    # with workers that live, it is tried again
    assert run_job(job("a", "b"), journal, Fake(), store) == "complete"


def test_an_error_of_its_own_fails_a_task_at_once(journal: Journal, store: ResultStore) -> None:
    def answer(asked: Asked) -> Answer:
        raise SearchError("no graph compiles")

    workers = Fake(answer)
    assert run_job(job("a"), journal, workers, store) == "failed"
    assert len(workers.log) == 1
    (state,) = journal.states(job("a").tasks)
    assert state.failed and state.failed.error == "no graph compiles"


def test_an_answer_that_is_none_fails_the_task(journal: Journal, store: ResultStore) -> None:
    class Wrong(Fake):
        def submit(self, asked: Asked) -> Future[str]:
            future: Future[str] = Future()
            future.set_result("{}")
            return future

    assert run_job(job("a"), journal, Wrong(), store) == "failed"
    (state,) = journal.states(job("a").tasks)
    assert state.failed and "mirage job step" in state.failed.error


def test_workers_that_are_gone_end_the_run_and_nothing_is_lost(journal: Journal, store: ResultStore) -> None:
    class Gone(Fake):
        gone = False

        @property
        def is_lost(self) -> bool:
            return self.gone

    def answer(asked: Asked) -> Answer:
        if asked.kind == "tune":
            workers.gone = True
            raise ConnectionError("closed")
        return answered(asked)

    workers = Gone(answer)
    with pytest.raises(ExecutorError, match="run the same job again"):
        run_job(job("a"), journal, workers, store)
    (state,) = journal.states(job("a").tasks)
    assert state.searched and not state.failed
    assert run_job(job("a"), journal, Fake(), store) == "complete"


def test_a_cluster_without_workers_is_waited_for_and_then_given_up(
    journal: Journal, store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PATIENCE_S", 0.01)
    monkeypatch.setattr(run, "TICK_S", 0.005)
    with pytest.raises(ExecutorError, match="no worker for"):
        run_job(job("a"), journal, Fake(count=0), store)


# Stops.


def test_a_job_that_is_stopped_goes_on_where_it_was(journal: Journal, store: ResultStore) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.kind == "tune":
            assert journal.stop()
        return answered(asked)

    workers = Fake(answer)
    assert run_job(job("a", "b"), journal, workers, store) == "stopped"
    assert len([x for x in workers.log if x[1] == "tune"]) == 1
    assert not journal.stop()
    again = Fake()
    assert run_job(job("a", "b"), journal, again, store) == "complete"
    assert len(workers.log) + len(again.log) == 6


def test_an_interrupt_lets_the_steps_under_way_end(journal: Journal, store: ResultStore) -> None:
    interrupts = 0

    def shown(view: run.View) -> None:
        nonlocal interrupts
        if view.states[0].rounds and not interrupts:
            interrupts += 1
            raise KeyboardInterrupt

    assert run_job(job("a"), journal, Fake(), store, shown=shown) == "interrupted"
    assert run_job(job("a"), journal, Fake(), store) == "complete"


def test_an_interrupt_loses_no_step_that_is_begun_or_answered(
    journal: Journal, store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while a step is given out, and while its answer is kept: each time, that step is finished, and told."""
    told: list[Event] = []

    class Interrupted(Fake):
        def submit(self, asked: Asked) -> Future[str]:
            signal.raise_signal(signal.SIGINT)
            return super().submit(asked)

    assert run_job(job("a"), journal, Interrupted(), store, told=told.append) == "interrupted"
    assert [t.searched is not None for t in journal.states(job("a").tasks)] == [True]
    real = Writer.put

    def put(self: Writer, event: Event) -> None:
        signal.raise_signal(signal.SIGINT)
        real(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "put", put)
        assert run_job(job("a"), journal, Fake(), store, told=told.append) == "interrupted"
    assert [len(t.rounds) for t in journal.states(job("a").tasks)] == [1]
    assert len(told) == 2
    assert run_job(job("a"), journal, Fake(), store, told=told.append) == "complete"
    assert len(told) == 3


def test_a_held_interrupt_comes_at_the_end() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), held():
        signal.raise_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached
    # and it is held no more
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_processes_that_are_started_while_interrupts_are_held_get_none() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with held():
        inside = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    outside = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert (inside.stdout, outside.stdout) == ("True\n", "False\n")


def test_a_second_interrupt_ends_at_once(journal: Journal, store: ResultStore) -> None:
    def shown(view: run.View) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(job("a"), journal, Fake(), store, shown=shown)


def test_one_process_at_a_time_works_on_a_job(journal: Journal, store: ResultStore) -> None:
    with journal.writing():
        assert journal.is_running
        with pytest.raises(JobBusyError, match="mirage jobs stop job"):
            run_job(job("a"), Journal("job", journal.folder.parent), Fake(), store)
    assert not journal.is_running


def test_a_damaged_job_file_is_told(journal: Journal, store: ResultStore) -> None:
    run_job(job("a"), journal, Fake(), store)
    (journal.folder / "job.json").write_text("{}")
    with pytest.raises(FormatError, match="mirage job"):
        journal.job()


def test_steps_go_to_as_many_workers_as_there_are(journal: Journal, store: ResultStore) -> None:
    most = 0

    def shown(view: run.View) -> None:
        nonlocal most
        most = max(most, len(view.running))

    run_job(job("a", "b", "c"), journal, Fake(count=2), store, shown=shown)
    assert most == 2


def test_the_budget_of_a_job_ends_it(journal: Journal, store: ResultStore) -> None:
    workers = Fake()
    # the first rounds are not a matter of the budget
    assert run_job(job("a", "b", rounds=50, budget=25.0, round=10.0), journal, workers, store) == "complete"
    assert len([x for x in workers.log if x[1] == "tune"]) == 3
