"""Jobs of thousands of subgraphs on hundreds of workers: `python -m benchmarks.search.cluster [--json]`.

A job over the measured programs is run on a Dask cluster of this machine, and its steps are measured: their times, the bytes that
travel, and what they cost the process that gives them out (the coordinator) and the scheduler. A simulation of discrete events
draws steps from these measurements, with a fixed seed, for larger numbers of tasks and workers than this machine has.

The coordinator and the scheduler do one thing at a time; a worker does its step, for which it waits for both. The coordinator
keeps all answers at once that have arrived while it did something else. The network is taken for one link of `LINK_BYTES` at the
coordinator.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cache import ResultStore
from mirage.cli_shared import AsJson
from mirage.ir.codec import JOB_STEP
from mirage.jobs.journal import Job, Journal
from mirage.jobs.run import run_job
from mirage.jobs.schedule import Queue, TaskState
from mirage.jobs.task import Asked, Done, Kind, Task
from mirage.jobs.workers import Workers, workers

#: seconds and number of the rounds of a task in the measured job, and in the simulated ones
ROUND, ROUNDS, SIMULATED_ROUNDS = 2.0, 2, 6
#: what is simulated: (tasks, workers)
SCALES = ((1000, 10), (1000, 100), (5000, 100), (5000, 400), (20000, 400))
#: bytes per second of the link
LINK_BYTES = 125e6
#: times that the coordinator's work is measured
REPLAYS = 5
#: calls of a function that does nothing, by which the scheduler is measured
CALLS = 300


@dataclass(frozen=True)
class Step:
    """A measured step: seconds of a worker, and bytes that it was asked with and answered with."""

    kind: Kind
    seconds: float
    asked: int
    answered: int


@dataclass(frozen=True)
class Measured:
    """What was measured: steps by program, seconds of the coordinator to give a step out, to keep the answers that there are, and
    more for each of these, and seconds of the scheduler per task.
    """

    steps: dict[str, list[Step]]
    give: float
    keep: float
    take: float
    scheduler: float


@dataclass(frozen=True)
class ClusterRow:
    """A simulated job. `seconds` until it is complete, `ideal` if workers never waited; `busy` are shares of the time in which
    the coordinator, the scheduler and the workers worked; `first` is when every task had a measured kernel; `wait` is what a
    worker waits between two steps at the median. Traffic is per second, both ways.
    """

    tasks: int
    workers: int
    steps: int
    seconds: float
    ideal: float
    coordinator_busy: float
    scheduler_busy: float
    worker_busy: float
    first: float
    wait: float
    traffic_bytes: float
    stored_bytes: float
    choice_s: float


#: which step of which task
_Place: TypeAlias = tuple[str, Kind, int]


class _Counted(Workers):
    """Workers whose steps are measured, and whose answers are kept; all else is theirs."""

    def __init__(self, inner: Workers) -> None:
        self.inner = inner
        self.sent: dict[_Place, int] = {}
        self.answers: dict[_Place, str] = {}

    def free(self, target: str | None) -> int:
        return self.inner.free(target)

    def submit(self, asked: Asked) -> Future[str]:
        future = self.inner.submit(asked)
        place = asked.task.name, asked.kind, asked.number
        self.sent[place] = sum(len(r.payload) for r in asked.records) + len(asked.task.program)
        future.add_done_callback(lambda f: self.answers.update({place: f.result()}))
        return future

    def close(self, wait: bool) -> None:
        self.inner.close(wait)


def measure(say: Callable[[str], None] = lambda _: None) -> Measured:
    """Run a job over the measured programs on two workers, and measure its steps."""
    from distributed import LocalCluster

    start_cluster: Any = LocalCluster
    with (
        start_cluster(
            n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0", worker_dashboard_address=":0",
            host="127.0.0.1", resources={"mirage_cpu": 1}, silence_logs=50,
        ) as found,
        tempfile.TemporaryDirectory(prefix="mirage-cluster-") as folder,
        workers(f"dask://{found.scheduler_address.removeprefix('tcp://')}") as at,
    ):  # fmt: skip
        tasks = tuple(
            Task(
                name=name, program=str(f.trace()), sizes=(next(iter(f.sizes.values())),), constants=f.constants, rounds=ROUNDS
            )
            for name, f in PROGRAMS.items()
        )
        job = Job(name="measured", tasks=tasks, round=ROUND)
        counted = _Counted(at)
        store = ResultStore(f"sqlite:///{folder}/results.sqlite")
        journal = Journal("measured", Path(folder) / "jobs")
        done: list[Done] = []

        def told(event: object) -> None:
            assert isinstance(event, Done), event
            done.append(event)
            say(f"{len(done)} of {len(tasks) * (1 + ROUNDS)} steps")

        run_job(job, journal, counted, store, told=told)
        names = {t.key: t.name for t in tasks}
        steps: dict[str, list[Step]] = {name: [] for name in PROGRAMS}
        numbers = {name: 0 for name in PROGRAMS}
        for d in done:
            name = names[d.task]
            number = 0 if d.kind == "search" else numbers[name]
            numbers[name] += d.kind == "tune"
            key = name, d.kind, number
            steps[name].append(Step(d.kind, d.seconds, counted.sent[key], len(counted.answers[key])))
        say("the coordinator, and the scheduler")
        return Measured(steps, *_coordinator(job, Path(folder), counted.answers), _scheduler(found))


class _Replayed(Workers):
    """So many workers that answer at once what others have answered; `moments` are when."""

    def __init__(self, answers: dict[_Place, str], count: int) -> None:
        self.answers = answers
        self.count = count
        self.moments: list[tuple[str, float]] = []

    def free(self, target: str | None) -> int:
        return self.count

    def submit(self, asked: Asked) -> Future[str]:
        # as other workers are asked
        JOB_STEP.to_text(asked)
        future: Future[str] = Future()
        future.set_result(self.answers[asked.task.name, asked.kind, asked.number])
        self.moments.append(("given", time.perf_counter()))
        return future

    def kept(self, _: object) -> None:
        """An answer was kept."""
        self.moments.append(("kept", time.perf_counter()))

    def seconds(self) -> tuple[float, float]:
        """Per step: to give it out, and to keep its answer."""
        spent = {"given": 0.0, "kept": 0.0}
        for (_, before), (what, now) in pairwise(self.moments):
            spent[what] += now - before
        steps = len(self.moments) / 2
        return spent["given"] / steps, spent["kept"] / steps

    def close(self, wait: bool) -> None:
        pass


def _coordinator(job: Job, folder: Path, answers: dict[_Place, str]) -> tuple[float, float, float]:
    """Seconds of the coordinator to give a step out, to keep answers, and more per answer: the same job again, with one worker
    and with as many as tasks, in stores and journals of their own.
    """
    found: dict[int, list[tuple[float, float]]] = {1: [], len(job.tasks): []}
    for number in range(REPLAYS):
        for count, each in found.items():
            place = folder / f"{number} of {count}"
            at = _Replayed(answers, count)
            run_job(job, Journal(job.name, place), at, ResultStore(f"sqlite:///{place}.sqlite"), told=at.kept)
            each.append(at.seconds())
    (give, one), (_, many) = (map(statistics.median, zip(*each, strict=True)) for each in found.values())
    keep = max(one - many, 0.0) / (1 - 1 / len(job.tasks))
    return give, keep, one - keep


def _nothing(number: int) -> int:
    return number


def _scheduler(cluster: Any) -> float:
    """Seconds of the scheduler and its client per task that does nothing, with two workers."""
    from distributed import Client

    connect: Any = Client
    with connect(cluster.scheduler_address, set_as_default=False) as client:
        executor = client.get_executor(pure=False)
        executor.submit(_nothing, 0).result()
        start = time.perf_counter()
        for future in [executor.submit(_nothing, k) for k in range(CALLS)]:
            future.result()
        return (time.perf_counter() - start) / CALLS


def choice_seconds(tasks: int) -> float:
    """Seconds that the choice of a task takes among so many, and its return after a round."""
    states = []
    for k in range(tasks):
        state = TaskState(Task(name=f"t{k}", program=f"p{k}", sizes=({"n": 1},)))
        done = partial(Done, task=state.task.key, ended=0.0, seconds=1.0, host="", process=0)
        state.take(done(kind="search"))
        state.take(done(kind="tune", library_us=200.0, best_us=100.0 + k % 7))
        states.append(state)
    queue = Queue(states, budget=None, seed=0)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        state = queue.peek() or states[0]
        queue.begin(state, 1.0)
        state.take(Done(task=state.task.key, kind="tune", ended=0.0, seconds=1.0, host="", process=0, best_us=90.0))
        queue.end(state, "tune", 1.0, 1.0)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class _Server:
    """Does one thing at a time, in the order of arrival."""

    def __init__(self) -> None:
        self.free = 0.0
        self.busy = 0.0

    def serve(self, arrival: float, seconds: float) -> float:
        """When it is done with what arrives then."""
        self.free = max(arrival, self.free) + seconds
        self.busy += seconds
        return self.free


def simulate(measured: Measured, tasks: int, count: int, seed: int = 0, rounds: int = SIMULATED_ROUNDS) -> ClusterRow:
    """A job of so many tasks, drawn from the measured programs, on so many workers."""
    rng = random.Random(f"{seed} {tasks} {count}")
    choice = choice_seconds(tasks)
    programs = [rng.choice(list(measured.steps.values())) for _ in range(tasks)]
    searches: deque[int] = deque(range(tasks))
    ready: deque[int] = deque()
    left = [rounds] * tasks
    coordinator, scheduler, link = _Server(), _Server(), _Server()
    idle = deque((0.0, w) for w in range(count))
    #: (when the answer arrives, order, worker, task, step)
    ends: list[tuple[float, int, int, int, Step]] = []
    waits: list[float] = []
    worked = traffic = 0.0
    stored: dict[int, int] = {}
    seen = steps = 0
    first = now = 0.0

    def begin() -> None:
        """Give steps out while there are both steps and workers."""
        nonlocal worked, traffic, steps
        while idle and (searches or ready):
            since, worker = idle.popleft()
            kind: Kind = "search" if searches else "tune"
            task = (searches or ready).popleft()
            step = rng.choice([s for s in programs[task] if s.kind == kind])
            at = coordinator.serve(max(now, since), measured.give + choice)
            at = link.serve(scheduler.serve(at, measured.scheduler), step.asked / LINK_BYTES)
            if since:
                waits.append(at - since)
            worked += step.seconds
            traffic += step.asked + step.answered
            steps += 1
            heapq.heappush(ends, (at + step.seconds + step.answered / LINK_BYTES, steps, worker, task, step))

    begin()
    while ends:
        now = max(coordinator.free, ends[0][0])
        answered = []
        while ends and ends[0][0] <= now:
            answered.append(heapq.heappop(ends))
        now = coordinator.serve(now, measured.keep + len(answered) * measured.take)
        for arrived, _, worker, task, step in answered:
            idle.append((arrived, worker))
            stored[task] = step.answered if step.kind == "tune" else stored.get(task, 0) + step.answered
            if step.kind == "tune":
                if left[task] == rounds:
                    seen += 1
                    first = now if seen == tasks else first
                left[task] -= 1
            if left[task]:
                ready.append(task)
        begin()
    return ClusterRow(
        tasks, count, steps, now, worked / count, coordinator.busy / now, scheduler.busy / now, worked / count / now, first,
        statistics.median(waits) if waits else 0.0, traffic / now, float(sum(stored.values())), choice,
    )  # fmt: skip


def measured_table(measured: Measured) -> Table:
    """The figures that the simulation is fed with."""
    every = [s for steps in measured.steps.values() for s in steps]

    kinds: tuple[Kind, ...] = ("search", "tune")

    def spread(value: Callable[[Step], float], form: str) -> list[str]:
        """The median, the least and the largest of each kind."""
        each = [sorted(value(s) for s in every if s.kind == kind) for kind in kinds]
        return [f"{statistics.median(v):{form}} ({v[0]:{form}} to {v[-1]:{form}})" for v in each]

    return Table(
        ["what", "searches", "rounds"],
        [
            ["steps measured", *(str(sum(s.kind == k for s in every)) for k in kinds)],
            ["seconds in a worker", *spread(lambda s: s.seconds, ".2f")],
            ["KiB asked with", *spread(lambda s: s.asked / 1024, ".0f")],
            ["KiB answered", *spread(lambda s: s.answered / 1024, ".0f")],
            ["ms of the coordinator to give a step", f"{1e3 * measured.give:.1f}", ""],
            ["ms of the coordinator to keep answers", f"{1e3 * measured.keep:.1f}", ""],
            ["ms more for each answer", f"{1e3 * measured.take:.1f}", ""],
            ["ms of the scheduler", f"{1e3 * measured.scheduler:.1f}", ""],
        ],
    )  # fmt: skip


def cluster_table(rows: Sequence[ClusterRow]) -> Table:
    header = [
        "tasks", "workers", "steps", "hours", "workers busy", "coordinator busy", "scheduler busy", "all have a kernel, hours",
        "wait between steps, ms", "MB per second", "MB kept", "choice, ms",
    ]  # fmt: skip
    cells = [
        [
            f"{r.tasks:,}", f"{r.workers}", f"{r.steps:,}", f"{r.seconds / 3600:.2f}", f"{r.worker_busy:.0%}",
            f"{r.coordinator_busy:.0%}", f"{r.scheduler_busy:.0%}", f"{r.first / 3600:.2f}", f"{1e3 * r.wait:.0f}",
            f"{r.traffic_bytes / 1e6:.2f}", f"{r.stored_bytes / 1e6:.0f}", f"{1e3 * r.choice_s:.1f}",
        ]
        for r in rows
    ]  # fmt: skip
    return Table(header, cells)


def with_round(measured: Measured, seconds: float) -> Measured:
    """The same with rounds of so many seconds: a round takes its budget, and its answers are as large."""
    scale = seconds / ROUND
    return replace(
        measured,
        steps={
            name: [replace(s, seconds=s.seconds * scale) if s.kind == "tune" else s for s in steps]
            for name, steps in measured.steps.items()
        },
    )


def main(
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    seconds: Annotated[float, typer.Option("--round", help="Seconds of a simulated round.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    found = measure(partial(print, file=sys.stderr, flush=True))
    if not as_json:
        measured_table(found).show()
    emit([simulate(with_round(found, seconds), *scale, seed) for scale in SCALES], as_json, cluster_table)


if __name__ == "__main__":
    typer.run(main)
