"""Steps in processes of this machine: what they answer, what a killed one costs, and that measuring is alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mirage.cache import ResultStore
from mirage.errors import FormatError, UnsafeCacheError
from mirage.ir.codec import JOB_STEP
from mirage.jobs import quiet, workers
from mirage.jobs.journal import Job, Journal
from mirage.jobs.run import View, run_job
from mirage.jobs.step import run_step
from mirage.jobs.task import Answer, Asked, Task
from tests.api.small import PATIENCE, adapter, rows
from tests.jobs import limited

ROOT = Path(__file__).parents[2]


def tasks() -> tuple[Task, ...]:
    return tuple(
        Task(name=f.name, program=str(f.trace()), sizes=tuple(f.sizes.values()), rounds=1, search_steps=20_000)
        for f in (rows, adapter)
    )


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs of the tests on this machine are not waited for."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def graphs(store: ResultStore, keys: Collection[str] | None = None) -> set[str]:
    """The verified graphs of searches, as they are stored, of all records or of these."""
    found = [r for r in store.records() if r.best_us is None and (keys is None or r.key in keys)]
    return {r.payload.partition('"spent"')[0].partition('"graphs":')[2] for r in found}


def searched_here(given: Sequence[Task], store: ResultStore) -> None:
    """Search tasks in this process."""
    for t in given:
        text = JOB_STEP.to_text(Asked(task=t, kind="search", number=0, seconds=1.0, seed=0))
        store.add(JOB_STEP.from_text(Answer, run_step(text)).records)


def test_a_killed_process_costs_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed when it measures. The graphs are those that are found here."""
    (one, _) = tasks()
    monkeypatch.setattr(workers, "begin_worker", limited.begin_limited)
    alone = ResultStore(f"sqlite:///{tmp_path}/alone.sqlite")
    searched_here([one], alone)
    killed: list[int] = []

    def shown(view: View) -> None:
        if not killed and "tune" in {kind for kind, _ in view.running.values()}:
            children = [p.pid for p in multiprocessing.active_children() if p.pid]
            killed.extend(children)
            for pid in children:
                os.kill(pid, signal.SIGKILL)

    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    journal = Journal("job", tmp_path / "jobs")
    with workers.workers("processes:1") as found:
        assert run_job(Job(name="job", tasks=(one,), round=120.0), journal, found, store, shown=shown) == "complete"
    assert killed
    states = journal.states([one])
    assert all(s.ratio and s.ratio >= 1 for s in states)
    assert not {s.rounds[0].process for s in states} & set(killed)
    assert graphs(store) == graphs(alone)


def test_a_counted_search_finds_the_same_after_one_that_was_cut(tmp_path: Path) -> None:
    """What the first one leaves on the machine for whoever goes on with it would have the second one come further."""
    (_, one) = tasks()
    first, again = (ResultStore(f"sqlite:///{tmp_path}/{name}.sqlite") for name in ("first", "again"))
    few = [replace(one, search_steps=128)]
    searched_here(few, first)
    searched_here(few, again)
    (found,) = graphs(first)
    assert graphs(again) == {found}
    searched_here([one], again)
    assert graphs(again) != {found}, "that was no cut one"


def test_a_step_that_is_none_is_refused() -> None:
    with pytest.raises(FormatError, match="mirage job step"):
        run_step('{"format": "something else"}')
    text = JOB_STEP.to_text(Asked(task=tasks()[0], kind="search", number=0, seconds=1.0, seed=0))
    with pytest.raises(FormatError, match="seconds"):
        run_step(text.replace('"seconds":1.0', '"seconds":-1.0'))


def test_measuring_is_alone_and_searches_are_together() -> None:
    with quiet.quiet(alone=False), quiet.quiet(alone=False):
        pass
    for outer, inner in ((True, True), (True, False), (False, True)):
        with ThreadPoolExecutor(1) as pool:
            with quiet.quiet(alone=outer):
                waiting = pool.submit(_enter, inner)
                assert not waiting.done()
                # it ends no sooner than this block: a lock that was no lock would have let it in
                time.sleep(0.05)
                assert not waiting.done()
            assert waiting.result(PATIENCE)


def _enter(alone: bool) -> bool:
    with quiet.quiet(alone):
        return True


def test_a_lock_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lock"
    monkeypatch.setattr(quiet, "lock_file", lambda: file)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), quiet.quiet(alone=True):
        pass
    file.unlink()
    file.mkdir()
    with pytest.raises((UnsafeCacheError, OSError)), quiet.quiet(alone=True):
        pass


@contextmanager
def job_process(folder: Path, executor: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a job of two programs, and tells each finished step on standard error."""
    code = (
        "import sys; from tests.jobs import limited; from mirage.jobs import workers\n"
        "limited.limit()\n"
        "workers.begin_worker = limited.begin_limited\n"
        "if __name__ == '__main__':\n"
        "    sys.argv = ['mirage', 'jobs', 'run', 'job.toml', '--folder', 'jobs', '--executor', sys.argv[1]]\n"
        "    from mirage.cli import main; main()\n"
    )
    (folder / "main.py").write_text(code)
    listed = "\n".join(
        f'[[task]]\nprogram = "{ROOT}/tests/api/small.py:{name}"\nrounds = 1\nsearch_steps = 20000'
        for name in ("rows", "adapter")
    )
    (folder / "job.toml").write_text(f"round = 120.0\n{listed}\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MIRAGE_CACHE_URL": f"sqlite:///{folder}/store.sqlite", "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "main.py", executor], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "threads:2", "processes:2"])
@pytest.mark.parametrize(("ending", "all_of_it"), [(signal.SIGKILL, False), (signal.SIGINT, False), (signal.SIGINT, True)])
def test_a_job_that_is_killed_again_and_again_goes_on(
    tmp_path: Path, executor: str, ending: signal.Signals, all_of_it: bool
) -> None:
    """Killed, or interrupted, as soon as it has finished a step: every step is finished once, and no process is left.

    A terminal interrupts `all_of_it`: the processes of its workers, too, also those that have just been started.
    """
    told: list[str] = []
    left: set[int] = set()
    while True:
        with job_process(tmp_path, executor) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            if not line:
                assert process.wait(PATIENCE) == 0
                break
            left |= {process.pid, *(p for p in _processes() if _parent(p) == process.pid)}
            (os.killpg if all_of_it else os.kill)(process.pid, ending)
            rest = process.communicate(timeout=PATIENCE)[1].splitlines()
            told += [one for one in (line, *rest) if ": search in" in one or ": tune in" in one]
            assert len(told) <= 4, told
            # an interrupt that comes after the last step ends nothing, or what Python does at its end
            ends = (-signal.SIGKILL,) if ending == signal.SIGKILL else (0, 130, -signal.SIGINT)
            assert process.returncode in ends, rest
            assert len(told) == 4 or "Traceback (most recent call last):" not in rest
    listed = tuple(
        Task(name=f.name, program=str(f.trace()), sizes=(next(iter(f.sizes.values())),)) for f in (rows, adapter)
    )
    journal = Journal("job", tmp_path / "jobs")
    states = journal.states(journal.job().tasks)
    assert {s.task.key for s in states} == {t.key for t in listed}
    assert all(s.searched and len(s.rounds) == 1 for s in states)
    # a step that was told is in the journal, and is told once
    assert len({one.partition(" in ")[0] for one in told}) == len(told)
    end = time.monotonic() + PATIENCE
    while left & _processes():
        assert time.monotonic() < end, "a process of a job that was killed is left"
        time.sleep(0.1)


def _processes() -> set[int]:
    return {int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()}


def _parent(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
