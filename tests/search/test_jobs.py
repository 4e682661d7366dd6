"""Units of work: the same outcomes wherever they run, and nothing that is finished is lost or done again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirage.cache.records import sha256
from mirage.errors import BudgetError, CacheError, JobError, MirageError, SearchError
from mirage.search import jobs
from mirage.search.checkpoint import Checkpoint
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, Outcome, run_units
from tests import forks
from tests.search import units as own_units
from tests.search.units import calls, pids, run, work
from tests.work import ByHand

KEY = sha256("toy units")
SQUARES = [f"square {n}" for n in range(7)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / f"{KEY}.jsonl"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written at once."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    """The clock of jobs, and that of the units in this process."""
    found = ByHand()
    monkeypatch.setattr(jobs, "time", found)
    monkeypatch.setattr(own_units, "time", found)
    return found


def outcomes(units: list[str]) -> dict[str, Outcome]:
    numbers = [int(u.split()[1]) for u in units]
    return {u: Outcome({"n": n, "square": [n * n, str(n)]}) for u, n in zip(units, numbers, strict=True)}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same(log: Path, hasty: None, workers: int) -> None:
    found = run(log, SQUARES, workers)
    assert list(found.outcomes.items()) == list(outcomes(SQUARES).items())
    assert found.stop_reason == "complete"
    assert found.cuts == {}
    assert (found.resumed, found.interrupted) == (0, False)
    assert sorted(calls(log)) == sorted(SQUARES)
    assert (os.getpid() in pids(log)) == (workers == 1)


def test_an_executor_of_the_caller(log: Path) -> None:
    with ThreadPoolExecutor(3) as executor:
        found = run_units(SQUARES, partial(work, log), seconds=3600, executor=executor)
    assert list(found.outcomes.items()) == list(outcomes(SQUARES).items())


def test_no_units(log: Path) -> None:
    found = run(log, [], 2)
    assert found.outcomes == {}
    assert found.stop_reason == "complete"


# Time.


def test_units_that_time_cuts_are_told_and_not_kept(log: Path, file: Path, clock: ByHand) -> None:
    units = ["square 1", "slow 2", "slow 3", "square 4"]
    found = run(log, units, 1, Checkpoint(file, KEY), seconds=0.65)
    assert found.outcomes["slow 3"] == Outcome({"n": 3, "square": None}, OUT_OF_TIME)
    assert "square 4" not in found.outcomes
    assert found.cuts == {OUT_OF_TIME: 2}
    assert found.stop_reason == "budget spent (2 of 4 units left)"
    kept = Checkpoint(file, KEY)
    assert [kept.get(u) is not None for u in units] == [True, True, False, False]
    again = run(log, units, 1, kept)
    assert again.outcomes == outcomes(units)
    assert again.resumed == 2
    assert calls(log) == ["square 1", "slow 2", "slow 3", "slow 3", "square 4"]


def test_a_unit_gets_the_time_that_is_left(clock: ByHand) -> None:
    given: list[float] = []

    def note(unit: str, seconds: float) -> Outcome:
        given.append(seconds)
        clock.sleep(10)
        return Outcome({})

    run_units(["a", "b"], note, seconds=30)
    assert given == [30, 20]


def test_a_unit_gets_the_time_that_is_left_when_a_worker_begins_it(log: Path, clock: ByHand) -> None:
    units = ["slow 1", "slow 2", "slow 3"]
    with ThreadPoolExecutor(1) as executor:
        found = run_units(units, partial(work, log), seconds=0.6, executor=executor)
    assert [o.stopped for o in found.outcomes.values()] == ["", OUT_OF_TIME]
    assert calls(log) == units[:2]


# Checkpoints.


@pytest.mark.parametrize("workers", [1, 2])
def test_finished_units_are_not_run_again(log: Path, file: Path, hasty: None, workers: int) -> None:
    first = run(log, SQUARES[2:5], workers, Checkpoint(file, KEY))
    again = run(log, SQUARES, workers, Checkpoint(file, KEY))
    assert first.outcomes == outcomes(SQUARES[2:5])
    assert list(again.outcomes.items()) == list(outcomes(SQUARES).items())
    assert again.resumed == 3
    assert sorted(calls(log)) == sorted(SQUARES)


def test_a_short_complete_run_leaves_no_file(log: Path, file: Path) -> None:
    run(log, SQUARES, 1, Checkpoint(file, KEY))
    assert not file.exists()


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(log: Path, file: Path, hasty: None) -> None:
    class Full(Checkpoint):
        def put_all(self, payloads: Any, kind: Any = None) -> None:
            raise CacheError("checkpoint: no space left on device")

    with pytest.warns(RuntimeWarning, match="no space left on device; the search goes on") as caught:
        found = run(log, SQUARES, 1, Full(file, KEY))
    assert len(caught) == 1
    assert found.outcomes == outcomes(SQUARES)


# Failures.


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("unit", "error", "message"),
    [
        ("bug 5", JobError, "unit 'bug 5' failed: KeyError: 'no such axis'"),
        ("impossible 5", SearchError, "max_kernels=3"),
    ],
)
def test_a_unit_that_fails(
    log: Path, file: Path, hasty: None, workers: int, unit: str, error: type[MirageError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        run(log, ["square 0", "slow 1", unit, "square 6"], workers, Checkpoint(file, KEY))
    if error is SearchError:
        assert caught.value.__notes__ == [f"in unit {unit!r}"]
    kept = Checkpoint(file, KEY)
    # another worker may be slower with it than the failure
    assert kept.get("square 0") is not None or workers > 1
    assert kept.get(unit) is None
    assert os.getpid() not in pids(log) or workers == 1


def test_units_that_are_finished_when_one_fails_are_kept(file: Path, hasty: None) -> None:
    class Together(Executor):
        """Ends its units when the last one is submitted, the failing one first."""

        def __init__(self) -> None:
            self.futures: list[Future[Any]] = []

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            if len(self.futures) == 3:
                self.futures[1].set_exception(KeyError("no such axis"))
                self.futures[0].set_result(Outcome({"n": 0}))
            return self.futures[-1]

    with pytest.raises(JobError, match="unit 'bug 1' failed: KeyError"):
        run_units(
            ["square 0", "bug 1", "slow 2"], partial(work, file), seconds=3600, executor=Together(),
            checkpoint=Checkpoint(file, KEY),
        )  # fmt: skip
    kept = Checkpoint(file, KEY)
    assert kept.get("square 0") is not None
    assert kept.get("bug 1") is None and kept.get("slow 2") is None


def test_a_worker_that_dies(log: Path, file: Path, hasty: None) -> None:
    units = ["square 0", "square 1", "slow 1", "death 2", *(f"slow {n}" for n in range(2, 6))]
    with pytest.raises(JobError, match=r"worker process died .*death 2.* more; .*fewer workers"):
        run(log, units, 2, Checkpoint(file, KEY))
    assert Checkpoint(file, KEY).get("square 0") is not None
    again = run(log, [u for u in units if u != "death 2"], 2, Checkpoint(file, KEY))
    assert again.resumed > 0
    assert again.stop_reason == "complete"


class Unable(Executor):
    """Cannot start processes."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise OSError("no semaphores here")


def test_where_no_process_can_be_started_the_units_run_here(log: Path) -> None:
    with pytest.warns(RuntimeWarning, match="no semaphores here"):
        found = run_units(SQUARES, partial(work, log), seconds=3600, executor=Unable())
    assert found.outcomes == outcomes(SQUARES)


def test_an_executor_that_is_shut_down(log: Path) -> None:
    class Cancelling(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with Cancelling(1) as executor, pytest.raises(JobError, match="unit 'square 0' failed: CancelledError"):
        run_units(SQUARES[:1], partial(work, log), seconds=3600, executor=executor)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time(seconds: float) -> None:
    with pytest.raises(BudgetError, match="positive number"):
        run_units(["a"], lambda unit, s: Outcome({}), seconds=seconds)


def test_two_units_of_one_name() -> None:
    with pytest.raises(SearchError, match="'a' occurs twice"):
        run_units(["a", "b", "a"], lambda unit, s: Outcome({}), seconds=1)


# Interrupts and deaths of whole processes.


def test_a_unit_may_stop_at_an_interrupt_with_what_it_has(log: Path) -> None:
    found = run(log, ["square 1", "interrupted 2", "square 3"], 1)
    assert found.interrupted
    assert found.outcomes["interrupted 2"] == Outcome({"n": 2, "square": None}, INTERRUPTED)
    assert found.stop_reason == "interrupted (2 of 3 units left)"


SCRIPT = """
import sys
from mirage.search import jobs
from tests.search.units import main
jobs.PATIENCE_S = 0
main(*sys.argv[1:])
"""


@contextmanager
def process(log: Path, file: Path, units: list[str]) -> Iterator[forks.Forked]:
    """A process of its own that runs units, in a group of its own, as a terminal would have it."""
    with forks.start(SCRIPT, str(log), str(file), KEY, *units, group=True) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for_call(log: Path, unit: str, child: forks.Forked) -> None:
    """Until the unit has begun."""
    while unit not in calls(log):
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


def test_a_killed_job_goes_on_where_it_was(log: Path, file: Path) -> None:
    units = ["square 1", "slow 2", "slow 3", "forever 0"]
    with process(log, file, units) as child:
        wait_for_call(log, "forever 0", child)
        child.kill()
        child.wait()
    kept = Checkpoint(file, KEY)
    assert [u for u in units if kept.get(u)] == units[:-1]
    units[-1] = "square 0"
    again = run(log, units, 1, kept)
    assert again.outcomes == outcomes(units)
    assert again.resumed == len(units) - 1
    assert calls(log) == [*units[:-1], "forever 0", "square 0"]


def test_ctrl_c_keeps_what_is_finished(log: Path, file: Path) -> None:
    units = ["slow 0", "slow 1", "forever 0", "square 1"]
    with process(log, file, units) as child:
        wait_for_call(log, "forever 0", child)
        # to the whole group, as a terminal does
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=600)
    assert child.returncode == 0
    assert err == ""
    assert out == "interrupted (2 of 4 units left)\n"
    kept = Checkpoint(file, KEY)
    assert [u for u in units if kept.get(u)] == units[:2]
    assert "square 1" not in calls(log)
