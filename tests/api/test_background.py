"""Superoptimization beside calls: right results all the time, and nothing left over however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.background import Background, Job
from mirage.cache import ResultStore
from mirage.compilation import to_module
from mirage.compiler.kernels.cpu_maker import CpuKernels
from mirage.compiler.kernels.fused import fused_kernel, machine_model
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.kernels.switching import SwitchingKernel
from mirage.ir.graph.interpret import run_module
from tests.api.small import BUDGET, adapter, arrays, check
from tests.kernels.kernels import in_threads

ROOT = Path(__file__).parents[2]
WIDTH = 64


def block(x: Any, w: Any, v: Any) -> Any:
    h = mi.rms_norm(x) @ w
    return mi.softmax(h @ mi.swapaxes(h, 0, 1)) @ (mi.silu(h) @ v)


PROGRAM = adapter.trace()
SPECS = {"x": mi.tensor("n", WIDTH), "w": mi.tensor(WIDTH, WIDTH), "v": mi.tensor(WIDTH, WIDTH)}

#: seconds after which what a test waits for has failed to happen, on any machine
PATIENCE = 600.0

#: compiles in the background, says so, and goes on until its input ends
SCRIPT = """
import sys
import mirage as mi
from mirage.cache import ResultStore
from tests.api.test_background import SPECS, block
executable = mi.compile(block, SPECS, background=True, budget=60, cache=ResultStore(f"sqlite:///{sys.argv[1]}"))
print("compiled", flush=True)
sys.stdin.read()
"""


def numbers(n: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(0.3 * rng.standard_normal(s)).astype(np.float32) for s in ((n, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH))]


def right(executable: mi.Executable, seed: int) -> None:
    """Fail unless calls at sizes of their own for each seed compute the program."""
    module = to_module(block, SPECS)
    for n in (seed % 5, 3 + seed, 40):
        args = numbers(n, seed)
        want = run_module(module, args, wide=True)
        np.testing.assert_allclose(executable(*args), want, rtol=1e-3, atol=1e-3)


def children(folder: Path) -> list[int]:
    """Processes of which an argument is a file in a folder below this one."""
    found = []
    for p in Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                command = (p / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) + b"/mirage-background-" in command:
                found.append(int(p.name))
    return found


def until(condition: Any) -> bool:
    """Whether something holds in the end."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path}/r.sqlite")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts the script; its temporary files are in the test's folder."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("needs the processes in /proc")
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        p = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "r.sqlite")],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        processes.append(p)
        assert p.stdout is not None and p.stdout.readline() == "compiled\n"
        assert until(lambda: children(tmp_path))
        return p

    yield start
    for p in processes:
        p.kill()
        p.wait()
        assert p.stdin is not None and p.stdout is not None
        p.stdin.close()
        p.stdout.close()
    for pid in children(tmp_path):
        os.kill(pid, signal.SIGKILL)


def left_over(folder: Path) -> list[Any]:
    return [*children(folder), *folder.glob("mirage-background-*")]


def test_a_killed_process_leaves_no_process_and_no_files(started: Any, tmp_path: Path) -> None:
    p = started()
    p.kill()
    p.wait()
    assert until(lambda: not left_over(tmp_path)), left_over(tmp_path)


def test_a_process_that_ends_early_ends_its_search(started: Any, tmp_path: Path) -> None:
    p = started()
    p.stdin.close()
    assert p.wait(PATIENCE) == 0
    assert not left_over(tmp_path)


def test_ctrl_c_does_not_reach_the_search(started: Any, tmp_path: Path) -> None:
    p = started()
    (child,) = children(tmp_path)
    assert os.getpgid(child) != os.getpgid(p.pid)


def test_files_in_the_working_folder_are_not_imported(
    store: ResultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqlalchemy.py").write_text("raise SystemExit('the wrong file')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p or str(ROOT) for p in sys.path])
    kernel = SwitchingKernel(MuGraphKernel.of_library(PROGRAM))
    job = Job(kernel, PROGRAM, ({"b": 4, "n": 4},), ())
    beside = Background(budget=BUDGET, kernels=CpuKernels(), cache=store, seed=0)
    beside.add(job)
    beside.start()
    assert beside.wait(PATIENCE)
    assert "found in the background" in kernel.outcome
    assert len(store.list()) > 0
    inputs = arrays(PROGRAM, {"b": 4, "n": 4})
    out = [np.empty(t.bind({"b": 4, "n": 4}), np.float32) for t in kernel.output_types]
    kernel(inputs, {"b": 4, "n": 4}, out)
    check(PROGRAM, out, inputs, {"b": 4, "n": 4})


def test_a_search_that_fails_says_why(store: ResultStore) -> None:
    kernel = SwitchingKernel(MuGraphKernel.of_library(PROGRAM))
    beside = Background(budget=BUDGET, kernels=CpuKernels(), cache=store, seed=0)
    beside.add(Job(kernel, PROGRAM, ({"b": 4},), ()))
    beside.start()
    assert beside.wait(PATIENCE)
    assert "library calls: the search in the background failed" in kernel.outcome and "DimError" in kernel.outcome


def test_an_unexpected_error_is_explained(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Background, job: Job, budget: float) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Background, "_one", broken)
    executable = mi.compile(block, SPECS, background=True, cache=store)
    assert executable.wait(PATIENCE)
    assert "the search in the background failed: out of luck" in executable.explain()
    right(executable, 1)


def test_stopping_leaves_the_rest_on_library_calls(store: ResultStore) -> None:
    executable = mi.compile(block, SPECS, background=True, budget=60, cache=store)
    assert not executable.wait(0)
    background = executable._background
    assert isinstance(background, Background)
    background.stop()
    assert executable.wait(PATIENCE)
    assert "library calls: stopped" in executable.explain()
    right(executable, 1)


def test_kernels_switch_while_calls_run(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(Background, "add", lambda self, job: jobs.append(job))
    executable = mi.compile(block, SPECS, background=True, cache=False)
    assert jobs
    kernels = []
    for job in jobs:
        fused = fused_kernel(job.program, list(job.sizes), machine_model())
        assert fused is not None
        kernels.append((job.kernel, (job.kernel.current, fused)))

    def work(seed: int) -> None:
        for k in range(6):
            if seed == 0:
                for kernel, versions in kernels:
                    kernel.switch(versions[k % 2], f"version {k % 2}")
            right(executable, seed)

    in_threads(work)
    assert "version 1" in executable.explain()


def test_what_is_saved_is_explained_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(Background, "add", lambda self, job: jobs.append(job))
    executable = mi.compile(block, SPECS, background=True, cache=False)
    for job in jobs:
        job.kernel.switch(job.kernel.current, "another one")
    executable.save(tmp_path / "a.mirage")
    loaded = mi.load_executable(tmp_path / "a.mirage")
    assert "another one" in loaded.explain() and "in the background" not in loaded.explain()
    right(loaded, 2)


def test_packed_constants_are_forgotten_after_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(Background, "add", lambda self, job: jobs.append(job))
    executable = mi.compile(block, SPECS, background=True, cache=False, constants=("w", "v"))
    forgotten: list[str] = []
    for job in jobs:
        monkeypatch.setattr(job.kernel.current, "forget", lambda: forgotten.append("packed"))
    executable.forget()
    assert forgotten == ["packed"] * len(jobs)


@pytest.mark.slow
def test_what_is_found_in_the_background_computes_the_same(store: ResultStore, tmp_path: Path) -> None:
    executable = mi.compile(block, SPECS, background=True, budget=8, cache=store)
    while not executable.wait(0.2):
        in_threads(lambda seed: right(executable, seed))
    assert "found in the background" in executable.explain()
    in_threads(lambda seed: right(executable, seed))
    executable.save(tmp_path / "a.mirage")
    right(mi.load_executable(tmp_path / "a.mirage"), 3)
