"""Units of work: the same outcomes wherever they run, and nothing that is finished is lost or done again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
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
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, Outcome, WorkerPool, default_executor, run_units
from tests.search.units import calls, pids, run, work

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
    """Workers start at once, and checkpoints are written at once."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)


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


def test_a_short_run_starts_no_worker(log: Path) -> None:
    with default_executor(2) as executor:
        run_units(SQUARES, partial(work, log), seconds=60, executor=executor)
        assert isinstance(executor, WorkerPool)
        assert not executor.started
        assert pids(log) == {os.getpid()}


def test_a_long_run_moves_to_workers(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.6)
    units = [f"slow {n}" for n in range(4)]
    found = run(log, units, 2)
    assert found.outcomes == outcomes(units)
    # the first was finished here, the second was cut short here and done again by a worker
    assert calls(log)[:2] == units[:2]
    assert sorted(calls(log)) == sorted([*units, "slow 1"])
    assert os.getpid() in pids(log)
    assert len(pids(log)) > 1


def test_the_last_unit_stays_where_it_is(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.2)
    assert run(log, ["slow 3"], 2).outcomes == outcomes(["slow 3"])
    assert pids(log) == {os.getpid()}


def test_an_executor_of_the_caller(log: Path) -> None:
    with ThreadPoolExecutor(3) as executor:
        found = run_units(SQUARES, partial(work, log), seconds=60, executor=executor)
    assert list(found.outcomes.items()) == list(outcomes(SQUARES).items())


def test_units_with_arguments(log: Path) -> None:
    found = run_units({"a": "square 2", "b": "square 3"}, partial(work, log), seconds=60)
    assert [o.payload["n"] for o in found.outcomes.values()] == [2, 3]
    assert list(found.outcomes) == ["a", "b"]


def test_no_units(log: Path) -> None:
    found = run(log, [], 2)
    assert found.outcomes == {}
    assert found.stop_reason == "complete"


def test_progress_tells_of_every_outcome(log: Path) -> None:
    told: list[tuple[str, Outcome, int, int]] = []
    run_units(SQUARES[:2], partial(work, log), seconds=60, progress=lambda *args: told.append(args))
    assert told == [(u, o, i + 1, 2) for i, (u, o) in enumerate(outcomes(SQUARES[:2]).items())]


# Time.


@pytest.mark.parametrize("workers", [1, 2])
def test_units_that_time_cuts_are_told_and_not_kept(log: Path, file: Path, workers: int) -> None:
    units = ["square 1", "slow 2", "slow 3", "square 4"]
    found = run(log, units, workers, Checkpoint(file, KEY), seconds=0.65)
    assert found.outcomes["slow 3"] == Outcome({"n": 3, "square": None}, OUT_OF_TIME)
    assert "square 4" not in found.outcomes
    assert found.cuts == {OUT_OF_TIME: 2}
    assert found.stop_reason == "budget spent (2 of 4 units)"
    kept = Checkpoint(file, KEY)
    assert [kept.get(u) is not None for u in units] == [True, True, False, False]
    again = run(log, units, workers, kept)
    assert again.outcomes == outcomes(units)
    assert again.resumed == 2
    assert calls(log) == ["square 1", "slow 2", "slow 3", "slow 3", "square 4"]


def test_a_unit_gets_the_time_that_is_left() -> None:
    given: list[float] = []

    def note(unit: str, seconds: float) -> Outcome:
        given.append(seconds)
        time.sleep(0.1)
        return Outcome({})

    run_units(["a", "b"], note, seconds=30)
    assert 29.5 < given[0] <= 30
    assert 0.1 <= given[0] - given[1] < 0.5


def test_a_unit_gets_the_time_that_is_left_when_a_worker_begins_it(log: Path) -> None:
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
        def put_all(self, payloads: Any) -> None:
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
        ("nan 5", JobError, "unit 'nan 5': its payload is not JSON"),
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
    assert kept.get("square 0") is not None
    assert kept.get(unit) is None
    assert os.getpid() not in pids(log) or workers == 1


def test_a_worker_that_dies(log: Path, file: Path, hasty: None) -> None:
    units = ["square 0", "square 1", "slow 1", "death 2", *(f"slow {n}" for n in range(2, 6))]
    with pytest.raises(JobError, match=r"worker process died .*death 2.* more; .*MIRAGE_SEARCH_WORKERS"):
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
        found = run_units(SQUARES, partial(work, log), seconds=60, executor=Unable())
    assert found.outcomes == outcomes(SQUARES)


def test_an_executor_that_is_shut_down(log: Path) -> None:
    class Cancelling(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with Cancelling(1) as executor, pytest.raises(JobError, match="unit 'square 0' failed: CancelledError"):
        run_units(SQUARES[:1], partial(work, log), seconds=60, executor=executor)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time(seconds: float) -> None:
    with pytest.raises(BudgetError, match="positive number"):
        run_units(["a"], lambda unit, s: Outcome({}), seconds=seconds)


def test_two_units_of_one_name() -> None:
    with pytest.raises(SearchError, match="'a' occurs twice"):
        run_units(["a", "b", "a"], lambda unit, s: Outcome({}), seconds=1)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_impossible_numbers_of_workers(workers: Any) -> None:
    with pytest.raises(SearchError, match="not a positive whole number"), default_executor(workers):
        pass


# Settings.


def test_the_number_of_workers_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_SEARCH_WORKERS", "3")
    with default_executor() as executor:
        assert isinstance(executor, WorkerPool)
        assert executor.workers == 3
    monkeypatch.setenv("MIRAGE_SEARCH_WORKERS", "1")
    with default_executor() as executor:
        assert executor is None
    for text in ("0", "two"):
        monkeypatch.setenv("MIRAGE_SEARCH_WORKERS", text)
        with pytest.raises(MirageError, match=f"MIRAGE_SEARCH_WORKERS='{text}'"), default_executor():
            pass


def test_a_daemon_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with default_executor(2) as executor:
        assert executor is None


# Interrupts and deaths of whole processes.


def test_a_unit_may_stop_at_an_interrupt_with_what_it_has(log: Path) -> None:
    found = run(log, ["square 1", "interrupted 2", "square 3"], 1)
    assert found.interrupted
    assert found.outcomes["interrupted 2"] == Outcome({"n": 2, "square": None}, INTERRUPTED)
    assert found.stop_reason == "interrupted (2 of 3 units)"


def test_an_interrupt_in_progress_keeps_what_is_finished(log: Path) -> None:
    def interrupted(unit: str, outcome: Outcome, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = run_units(SQUARES, partial(work, log), seconds=60, progress=interrupted)
    assert found.interrupted
    assert found.outcomes == outcomes(SQUARES[:2])
    assert calls(log) == SQUARES[:2]


#: what a user writes: workers need no `if __name__ == "__main__"`
SCRIPT = """
import sys
from mirage.search import jobs
from tests.search.units import main
print("script begins", flush=True)
jobs.PATIENCE_S = 0.6
main(*sys.argv[1:])
"""


@contextmanager
def process(log: Path, file: Path, workers: int, units: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that runs units, in a group of its own, as a terminal would have it."""
    script = log.with_name("script.py")
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    command = [sys.executable, str(script), str(log), str(file), KEY, str(workers), *units]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for_call(log: Path, unit: str, child: subprocess.Popen[str] | None = None) -> None:
    """Until the unit has begun."""
    end = time.monotonic() + 60
    while unit not in calls(log):
        assert child is None or child.poll() is None, child.communicate()
        assert time.monotonic() < end, f"{unit} was not begun within a minute, only {calls(log)}"
        time.sleep(0.02)


def wait_for_end(processes: set[int]) -> None:
    """Until none of the processes runs."""
    end = time.monotonic() + 10
    while running := [p for p in processes if _runs(p)]:
        assert time.monotonic() < end, f"processes {running} still run"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        # one that has ended and that nobody has waited for yet is there, and does not run
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_job_goes_on_where_it_was(log: Path, file: Path, workers: int) -> None:
    units = ["square 1", "slow 2", *(f"slow {n}" for n in range(3, 7)), "forever 0"]
    with process(log, file, workers, units) as child:
        wait_for_call(log, "forever 0", child)
        # what the other worker was doing meanwhile is finished and reported
        time.sleep(1.5 * (workers == 2))
        child.kill()
        child.wait()
        wait_for_end(pids(log))
    kept = Checkpoint(file, KEY)
    finished = [u for u in units if kept.get(u)]
    assert finished == units[:-1]
    units[-1] = "square 0"
    again = run(log, units, workers, kept)
    assert again.outcomes == outcomes(units)
    assert again.resumed == len(finished)
    assert calls(log)[-1] == "square 0"
    twice = {u for u in calls(log) if calls(log).count(u) > 1}
    # one may have been cut short when the workers were started
    assert len(twice) <= (workers == 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_is_finished(log: Path, file: Path, workers: int) -> None:
    units = [*(f"slow {n}" for n in range(6)), "forever 0", "square 1"]
    with process(log, file, workers, units) as child:
        wait_for_call(log, "forever 0", child)
        start = time.monotonic()
        # to the whole group, as a terminal does
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=30)
        assert time.monotonic() - start < 5
    assert child.returncode == 0
    assert err == ""
    assert out.count("script begins") == 1
    assert "interrupted (" in out.splitlines()[-1]
    wait_for_end(pids(log))
    kept = Checkpoint(file, KEY)
    assert all(kept.get(u) for u in units[:4])
    assert kept.get("forever 0") is None


def test_leaving_the_block_ends_busy_workers(log: Path) -> None:
    with WorkerPool(2) as pool:
        for n in range(2):
            pool.submit(work, log, f"forever {n}", 60.0)
        for n in range(2):
            wait_for_call(log, f"forever {n}")
        busy = pids(log)
    wait_for_end(busy)
    assert os.getpid() not in busy
