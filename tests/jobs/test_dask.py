"""Jobs on a real Dask cluster, of worker processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.programs import PROGRAMS
from mirage.cache import ResultStore
from mirage.errors import ExecutorError
from mirage.ir.codec import JOB_STEP
from mirage.jobs import run, workers
from mirage.jobs.extract import subprograms
from mirage.jobs.journal import Job, Journal
from mirage.jobs.run import View, run_job
from mirage.jobs.task import Asked, Done, Event, Failed, Task
from tests.api.small import PATIENCE
from tests.jobs import fakes
from tests.jobs.test_workers import graphs, own_lock, searched_here, tasks

distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
import dask  # noqa: E402

__all__ = ["own_lock"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes may take long to start on a busy machine."""
    monkeypatch.setattr(run, "PATIENCE_S", PATIENCE)


ROOT = Path(__file__).parents[2]
#: seconds of a round that a number of kernels ends before
ROUND = 120.0


@contextmanager
def cluster(count: int = 2, **options: Any) -> Iterator[Any]:
    """A scheduler, and so many worker processes that measure for the processor."""
    given = {"resources": {"mirage_cpu": 1}, "preload": "tests.jobs.limited", "processes": True, **options}
    # a local cluster gives up workers that are not there again by then, and this machine may be busy
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": PATIENCE})
    with patient, distributed.LocalCluster(
        n_workers=count, threads_per_worker=1, dashboard_address=":0", worker_dashboard_address=":0",
        host="127.0.0.1", silence_logs=50, **given,
    ) as found:  # fmt: skip
        yield found


def url(found: Any) -> str:
    return f"dask://{found.scheduler_address.removeprefix('tcp://')}"


def killing(found: Any, killed: list[int]) -> Callable[[View], None]:
    """Kills one worker process in the middle of the first round of tuning."""

    def shown(view: View) -> None:
        if not killed and "tune" in {kind for kind, _ in view.running.values()}:
            busy = [w for w in found.scheduler.workers.values() if w.processing]
            if busy:
                pid = next(n.pid for n in found.workers.values() if n.worker_address == busy[0].address)
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    return shown


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed(tmp_path: Path) -> None:
    alone, store = ResultStore(f"sqlite:///{tmp_path}/alone.sqlite"), ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    searched_here(tasks(), alone)
    killed: list[int] = []
    with cluster() as found, workers.workers(url(found)) as at:
        # what no worker offers
        with pytest.raises(ExecutorError, match='--resources "mirage_cuda=1"'):
            at.check(["cuda:sm_90"])
        journal = Journal("job", tmp_path / "jobs")
        how = run_job(Job(name="job", tasks=tasks(), round=ROUND), journal, at, store, shown=killing(found, killed))
    states = journal.states(tasks())
    assert (how, len(killed), [s.failed for s in states]) == ("complete", 1, [None, None])
    assert all(s.ratio and s.ratio >= 1 for s in states)
    assert not {s.rounds[0].process for s in states} & set(killed)
    assert graphs(store) == graphs(alone)


def test_an_answer_that_is_lost_when_it_arrives_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker dies whose answer has arrived: Dask calls it lost before it is handed on."""
    one = fakes.task(rounds=1)
    lost: list[str] = []
    result = distributed.Future._result

    async def arrived(self: Any, raiseit: bool = True) -> Any:
        found = await result(self, raiseit)
        if not lost:
            lost.append(self.key)
            self._state.lose()
        return found

    monkeypatch.setattr(distributed.Future, "_result", arrived)
    monkeypatch.setattr(workers, "run_step", lambda text: JOB_STEP.to_text(fakes.answered(JOB_STEP.from_text(Asked, text))))
    journal, store = Journal("job", tmp_path / "jobs"), ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    with cluster(1, processes=False, protocol="tcp", preload=None) as found, workers.workers(url(found)) as at:
        assert run_job(Job(name="job", tasks=(one,), round=ROUND), journal, at, store) == "complete"
    assert lost


def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CONNECT_S", 0.2)
    with pytest.raises(ExecutorError, match="no scheduler answers there"), workers.workers("dask://127.0.0.1:1"):
        pass


@pytest.mark.slow
def test_a_step_that_kills_every_worker_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """A task whose steps cannot end: its workers are killed as soon as they begin."""
    deadly = fakes.task("deadly", rounds=1)
    good = tasks()[0]
    failed: list[Failed] = []
    with cluster(1, memory_limit=0, preload="tests.jobs.deadly") as found, workers.workers(url(found)) as at:
        job = Job(name="job", tasks=(deadly, good), round=ROUND)
        journal = Journal("job", tmp_path / "jobs")
        store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
        how = run_job(job, journal, at, store, told=lambda e: failed.append(e) if isinstance(e, Failed) else None)
    assert how == "failed"
    assert [(f.task, f.attempts) for f in failed] == [(deadly.key, 1)]
    assert "its worker died" in failed[0].error
    assert [s.done for s in journal.states(job.tasks)] == ["failed", journal.states([good])[0].done]
    assert journal.states([good])[0].rounds


@pytest.mark.slow
def test_all_benchmark_programs_and_a_model_are_those_of_a_single_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "models.py").write_text(
        "import torch\n\ndef block():\n    torch.manual_seed(0)\n"
        "    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()\n"
        "    return layer, (torch.randn(2, 8, 32),)\n"
    )
    parts = [_limited(t) for t in subprograms("models.py:block", tmp_path)]
    assert parts
    every = (*(_task(name) for name in PROGRAMS), *parts)
    alone, store = ResultStore(f"sqlite:///{tmp_path}/alone.sqlite"), ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    searched_here(every, alone)
    killed: list[int] = []
    # a round goes on with a search that was cut, for as long as there is time: graphs are looked at as soon as they are there
    seen: set[str] = set()

    def told(event: Event) -> None:
        assert isinstance(event, Done), event
        if event.kind == "search":
            seen.update(graphs(store, event.records))

    journal = Journal("job", tmp_path / "jobs")
    with cluster() as found, workers.workers(url(found)) as at:
        # what a round finds in that time is not looked at
        job = Job(name="job", tasks=every, round=1.0)
        assert run_job(job, journal, at, store, told=told, shown=killing(found, killed)) == "complete"
    assert len(killed) == 1
    assert all(s.ratio for s in journal.states(every))
    assert seen == graphs(alone)


def _task(name: str) -> Task:
    function = PROGRAMS[name]
    sizes = next(iter(function.sizes.values()))
    return _limited(Task(name=name, program=str(function.trace()), sizes=(sizes,), constants=function.constants))


def _limited(t: Task) -> Task:
    return Task(
        name=t.name, program=t.program, sizes=t.sizes, constants=t.constants, weight=t.weight, rounds=1, search_steps=2_000
    )


# Workers that share nothing but a network.


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def namespace(number: int) -> Iterator[Callable[[Sequence[str]], list[str]]]:
    """A network namespace that is linked to this one, and how a command is run in it; skips where there can be none."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need `ip` and root")
    name, here, there = f"mirage{os.getpid()}n{number}", f"mh{os.getpid() % 10000}n{number}", f"mt{os.getpid() % 10000}n{number}"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"this machine makes no network namespaces ({getattr(e, 'stderr', e)!r})")
    try:
        try:
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            _ip("address", "add", f"10.213.{number}.1/24", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", name, "address", "add", f"10.213.{number}.2/24", "dev", there)
            _ip("-n", name, "link", "set", there, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "route", "add", "default", "via", f"10.213.{number}.1")
        except subprocess.CalledProcessError as e:
            pytest.skip(f"this machine links no network namespaces ({e.stderr!r})")
        yield lambda words: ["ip", "netns", "exec", name, *words]
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.mark.slow
def test_workers_in_networks_of_their_own(tmp_path: Path) -> None:
    """Two workers in network namespaces, with cache folders of their own, which see the scheduler and not each other."""
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    with ExitStack() as stack:
        inside = [stack.enter_context(namespace(number)) for number in (1, 2)]
        scheduler = stack.enter_context(
            distributed.LocalCluster(n_workers=0, host="0.0.0.0", dashboard_address=":0", silence_logs=50)
        )
        port = scheduler.scheduler.port
        for number, run in enumerate(inside, 1):
            folder = tmp_path / str(number)
            folder.mkdir(mode=0o700)
            words = [
                sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://10.213.{number}.1:{port}", "--nthreads", "1",
                "--no-dashboard", "--host", f"10.213.{number}.2", "--resources", "mirage_cpu=1", "--local-directory", str(folder),
                "--preload", "tests.jobs.limited",
            ]  # fmt: skip
            env = {**os.environ, "PYTHONPATH": str(ROOT), "MIRAGE_CACHE_DIR": str(folder)}
            process = subprocess.Popen(run(words), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        journal = Journal("job", tmp_path / "jobs")
        with workers.workers(f"dask://127.0.0.1:{port}") as at:
            assert run_job(Job(name="job", tasks=tasks(), round=ROUND), journal, at, store) == "complete"
    states = journal.states(tasks())
    assert all(s.ratio and s.ratio >= 1 for s in states)
