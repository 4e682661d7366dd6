"""Superoptimization beside calls: right results all the time, and nothing left over however the process ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage import background
from mirage.background import Background, Job
from mirage.cache import ResultStore
from mirage.compilation import to_module
from mirage.compiler.kernels.cpu_maker import CpuKernels
from mirage.compiler.kernels.fused import fused_kernel
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.compiler.kernels.switching import SwitchingKernel
from mirage.ir.graph.interpret import run_module
from mirage.kernels.cpu.tuning import machine_model
from tests import forks
from tests.api.small import BUDGET, PATIENCE, adapter, arrays, check, limit_tuning
from tests.api.test_interrupt import Interrupter
from tests.kernels.kernels import in_threads

ROOT = Path(__file__).parents[2]
WIDTH = 64


def block(x: Any, w: Any, v: Any) -> Any:
    h = mi.rms_norm(x) @ w
    return mi.softmax(h @ mi.swapaxes(h, 0, 1)) @ (mi.silu(h) @ v)


PROGRAM = adapter.trace()
SPECS = {"x": mi.tensor("n", WIDTH), "w": mi.tensor(WIDTH, WIDTH), "v": mi.tensor(WIDTH, WIDTH)}

#: compiles in the background, says so, and goes on until its input ends
SCRIPT = """
import sys
import mirage as mi
from mirage.cache import ResultStore
from tests.api.test_background import SPECS, block
executable = mi.compile(block, SPECS, background=True, budget=60, cache=ResultStore(f"sqlite:///{sys.argv[1]}"))
print("compiled", flush=True)
sys.stdin.readline()
if sys.argv[2] == "dropped":
    del executable
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
    processes: list[forks.Forked] = []

    def start(then: str = "kept") -> forks.Forked:
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        p = forks.start(SCRIPT, str(tmp_path / "r.sqlite"), then, env=env, group=True)
        processes.append(p)
        assert p.stdout.readline() == "compiled\n"
        assert until(lambda: children(tmp_path))
        p.stdin.write("\n")
        p.stdin.flush()
        return p

    yield start
    for p in processes:
        with p:
            p.kill()
    for pid in children(tmp_path):
        os.kill(pid, signal.SIGKILL)


def left_over(folder: Path) -> list[Any]:
    return [*children(folder), *folder.glob("mirage-background-*")]


def test_a_killed_process_leaves_no_process_and_no_files(started: Any, tmp_path: Path) -> None:
    p = started()
    # Ctrl-C does not reach the search
    (child,) = children(tmp_path)
    assert os.getpgid(child) != os.getpgid(p.pid)
    p.kill()
    p.wait()
    assert until(lambda: not left_over(tmp_path)), left_over(tmp_path)


def test_a_process_that_ends_early_ends_its_search(started: Any, tmp_path: Path) -> None:
    p = started()
    p.stdin.close()
    assert p.wait(PATIENCE) == 0
    assert until(lambda: not left_over(tmp_path)), left_over(tmp_path)


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
    beside.close()
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
    def broken(self: Background, request: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Background, "_ask", broken)
    executable = mi.compile(block, SPECS, background=True, cache=store)
    assert executable.wait(PATIENCE)
    assert "the search in the background failed: out of luck" in executable.explain()
    right(executable, 1)


def test_closing_leaves_the_rest_on_library_calls(store: ResultStore) -> None:
    executable = mi.compile(block, SPECS, background=True, budget=60, cache=store)
    assert not executable.wait(0)
    executable.close()
    assert executable.wait(PATIENCE)
    assert "library calls: closed" in executable.explain()
    right(executable, 1)


def test_the_end_of_an_executable_ends_its_search(started: Any, tmp_path: Path) -> None:
    p = started("dropped")
    assert until(lambda: not left_over(tmp_path)), left_over(tmp_path)
    assert p.poll() is None


class Asked:
    """Answers in place of the process: per subprogram, what each of its rounds brings, the last of these again and again."""

    def __init__(self, *answers: Sequence[Mapping[str, Any]]) -> None:
        self.answers = [list(a) for a in answers]
        self.rounds: list[int] = []
        self.seconds: list[float] = []
        #: nanoseconds of calls before each round, by subprogram
        self.calls: list[tuple[int, ...]] = []
        self.jobs: list[Job] = []

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        k = request["job"]
        self.rounds.append(k)
        self.seconds.append(request["budget"])
        if self.calls:
            for job, ns in zip(self.jobs, self.calls.pop(0), strict=True):
                job.kernel.nanoseconds += ns
        answers = self.answers[k]
        return dict(answers.pop(0) if len(answers) > 1 else answers[0])


def answered(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> list[SwitchingKernel]:
    """The kernels of a superoptimization in the background with these answers, after its end."""
    beside = Background(budget=9.0, kernels=CpuKernels(), cache=False, seed=0)
    monkeypatch.setattr(beside, "_ask", asked)
    kernels = [SwitchingKernel(MuGraphKernel.of_library(PROGRAM)) for _ in asked.answers]
    asked.jobs = [Job(kernel, PROGRAM, ({"b": 4, "n": 4},), ()) for kernel in kernels]
    for job in asked.jobs:
        beside.add(job)
    beside.start()
    assert beside.join(PATIENCE) and beside.wait(0)
    return kernels


NOTHING = {"outcome": "as it was", "news": False, "complete": False}
NEWS = {**NOTHING, "news": True}
LAST = {**NOTHING, "complete": True}


def test_rounds_go_on_until_there_is_nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fused_kernel(PROGRAM, [{"b": 4, "n": 4}], machine_model())
    assert fused is not None
    better = {"outcome": "a better one", "news": True, "complete": False, "kernel": fused.to_text()}
    asked = Asked([NEWS, NEWS, better, NEWS, LAST])
    (kernel,) = answered(asked, monkeypatch)
    assert asked.rounds == [0] * 5
    # each is as long as all before it
    assert 0 < asked.seconds[0] <= 9.0
    assert asked.seconds[1:] == pytest.approx([max(sum(asked.seconds[:k]), 9.0) for k in range(1, 5)])
    assert kernel.outcome == "a better one" and isinstance(kernel.current, MuGraphKernel)
    assert kernel.current.origin == "fused"


def test_rounds_without_news_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked([NEWS, NOTHING, NEWS, NOTHING])
    answered(asked, monkeypatch)
    assert len(asked.rounds) == 3 + background.PATIENCE


def test_no_round_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LONGEST_S", 20.0)
    asked = Asked([NEWS, NEWS, NEWS, NEWS, LAST])
    answered(asked, monkeypatch)
    assert asked.seconds[-2:] == [20.0, 20.0]


def test_where_calls_spend_most_time_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked([NEWS, NEWS, LAST], [NEWS, NEWS, LAST], [NEWS, LAST])
    # what a round was of counts from its end on
    asked.calls = [(0, 0, 0), (0, 0, 0), (5, 9, 2), (0, 0, 0), (0, 8, 3), (1, 0, 1)]
    answered(asked, monkeypatch)
    assert asked.rounds == [0, 1, 2, 1, 0, 1, 2, 0]


def test_a_failure_in_a_later_round_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked([{**NEWS, "outcome": "x"}, {"error": "SearchError: out of luck"}], [LAST])
    kernel, _ = answered(asked, monkeypatch)
    assert asked.rounds == [0, 1, 0] and "failed" not in kernel.outcome


def test_rounds_tell_what_is_new() -> None:
    @dataclass
    class Found:
        """Stands for a result."""

        graphs: list[int]
        best: str = "the best"

    class Kernels:
        def superoptimized(self, found: Found) -> Any:
            return SimpleNamespace(to_text=lambda: found.best)

    budgets: list[float] = []

    def first(seconds: float) -> Any:
        budgets.append(seconds)
        return results.pop(0)

    results = [Found([1]), Found([1]), Found([1, 2]), Found([1, 2], "another")]
    rounds = background.Rounds(first, Kernels())  # type: ignore[arg-type]
    answers = [rounds.next(2.0) for _ in range(4)]
    assert [a["news"] for a in answers] == [True, False, True, True]
    assert [a.get("kernel") for a in answers] == ["the best", None, None, "another"]
    assert answers[1]["outcome"] == "the best, found in the background in 4 s"


def test_a_result_goes_on_where_it_was(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    calls = 0

    def first(seconds: float) -> Any:
        nonlocal calls
        calls += 1
        # as cut short as can be
        return mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=Interrupter("graphs, searching"))

    rounds = background.Rounds(first, CpuKernels())
    assert not rounds.next(BUDGET)["complete"]
    answer = rounds.next(BUDGET)
    assert calls == 1 and answer["complete"] and answer["news"]


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
    executable.close()
    executable.save(tmp_path / "a.mirage")
    right(mi.load_executable(tmp_path / "a.mirage"), 3)
