"""Kernels of every measured program against its peers, cache-hot and cache-cold, and the machine's physical limit.

`python -m benchmarks.kernels [NAME ...] [--json]`. Every program of `benchmarks/programs.py` is superoptimized once, for all
of its sets of sizes (`kernel_sizes`), and raced at each of them twice: with caches that hold what they can of its memory, and
with caches that hold nothing of it (`benchmarks.timing.Cold`). All versions of a row are timed in one race, in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

import mirage as mi
from benchmarks.caches import CacheEvictor
from benchmarks.peers.peers import complain, inference, installed, peers
from benchmarks.programs import KERNELS, WEIGHTS, batch_of, kernel_sizes
from benchmarks.tables import AsJson, Table, emit
from benchmarks.timing import Cold, Run, race
from mirage.errors import InputError, VerificationError
from mirage.kernels.cpu.model.limits import Limits, limit_us, measure_limits, memory_reader, program_cost
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.kernels.target import get_target
from mirage.results.cpu.result import Superoptimized
from mirage.search.accuracy import random_inputs
from mirage.settings import num_threads

#: seconds to superoptimize a program, for each of its sets of sizes, and to time the versions of a row
BUDGET, RACE = 10.0, 1.5
#: a row whose ratio is less is one that we lose
PARITY = 0.95
#: names of our versions, of the program as NumPy runs it, and of reading memory alone; all others are peers
_OURS, _NUMPY, _READING = ("mirage", "mirage out="), ("reference", "library"), "reading"
#: bytes that are read to wake the threads which read
_SOME = 1 << 20
#: bytes that take longer to read from memory than a call of a function that does
_MANY = 256 << 10


@dataclass(frozen=True)
class KernelRow:
    """One program at one set of sizes, cache-hot or cache-`cold`; times are medians in microseconds unless named `min`.

    Ours is the faster one of our versions, by median, and so is the peers'; `ratio` is the best peer's median over ours, and
    `ratio_min` the least of all peers' minima over the least of ours: above 1, ours is faster. `limit_us` is the least time
    that the machine's bandwidth and arithmetic allow, `limit_share` its share of our minimum. Where that is the time to read
    what no cache holds, it is the median of reading as much in the same race, and the share is that of our median: minima
    tell when other machines left memory alone, and a few bytes are read with less than the whole bandwidth. `kind` is
    what ours runs, and `kernels` of how many kernels it is made, where it is a muGraph. `times` holds every version's
    (minimum, median).
    """

    program: str
    sizes: str
    batch: int
    cold: bool
    ours_us: float
    ours_min_us: float
    best_peer: str
    best_peer_us: float
    best_peer_min_us: float
    ratio: float
    ratio_min: float
    limit_us: float
    limit_share: float
    kind: str
    kernels: int
    times: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Race:
    """What a row is made of, but for the machine's limits, which are known at the end."""

    program: str
    sizes: str
    batch: int
    cold: bool
    #: compulsory bytes and operations (`program_cost`)
    cost: tuple[int, int]
    kind: str
    kernels: int
    times: dict[str, Timing]

    def best(self, ours: bool) -> str:
        """The fastest one, by median, of our versions or of the peers'."""
        return min(self.rivals(ours), key=lambda n: self.times[n].median_us)

    def rivals(self, ours: bool) -> list[str]:
        """The names of our versions, or of the peers'."""
        return [n for n in self.times if n not in (*_NUMPY, _READING) and (n in _OURS) == ours]

    @property
    def ratio(self) -> float:
        """The best peer's median over ours."""
        return self.times[self.best(ours=False)].median_us / self.times[self.best(ours=True)].median_us


def measure(
    names: Sequence[str], budget: float = BUDGET, say: Callable[[str], None] = complain
) -> tuple[list[KernelRow], Limits]:
    """Rows of every set of sizes of these programs (all if empty), hot and cold, and the machine's limits.

    The limits are measured before everything else and after every program, and the best figures count: other processes only
    lower them. Raises InputError for the name of no program, and where no peer is installed.
    """
    unknown = [n for n in names if n not in KERNELS]
    if unknown:
        raise InputError(f"no measured program is named {', '.join(unknown)}; choose from {', '.join(KERNELS)}")
    if not installed(say):
        raise InputError("no peer is installed; run pip install -e '.[test,bench]'")
    limits = measure_limits(force=True)
    races: list[Race] = []
    for name in names or KERNELS:
        races += _races(KERNELS[name], budget, say)
        limits = better(limits, measure_limits(force=True))
    return [row(r, limits) for r in races], limits


def better(a: Limits, b: Limits) -> Limits:
    """The best figure of each kind."""
    return Limits(
        max(a.dram_gbs, b.dram_gbs), max(a.cache_gbs, b.cache_gbs), max(a.gflops, b.gflops), max(a.threads, b.threads)
    )


def _races(function: mi.TensorFunction, budget: float, say: Callable[[str], None]) -> Iterator[Race]:
    sets = kernel_sizes(function)
    say(f"{function.name}: superoptimizing for {budget * len(sets):g} s")
    result = mi.superoptimize(
        function,
        sizes=list(sets.values()),
        constants=WEIGHTS.get(function.name, ()),
        budget=budget * len(sets),
        cache=False,
        seed=0,
    )
    with CacheEvictor(get_target("cpu")) as evict:
        for label, sizes in sets.items():
            for r in compare(label, sizes, result, evict, say=say):
                ours, peer = r.times[r.best(ours=True)], r.best(ours=False)
                say(f"{r.program} {label} {_caches(r.cold)}: {ours.median_us:,.0f} us, {r.ratio:.2f} times {peer}")
                yield r


def compare(
    label: str,
    sizes: Mapping[str, int],
    result: Superoptimized,
    evict: Callable[[], None],
    seconds: float = RACE,
    say: Callable[[str], None] = complain,
) -> list[Race]:
    """Race a result at `sizes` with the program's NumPy versions and its peers, on the same inputs: cache-hot, then cold.

    A peer that computes something else is left out, with a message. Raises VerificationError if ours or NumPy's does.
    """
    program = result.program
    inputs = random_inputs(program, sizes, seed=1)
    with inference():
        versions = _versions(result, sizes, inputs, say)
        copies = _versions(result, sizes, [x.copy() for x in inputs], say)
        # a version is timed with its copy, or not at all
        versions = {name: run for name, run in versions.items() if name in copies}
        versions = _right(program.name, versions, say)
        copies = {name: copies[name] for name in versions}
        cost = program_cost(result.verifier.axis_program, sizes)
        if cost[0] > _MANY:
            versions[_READING], copies[_READING] = memory_reader(cost[0]), memory_reader(_SOME)
        hot = race(versions, seconds=seconds, beside=[_READING])
        cold = race(versions, seconds=seconds, cold=Cold(evict, copies), beside=[_READING])
    batch = batch_of(program.name, sizes)
    chosen = result.choice(sizes)
    kernels = len(chosen.graph.kernels) if chosen.graph else 0
    return [Race(program.name, label, batch, times is cold, cost, chosen.kind, kernels, times) for times in (hot, cold)]


def _versions(
    result: Superoptimized, sizes: Mapping[str, int], inputs: Sequence[np.ndarray], say: Callable[[str], None]
) -> dict[str, Run]:
    """All versions of a program, bound to these inputs."""
    shape = result.program.output_types[0].bind(sizes)
    library, out = LibraryProgram(result.verifier.axis_program), np.empty(shape, np.float32)
    return {
        "mirage": lambda: result(*inputs),
        "mirage out=": lambda: result(*inputs, out=out),
        "reference": lambda: result.reference(inputs, sizes)[0],
        "library": lambda: library(inputs, sizes)[0],
        **peers(result.program, inputs, shape, num_threads(), say=say),
    }


def _right(program: str, versions: Mapping[str, Run], say: Callable[[str], None]) -> dict[str, Run]:
    """The versions without peers that compute something else. Raises VerificationError if one of ours or NumPy's does."""
    wanted = np.asarray(versions["mirage"]())
    found = {}
    for name, run in versions.items():
        error = float(np.max(np.abs(np.asarray(run()) - wanted)) / np.max(np.abs(wanted)))
        # float32 results of sums of some thousand terms
        if error < 1e-4:
            found[name] = run
            continue
        message = f"{program}: {name} differs from ours by {error:.1e} of the largest element"
        if name in (*_OURS, *_NUMPY):
            raise VerificationError(message)
        say(f"{message}; it is not raced")
    return found


def row(r: Race, limits: Limits) -> KernelRow:
    """The row of a race on a machine with these limits."""
    name, peer = r.best(ours=True), r.best(ours=False)
    least, least_peer = (min(r.times[n].min_us for n in r.rivals(ours)) for ours in (True, False))
    target = get_target("cpu")
    limit = limit_us(*r.cost, limits, target, cold=r.cold)
    share = limit / least
    reading = r.times.get(_READING) if r.cold or r.cost[0] > target.cache_bytes else None
    if reading is not None and limit_us(0, r.cost[1], limits, target) < reading.min_us:
        limit, share = reading.median_us, reading.median_us / r.times[name].median_us
    return KernelRow(
        r.program,
        r.sizes,
        r.batch,
        r.cold,
        r.times[name].median_us,
        least,
        peer,
        r.times[peer].median_us,
        r.times[peer].min_us,
        r.ratio,
        least_peer / least,
        limit,
        share,
        r.kind,
        r.kernels,
        {n: (t.min_us, t.median_us) for n, t in r.times.items()},
    )


def _caches(cold: bool) -> str:
    return "cold" if cold else "hot"


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    header = [
        "program",
        "sizes",
        "caches",
        "ours, us",
        "ours min",
        "best peer",
        "its us",
        "its min",
        "ratio",
        "of minima",
        "limit, us",
        "share",
        "NumPy, us",
        "runs",
    ]
    return Table(header, [_cells(r) for r in rows])


def _cells(r: KernelRow) -> list[str]:
    numpy = min(r.times[name][1] for name in _NUMPY)
    runs = f"{r.kernels} kernel{'s' * (r.kernels != 1)}" if r.kernels else r.kind
    times = [_us(t) for t in (r.ours_us, r.ours_min_us)]
    peer = [r.best_peer, _us(r.best_peer_us), _us(r.best_peer_min_us)]
    return [
        r.program, r.sizes, _caches(r.cold), *times, *peer, f"{r.ratio:.2f}", f"{r.ratio_min:.2f}", _us(r.limit_us),
        f"{r.limit_share:.0%}", _us(numpy), runs,
    ]  # fmt: skip


def _us(t: float) -> str:
    return f"{t:,.0f}" if t >= 100 else f"{t:.1f}"


def summary(rows: Sequence[KernelRow]) -> str:
    """The geometric means of the ratios, and how many rows are lost."""
    parts = {"all rows": rows, "cache-hot": [r for r in rows if not r.cold], "cache-cold": [r for r in rows if r.cold]}
    means = ", ".join(
        f"{statistics.geometric_mean(r.ratio for r in part):.2f} ({what})" for what, part in parts.items()
    )
    lost = sum(r.ratio < PARITY for r in rows)
    return f"Geometric mean of the ratio over {len(rows)} rows: {means}. Rows below {PARITY}: {lost}."


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    as_json: AsJson = False,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize, per set of sizes.")] = BUDGET,
) -> None:
    rows, _ = measure(names or [], budget)
    emit(rows, as_json, kernel_table)
    if not as_json:
        print(summary(rows))
