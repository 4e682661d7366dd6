"""Searches as jobs: units of work in a fixed order, run here or by worker processes, and resumed from a checkpoint.

How many workers there are, and when a unit was run, changes nothing: outcomes are in the order of the units, and every
payload has been through JSON, whether it was computed here, by a worker, or by an earlier process that was killed.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_end
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from mirage.errors import BudgetError, JobError, MirageError, SearchError
from mirage.settings import search_workers

if TYPE_CHECKING:
    from mirage.search.checkpoint import Checkpoint

#: seconds that a search runs in its own process before workers are started, which takes each of them about one, and
#: before its units are written to the checkpoint
PATIENCE_S = 3.0

#: why a unit or a run stopped, where it is not complete
OUT_OF_TIME = "budget spent"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Outcome:
    """What a unit yielded: a JSON object, and why it stopped early, or "" where it is complete.

    Only a complete outcome is checkpointed. Limits that always hold, such as a number of graphs kept, do not make an
    outcome incomplete: they are part of the payload.
    """

    payload: dict[str, Any]
    stopped: str = ""


#: runs a unit in at most so many seconds (which it checks itself, and then yields what it has with
#: `stopped=OUT_OF_TIME`); a function of an importable module, or a partial of one, with picklable arguments
Work = Callable[[Any, float], Outcome]

#: told of every outcome as it comes: the unit, its outcome, how many units have one, and how many there are
Progress = Callable[[str, Outcome, int, int], None]


@dataclass
class Run:
    """What running some units gave: the outcomes in the order of the units, and why some are missing or incomplete.

    `resumed`: units whose outcome was read from the checkpoint. `interrupted`: whether Ctrl-C ended the run.
    """

    units: list[str]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    resumed: int = 0
    interrupted: bool = False

    @property
    def cuts(self) -> dict[str, int]:
        """Why units stopped early or did not begin, and how many did for that reason; empty if all are complete."""
        unbegun = INTERRUPTED if self.interrupted else OUT_OF_TIME
        stops = (self.outcomes[u].stopped if u in self.outcomes else unbegun for u in self.units)
        return dict(Counter(s for s in stops if s))

    @property
    def stop_reason(self) -> str:
        """ "complete", or the cuts: "budget spent (2 of 8 units)"."""
        return "; ".join(f"{why} ({n} of {len(self.units)} units)" for why, n in self.cuts.items()) or "complete"


def run_units(
    units: Sequence[str] | Mapping[str, Any],
    work: Work,
    *,
    seconds: float,
    executor: Executor | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run the units that the checkpoint does not hold, all of them within `seconds`.

    `work` gets the unit's name, or what a mapping holds for it, and the seconds that it may take: all that are left when
    it begins. A unit that would begin later has no outcome.

    Without an executor the units run here, one after the other. An executor gets all of them at once; a `WorkerPool` that
    has not started gets what is left after `PATIENCE_S` seconds, so that short searches do not wait for processes.

    An interrupt (Ctrl-C) ends the run, and the outcomes that there are by then are returned; a second one is raised. A
    unit may catch the interrupt itself and return what it has with `stopped=INTERRUPTED`.

    Raises BudgetError if `seconds` is not positive, SearchError if two units have the same name, JobError if a unit fails
    or its worker dies; a MirageError of a unit is raised as it is. What is finished by then is in the checkpoint.
    """
    if not seconds > 0:
        raise BudgetError(f"seconds={seconds!r} must be a positive number")
    if twice := [u for u, n in Counter(list(units)).items() if n > 1]:
        raise SearchError(f"units of work must have distinct names; {twice[0]!r} occurs twice")
    job = _Job(units, work, seconds, checkpoint, progress)
    try:
        job.resume()
        if isinstance(executor, WorkerPool) and not executor.started:
            job.run_here(PATIENCE_S if seconds > 2 * PATIENCE_S else math.inf)
        if executor is None:
            job.run_here()
        else:
            job.run_in(executor)
    except KeyboardInterrupt:
        job.run.interrupted = True
        job.collect()
        if isinstance(executor, WorkerPool):
            # its workers would go on with units that nobody waits for
            executor.shutdown()
    finally:
        job.save()
    # in the order of the units, not of their ends
    job.run.outcomes = {u: job.run.outcomes[u] for u in units if u in job.run.outcomes}
    return job.run


class _Job:
    """One run of units."""

    def __init__(
        self,
        units: Sequence[str] | Mapping[str, Any],
        work: Work,
        seconds: float,
        checkpoint: Checkpoint | None,
        progress: Progress | None,
    ) -> None:
        self.run = Run(list(units))
        self.arguments = units if isinstance(units, Mapping) else {u: u for u in units}
        self.work = work
        self.checkpoint = checkpoint
        self.progress = progress
        self.start = time.time()
        # the only clock that processes, and machines, share
        self.end = self.start + seconds
        self.futures: dict[Future[tuple[str, str] | None], str] = {}
        self.unsaved: dict[str, dict[str, Any]] = {}

    def left(self) -> list[str]:
        """The units without an outcome."""
        return [u for u in self.run.units if u not in self.run.outcomes]

    def resume(self) -> None:
        for unit in self.run.units:
            payload = self.checkpoint.get(unit) if self.checkpoint else None
            if payload is not None:
                self.run.resumed += 1
                self.take(unit, Outcome(payload))

    def take(self, unit: str, outcome: Outcome) -> None:
        self.run.outcomes[unit] = outcome
        if self.progress is not None:
            self.progress(unit, outcome, len(self.run.outcomes), len(self.run.units))

    def finish(self, unit: str, answer: tuple[str, str] | None) -> None:
        """Take what `_attempt` returned."""
        if answer is None:
            return
        text, stopped = answer
        outcome = Outcome(json.loads(text), stopped)
        if not stopped:
            self.unsaved[unit] = outcome.payload
        if time.time() - self.start > PATIENCE_S:
            self.save()
        self.take(unit, outcome)

    def save(self) -> None:
        """Write finished units to the checkpoint, unless all are finished before it was worth a file."""
        quick = time.time() - self.start <= PATIENCE_S and not self.run.cuts
        if self.checkpoint is None or not self.unsaved or quick:
            return
        if not self.checkpoint.keep(self.unsaved):
            self.checkpoint = None
        self.unsaved.clear()

    def run_here(self, seconds: float = math.inf) -> None:
        """Run units in this process for so many seconds; the one that these cut short is not taken, if others follow."""
        end = min(self.end, self.start + seconds)
        todo = self.left()
        for unit in todo:
            # workers gain nothing where one unit is left
            last = unit == todo[-1]
            try:
                answer = _attempt(self.work, unit, self.arguments[unit], self.end if last else end)
            except Exception as e:
                _fail(unit, e)
            if answer is not None and answer[1] == INTERRUPTED:
                self.finish(unit, answer)
                self.run.interrupted = True
                return
            if end < self.end and not last and (answer is None or answer[1] == OUT_OF_TIME):
                return
            self.finish(unit, answer)

    def run_in(self, executor: Executor) -> None:
        """Run units in an executor, as fast as it takes them."""
        todo = self.left()
        if self.run.interrupted or not todo or time.time() >= self.end:
            return
        try:
            for unit in todo:
                self.futures[executor.submit(_attempt, self.work, unit, self.arguments[unit], self.end)] = unit
        except BrokenExecutor as e:
            _fail(_some(todo), e)
        except (OSError, ImportError, NotImplementedError) as e:
            warnings.warn(
                f"worker processes cannot be started ({e}); the search runs in this process",
                RuntimeWarning,
                stacklevel=4,
            )
            self.abandon()
            self.run_here()
            return
        waiting = set(self.futures)
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                # all that are finished, before the first that failed
                for future in sorted(done, key=_failed):
                    unit = self.futures[future]
                    try:
                        answer = future.result()
                    except BrokenExecutor as e:
                        _fail(_some(self.left()), e)
                    except Exception as e:
                        _fail(unit, e)
                    self.finish(unit, answer)
        except Exception:
            self.abandon()
            raise

    def abandon(self) -> None:
        for future in self.futures:
            future.cancel()

    def collect(self) -> None:
        """After an interrupt: drop what has not begun, keep what has just finished."""
        self.abandon()
        for future, unit in self.futures.items():
            if unit not in self.run.outcomes and future.done() and not _failed(future):
                self.finish(unit, future.result())


def _attempt(work: Work, unit: str, argument: Any, end: float) -> tuple[str, str] | None:
    """The payload of a unit as JSON text and why it stopped, or None if its time, until `end`, is over before it begins."""
    left = end - time.time()
    if left <= 0:
        return None
    outcome = work(argument, left)
    try:
        return json.dumps(outcome.payload, allow_nan=False), outcome.stopped
    except (TypeError, ValueError, RecursionError) as e:
        raise JobError(f"unit {unit!r}: its payload is not JSON: {e}") from e


def _failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


def _fail(unit: str, error: Exception) -> NoReturn:
    """Raise what an error of a unit is to the caller of the search."""
    if isinstance(error, BrokenExecutor):
        raise JobError(
            f"a worker process died (killed, or out of memory) in one of these units: {unit}; finished units are in the "
            "checkpoint, so run the same search again, with a smaller MIRAGE_SEARCH_WORKERS if memory was short"
        ) from error
    if isinstance(error, MirageError):
        error.add_note(f"in unit {unit!r}")
        raise error
    raise JobError(f"unit {unit!r} failed: {type(error).__name__}: {error}") from error


def _some(units: Sequence[str], most: int = 3) -> str:
    return "; ".join([*units[:most], *([f"{len(units) - most} more"] if len(units) > most else [])])


#: processes start one at a time, as their start changes what the whole process sees
_starting = threading.Lock()


class _WorkerProcess(SpawnProcess):
    """A new process that neither imports the caller's main script nor is reached by Ctrl-C.

    Without the first, a script would need `if __name__ == "__main__":` to call a function that searches. Both are settled
    while it starts, as a new process takes the signal mask and the main module from the thread that starts it.
    """

    def start(self) -> None:
        with _starting:
            main = sys.modules["__main__"]
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                super().start()
            finally:
                sys.modules["__main__"] = main
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Context(SpawnContext):
    """Starts worker processes, and notes them in a list."""

    def __init__(self, processes: list[_WorkerProcess]) -> None:
        super().__init__()
        self.processes = processes

    def Process(self, *args: Any, **kwargs: Any) -> _WorkerProcess:  # type: ignore[override]
        process = _WorkerProcess(*args, **kwargs)
        self.processes.append(process)
        return process


def _set_up_worker() -> None:
    """A worker ends with the process that it works for, however that ended, and in the middle of a unit."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        wait_for_end([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


class WorkerPool(Executor):
    """Up to `workers` processes, started as work is submitted; at the end of the `with` block they end, busy or not."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._processes: list[_WorkerProcess] = []
        self._pool: ProcessPoolExecutor | None = None

    @property
    def started(self) -> bool:
        return self._pool is not None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._pool is None:
            self._processes = []
            context = _Context(self._processes)
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_set_up_worker)
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; the next `submit` starts new ones. What is not finished is lost, whatever the arguments are."""
        if self._pool is None:
            return
        for process in self._processes:
            if process.pid is not None:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None


@contextmanager
def default_executor(workers: int | None = None) -> Iterator[Executor | None]:
    """A pool of worker processes for `run_units`, or None where there would be one only.

    `workers` is by default `MIRAGE_SEARCH_WORKERS`. Raises SearchError if it is not a positive number.
    """
    count = search_workers() if workers is None else workers
    if type(count) is not int or count < 1:
        raise SearchError(f"workers={workers!r} is not a positive whole number")
    # a daemon, such as a worker of multiprocessing.Pool, may not have processes of its own
    if count == 1 or multiprocessing.current_process().daemon:
        yield None
        return
    with WorkerPool(count) as pool:
        yield pool
