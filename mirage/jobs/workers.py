"""Where steps are done: in this process, in threads or processes of this machine, or on the workers of a Dask cluster.

All through `concurrent.futures.Executor`. A step that measures needs a worker that has the target and is told to be quiet. Of
this machine there is one such place; on a cluster, they are the hosts of workers that were started with the resource of the
target, `dask worker ... --resources "mirage_cpu=1"`.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any

from mirage.background import end_with
from mirage.errors import ExecutorError, MirageError
from mirage.ir.codec import JOB_STEP
from mirage.jobs.step import run_step
from mirage.jobs.task import Asked
from mirage.settings import search_workers

#: seconds in which a scheduler has to answer
CONNECT_S = 10.0
#: seconds after which a scheduler is asked anew which workers there are
FRESH_S = 1.0

#: what URLs of executors look like
FORMS = "inline, threads, threads:N, processes, processes:N or dask://HOST:PORT"


class Workers(ABC):
    """Where steps are done. `attempts`: how often a step is given to workers before it has failed for good, where they die or the
    machine fails. `apart`: whether `submit` only begins them, so that Ctrl-C is no matter of theirs.
    """

    attempts = 3
    apart = True

    @abstractmethod
    def free(self, target: str | None) -> int:
        """How many steps that measure on this target, or, for None, in all, there may be at once."""

    @abstractmethod
    def submit(self, asked: Asked) -> Future[str]:
        """Begin a step; the answer is JSON."""

    def check(self, targets: Sequence[str]) -> None:
        """Raises ExecutorError where no worker could ever measure on one of the targets."""
        return

    @property
    def is_lost(self) -> bool:
        """Whether there will be no workers any more."""
        return False

    def died(self, error: BaseException) -> bool:
        """Whether it is no error of the step: its worker died, or was taken away."""
        return isinstance(error, BrokenExecutor | CancelledError)

    def is_final(self, error: BaseException) -> bool:
        """Whether another attempt would end in the same way."""
        return isinstance(error, MirageError)

    @abstractmethod
    def close(self, wait: bool) -> None:
        """End all workers; without `wait`, with what they do."""


class Here(Workers):
    """In this process, one step after the other."""

    apart = False

    def free(self, target: str | None) -> int:
        return 1

    def submit(self, asked: Asked) -> Future[str]:
        future: Future[str] = Future()
        try:
            future.set_result(run_step(JOB_STEP.to_text(asked)))
        except Exception as e:
            future.set_exception(e)
        return future

    def close(self, wait: bool) -> None:
        pass


class Local(Workers):
    """In executors of this machine, of one worker each, so that one that breaks takes one step along; it is replaced."""

    def __init__(self, make: Callable[[], Executor], count: int) -> None:
        self._make = make
        self._executors = [make() for _ in range(count)]
        self._running: dict[int, Future[str]] = {}

    def free(self, target: str | None) -> int:
        return len(self._executors) if target is None else 1

    def submit(self, asked: Asked) -> Future[str]:
        number = next(n for n in range(len(self._executors)) if n not in self._running or self._running[n].done())
        try:
            future = self._executors[number].submit(run_step, JOB_STEP.to_text(asked))
        except BrokenExecutor:
            self._executors[number].shutdown(wait=False)
            self._executors[number] = self._make()
            future = self._executors[number].submit(run_step, JOB_STEP.to_text(asked))
        self._running[number] = future
        return future

    def close(self, wait: bool) -> None:
        for executor in self._executors:
            processes = [*(getattr(executor, "_processes", None) or {}).values()]
            executor.shutdown(wait=wait, cancel_futures=True)
            if not wait:
                for process in processes:
                    process.terminate()


def begin_worker(parent: int) -> None:
    """What a worker process does first: it ends with its parent. Ctrl-C is held where it is started."""
    end_with(parent)


def _process() -> Executor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin_worker, initargs=(os.getpid(),))


class Cluster(Workers):
    """The workers of a Dask cluster. Dask itself gives a step whose worker died to another one, a bounded number of times
    (`distributed.scheduler.allowed-failures`).
    """

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as e:
            raise ExecutorError(f"dask://{address}: {e}; install the package with the extra 'dask'") from e
        try:
            connect: Any = Client
            self._client = connect(f"tcp://{address}", timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as e:
            raise ExecutorError(f"dask://{address}: no scheduler answers there ({e}); start one with: dask scheduler") from e
        self._executors: dict[str, Any] = {}
        self._found: list[dict[str, Any]] = []
        self._asked = -math.inf

    def _workers(self) -> list[dict[str, Any]]:
        """The workers, as they were in the last second."""
        if time.monotonic() - self._asked > FRESH_S:
            try:
                # what the client keeps of it may lack the workers
                told = self._client.sync(self._client.scheduler.identity, n_workers=-1)
                self._found = [*told["workers"].values()]
            except (OSError, TimeoutError):
                self._found = []
            self._asked = time.monotonic()
        return self._found

    def free(self, target: str | None) -> int:
        if target is None:
            return sum(int(w["nthreads"]) for w in self._workers())
        return len({w["host"] for w in self._workers() if w.get("resources", {}).get(resource(target))})

    def submit(self, asked: Asked) -> Future[str]:
        wanted = resource(asked.task.target) if asked.kind == "tune" else ""
        if wanted not in self._executors:
            # equal steps are not one step: the second one is another attempt
            options = {"pure": False, **({"resources": {wanted: 1}} if wanted else {})}
            self._executors[wanted] = self._client.get_executor(**options)
        future: Future[str] = self._executors[wanted].submit(run_step, JOB_STEP.to_text(asked))
        return future

    def check(self, targets: Sequence[str]) -> None:
        for target in targets:
            if self._workers() and not self.free(target):
                raise ExecutorError(
                    f"no worker of the cluster measures for {target!r}; start those that may with: "
                    f'dask worker ADDRESS --nthreads 1 --resources "{resource(target)}=1"'
                )

    @property
    def is_lost(self) -> bool:
        return bool(self._client.status not in ("running", "connecting"))

    def died(self, error: BaseException) -> bool:
        return super().died(error) or self._gave_up(error)

    def is_final(self, error: BaseException) -> bool:
        return super().is_final(error) or self._gave_up(error)

    def _gave_up(self, error: BaseException) -> bool:
        """Whether Dask has given the step to as many workers as it does, and all of them died."""
        return type(error).__name__ == "KilledWorker"

    def close(self, wait: bool) -> None:
        with suppress(Exception):
            self._client.close()


def resource(target: str) -> str:
    """The resource of a Dask worker that measures on a target, such as "mirage_cuda" for "cuda:sm_90"."""
    return f"mirage_{target.partition(':')[0]}"


@contextmanager
def workers(url: str) -> Iterator[Workers]:
    """The workers that a URL names (`FORMS`); they end with the block, at once where that is left by an error.

    Raises ExecutorError for another URL, or for a scheduler that is not reached.
    """
    found = _workers(url)
    try:
        yield found
    except BaseException:
        found.close(wait=False)
        raise
    found.close(wait=True)


def _workers(url: str) -> Workers:
    if url.startswith("dask://"):
        host, _, port = url.removeprefix("dask://").rpartition(":")
        if not host or not port.isdecimal():
            raise ExecutorError(f"{url!r} is no address of a scheduler; write dask://HOST:PORT")
        return Cluster(f"{host}:{port}")
    kind, colon, count = url.partition(":")
    if kind == "inline" and not colon:
        return Here()
    if kind not in ("threads", "processes") or (colon and not (count.isdecimal() and 0 < int(count) <= 1024)):
        raise ExecutorError(f"{url!r} is no executor; pass {FORMS}")
    number = int(count) if colon else search_workers()
    return Local(_process if kind == "processes" else lambda: ThreadPoolExecutor(1), number)
