"""Scripts of pages, each in a process that is forked from one that has imported what most of them do: that takes a second.

`python -m tests.docs.pages MODULE...` imports the modules, and then runs what lines of JSON on stdin name; after each one it says
with which status the process ended.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]
#: seconds after which a script that does not end is killed
LIMIT = 600


class Scripts:
    """A process that has these modules, from which those of scripts are forked."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.pages", *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a script in its folder, with this environment, as the main module of a process of its own."""
        assert self._server.stdin is not None and self._server.stdout is not None
        out, err = (script.with_suffix(s) for s in (".out", ".err"))
        task = {"script": str(script), "environment": dict(environment), "out": str(out), "err": str(err)}
        self._server.stdin.write(json.dumps(task) + "\n")
        self._server.stdin.flush()
        status = self._server.stdout.readline()
        assert status, "the process that scripts are forked from has ended"
        return subprocess.CompletedProcess([script.name], int(status), out.read_text(), err.read_text())

    def __enter__(self) -> Scripts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # ends at the end of its input
        self._server.communicate()


def _become(task: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """What a process that runs a script by itself would have."""
    os.environ.clear()
    os.environ.update(environment)
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), *((task[k], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for k in ("out", "err"))]
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    folder = os.path.dirname(task["script"])
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = [task["script"]]
    signal.alarm(LIMIT)


def main() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    # what is shared stays shared
    gc.freeze()
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if not child:
            _become(task, task["environment"])
            runpy.run_path(task["script"], run_name="__main__")
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
