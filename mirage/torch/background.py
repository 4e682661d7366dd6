"""Programs superoptimized as a whole in a process beside, and swapped in between calls."""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from mirage.background import Child, end_with, give_way
from mirage.cache import ResultStore
from mirage.compilation import compile, load_executable
from mirage.errors import JobError, MirageError
from mirage.torch.compiled import CompiledGraph, constant_names
from mirage.torch.guards import Range
from mirage.torch.model_options import ModelOptions
from mirage.torch.threads import on_torch_threads


class Improvable(Protocol):
    """What runs a compiled graph whose dims have these bounds, and says in `told` what became of its superoptimization."""

    graph: CompiledGraph
    bounds: Mapping[str, Range]
    told: str

    def swap(self, graph: CompiledGraph) -> None:
        """Run another executable of the same graph from the next call on."""
        ...


class Later:
    """Superoptimizes programs one after the other while they run.

    The process compiles and measures, and keeps what it finds in the results store; this one verifies the kernels that it wrote.
    """

    def __init__(self, options: ModelOptions) -> None:
        self._options = options
        self._programs: queue.SimpleQueue[weakref.ref[Improvable] | None] = queue.SimpleQueue()
        self._left = 0
        self._idle = threading.Condition()
        self._closed = False
        self._child: Child | None = None
        self._thread: threading.Thread | None = None

    def add(self, program: Improvable) -> None:
        """Superoptimize a program when its turn comes; returns at once."""
        if not self._options.searches or self._closed:
            return
        program.told = "superoptimized in the background, which is not done"
        with self._idle:
            self._left += 1
        self._programs.put(weakref.ref(program))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mirage torch background", daemon=True)
            self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all programs have had their turn, within so many seconds if a timeout is given."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._left, timeout)

    def close(self) -> None:
        """Leave the programs as they are; returns at once."""
        self._closed = True
        child = self._child
        if child is not None:
            child.end()

    def _run(self) -> None:
        while (reference := self._programs.get()) is not None:
            program = reference()
            if program is not None:
                try:
                    self._improve(program)
                except (MirageError, OSError) as e:
                    # nobody sees this thread's errors but in explain()
                    program.told = "not superoptimized: " + ("closed" if self._closed else str(e))
            del program
            with self._idle:
                self._left -= 1
                self._idle.notify_all()

    def _improve(self, program: Improvable) -> None:
        if self._closed:
            raise JobError("closed")
        graph, options = program.graph, self._options.compilation(search=True)
        cache = options.pop("cache")
        task = {
            "module": str(graph.imported.module), "bounds": program.bounds,
            "constants": constant_names(graph.imported, graph.constants), "cache": bool(cache), "options": options,
            "sizes": graph.sizes,
        }  # fmt: skip
        environment = {"MIRAGE_CACHE_URL": cache.url} if isinstance(cache, ResultStore) else {}
        child = self._child = Child(task, environment, __name__)
        with tempfile.TemporaryDirectory(prefix="mirage-torch-") as folder:
            file = Path(folder) / "program.mirage"
            try:
                if self._closed:
                    child.end()
                answer = child.ask({"save": str(file)})
                if "error" in answer:
                    raise JobError(answer["error"])
                executable = load_executable(file)
            finally:
                self._child = None
                child.end()
                child.clear()
        program.swap(CompiledGraph(graph.imported, executable, graph.constants, graph.sizes))
        program.told = f"superoptimized in the background in {sum(executable.facts.seconds.values()):.0f} s"


def main(arguments: Sequence[str]) -> None:
    """The process: compiles the program of a task file, and saves it where the line that it reads says."""
    task: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    end_with(task["parent"], Path(arguments[0]).parent)
    give_way()
    options = {**task["options"], "without": tuple(task["options"]["without"]), "cache": task["cache"]}
    bounds = {name: tuple(b) for name, b in task["bounds"].items()}
    with suppress(BrokenPipeError):
        for line in sys.stdin:
            try:
                with on_torch_threads():
                    found = compile(task["module"], bounds=bounds, sizes=task["sizes"], constants=task["constants"], **options)
                found.save(json.loads(line)["save"])
                answer = {}
            except Exception as e:
                answer = {"error": f"{type(e).__name__}: {e}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
