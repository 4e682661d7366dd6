"""Searches as jobs: units of work in a fixed order, run here or by an executor, and resumed from a checkpoint.

How many workers the executor has, and when a unit was run, changes nothing: outcomes are in the order of the units.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from mirage.errors import BudgetError, DegradedWarning, JobError, MirageError, SearchError
from mirage.ir.codec import Json

if TYPE_CHECKING:
    from mirage.search.checkpoint import Checkpoint

#: seconds that a search runs before its units are written to the checkpoint
PATIENCE_S = 0.5

#: why a unit or a run stopped, where it is not complete
OUT_OF_TIME = "budget spent"
INTERRUPTED = "interrupted"


def was_cut(reason: str) -> bool:
    """Whether time or an interrupt ended what stopped for this reason: with more time, it goes on."""
    return OUT_OF_TIME in reason or INTERRUPTED in reason


@dataclass(frozen=True)
class Outcome:
    """What a unit yielded, and why it stopped early, or "" where it is complete.

    Only a complete outcome is checkpointed. Limits that always hold, such as a number of graphs kept, do not make an
    outcome incomplete: they are part of the payload.
    """

    payload: Any
    stopped: str = ""


#: runs a unit in at most so many seconds (which it checks itself, and then yields what it has with
#: `stopped=OUT_OF_TIME`); a function of an importable module, or a partial of one, with picklable arguments
Work = Callable[[str, float], Outcome]


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
        """ "complete", or the cuts: "budget spent (2 of 8 units left)"."""
        return "; ".join(f"{why} ({n} of {len(self.units)} units left)" for why, n in self.cuts.items()) or "complete"


def run_units(
    units: Sequence[str],
    work: Work,
    *,
    seconds: float,
    executor: Executor | None = None,
    checkpoint: Checkpoint | None = None,
    kind: Any = Json,
) -> Run:
    """Run the units that the checkpoint does not hold, all of them within `seconds`.

    `work` gets the unit's name and the seconds that it may take: all that are left when it begins. A unit that would begin later
    has no outcome. An executor gets all units at once; without one they run here, one after the other. The checkpoint writes and
    reads payloads as values of the type `kind`.

    An interrupt (Ctrl-C) ends the run, and the outcomes that there are by then are returned; a second one is raised. A
    unit may catch the interrupt itself and return what it has with `stopped=INTERRUPTED`.

    Raises BudgetError if `seconds` is not positive, SearchError if two units have the same name, JobError if a unit fails
    or its worker dies; a MirageError of a unit is raised as it is. What is finished by then is in the checkpoint.
    """
    if not seconds > 0:
        raise BudgetError(f"seconds={seconds!r} must be a positive number")
    if twice := [u for u, n in Counter(units).items() if n > 1]:
        raise SearchError(f"units of work must have distinct names; {twice[0]!r} occurs twice")
    job = _Job(units, work, seconds, checkpoint, kind)
    try:
        job.resume()
        if executor is None:
            job.run_here()
        else:
            job.run_in(executor)
    except KeyboardInterrupt:
        job.run.interrupted = True
        job.collect()
    finally:
        job.save()
    # in the order of the units, not of their ends
    job.run.outcomes = {u: job.run.outcomes[u] for u in units if u in job.run.outcomes}
    return job.run


class _Job:
    """One run of units."""

    def __init__(
        self,
        units: Sequence[str],
        work: Work,
        seconds: float,
        checkpoint: Checkpoint | None,
        kind: Any,
    ) -> None:
        self.run = Run(list(units))
        self.work = work
        self.checkpoint = checkpoint
        self.kind = kind
        self.start = time.time()
        # the only clock that processes, and machines, share
        self.end = self.start + seconds
        self.futures: dict[Future[Outcome | None], str] = {}
        self.unsaved: dict[str, Any] = {}

    def left(self) -> list[str]:
        """The units without an outcome."""
        return [u for u in self.run.units if u not in self.run.outcomes]

    def resume(self) -> None:
        for unit in self.run.units:
            payload = self.checkpoint.get(unit, self.kind) if self.checkpoint else None
            if payload is not None:
                self.run.resumed += 1
                self.run.outcomes[unit] = Outcome(payload)

    def finish(self, unit: str, outcome: Outcome | None) -> None:
        """Take what `_attempt` returned."""
        if outcome is None:
            return
        if not outcome.stopped:
            self.unsaved[unit] = outcome.payload
        if time.time() - self.start > PATIENCE_S:
            self.save()
        self.run.outcomes[unit] = outcome

    def save(self) -> None:
        """Write finished units to the checkpoint, unless all are finished before it was worth a file."""
        quick = time.time() - self.start <= PATIENCE_S and not self.run.cuts
        if self.checkpoint is None or not self.unsaved or quick:
            return
        if not self.checkpoint.keep(self.unsaved, self.kind):
            self.checkpoint = None
        self.unsaved.clear()

    def run_here(self) -> None:
        """Run units in this process."""
        for unit in self.left():
            try:
                answer = _attempt(self.work, unit, self.end)
            except Exception as e:
                _fail(unit, e)
            self.finish(unit, answer)
            if answer is not None and answer.stopped == INTERRUPTED:
                self.run.interrupted = True
                return

    def run_in(self, executor: Executor) -> None:
        """Run units in an executor, as fast as it takes them."""
        todo = self.left()
        if not todo or time.time() >= self.end:
            return
        try:
            for unit in todo:
                self.futures[executor.submit(_attempt, self.work, unit, self.end)] = unit
        except BrokenExecutor as e:
            _fail(_some(todo), e)
        except (OSError, ImportError, NotImplementedError) as e:
            warnings.warn(
                f"worker processes cannot be started ({e}); the search runs in this process",
                DegradedWarning,
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


def _attempt(work: Work, unit: str, end: float) -> Outcome | None:
    """The outcome of a unit, or None if its time, until `end`, is over before it begins."""
    left = end - time.time()
    return work(unit, left) if left > 0 else None


def _failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


def _fail(unit: str, error: Exception) -> NoReturn:
    """Raise what an error of a unit is to the caller of the search."""
    if isinstance(error, BrokenExecutor):
        raise JobError(
            f"a worker process died (killed, or out of memory) in one of these units: {unit}; finished units are in the "
            "checkpoint, so run the same search again, with fewer workers if memory was short"
        ) from error
    if isinstance(error, MirageError):
        error.add_note(f"in unit {unit!r}")
        raise error
    raise JobError(f"unit {unit!r} failed: {type(error).__name__}: {error}") from error


def _some(units: Sequence[str], most: int = 3) -> str:
    return "; ".join([*units[:most], *([f"{len(units) - most} more"] if len(units) > most else [])])
