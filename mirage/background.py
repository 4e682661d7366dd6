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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage.api import load, superoptimize
from mirage.cache import ResultStore
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.kernels.switching import SwitchingKernel
from mirage.ir.program import Program
from mirage.ir.serial import program_from_json, program_to_json


@dataclass(frozen=True)
class Job:
    """One subprogram to superoptimize, and the kernel that waits for it."""

    kernel: SwitchingKernel
    program: Program
    sizes: tuple[Mapping[str, int], ...]
    constants: tuple[str, ...]


class Background:
    """Superoptimizes subprograms one after the other while the program runs on library calls.

    The search and tuning of each run in a child process, so that calls are not held up; a thread checks what it found
    again, compiles it and switches the kernel over. `kernels` makes kernels, for the target that is searched for; `budget` is in
    seconds, for all of them. The child ends with this process,
    however that ends, and is not reached by Ctrl-C.
    """

    def __init__(self, *, budget: float, kernels: KernelMaker, cache: ResultStore | bool, seed: int) -> None:
        self._kernels = kernels
        self._options = {"target": kernels.target, "seed": seed, "cache": bool(cache)}
        # not in a file: a URL may hold a password
        self._environment = {"MIRAGE_CACHE_URL": cache.url} if isinstance(cache, ResultStore) else {}
        self._budget = budget
        self._jobs: list[Job] = []
        self._done = threading.Event()
        self._stopped = False
        #: held while a child starts: none does once stopped
        self._starting = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def add(self, job: Job) -> None:
        """Add a subprogram, before `start`."""
        self._jobs.append(job)

    def start(self) -> None:
        """Begin; returns at once."""
        atexit.register(self.stop)
        threading.Thread(target=self._run, name="mirage background", daemon=True).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all subprograms are done, within so many seconds if a timeout is given."""
        return self._done.wait(timeout)

    def stop(self) -> None:
        """Leave the subprograms that are not done on what they run now."""
        with self._starting:
            self._stopped = True
            child = self._child
        if child is not None and child.poll() is None:
            child.terminate()
            # it still has files in its folder, which goes next
            with suppress(subprocess.TimeoutExpired):
                child.wait(5)

    def _run(self) -> None:
        deadline = time.monotonic() + self._budget
        try:
            for k, job in enumerate(self._jobs):
                left = (deadline - time.monotonic()) / (len(self._jobs) - k)
                if self._stopped or left <= 0:
                    job.kernel.outcome = "library calls: " + ("stopped" if self._stopped else "no time was left for a search")
                    continue
                try:
                    self._one(job, left)
                except Exception as e:
                    # nobody sees this thread's errors but in explain(), and the other subprograms go on
                    why = "stopped" if self._stopped else f"the search in the background failed: {e}"
                    job.kernel.outcome = f"library calls: {why}"
        finally:
            self._done.set()
            atexit.unregister(self.stop)

    def _one(self, job: Job, budget: float) -> None:
        with tempfile.TemporaryDirectory(prefix="mirage-background-") as folder:
            task, result = Path(folder) / "task.json", Path(folder) / "result.json"
            text = {
                "program": program_to_json(job.program), "sizes": [dict(s) for s in job.sizes],
                "constants": list(job.constants), "budget": budget, "parent": os.getpid(), **self._options,
            }  # fmt: skip
            task.write_text(json.dumps(text))
            with self._starting:
                if self._stopped:
                    raise ValueError("stopped")
                child = self._child = subprocess.Popen(
                    # it imports what this process does, and nothing that happens to lie in the working folder
                    [sys.executable, "-P", "-m", "mirage.background", str(task), str(result)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                    env={**os.environ, **self._environment, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
                )  # fmt: skip
            _, errors = child.communicate()
            if child.returncode:
                last = (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
                raise ValueError(f"its process ended with status {child.returncode}: {last}")
            found = load(result)
            job.kernel.switch(self._kernels.superoptimized(found), f"{found.best}, found in the background")


def end_with(parent: int, folder: Path) -> None:
    """End this process within a second of its parent's end, also by a signal that cannot be caught, and drop the folder."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]) -> None:
    """The child: superoptimizes the program of a task file, and saves the result."""
    task: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    end_with(task["parent"], Path(arguments[0]).parent)
    os.nice(5)
    found = superoptimize(
        program_from_json(task["program"]), target=task["target"], sizes=task["sizes"], constants=task["constants"],
        budget=task["budget"], cache=task["cache"], seed=task["seed"],
    )  # fmt: skip
    found.save(arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
