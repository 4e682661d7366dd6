"""Superoptimizations that are killed: `python -m benchmarks.search.kills [NAME] [--kills 50] [--json]`.

A process superoptimizes a program and is killed at a random moment; the next one goes on from what it left, and so on. Told is
what was kept after each, and what was done again: finished units of the search, and schedules that were compiled before.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import mirage as mi
from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cache import ResultStore
from mirage.cli_shared import AsJson
from mirage.errors import MirageError
from mirage.ir.axes import to_axes
from mirage.ir.codec import encode
from mirage.kernels.profile import interleave, score
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.schedule import Schedule
from mirage.search.candidates import Candidate
from mirage.search.inputs import random_inputs
from mirage.search.tune import Tuner
from mirage.search.units import Units

KILLS = 50
#: seconds that a process lives: at least (its imports), and at most
LIVES = (0.5, 8.0)
#: seconds of the race between what was kept, and the kept answers that take part
RACE, RACERS = 10.0, 5


@dataclass(frozen=True)
class KillRow:
    """What there was after a process was killed, `lived` seconds after it began.

    `kept_us` is the time of the kept answer as it was measured then, None where there is none. Of the units that the process
    began, `units_again` had been finished before it, and of the schedules that it compiled, `schedules_again` had been begun.
    `over_last` is the time of the kept answer over that of the last one, of those that raced at the end.
    """

    kill: int
    lived: float
    kept_us: float | None
    units: int
    units_again: int
    schedules: int
    schedules_again: int
    over_last: float | None = None


def child(name: str, log: Path) -> None:
    """Go on with a program until killed; what is begun goes to the log, a line each."""
    file = log.open("a", encoding="utf-8", buffering=1)
    run, compile_ = Units.run, Tuner.compile

    operators = len(to_axes(PROGRAMS[name].trace()).nodes)

    def logged_run(self: Units, unit: str, most: float = math.inf) -> Any:
        # pieces of the program have units of their own, with the same names; what is looked for first is a part of a unit
        if len(self.space.program.nodes) == operators and most == math.inf:
            print(json.dumps(["unit", unit]), file=file)
        return run(self, unit, most)

    def logged_compile(self: Tuner, work: Sequence[tuple[Candidate, Schedule]], *args: Any, **options: Any) -> Any:
        for c, schedule in work:
            print(json.dumps(["schedule", structure_key(c.graph), encode(schedule)]), file=file)
        return compile_(self, work, *args, **options)

    setattr(Units, "run", logged_run)  # noqa: B010
    setattr(Tuner, "compile", logged_compile)  # noqa: B010
    mi.superoptimize(PROGRAMS[name], budget=600, more=True)


def measure(name: str, kills: int = KILLS, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> Iterator[KillRow]:
    """A row per process; the last ones may find nothing left to do, and end by themselves. Raises MirageError where one fails."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="mirage-kills-") as folder:
        cache, log = Path(folder) / "cache", Path(folder) / "log"
        cache.mkdir(mode=0o700)
        rows: list[KillRow] = []
        answers: dict[int, Path] = {}
        finished: set[str] = set()
        compiled: set[str] = set()
        for number in range(kills):
            lived = rng.uniform(*LIVES)
            log.write_text("")
            command = [sys.executable, "-m", "benchmarks.search.kills", name, "--child", str(log)]
            with subprocess.Popen(command, env={**os.environ, "MIRAGE_CACHE_DIR": str(cache)}) as process:
                try:
                    process.wait(lived)
                except subprocess.TimeoutExpired:
                    process.kill()
            if process.returncode > 0:
                raise MirageError(f"kills: a process of {name} has failed; its error is above")
            lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
            units = {unit for kind, unit, *_ in lines if kind == "unit"}
            schedules = [json.dumps(line) for line in lines if line[0] == "schedule"]
            kept = _kept_us(cache)
            again = len(finished & units), len(compiled & {*schedules})
            rows.append(KillRow(number, lived, kept, len(units), again[0], len(schedules), again[1]))
            say(f"{rows[-1]}")
            finished |= _finished(cache)
            compiled |= {*schedules}
            if kept is not None:
                answers[number] = Path(folder) / f"answer-{number}"
                shutil.copytree(cache, answers[number])
        over = _race(name, answers)
        for row in rows:
            yield replace(row, over_last=over.get(row.kill))


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("MIRAGE_CACHE_DIR")
    os.environ["MIRAGE_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MIRAGE_CACHE_DIR"]
        else:
            os.environ["MIRAGE_CACHE_DIR"] = before


def _kept_us(cache: Path) -> float | None:
    with _cache(cache):
        return min((r.best_us for r in ResultStore().list() if r.best_us is not None), default=None)


def _finished(cache: Path) -> set[str]:
    """The units in the checkpoint."""
    lines = [line for file in (cache / "checkpoints").glob("*") for line in file.read_text().splitlines(keepends=True)]
    return {json.loads(line)["unit"] for line in lines if line.endswith("\n")}


def _race(name: str, answers: dict[int, Path]) -> dict[int, float]:
    """Times of kept answers over that of the last, measured in turns: the first, the last, and some between."""
    numbers = sorted(answers)
    if not numbers:
        return {}
    chosen = sorted({numbers[round(i * (len(numbers) - 1) / (RACERS - 1))] for i in range(RACERS)})
    found: dict[int, mi.Superoptimized] = {}
    for number in chosen:
        with _cache(answers[number]):
            # what was kept was found in longer than that: it is given as it is
            found[number] = mi.superoptimize(PROGRAMS[name], budget=0.01)
    inputs = random_inputs(found[chosen[0]].program, found[chosen[0]].sizes, 1)
    timings = interleave({str(n): partial(r, *inputs) for n, r in found.items()}, seconds=RACE, clear=True)
    last = score(timings[str(chosen[-1])])
    return {n: score(timings[str(n)]) / last for n in chosen}


def kills_table(rows: Sequence[KillRow]) -> Table:
    cells = [
        [
            f"{r.kill}",
            f"{r.lived:.1f}",
            "-" if r.kept_us is None else f"{r.kept_us:,.1f}",
            f"{r.units} ({r.units_again})",
            f"{r.schedules} ({r.schedules_again})",
            "" if r.over_last is None else f"{r.over_last:.2f}",
        ]
        for r in rows
    ]
    begun = ["units begun (finished before)", "schedules compiled (begun before)"]
    return Table(["kill", "after, s", "kept answer, us", *begun, "over the last answer"], cells)


def kills_summary(rows: Sequence[KillRow]) -> Table:
    """What was kept of all, and done again."""
    raced = [r.over_last for r in rows if r.over_last is not None]
    figures = {
        "processes killed": f"{len(rows)}",
        "killed before there was an answer": f"{sum(r.kept_us is None for r in rows)}",
        "units of the search begun": f"{sum(r.units for r in rows)}",
        "of these, finished before": f"{sum(r.units_again for r in rows)}",
        "schedules compiled": f"{sum(r.schedules for r in rows)}",
        "of these, begun before": f"{sum(r.schedules_again for r in rows)}",
        "first answer over the last": f"{raced[0]:.2f}" if raced else "-",
        "least of the answers between over the last": f"{min(raced[1:-1]):.2f}" if raced[2:] else "-",
    }
    return Table(["what", "figure"], [[what, figure] for what, figure in figures.items()])


def main(
    name: Annotated[str, typer.Argument(help="The program.")] = "qknorm_attention",
    kills: Annotated[int, typer.Option(help="Processes that are killed.")] = KILLS,
    as_json: AsJson = False,
    child_of: Annotated[Path | None, typer.Option("--child", hidden=True)] = None,
) -> None:
    if child_of is not None:
        child(name, child_of)
        return
    emit(list(measure(name, kills, say=partial(print, file=sys.stderr, flush=True))), as_json, kills_table)


if __name__ == "__main__":
    typer.run(main)
