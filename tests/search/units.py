"""Units of work for tests of jobs, and a program that runs some of them.

A unit is named "<what it does> <number>"; every call of one that works is a line of the log, so that calls can be counted.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from mirage.errors import SearchError
from mirage.search.checkpoint import Checkpoint
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, Outcome, Run, run_units
from tests import forks


def work(log: Path, unit: str, seconds: float) -> Outcome:
    """Does what the unit's name says."""
    what, number = unit.split()
    with log.open("a") as file:
        file.write(f"{unit} {os.getpid()}\n")
    n = int(number)
    match what:
        case "square":
            time.sleep(0.02 * (n % 3))
        case "slow":
            end = time.perf_counter() + min(0.4, seconds)
            while time.perf_counter() < end:
                time.sleep(0.01)
            if seconds < 0.4:
                return Outcome({"n": n, "square": None}, OUT_OF_TIME)
        case "forever":
            # in short sleeps: a signal that comes just before a sleep begins waits for its end
            for _ in range(100_000):
                time.sleep(0.01)
        case "interrupted":
            return Outcome({"n": n, "square": None}, INTERRUPTED)
        case "bug":
            raise KeyError("no such axis")
        case "impossible":
            raise SearchError("max_kernels=3 is not 1 or 2")
        case "death":
            os._exit(3)
    return Outcome({"n": n, "square": [n * n, str(n)]})


def calls(log: Path) -> list[str]:
    """The units that were begun, in the order of their beginnings."""
    return [line.rsplit(" ", 1)[0] for line in log.read_text().splitlines()] if log.exists() else []


def pids(log: Path) -> set[int]:
    """The processes that ran units."""
    return {int(line.split()[-1]) for line in log.read_text().splitlines()}


def run(log: Path, units: list[str], workers: int, checkpoint: Checkpoint | None = None, seconds: float = 3600) -> Run:
    """The units, by that many processes."""
    with nullcontext() if workers == 1 else ProcessPoolExecutor(workers, forks.context()) as executor:
        return run_units(units, partial(work, log), seconds=seconds, executor=executor, checkpoint=checkpoint)


def main(log: str, file: str, key: str, *units: str) -> None:
    """Run units as a command does, and print why the run stopped."""
    found = run(Path(log), list(units), 1, Checkpoint(Path(file), key))
    print(found.stop_reason, flush=True)
