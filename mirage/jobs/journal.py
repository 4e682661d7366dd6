"""The state of a job on disk: what it is, and a journal of finished steps from which all else follows.

A job is a folder, `<cache folder>/jobs/<name>` or one in a folder that is given:

| file | holds |
| --- | --- |
| `job.json` | the tasks and limits, written whole at the beginning of every run |
| `steps.jsonl` | a line per finished step, appended and flushed to the disk (`mirage.search.checkpoint`) |
| `lock` | locked by the process that works on the job |
| `stop` | is there while that process is asked to stop |

A step counts once its line is there; its records are in the results store by then. So a process that is killed at any moment
loses the steps that were under way, and nothing else.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirage.cache import ResultStore
from mirage.cache.records import sha256
from mirage.errors import CacheError, InputError, JobBusyError, UnknownJobError
from mirage.folders import check_private, private_folder, read_text, write_whole
from mirage.ir.codec import JOB, within
from mirage.jobs.schedule import TaskState
from mirage.jobs.task import Event, Lost, Name, Seconds, Task
from mirage.search.checkpoint import Checkpoint

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A named set of tasks: `budget` is in seconds, of all rounds of tuning together, `round` those of one; `seed` is that of
    every random choice.
    """

    name: Name
    tasks: tuple[Task, ...]
    budget: Seconds | None = None
    round: Seconds = 10.0
    seed: Annotated[int, within(0, 2**63)] = 0


class Journal:
    """The folder of the job of that name, in the given folder or in the cache folder.

    Raises UnknownJobError for a name that is none, CacheError if the folder cannot be made.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise UnknownJobError(f"{name!r} is no name of a job; use letters, digits, '_', '.' and '-', at most 100")
        self.name = name
        self.folder = jobs_folder(folder) / name

    def exists(self) -> bool:
        return (self.folder / "job.json").is_file()

    def job(self) -> Job:
        """What was run last; raises UnknownJobError if nothing was, FormatError for a damaged file."""
        if not self.exists():
            names = ", ".join(names_in(self.folder.parent)) or "none"
            raise UnknownJobError(f"there is no job {self.name!r} in {self.folder.parent}; there are: {names}")
        return JOB.from_text(Job, read_text(self.folder / "job.json", "a job's file"))

    def begin(self, job: Job) -> None:
        """Write what the job is."""
        write_whole(self.folder / "job.json", JOB.to_text(job))

    def states(self, tasks: Sequence[Task]) -> list[TaskState]:
        """The tasks as the journal has them, in order. Steps of other tasks, which the job once had, are left out."""
        found = {t.key: TaskState(t) for t in tasks}
        checkpoint = self._checkpoint()
        for unit in checkpoint.units():
            event = checkpoint.get(unit, Event)
            if event is not None and event.task in found:
                found[event.task].take(event)
        return list(found.values())

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """The journal to be written to, by this process alone. Raises JobBusyError if another one does, CacheError if the folder
        cannot be written.
        """
        with self._made(), (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobBusyError(
                    f"another process works on the job {self.name!r}; wait for it, or end it with: mirage jobs stop {self.name}"
                ) from None
            (self.folder / "stop").unlink(missing_ok=True)
            yield Writer(self._checkpoint())

    @contextmanager
    def _made(self) -> Iterator[None]:
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            check_private(self.folder)
        except OSError as e:
            raise CacheError(f"job {self.name!r}: {e}; pass a folder that you can write") from e
        yield

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / "steps.jsonl", sha256(f"job {self.name}"))

    @property
    def is_running(self) -> bool:
        """Whether a process works on it."""
        try:
            with (self.folder / "lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def stop_is_wanted(self) -> bool:
        return (self.folder / "stop").exists()

    def stop(self) -> bool:
        """Ask the process that works on it to stop after the steps under way; whether there is one."""
        if not self.is_running:
            return False
        (self.folder / "stop").touch()
        return True

    def remove(self) -> None:
        """Forget the job: its results stay in the results store. Raises JobBusyError while a process works on it."""
        with self.writing():
            shutil.rmtree(self.folder, ignore_errors=True)


class Writer:
    """Appends events to a journal."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._units = set(checkpoint.units())
        self._count = len(self._units)

    def put(self, *events: Event) -> None:
        """Append events: when this returns, they outlive the process and the machine. Raises CacheError."""
        named: dict[str, Event] = {}
        for event in events:
            # a damaged line is no unit, so that its number may be used again by mistake: names only have to differ
            while (unit := f"{self._count} {event.task[:12]}") in self._units:
                self._count += 1
            self._units.add(unit)
            named[unit] = event
        self._checkpoint.put_all(named, Event)


def jobs_folder(folder: Path | None = None) -> Path:
    """The folder of all jobs: a given one, which is made, or that in the cache folder.

    Raises InputError or CacheError if it cannot be made, UnsafeCacheError if another user can write it.
    """
    try:
        if folder is None:
            return private_folder("jobs")
        folder.mkdir(parents=True, exist_ok=True)
        check_private(folder)
    except OSError as e:
        kind = CacheError if folder is None else InputError
        raise kind(f"jobs: {e}; pass a folder that you can write") from e
    return folder


def names_in(folder: Path) -> list[str]:
    """The names of the jobs in a folder of jobs."""
    with suppress(OSError):
        return sorted(f.name for f in folder.iterdir() if (f / "job.json").is_file())
    return []


def drop_lost(states: Sequence[TaskState], store: ResultStore, writer: Writer, now: float) -> list[TaskState]:
    """Have tasks begin anew whose results are not in the store any more; returns them."""
    present = set(store.matching())
    lost = [s for s in states if not present.issuperset(s.records)]
    for s in lost:
        event = Lost(task=s.task.key, ended=now)
        writer.put(event)
        s.take(event)
    return lost
