"""How well the cost model orders kernels: `python -m benchmarks.kernels.model [NAME ...] [--json]`.

Of every program, graphs with schedules of all kinds are compiled and measured in turns. Reported is the rank correlation of
estimates and times, with the coefficients that the model starts with and with those fitted to all other programs, and by how
much slower than the fastest kernel the model's first choices are.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean
from typing import Annotated

import numpy as np
import typer

from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.frontends.spec import TensorFunction
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.cost import CostModel
from mirage.kernels.cpu.model.fit import Sample, fit
from mirage.kernels.cpu.processor import processor
from mirage.kernels.cpu.schedules.scheduler import Scheduler, machine_of
from mirage.kernels.profile import interleave
from mirage.mugraph.degree import program_is_stable
from mirage.search.candidates import Candidate, Candidates
from mirage.search.inputs import random_inputs
from mirage.search.options import SearchOptions
from mirage.search.stream import Search
from mirage.verify.equivalence import Verifier

#: seconds for a search, and to measure the kernels of one program
SEARCH, RACE = 20.0, 3.0
#: kernels of a program at one set of sizes, and for how many of its graphs
KERNELS, GRAPHS = 16, 6
#: kernels that are estimated to take so many times as long as the best are not compiled
_FAR = 12.0
#: first choices of which the best counts
_FIRST = (1, 3, 6)
#: seed of the choice of kernels
_SEED = 0


@dataclass(frozen=True)
class ModelRow:
    """One program at one set of sizes; "all" is the mean over the programs.

    `before` and `after` are Spearman's rank correlations of estimated and measured times, with the coefficients that the
    model starts with, and with those fitted to all other programs. `regret` is how much longer than the fastest of all
    `kernels` the best of the model's first 1, 3 and 6 took, as a factor, with the fitted ones.
    """

    program: str
    sizes: str
    kernels: int
    before: float
    after: float
    regret: dict[int, float]


@dataclass(frozen=True)
class Measured:
    """The kernels of one program at one set of sizes, by what the model counts for them and how long they took."""

    program: str
    sizes: str
    samples: list[Sample]


def measure(names: Sequence[str], say: Callable[[str], None] = lambda _: None) -> Iterator[Measured]:
    """The measured kernels of these programs (all if empty), at every set of sizes."""
    for name in names or PROGRAMS:
        for label in PROGRAMS[name].sizes:
            found = samples(PROGRAMS[name], label)
            say(f"{name} {label}: {len(found)} kernels")
            yield Measured(name, label, found)


def samples(function: TensorFunction, label: str, seconds: float = RACE) -> list[Sample]:
    """Up to `KERNELS` kernels of a program at one set of sizes, measured in turns."""
    sizes, target = function.sizes[label], processor()
    verifier = Verifier(function.trace())
    search = Search(
        verifier.axis_program, sizes, SearchOptions(budget=SEARCH), safe=program_is_stable(verifier.program)
    )
    graphs = Candidates(verifier, search).all(SEARCH)
    model = CostModel(machine_of(target))
    chosen = _chosen(graphs, sizes, model)

    def build(c: Candidate) -> CpuExecutable:
        assert c.schedule is not None
        return CpuExecutable(c.graph, c.schedule, c.maximum, sizes)

    with ThreadPoolExecutor(target.cores) as pool:
        kernels = list(pool.map(build, chosen))
    inputs = random_inputs(verifier.program, sizes, seed=1)
    runs = {str(i): partial(k, inputs, sizes) for i, k in enumerate(kernels)}
    blas = [str(i) for i, k in enumerate(kernels) if k.calls_library]
    times = interleave(runs, seconds=seconds, spinning=blas)
    counts = [Scheduler(c.graph, sizes, model, c.maximum).counts(c.schedule) for c in chosen if c.schedule]
    race = f"{function.name} {label}"
    return [Sample(counts[i], times[str(i)].min_us * 1e3, race) for i in range(len(chosen))]


def _chosen(graphs: Sequence[Candidate], sizes: dict[str, int], model: CostModel) -> list[Candidate]:
    """Graphs and schedules, good and bad: of the cheapest graphs the best schedules, and random neighbours of theirs."""
    draw = random.Random(_SEED)
    estimated = []
    for c in graphs:
        scheduler = Scheduler(c.graph, sizes, model, c.maximum)
        best = scheduler.best(KERNELS // GRAPHS + 1)
        estimated.append((scheduler.ns(best[0]), scheduler, c, best))
    estimated.sort(key=lambda e: e[0])
    near = [e for e in estimated if e[0] <= _FAR * estimated[0][0]]
    near = near[:: max(len(near) // GRAPHS, 1)][:GRAPHS]
    found: dict[tuple[int, str], Candidate] = {}
    # random walks from the last of each graph's best schedules
    reached = [best[0] for _, _, _, best in near]
    for step in range(KERNELS):
        for k, (least, scheduler, c, best) in enumerate(near):
            if len(found) == KERNELS:
                break
            if step < len(best):
                schedule = best[step]
            else:
                near_by = list(scheduler.neighbours(reached[k]))
                schedule = draw.choice(near_by) if near_by else reached[k]
            if scheduler.ns(schedule) <= _FAR * least:
                reached[k] = schedule
                found.setdefault((k, str(schedule)), replace(c, schedule=schedule))
    return list(found.values())


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, equal ones sharing the mean of theirs."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.arange(len(values))
    for v in np.unique(values):
        same = values == v
        found[same] = found[same].mean()
    return found


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation, 1 where one of them is constant as nothing can be put in a wrong order."""
    a, b = ranks(x), ranks(y)
    if not a.std() or not b.std():
        return 1.0
    return float(np.corrcoef(a, b)[0, 1])


def rows(measured: Sequence[Measured]) -> list[ModelRow]:
    """A row per program and set of sizes, each judged by coefficients fitted to the others; and their means."""
    found = []
    for m in measured:
        counts = np.array([s.counts for s in m.samples])
        times = np.array([s.ns for s in m.samples])
        others = [s for o in measured if o.program != m.program for s in o.samples]
        estimates = counts @ fit(others)
        order = np.argsort(estimates, kind="stable")
        regret = {k: float(times[order[:k]].min() / times.min()) for k in _FIRST}
        before = spearman(counts @ fit([]), times)
        found.append(ModelRow(m.program, m.sizes, len(times), before, spearman(estimates, times), regret))
    mean = {k: geometric_mean([r.regret[k] for r in found]) for k in _FIRST}
    before, after = (float(np.mean([getattr(r, name) for r in found])) for name in ("before", "after"))
    return [*found, ModelRow("all", "mean", sum(r.kernels for r in found), before, after, mean)]


def model_table(measured: Sequence[ModelRow]) -> Table:
    header = ["program", "sizes", "kernels", "before", "after", *(f"regret, first {k}" for k in _FIRST)]
    cells = [
        [r.program, r.sizes, str(r.kernels), f"{r.before:.2f}", f"{r.after:.2f}", *(f"{g:.2f}" for g in r.regret.values())]
        for r in measured
    ]  # fmt: skip
    return Table(header, cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    as_json: AsJson = False,
) -> None:
    measured = list(measure(names or [], lambda line: print(line, file=sys.stderr, flush=True)))
    emit(rows(measured), as_json, model_table)


if __name__ == "__main__":
    typer.run(main)
