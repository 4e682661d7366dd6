"""Processes that are forked from one that has imported what most of them need, which takes a second each time.

`start` runs Python code, or a file of it, in a process of its own, as `subprocess.Popen` would with `python -c`. Signals, exits
and deaths are those of any process; what is not the same is that modules are there.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import gc
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, suppress
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
#: what most processes import
LOADED = ("tests.api.small", "mirage.cache.database", "mirage.cli")
#: the most bytes of a request: code, arguments and environment
_MOST = 1 << 20
#: how the number of a process, and its status, are told
_NUMBER = struct.Struct("q")


class Forked:
    """A process that was forked: the part of `subprocess.Popen` that tests use. Its pipes are of text."""

    def __init__(self, pid: int, told: int, stdin: IO[str], stdout: IO[str], stderr: IO[str]) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        self._told = told

    def wait(self, timeout: float | None = None) -> int:
        """The status that the process ends with; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            (self.returncode,) = _NUMBER.unpack(os.read(self._told, _NUMBER.size))
            os.close(self._told)
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What the process prints from here on, on standard output and error, after the end of its input."""
        self.stdin.close()
        with ThreadPoolExecutor(2) as pool:
            out, err = (pool.submit(file.read) for file in (self.stdout, self.stderr))
            self.wait(timeout)
        self._close()
        return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # one that has ended since may not have been told of yet
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()

    def _close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                file.close()


def start(
    code: str | Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    group: bool = False,
    modules: Sequence[str] = (),
) -> Forked:
    """Run code, or a file, with these arguments in a process that has `LOADED` and these modules; by default with the environment
    and in the folder of this one, in a `group` of its own if so wanted.
    """
    task = {
        "code": code if isinstance(code, str) else code.read_text(encoding="utf-8"),
        "file": None if isinstance(code, str) else str(code),
        "arguments": arguments,
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
        "group": group,
    }
    (stdin, to), (out, stdout), (err, stderr), (told, tell) = (os.pipe() for _ in range(4))
    theirs = [stdin, stdout, stderr, tell]
    socket.send_fds(_server(tuple(modules)), [json.dumps(task).encode()], theirs)
    for descriptor in theirs:
        os.close(descriptor)
    number = os.read(told, _NUMBER.size)
    assert number, "the process that others are forked from has ended"
    return Forked(_NUMBER.unpack(number)[0], told, os.fdopen(to, "w"), os.fdopen(out), os.fdopen(err))


def run(code: str | Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a process that `start` begins prints, and how it ends."""
    with start(code, *arguments, **options) as process:
        out, err = process.communicate()
        return subprocess.CompletedProcess([str(code), *arguments], process.wait(), out, err)


@functools.cache
def context() -> ForkServerContext:
    """Starts the processes of `multiprocessing` as "spawn" does, but from one that has imported what most of them need.

    Their environment is that of the first call.
    """
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["pytest", "tests.search.units", *LOADED])
    # it imports from the folder that it is started in
    with chdir(ROOT):
        forkserver.ensure_running()
    return found


@functools.cache
def _server(modules: tuple[str, ...]) -> socket.socket:
    """The end of a socket whose other end a process has that imported these modules."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    command = [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *LOADED, *modules]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _become(task: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """What a process has that runs this task by itself."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if task["group"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(task["env"])
    os.chdir(task["cwd"])
    file = task["file"]
    sys.path[:1] = ["" if file is None else os.path.dirname(file), str(ROOT)]
    sys.argv = [file or "-c", *task["arguments"]]


def _execute(task: Mapping[str, Any]) -> None:
    module = types.ModuleType("__main__")
    module.__dict__.update({"__builtins__": builtins, "__file__": task["file"]} if task["file"] else {"__builtins__": builtins})
    sys.modules["__main__"] = module
    exec(compile(task["code"], task["file"] or "<string>", "exec"), module.__dict__)


def _wait_for(task: Mapping[str, Any], descriptors: Sequence[int], tell: int) -> bool:
    """Fork the process of a task, and tell its number and how it ends; whether this is that process."""
    child = os.fork()
    if not child:
        os.close(tell)
        _become(task, descriptors)
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    os.write(tell, _NUMBER.pack(child))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # nobody may be left who wants to know
    with suppress(BrokenPipeError):
        os.write(tell, _NUMBER.pack(status))
    return False


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        import_module(name)
    # what is shared stays shared
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MOST, 4)
        if not message:
            return
        if not os.fork():
            control.close()
            task = json.loads(message)
            if not _wait_for(task, descriptors[:3], descriptors[3]):
                os._exit(0)
            _execute(task)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
