"""Many processes on one results store, some of them killed: `python -m benchmarks.cache_hammer [--url URL] [--seconds 60]`.

Each process superoptimizes small programs, one after the other, under names and with an order of inputs of its own, and compares
what the result computes with NumPy. Again and again one is killed, and another takes its place. Told is what must be nothing:
damaged or false records, finished results that are lost, wrong results, and searches that were done twice.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import mirage as mi
from benchmarks.tables import Table, emit
from mirage.cache import ResultStore
from mirage.cli_shared import AsJson
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.results.cpu.tune import Session
from mirage.results.stored import verified
from mirage.search import buckets, tune, versions

#: seconds that no search of these programs takes: a number of kernels ends it
BUDGET = 3600.0
SIZES = (4, 6)


@dataclass(frozen=True)
class HammerRow:
    """What so many processes did with a store, and what there must be none of: from `bad_records` on."""

    store: str
    processes: int
    seconds: float
    kills: int
    calls: int
    hits: int
    waits: int
    searches: int
    killed_searches: int
    records: int
    bad_records: int
    lost_results: int
    wrong_results: int
    searches_twice: int
    errors: int


def question(number: int, rng: random.Random) -> tuple[Program, dict[str, int], bool]:
    """Program `number` with random names, and whether its inputs are swapped."""
    m, n, x, y = rng.sample(["alpha", "beta", "gamma", "delta", "eps", "zeta"], 4)
    swapped = rng.random() < 0.5
    b = ProgramBuilder("question")
    specs = {x: tensor(m, n), y: tensor(n)}
    names = [y, x] if swapped else [x, y]
    inputs = {name: b.input(name, specs[name]) for name in names}
    shifted = b.op("add", inputs[x], b.op("constant", value=(number + 1) / 7))
    result = b.op("sum", b.op("mul", b.op("relu", shifted), inputs[y]), axes=(1,))
    return b.finish([result]), dict(zip((m, n), SIZES, strict=True)), swapped


def is_right(result: mi.Superoptimized, number: int, swapped: bool) -> bool:
    """Whether a result computes what its program does."""
    rng = np.random.default_rng(number)
    x, y = rng.standard_normal(SIZES, np.float32), rng.standard_normal(SIZES[1], np.float32)
    wanted = (np.maximum(x + np.float32((number + 1) / 7), 0) * y).sum(axis=1)
    return bool(np.allclose(result(*((y, x) if swapped else (x, y))), wanted, rtol=1e-4, atol=1e-4))


def work(url: str, seed: int, questions: int, log: Path, end: Event) -> None:
    """Ask until the end; a line of the log says what was begun, and what came of it."""
    rng = random.Random(seed)
    warnings.simplefilter("error")
    # few kernels and short races end a search, whatever the machine's speed
    tune.MAX_KERNELS, tune.RACE_SECONDS, tune.FINAL_SECONDS = 2, 0.01, 0.02
    versions.GIVEN_SECONDS, versions.RACE_SECONDS, versions.TABLE_SECONDS = 0.02, 0.01, 0.01
    versions.MAX_BETWEEN, buckets.MAX_POINTS = 1, 2
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    number = 0

    def tell(event: str, **more: Any) -> None:
        # one write per line: those of other processes do not come between
        os.write(descriptor, (json.dumps({"event": event, "question": number, "pid": os.getpid(), **more}) + "\n").encode())

    run = Session.run

    def told(self: Session, *arguments: Any) -> mi.Superoptimized:
        tell("searching")
        found = run(self, *arguments)
        tell("searched")
        return found

    setattr(Session, "run", told)  # noqa: B010
    while not end.is_set():
        number = rng.randrange(questions)
        program, sizes, swapped = question(number, rng)
        said: list[str] = []
        try:
            store = ResultStore(url)
            result = mi.superoptimize(program, sizes=sizes, budget=BUDGET, cache=store, progress=said.append)
            waited = any(line.startswith("waiting") for line in said)
            tell("answered", hit=result.cache_hit, waited=waited, right=is_right(result, number, swapped))
        except Exception as e:
            tell("error", what=f"{type(e).__name__}: {e}")


def hammer(
    url: str, processes: int, *, seconds: float, calls: int, kills: int, questions: int, seed: int = 0, every: float = 2.0
) -> HammerRow:
    """What so many processes do until so many seconds, calls and kills are over, of which there is one about `every` seconds."""
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    end, start = context.Event(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mirage-hammer-") as folder:
        log = Path(folder) / "log"
        log.touch()
        seeds = iter(range(seed + 1, 10**9))

        def begin() -> BaseProcess:
            process = context.Process(target=work, args=(url, next(seeds), questions, log, end))
            process.start()
            return process

        running = [begin() for _ in range(processes)]
        killed: set[int] = set()
        while time.perf_counter() - start < seconds or len(killed) < kills or _answered(log) < calls:
            time.sleep(rng.uniform(0.2, 1.8) * every)
            if len(killed) < kills or time.perf_counter() - start < seconds:
                # in the middle of a search, half of the time, if there is one
                last = {e["pid"]: e["event"] for e in _events(log)}
                searching = [p for p in running if last.get(p.pid or 0) == "searching"] if rng.random() < 0.5 else []
                victim = rng.choice(searching or running)
                running.remove(victim)
                victim.kill()
                victim.join()
                killed.add(victim.pid or 0)
                running.append(begin())
        end.set()
        for process in running:
            process.join()
        took = time.perf_counter() - start
        return _row(url, processes, took, killed, _events(log))


def _events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _answered(log: Path) -> int:
    return sum(e["event"] == "answered" for e in _events(log))


def _row(url: str, processes: int, took: float, killed: set[int], events: Sequence[dict[str, Any]]) -> HammerRow:
    store = ResultStore(url)
    answered = [e for e in events if e["event"] == "answered"]
    count = Counter(e["event"] for e in events)
    finished = Counter(e["question"] for e in events if e["event"] == "searched")
    # who was killed in the middle of a search is the last that was told of it
    last = {e["pid"]: e["event"] for e in events}
    records = list(store.records())
    lost = 0
    for number in sorted(finished):
        program, sizes, swapped = question(number, random.Random(number))
        result = mi.superoptimize(program, sizes=sizes, budget=1.0, cache=store)
        lost += not (result.cache_hit and is_right(result, number, swapped))
    for e in events:
        if e["event"] == "error":
            print(e, file=sys.stderr, flush=True)
    return HammerRow(
        store=url.partition(":")[0], processes=processes, seconds=took, kills=len(killed), calls=len(answered),
        hits=sum(e["hit"] for e in answered), waits=sum(e["waited"] for e in answered), searches=count["searching"],
        killed_searches=sum(last.get(pid) == "searching" for pid in killed), records=len(records),
        bad_records=sum(verified(r).bad for r in records) + (not _is_sound(url)), lost_results=lost,
        wrong_results=sum(not e["right"] for e in answered), searches_twice=sum(n - 1 for n in finished.values()),
        errors=count["error"],
    )  # fmt: skip


def _is_sound(url: str) -> bool:
    """Whether SQLite finds nothing wrong with its file; servers look after theirs."""
    if not url.startswith("sqlite:///"):
        return True
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))


def hammer_table(rows: Sequence[HammerRow]) -> Table:
    """What was done, and what there must be none of."""
    heads = (
        "store", "processes", "seconds", "killed", "answers", "of these recalled", "after waiting", "searches",
        "killed in one", "bad records", "lost results", "wrong results", "searches done twice", "errors",
    )  # fmt: skip
    return Table(
        heads,
        [
            [
                r.store, f"{r.processes}", f"{r.seconds:.0f}", f"{r.kills}", f"{r.calls:,}", f"{r.hits:,}", f"{r.waits}",
                f"{r.searches}", f"{r.killed_searches}", f"{r.bad_records} of {r.records}", f"{r.lost_results}",
                f"{r.wrong_results}", f"{r.searches_twice}", f"{r.errors}",
            ]
            for r in rows
        ],
    )  # fmt: skip


def main(
    url: Annotated[str, typer.Option(help="SQLAlchemy URL of an empty store; by default an SQLite file.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 8,
    seconds: Annotated[float, typer.Option(help="How long, at least.")] = 60.0,
    calls: Annotated[int, typer.Option(help="How many answers, at least.")] = 0,
    kills: Annotated[int, typer.Option(help="How many kills, at least.")] = 0,
    every: Annotated[float, typer.Option(help="Seconds between two kills, on average.")] = 2.0,
    questions: Annotated[int, typer.Option(min=1, help="Different programs.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of every choice but the machine's.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Many processes on one store, some of them killed."""
    with tempfile.TemporaryDirectory(prefix="mirage-hammered-") as folder:
        row = hammer(
            url or f"sqlite:///{folder}/store.sqlite", processes, seconds=seconds, calls=calls, kills=kills, every=every,
            questions=questions, seed=seed,
        )  # fmt: skip
    emit([row], as_json, hammer_table)


if __name__ == "__main__":
    typer.run(main)
