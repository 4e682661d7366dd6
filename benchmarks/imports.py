"""How long a process takes until it can use the library, against NumPy alone: `python -m benchmarks.imports`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson

TRACE = """
import mirage as mi
@mi.program(x=mi.tensor("n", 64), w=mi.tensor(64, 64))
def layer(x, w):
    return mi.softmax(x @ w)
layer.trace()
"""
#: what is measured -> what the process runs
PROCESSES = {
    "Python": "pass",
    "NumPy": "import numpy",
    "import mirage": "import mirage",
    "a program traced": TRACE,
    "superoptimize imported": f"{TRACE}mi.superoptimize",
}


@dataclass(frozen=True)
class ImportRow:
    """Seconds of whole processes, the start of Python included."""

    what: str
    min_seconds: float
    median_seconds: float


def measure(runs: int) -> Iterator[ImportRow]:
    """The processes one after the other, so many times, after a first time that compiles modules to bytecode."""
    # bytecode is kept, as it is for users
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    seconds: dict[str, list[float]] = {what: [] for what in PROCESSES}
    for _ in range(runs + 1):
        for what, source in PROCESSES.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", source], check=True, env=environment)
            seconds[what].append(time.perf_counter() - start)
    for what, (_, *measured) in seconds.items():
        yield ImportRow(what, min(measured), statistics.median(measured))


def import_table(rows: Sequence[ImportRow]) -> Table:
    return Table(
        ("process", "least time, s", "median, s"),
        [(r.what, f"{r.min_seconds:.3f}", f"{r.median_seconds:.3f}") for r in rows],
    )


def main(
    runs: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Seconds from the start of a process: alone, with NumPy, with mirage, with a program, ready to superoptimize."""
    emit(list(measure(runs)), as_json, import_table)


if __name__ == "__main__":
    typer.run(main)
