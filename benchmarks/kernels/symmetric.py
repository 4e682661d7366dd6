"""Symmetric products with half of the work: `python -m benchmarks.kernels.symmetric [ROWSxTERMS ...] [--json]`.

`X @ X.T` of so many rows and terms, by our kernel that computes all, by the one that computes a triangle and writes it twice, by
NumPy, which calls BLAS's syrk, and by PyTorch. The two kernels are tuned alike: the schedules that the model finds best, and
then neighbours of the fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import numpy as np
import typer

import mirage as mi
from benchmarks.tables import Table, emit
from benchmarks.timing import race
from mirage.cli_shared import AsJson
from mirage.errors import InputError, MirageError
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import Scheduler
from mirage.kernels.cpu.tuning import machine_model
from mirage.kernels.profile import interleave, score
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.settings import num_threads
from mirage.verify.equivalence import Verifier

SHAPES = ("64x256", "128x256", "256x256", "512x256", "1024x256", "2048x256", "256x1024", "1024x1024", "2048x1024")
#: schedules to begin with, neighbours of the fastest that are tried, and how often
_FIRST, _NEAR, _STEPS = 3, 12, 3
#: seconds of a comparison of schedules, and of a race, of which there are several: a version that a busy machine has held up once
#: has no more turns in one
TUNE, RACE, RACES = 0.3, 1.5, 4


@dataclass(frozen=True)
class SymmetricRow:
    """One shape; `times` are (minimum, median) in microseconds by version, `tiles` those of the kernel with half of the work."""

    rows: int
    terms: int
    times: dict[str, tuple[float, float]]
    tiles: str


def _graph(rows: int, terms: int) -> tuple[MuGraph, dict[str, int]]:
    """The product as one kernel without a loop."""
    program = mi.trace(lambda x: x @ x.mT, x=mi.tensor("n", "k"))
    sizes = {"n": rows, "k": terms}
    found = generate(Verifier(program).axis_program, sizes, SearchOptions()).graphs
    return next(g for g in found if g.origin == "no loop"), sizes


def _fastest(graph: MuGraph, sizes: dict[str, int], x: np.ndarray, *, half: bool) -> tuple[Schedule, CpuExecutable]:
    """The fastest schedule that is found, and its kernel."""
    scheduler = Scheduler(graph, sizes, machine_model())
    kernels: dict[Schedule, CpuExecutable] = {}

    def best(schedules: Sequence[Schedule]) -> Schedule:
        for s in schedules:
            try:
                kernels.setdefault(s, kernels.get(s) or CpuExecutable(graph, s, analyze(graph), sizes))
            except MirageError:
                continue
        numbered = {str(i): s for i, s in enumerate(schedules) if s in kernels}
        runs = {name: partial(kernels[s], [x], sizes) for name, s in numbered.items()}
        times = interleave(runs, seconds=TUNE)
        return numbered[min(times, key=lambda name: score(times[name]))]

    found = scheduler.best(_FIRST)
    if half:
        found = [h for s in found for h in scheduler.halved(s)]
    now = best(found)
    for _ in range(_STEPS):
        near = [s for s in scheduler.neighbours(now) if (s.kernels[0].halved is not None) == half][:_NEAR]
        if (new := best([now, *near])) == now:
            break
        now = new
    return now, kernels[now]


def measure(shapes: Sequence[str] = SHAPES) -> Iterator[SymmetricRow]:
    """A row for each shape; raises InputError for a text that is none."""
    for shape in shapes:
        try:
            rows, terms = (int(n) for n in shape.split("x"))
        except ValueError:
            raise InputError(f"{shape!r} is no shape; write rows and terms as in {SHAPES[0]}") from None
        x = np.random.default_rng(0).standard_normal((rows, terms)).astype(np.float32)
        graph, sizes = _graph(rows, terms)
        _, full = _fastest(graph, sizes, x, half=False)
        schedule, half = _fastest(graph, sizes, x, half=True)
        runs: dict[str, Callable[[], object]] = {}
        runs |= {"all": partial(full, [x], sizes), "half": partial(half, [x], sizes), "NumPy": partial(np.matmul, x, x.T)}
        if find_spec("torch") is not None:
            import torch

            torch.set_num_threads(num_threads())
            t = torch.from_numpy(x)
            runs["PyTorch"] = partial(torch.matmul, t, t.T)
        races = [race(runs, seconds=RACE) for _ in range(RACES)]
        (own,) = schedule.kernels
        tiles = ", ".join(f"{a}={n}" for a, n in own.tiles)
        times = {
            name: (min(r[name].min_us for r in races), statistics.median(r[name].median_us for r in races)) for name in runs
        }
        yield SymmetricRow(rows, terms, times, tiles)


def symmetric_table(rows: Sequence[SymmetricRow]) -> Table:
    others = [name for name in rows[0].times if name != "half"] if rows else []
    ratios = [f"{name} / half{of}" for of in ("", ", medians") for name in others]
    header = ["rows x terms", "half, us", "median", *ratios]

    def line(r: SymmetricRow) -> list[str]:
        half = r.times["half"]
        ratios = [f"{r.times[name][k] / half[k]:.2f}" for k in (0, 1) for name in others]
        return [f"{r.rows} x {r.terms}", f"{half[0]:,.0f}", f"{half[1]:,.0f}", *ratios]

    return Table(header, [line(r) for r in rows])


def main(
    shapes: Annotated[list[str] | None, typer.Argument(help="Rows and terms, such as 512x256.")] = None,
    as_json: AsJson = False,
) -> None:
    emit(list(measure(shapes or SHAPES)), as_json, symmetric_table)


if __name__ == "__main__":
    typer.run(main)
