"""The C toolchain and the thread pool: errors, content addressing, races, ownership; threads and fork."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage.errors import CompilerError, NoCompilerError, UnsafeCacheError
from mirage.kernels.cpu.compile import shipped, toolchain
from mirage.kernels.cpu.launch import pool

ANSWER = "int answer(void) { return %d; }\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(folder))
    return folder


def libraries(cache: Path) -> list[Path]:
    return sorted(p for p in (cache / "kernels").iterdir() if p.suffix == ".so")


def test_compile_and_load(cache: Path) -> None:
    path = toolchain.compile(ANSWER % 42, name="the answer")
    assert path.parent == cache / "kernels"
    assert path.name.startswith("the_answer-")
    assert toolchain.load(path).answer() == 42
    assert [p for p in path.parent.iterdir()] == [path], "the build leaves nothing else"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_named_with_its_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CompilerError, match=rf"kernel 'k' cannot be compiled in {cache} \(No space left.*MIRAGE_CACHE_DIR"):
        toolchain.compile(ANSWER % 1, name="k")


def test_a_library_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toolchain.compile(ANSWER % 1, name="k")
    before = path.stat().st_mtime_ns
    toolchain.find_compiler()
    monkeypatch.setattr(subprocess, "run", None)
    assert toolchain.compile(ANSWER % 1, name="k") == path
    assert path.stat().st_mtime_ns == before


def test_the_key_covers_source_flags_headers_and_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [toolchain.compile(ANSWER % 1, name="k"), toolchain.compile(ANSWER % 2, name="k")]
    with monkeypatch.context() as patch:
        patch.setenv("MIRAGE_CFLAGS", "-DX")
        paths.append(toolchain.compile(ANSWER % 1, name="k"))
    with monkeypatch.context() as patch:
        patch.setattr(shipped, "headers", lambda: "other headers")
        paths.append(toolchain.compile(ANSWER % 1, name="k"))
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "_cpu", lambda: "another processor")
        paths.append(toolchain.compile(ANSWER % 1, name="k"))
    compiler = toolchain.find_compiler()
    with monkeypatch.context() as patch:
        newer = toolchain.Compiler(compiler.command, compiler.version + " (newer)")
        patch.setattr(toolchain, "find_compiler", lambda: newer)
        paths.append(toolchain.compile(ANSWER % 1, name="k"))
    assert len(set(paths)) == 6
    assert libraries(cache) == sorted(paths)


def test_extra_flags_reach_the_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CFLAGS", "-DANSWER=7")
    assert toolchain.load(toolchain.compile("int f(void) { return ANSWER; }", name="f")).f() == 7


def test_broken_source(cache: Path) -> None:
    with pytest.raises(CompilerError) as caught:
        toolchain.compile("int f(void) { return undeclared_name; }", name="broken")
    message = str(caught.value)
    assert "broken" in message
    assert "undeclared_name" in message
    assert "-O3" in message, "the message gives the command"
    assert list((cache / "kernels").iterdir()) == [], "nothing stays behind"


def test_a_long_compiler_message_is_cut(cache: Path) -> None:
    with pytest.raises(CompilerError) as caught:
        toolchain.compile("\n".join(f"int f{i}(void) {{ return g{i}; }}" for i in range(200)), name="broken")
    assert len(str(caught.value).splitlines()) <= toolchain.MESSAGE_LINES + 2


def test_no_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoCompilerError, match=r"gcc.*ziglang.*CC"):
        toolchain.compile(ANSWER % 1, name="k")


@pytest.mark.parametrize("cc", ["no-such-compiler", "false"])
def test_cc_that_does_not_run(cache: Path, monkeypatch: pytest.MonkeyPatch, cc: str) -> None:
    """`CC` is a choice: it is not passed over for another compiler."""
    monkeypatch.setenv("CC", cc)
    with pytest.raises(NoCompilerError, match=f"CC='{cc}'"):
        toolchain.compile(ANSWER % 1, name="k")


def test_cc_with_arguments(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{shlex.join(toolchain.find_compiler().command)} -DANSWER=9")
    assert toolchain.load(toolchain.compile("int f(void) { return ANSWER; }", name="f")).f() == 9


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write(cache: Path, mode: int) -> None:
    path = toolchain.compile(ANSWER % 1, name="k")
    path.parent.chmod(mode)
    with pytest.raises(UnsafeCacheError, match="written by other users"):
        toolchain.compile(ANSWER % 1, name="k")
    with pytest.raises(UnsafeCacheError, match="MIRAGE_CACHE_DIR"):
        toolchain.load(path)
    path.parent.chmod(0o755)  # reading is no harm
    assert toolchain.load(path).answer() == 1


def test_a_library_that_others_can_write(cache: Path) -> None:
    path = toolchain.compile(ANSWER % 1, name="k")
    path.chmod(0o722)
    with pytest.raises(UnsafeCacheError, match="chmod go-w"):
        toolchain.load(path)
    with pytest.raises(UnsafeCacheError, match="chmod go-w"):
        toolchain.compile(ANSWER % 1, name="k")


def test_a_library_of_another_user(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toolchain.compile(ANSWER % 1, name="k")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(UnsafeCacheError, match=f"belongs to user {me}"):
        toolchain.load(path)


def test_a_truncated_library(cache: Path) -> None:
    path = toolchain.compile(ANSWER % 1, name="k")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CompilerError, match="delete the file"):
        toolchain.load(path)


def test_racing_processes(cache: Path) -> None:
    code = (
        "from mirage.kernels.cpu.compile import toolchain as t\n"
        f"print(t.load(t.compile({ANSWER % 5!r}, name='k')).answer())"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [racer.communicate()[0].strip() for racer in racers] == ["5"] * 4
    assert len(libraries(cache)) == 1


def test_a_killed_compile_leaves_no_library(cache: Path, tmp_path: Path) -> None:
    """A compiler that writes half its output and hangs; then kill -9."""
    real = toolchain.find_compiler().command[0]
    slow = tmp_path / "slow-cc"
    slow.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec {real} --version\n'
        'for a; do [ "$last" = -o ] && out=$a; last=$a; done\n'
        f'echo half > "$out"; : > {tmp_path}/started; exec sleep 60\n'
    )
    slow.chmod(0o700)
    code = f"from mirage.kernels.cpu.compile import toolchain as t\nt.compile({ANSWER % 5!r}, name='k')"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "CC": str(slow)}, start_new_session=True
    )
    while not (tmp_path / "started").exists():
        assert process.poll() is None
    os.killpg(process.pid, 9)
    process.wait()
    assert libraries(cache) == []
    assert toolchain.load(toolchain.compile(ANSWER % 5, name="k")).answer() == 5


# ---- the pool ----

CELLS = r"""
#include "mirage_pool.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    mi_pool_run_fn *run;
    long *visits;      /* per cell */
    long *threads;     /* cells per thread */
    size_t scratch_bytes;
    int n_threads, nested;
    long errors, slow_cell, others;
} state;

/* Waits until other threads have done so many cells: how long that takes is no concern of the pool. */
static void wait_for_others(const state *s, int thread)
{
    for (int i = 0; i < 60000; i++) {
        long done = 0;
        for (int t = 0; t < s->n_threads; t++) done += t == thread ? 0 : __atomic_load_n(&s->threads[t], __ATOMIC_RELAXED);
        if (done >= s->others) return;
        usleep(1000);
    }
}

static void visit(void *args, long index, int thread, void *scratch)
{
    state *s = args;
    s->visits[index]++;
    __atomic_fetch_add(&s->threads[thread], 1, __ATOMIC_RELAXED);
    if (thread < 0 || thread >= s->n_threads || (uintptr_t)scratch % 64) s->errors++;
    /* scratch is this thread's alone: nobody else's mark appears in it */
    for (size_t i = 0; i < s->scratch_bytes; i += 1000) ((unsigned char *)scratch)[i] = (unsigned char)index;
    if (index == s->slow_cell) wait_for_others(s, thread);
    for (size_t i = 0; i < s->scratch_bytes; i += 1000) {
        if (((unsigned char *)scratch)[i] != (unsigned char)index) s->errors++;
    }
    if (s->nested) {
        long visits[10] = {0}, threads[4] = {0};
        state inner = {s->run, visits, threads, s->scratch_bytes, 4, s->nested - 1, 0, -1, 0};
        if (s->run(visit, &inner, 10, 4, s->scratch_bytes)) s->errors++;
        for (int i = 0; i < 10; i++) s->errors += visits[i] != 1;
        s->errors += inner.errors;
        /* the inner call had a scratch of its own */
        for (size_t i = 0; i < s->scratch_bytes; i += 1000) {
            if (((unsigned char *)scratch)[i] != (unsigned char)index) s->errors++;
        }
    }
}

long launch(
    mi_pool_run_fn *run, long *visits, long *threads, long n, int n_threads, size_t scratch_bytes, int nested,
    long slow_cell, long others)
{
    state s = {run, visits, threads, scratch_bytes, n_threads, nested, 0, slow_cell, others};
    int status = run(visit, &s, n, n_threads, scratch_bytes);
    return status ? status : s.errors;
}
"""


class Launcher:
    """Runs cells that count their visits and check their thread number and scratch."""

    def __init__(self) -> None:
        self.c = toolchain.load(toolchain.compile(CELLS, name="cells"))
        self.c.launch.restype = ctypes.c_long

    def __call__(
        self, n: int, n_threads: int = 4, scratch: int = 5000, nested: int = 0, slow: int = -1, others: int = 1
    ) -> tuple[int, list[int], list[int]]:
        """The status, the visits of each cell, the cells of each thread."""
        visits, threads = np.zeros(max(n, 1), np.int64), np.zeros(max(n_threads, 1), np.int64)
        status = self.c.launch(
            ctypes.c_void_p(pool.run_address()),
            ctypes.c_void_p(visits.ctypes.data),
            ctypes.c_void_p(threads.ctypes.data),
            ctypes.c_long(n),
            ctypes.c_int(n_threads),
            ctypes.c_size_t(scratch),
            ctypes.c_int(nested),
            ctypes.c_long(slow),
            ctypes.c_long(others),
        )
        return status, visits[:n].tolist(), threads.tolist()


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    yield Launcher()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_every_cell_runs_once(launch: Launcher, n: int, n_threads: int) -> None:
    for _ in range(20):
        status, visits, threads = launch(n, n_threads)
        assert status == 0
        assert visits == [1] * n
        assert sum(threads) == n


def test_a_slow_cell_holds_only_its_chunk(launch: Launcher) -> None:
    launch(4, 2)  # the workers exist
    status, visits, threads = launch(320, 2, slow=0, others=300)
    assert status == 0
    assert visits == [1] * 320
    assert min(threads) <= 20, "the other thread takes the rest"


def test_sleeping_workers_wake_up(launch: Launcher) -> None:
    for _ in range(5):
        threading.Event().wait(0.01)  # far longer than the pool spins
        _, visits, threads = launch(64, 2, slow=0)
        assert visits == [1] * 64
        assert min(threads) > 0


def test_scratch_grows(launch: Launcher) -> None:
    for scratch in (0, 1, 64, 100_000, 10, 3_000_000):
        status, visits, _ = launch(50, 3, scratch)
        assert status == 0
        assert visits == [1] * 50


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("scratch", [2**62, 2**64 - 1])
def test_no_memory(launch: Launcher, scratch: int, n_threads: int) -> None:
    status, visits, _ = launch(8, n_threads, scratch)
    assert status == -1
    assert visits == [0] * 8, "nothing runs"
    assert launch(8, n_threads)[:2] == (0, [1] * 8), "and the pool is usable"


def test_calls_from_cells(launch: Launcher) -> None:
    status, visits, _ = launch(40, 2, nested=2)
    assert status == 0
    assert visits == [1] * 40


def test_calls_from_many_threads(launch: Launcher) -> None:
    failures: list[object] = []

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            n = int(rng.integers(0, 60))
            status, visits, _ = launch(n, int(rng.integers(1, 6)), int(rng.integers(0, 20000)))
            if status or visits != [1] * n:
                failures.append((n, status, visits))

    callers = [threading.Thread(target=call, args=(i,)) for i in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_after_fork(launch: Launcher) -> None:
    """In a process of its own, as forking one with other libraries' threads would warn."""
    code = f"""
import os, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_toolchain import Launcher
launch = Launcher()
assert launch(100, 3)[1] == [1] * 100
stop = threading.Event()
def busy():
    while not stop.is_set():
        launch(50, 3)
other = threading.Thread(target=busy)
other.start()
for _ in range(8):
    child = os.fork()
    if child == 0:
        # the workers are recreated: another thread takes cells while one is slow
        ok = all(launch(100, 3)[1] == [1] * 100 for _ in range(5)) and min(launch(64, 2, slow=0)[2]) > 0
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
other.join()
assert launch(100, 3)[1] == [1] * 100
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_process_ends_with_workers_asleep(launch: Launcher) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_toolchain import Launcher
print(sum(Launcher()(100, 4)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr


def test_parts_are_compiled_once(cache: Path) -> None:
    part = "int half(int x) { return x / 2; }"
    sources = [f"int half(int); int f(void) {{ return half({n}); }}" for n in (4, 6)]
    libraries = [toolchain.compile(s, name="f", parts=[part]) for s in sources]
    (shared,) = cache.rglob("*.o")
    assert [toolchain.load(p).f() for p in libraries] == [2, 3]
    before = shared.stat().st_mtime_ns
    other = toolchain.compile(sources[0], name="f", parts=[part.replace("2", "4")])
    assert other != libraries[0] and toolchain.load(other).f() == 1
    assert toolchain.compile(sources[0], name="f", parts=[part]) == libraries[0]
    assert len(list(cache.rglob("*.o"))) == 2 and shared.stat().st_mtime_ns == before


def test_a_part_that_others_can_write_is_not_linked(cache: Path) -> None:
    toolchain.compile(ANSWER % 1, name="k", parts=["int half(int x) { return x / 2; }"])
    (shared,) = cache.rglob("*.o")
    shared.chmod(0o777)
    with pytest.raises(UnsafeCacheError, match="written by other users"):
        toolchain.compile(ANSWER % 2, name="k", parts=["int half(int x) { return x / 2; }"])


SLOW = "int f%d(void) { return %d; }\n" + "".join(f"double g{i}(double x) {{ return x * {i}; }}\n" for i in range(3_000))


def test_a_compiler_without_time_is_stopped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.find_compiler()
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def kept(*args: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    elsewhere = cache / "temporary"
    elsewhere.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with pytest.raises(CompilerError, match="no more time for kernel 'slow'; give a larger budget"):
        toolchain.compile(SLOW % (1, 1), name="slow", seconds=0.05)
    (compiler,) = started
    assert compiler.returncode == -signal.SIGKILL
    assert not libraries(cache)
    assert [*(cache / "kernels").iterdir(), *elsewhere.iterdir()] == [], "what it wrote is gone"


def test_parts_go_on_in_the_background(cache: Path) -> None:
    part = SLOW % (2, 2)
    source = "int f2(void); int answer(void) { return f2(); }"
    for _ in range(2):
        with pytest.raises(CompilerError, match="no more time"):
            toolchain.compile(source, name="answer", parts=[part], seconds=0.05)
    assert len(list(cache.rglob("*.c"))) == 1, "who comes later waits for the same compiler"
    path = toolchain.compile(source, name="answer", parts=[part], seconds=300)
    assert toolchain.load(path).answer() == 2
    (shared,) = cache.rglob("*.o")
    before = shared.stat().st_mtime_ns
    assert toolchain.compile(source, name="answer", parts=[part], seconds=300) == path
    assert toolchain.compile(source, name="answer", parts=[part]) == path
    assert shared.stat().st_mtime_ns == before


def test_errors_in_time_and_in_parts_are_the_compilers(cache: Path) -> None:
    for parts in ([], ["no C"]):
        with pytest.raises(CompilerError, match="the C compiler rejected kernel"):
            toolchain.compile("int f(void) { return 1; }" if parts else "no C", name="f", parts=parts, seconds=300)
