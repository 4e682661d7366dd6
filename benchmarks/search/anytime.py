"""What a deadline gives: `python -m benchmarks.search.anytime [NAME ...] [--json]`.

Every row is a superoptimization in a process of its own, with a results store of its own: "cold", where nothing is compiled yet,
or "warm", where what all kernels share is, and there is a results store, and at the speed of this machine or at a part of one
processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import typer

import mirage as mi
from benchmarks import slow_machine
from benchmarks.large import LARGE
from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cache import ResultStore
from mirage.cli_shared import AsJson
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import library_source
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.shared import LIBRARIES
from mirage.kernels.profile import interleave, score
from mirage.search.inputs import random_inputs

BUDGETS = (2.0, 5.0, 10.0, 30.0)
STARTS = ("cold", "warm")
SPEEDS = (1.0, slow_machine.SHARE)
#: seconds in which the best known version of a program is found
BEST = 300.0
#: seconds of the race between it and the one that a row returned
RACE = 2.0
#: what is superoptimized, by name
ALL = {**PROGRAMS, **LARGE}
#: of the processes: bytecode is kept, as it is for users
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class AnytimeRow:
    """One superoptimization: seconds since the process began until there were the first proved graph and the first measured
    kernel (None where there was none), and how many times as long as the best known version the returned one takes, at the full
    speed.

    `speed` is the part of one processor that the process had; 1 for as many whole ones as there are.
    """

    program: str
    budget: float
    start: str
    speed: float
    first_graph_seconds: float | None
    first_kernel_seconds: float | None
    seconds: float
    over_best: float
    kind: str


def measure(
    names: Sequence[str],
    budgets: Sequence[float] = BUDGETS,
    speeds: Sequence[float] = SPEEDS,
    best_budget: float = BEST,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[AnytimeRow]:
    """Rows per program (all if none is named)."""
    with ExitStack() as stack:
        warm = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirage-anytime-warm-")))
        _compile_shared(warm)
        # a first process compiles modules to bytecode
        first = stack.enter_context(tempfile.TemporaryDirectory(prefix="mirage-anytime-first-"))
        command = [sys.executable, "-m", "benchmarks.search.deadline", "0", f"{first}/result.json", next(iter(names or ALL)), "1"]
        subprocess.run(command, env={**ENVIRONMENT, "MIRAGE_CACHE_DIR": first}, stdout=subprocess.DEVNULL, check=True)
        for name in names or ALL:
            say(f"{name}: looking for the best version for {best_budget:g} s")
            best = mi.superoptimize(ALL[name], budget=best_budget)
            for speed in speeds:
                for start in STARTS:
                    for budget in budgets:
                        row = _row(name, budget, start, speed, best, warm)
                        say(f"{name}, {budget:g} s, {start}, {speed:g}: {row.kind}, {row.over_best:.2f} times the best")
                        yield row


def _compile_shared(folder: Path) -> None:
    """Compile what all kernels of an element type share, in this cache folder, and make an empty results store there."""
    before = os.environ.get("MIRAGE_CACHE_DIR")
    os.environ["MIRAGE_CACHE_DIR"] = str(folder)
    try:
        toolchain.compile("int warm;", name="warm", parts=product_parts(["float32"]))
        for name in LIBRARIES:
            toolchain.compile(library_source(name), name=name)
        ResultStore()
    finally:
        if before is None:
            del os.environ["MIRAGE_CACHE_DIR"]
        else:
            os.environ["MIRAGE_CACHE_DIR"] = before


def _row(name: str, budget: float, start: str, speed: float, best: mi.Superoptimized, warm: Path) -> AnytimeRow:
    with tempfile.TemporaryDirectory(prefix="mirage-anytime-") as folder, ExitStack() as stack:
        cache, result = Path(folder) / "cache", Path(folder) / "result.json"
        cache.mkdir(mode=0o700)
        if start == "warm":
            subprocess.run(["cp", "-r", "--preserve=mode", f"{warm}/.", str(cache)], check=True)
        command = [sys.executable, "-m", "benchmarks.search.deadline", f"{time.time()}", str(result), name, f"{budget}"]
        if speed < 1:
            slow = stack.enter_context(slow_machine.limited(command))
            if slow is None:
                raise SystemExit(slow_machine.HELP)
            command = slow
        done = subprocess.run(
            command, env={**ENVIRONMENT, "MIRAGE_CACHE_DIR": str(cache)}, stdout=subprocess.PIPE, text=True, check=True
        )
        graph, kernel, seconds = json.loads(done.stdout)
        found = mi.load(result)
        assert isinstance(found, mi.Superoptimized)
    inputs = random_inputs(best.program, best.sizes, 1)
    timings = interleave({"found": partial(found, *inputs), "best": partial(best, *inputs)}, seconds=RACE, clear=True)
    over = score(timings["found"]) / score(timings["best"])
    return AnytimeRow(name, budget, start, speed, graph, kernel, seconds, over, found.best.kind)


def anytime_table(rows: Sequence[AnytimeRow]) -> Table:
    """Per budget, start and speed: the geometric mean and the worst of all programs."""
    cells = []
    for speed, start, budget in dict.fromkeys((r.speed, r.start, r.budget) for r in rows):
        own = [r for r in rows if (r.speed, r.start, r.budget) == (speed, start, budget)]
        kernels = [r.first_kernel_seconds for r in own if r.first_kernel_seconds is not None]
        graphs = [r.first_graph_seconds for r in own if r.first_graph_seconds is not None]
        cells.append(
            [
                f"{budget:g} s, {start}, {'full speed' if speed == 1 else f'{speed:g} of a core'}",
                f"{max(graphs, default=float('nan')):.2f}",
                f"{max(kernels, default=float('nan')):.2f}",
                f"{len(kernels)} of {len(own)}",
                f"{geometric_mean([r.over_best for r in own]):.2f}",
                f"{max(r.over_best for r in own):.2f}",
                f"{max(r.seconds / r.budget for r in own):.2f}",
            ]
        )
    header = [
        "deadline, start, speed", "first graph at most, s", "first kernel at most, s", "with a kernel", "over the best, mean",
        "over the best, worst", "seconds over deadline, at most",
    ]  # fmt: skip
    return Table(header, cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    as_json: AsJson = False,
    budgets: Annotated[list[float] | None, typer.Option(help="Seconds; several are all measured.")] = None,
    full_speed: Annotated[bool, typer.Option("--full-speed", help="Not also at a part of one processor.")] = False,
    best: Annotated[float, typer.Option(help="Seconds for the best version that is compared with.")] = BEST,
) -> None:
    say = partial(print, file=sys.stderr, flush=True)
    emit(list(measure(names or [], budgets or BUDGETS, SPEEDS[:1] if full_speed else SPEEDS, best, say)), as_json, anytime_table)


if __name__ == "__main__":
    typer.run(main)
