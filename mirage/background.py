"""Superoptimization beside a running program: in a process of its own, whose results kernels switch over to."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage.api import TargetResult, superoptimize
from mirage.cache import ResultStore
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.kernels.switching import SwitchingKernel
from mirage.compiler.kernels.targets import kernels_for
from mirage.errors import JobError
from mirage.ir.program import Program
from mirage.results.cpu.result import Superoptimized
from mirage.search.jobs import was_cut

#: seconds of a round at most; each is as long as all before it
LONGEST_S = 300.0
#: rounds in turn without a faster kernel or another graph, after which nothing more is expected
PATIENCE = 3
#: seconds in which a process that is told to end does
END_S = 5.0


@dataclass(eq=False)
class Job:
    """One subprogram to superoptimize, and the kernel that waits for it."""

    kernel: SwitchingKernel
    program: Program
    sizes: tuple[Mapping[str, int], ...]
    constants: tuple[str, ...]
    #: seconds that its rounds have had, and how many of the last ones found nothing
    spent: float = 0.0
    idle: int = 0
    done: bool = False


class Background:
    """Superoptimizes subprograms while the program runs on library calls, and goes on improving what runs.

    First, each subprogram gets its part of `budget`, in seconds; then the one in which most time was spent since it was last
    worked on gets another round, until there is nothing left to try for any, or `close`.
    The search and tuning run in a child process, so that calls are not held up; a thread checks what it found again, compiles it
    and switches the kernel over. `kernels` makes kernels, for the target that is searched for. The child ends with this process,
    however that ends, and is not reached by Ctrl-C.
    """

    def __init__(self, *, budget: float, kernels: KernelMaker, cache: ResultStore | bool, seed: int) -> None:
        self._kernels = kernels
        self._options = {"target": kernels.target, "seed": seed, "cache": bool(cache)}
        # not in a file: a URL may hold a password
        self._environment = {"MIRAGE_CACHE_URL": cache.url} if isinstance(cache, ResultStore) else {}
        self._budget = budget
        self._jobs: list[Job] = []
        self._first = threading.Event()
        self._closed = False
        self._child: Child | None = None
        self._thread = threading.Thread(target=self._run, name="mirage background", daemon=True)

    def add(self, job: Job) -> None:
        """Add a subprogram, before `start`."""
        self._jobs.append(job)

    def start(self) -> None:
        """Begin; returns at once."""
        atexit.register(self._end)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether every subprogram has had its part of the budget, within so many seconds if a timeout is given."""
        return self._first.wait(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Whether it is over, within so many seconds if a timeout is given."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Leave the subprograms on what they run now; returns at once."""
        # without a lock, as the garbage collector may call it anywhere: whoever starts a child looks at this after it
        self._closed = True
        child = self._child
        if child is not None:
            child.end()

    def _end(self) -> None:
        """Close, and leave no process and no files."""
        self.close()
        child = self._child
        if child is not None:
            child.clear()

    def _run(self) -> None:
        try:
            deadline = time.monotonic() + self._budget
            for k, job in enumerate(self._jobs):
                left = (deadline - time.monotonic()) / (len(self._jobs) - k)
                if self._closed or left <= 0:
                    why = "closed" if self._closed else "no time was left for a search"
                    job.kernel.outcome = f"library calls: {why}"
                    continue
                self._round(job, left)
            self._first.set()
            while not self._closed and (best := self._next()) is not None:
                self._round(best, min(max(best.spent, self._budget / len(self._jobs)), LONGEST_S))
        finally:
            self._first.set()
            child = self._child
            if child is not None:
                child.end()
                child.clear()
            atexit.unregister(self._end)

    def _next(self) -> Job | None:
        """The subprogram that promises most: in which most time went by since it was last worked on."""
        left = [job for job in self._jobs if not job.done]
        return max(left, key=lambda job: (job.kernel.nanoseconds, -job.spent), default=None)

    def _round(self, job: Job, seconds: float) -> None:
        try:
            answer = self._ask({"job": self._jobs.index(job), "budget": seconds})
            if "error" in answer:
                raise JobError(answer["error"])
            if (text := answer.pop("kernel", None)) is not None:
                job.kernel.switch(self._kernels.from_text(text), answer["outcome"])
            job.idle = 0 if answer["news"] else job.idle + 1
            job.done = answer["complete"] or job.idle >= PATIENCE
        except Exception as e:
            # nobody sees this thread's errors but in explain(), and the other subprograms go on
            why = "closed" if self._closed else f"the search in the background failed: {e}"
            if not job.spent:
                job.kernel.outcome = f"library calls: {why}"
            job.done = True
        job.spent += seconds
        job.kernel.nanoseconds = 0

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the child answers; a new one is started where there is none."""
        child = self._child
        if child is None:
            programs = [
                {"program": str(j.program), "sizes": [dict(s) for s in j.sizes], "constants": list(j.constants)}
                for j in self._jobs
            ]  # fmt: skip
            child = self._child = Child({"jobs": programs, **self._options}, self._environment)
            if self._closed:
                child.end()
        try:
            return child.ask(request)
        except JobError:
            self._child = None
            child.clear()
            raise


class Child:
    """The process that searches, with the folder of its files; `module` is what it runs, on the file of the task."""

    def __init__(self, task: dict[str, Any], environment: Mapping[str, str], module: str = "mirage.background") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mirage-background-"))
        self._errors = self._folder / "errors"
        path = self._folder / "task.json"
        path.write_text(json.dumps({**task, "parent": os.getpid()}))
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                # it imports what this process does, and nothing that happens to lie in the working folder
                [sys.executable, "-P", "-m", module, str(path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, text=True,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            )  # fmt: skip

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; raises JobError where the process ends without one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            last = (self._errors.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise JobError(f"its process ended with status {status}: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Tell it to end; returns at once."""
        with suppress(OSError):
            self._process.terminate()

    def clear(self) -> None:
        """Wait for its end, and remove its files."""
        # it still has files in its folder
        with suppress(subprocess.TimeoutExpired, OSError):
            self._process.wait(END_S)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def end_with(parent: int, folder: Path | None = None) -> None:
    """End this process within a second of its parent's end, also by a signal that cannot be caught, and drop the folder."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def give_way() -> None:
    """Let this process have what processors nobody else asks for, and a tenth of what its parent gets beside that.

    Linux shares processors among sessions first, by a number of each: that of a process only counts beside others of its own.
    """
    os.nice(10)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("10")


@dataclass
class Rounds:
    """The rounds of one program, of which `superoptimize` is the first: each goes on where the one before it was."""

    first: Callable[[float], TargetResult]
    kernels: KernelMaker
    result: TargetResult | None = None
    #: what is known of it: the kernel as text, and how many graphs
    told: str = ""
    graphs: int = 0
    seconds: float = 0.0

    def next(self, seconds: float) -> dict[str, Any]:
        """What a round of so many seconds brings: the `kernel` as text where it is another one, and its `outcome` in words;
        `news`, whether there is a kernel or a graph that was not known; `complete`, whether there is nothing left to try.
        """
        before = self.result
        found = before.improve(seconds) if isinstance(before, Superoptimized) else self.first(seconds)
        self.seconds += seconds
        self.result = found
        kernel = self.kernels.superoptimized(found).to_text()
        other, more = kernel != self.told, len(found.graphs) > self.graphs
        self.told, self.graphs = kernel, len(found.graphs)
        answer = {
            "outcome": f"{found.best}, found in the background in {self.seconds:.0f} s",
            "news": other or more,
            # what a model has ranked is not measured any more
            "complete": not (
                isinstance(found, Superoptimized) and (was_cut(found.stats.stop_reason) or was_cut(found.tune_stop))
            ),
        }
        return {**answer, "kernel": kernel} if other else answer


def main(arguments: Sequence[str]) -> None:
    """The child: superoptimizes programs of a task file, a round of one of them for each line that it reads."""
    task: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    folder = Path(arguments[0]).parent
    end_with(task["parent"], folder)
    give_way()
    kernels = kernels_for(task["target"])

    def rounds(job: Mapping[str, Any]) -> Rounds:
        program = Program.from_text(job["program"])

        def first(seconds: float) -> TargetResult:
            return superoptimize(
                program, target=str(task["target"]), sizes=job["sizes"], constants=job["constants"], budget=seconds,
                cache=task["cache"], seed=task["seed"],
            )  # fmt: skip

        return Rounds(first, kernels)

    work = [rounds(job) for job in task["jobs"]]
    with suppress(BrokenPipeError):
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = work[request["job"]].next(request["budget"])
            except Exception as e:
                answer = {"error": f"{type(e).__name__}: {e}"}
            print(json.dumps(answer), flush=True)
    # the pipes' other ends are closed: the parent was killed, which may show here before `end_with` sees it
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
