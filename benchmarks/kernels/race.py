"""Kernels of every measured program against its peers, cache-hot and cache-cold, and the machine's physical limit.

`python -m benchmarks.kernels [NAME ...] [--json]`. Every program of `benchmarks/programs.py` is superoptimized once, for all
of its sets of sizes (`kernel_sizes`), and raced at each of them twice: with caches that hold what they can of its memory, and
with caches that hold nothing of it (`benchmarks.timing.Cold`). All versions of a row are timed in one race, in turns.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import typer

import mirage as mi
from benchmarks.caches import CacheEvictor
from benchmarks.fairness import MOST_SHARE, Inputs, Referee, aligned, impossible
from benchmarks.peers.peers import complain, inference, installed, peers
from benchmarks.programs import KERNELS, WEIGHTS, batch_of, kernel_sizes
from benchmarks.tables import Table, emit
from benchmarks.timing import Cold, Run, race
from mirage.cli_shared import AsJson
from mirage.errors import InputError, VerificationError
from mirage.ir.interpret import run_reference
from mirage.kernels.cpu.model.limits import Limits, limit_us, measure_limits, memory_movers, program_cost
from mirage.kernels.cpu.processor import processor
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.results.cpu.result import Superoptimized
from mirage.search.inputs import random_inputs
from mirage.settings import num_threads

#: seconds to superoptimize a program, for each of its sets of sizes, and to time the versions of a row
BUDGET, RACE = 10.0, 1.5
#: a row whose ratio is less is one that we lose
PARITY = 0.95
#: sizes of a program's dims at which it is examined, but not measured
_OTHER_SIZES = (3, 5, 7, 37)
#: races of one set of sizes, while moving as much memory, and nothing else, takes longer than ours
_TRIES = 3
#: names of our versions (one allocates its result, one is given memory), of the program as NumPy runs it, and of moving
#: as much memory, and nothing else; all others are peers
_OURS, _NUMPY, _MOVING = ("mirage", "mirage out="), ("reference", "library"), "moving"
#: the share of its bytes that a program writes, where it is no longer one that reads
_WRITTEN = 0.1
#: bytes that are moved to wake the threads which move some
_SOME = 1 << 20
#: bytes that take longer to move than a call of a function that does
_MANY = 256 << 10


@dataclass(frozen=True)
class KernelRow:
    """One program at one set of sizes, cache-hot or cache-`cold`; times are medians in microseconds unless named `min`.

    The best peer is the fastest one by median. Where it writes its result to memory that it was `given`, ours does, too
    (`out=`), else both allocate it. `ratio` is the best peer's median over ours, and `ratio_min` the least of all peers'
    minima over that of ours: above 1, ours is faster. `calls` are the fewest timed ones of the two. `limit_us` is the least time
    that the machine's bandwidth and arithmetic allow, `limit_share` its share of our minimum. The time to move what no cache
    holds is the least of moving as much in the same race, by whichever loop is the fastest (`memory_movers`). `kind` is
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
    given: bool
    calls: int
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

    #: the versions that write their results to memory which they were given
    given: frozenset[str]

    @property
    def peers(self) -> list[str]:
        """The names of all versions that are neither ours nor NumPy's."""
        return [n for n in self.times if n not in (*_OURS, *_NUMPY) and not n.startswith(_MOVING)]

    @property
    def best_peer(self) -> str:
        """The fastest one, by median."""
        return min(self.peers, key=lambda n: self.times[n].median_us)

    @property
    def ours(self) -> str:
        """Our version that puts its result where the best peer puts its own."""
        return _OURS[self.best_peer in self.given]

    @property
    def ratio(self) -> float:
        """The best peer's median over ours."""
        return self.times[self.best_peer].median_us / self.times[self.ours].median_us


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
    refused = examined_elsewhere(result, say)
    with CacheEvictor(processor()) as evict:
        for label, sizes in sets.items():
            for r in _within_limits(partial(compare, label, sizes, result, evict, say=say, without=refused), say):
                ours = r.times[r.ours].median_us
                say(f"{r.program} {label} {_caches(r.cold)}: {ours:,.0f} us, {r.ratio:.2f} times {r.best_peer}")
                yield r


def _within_limits(compared: Callable[[], list[Race]], say: Callable[[str], None]) -> list[Race]:
    """Races of one set of sizes: once more, if moving as much memory took longer in them than ours."""
    for _ in range(_TRIES):
        races = compared()
        least = [min((t.min_us for n, t in r.times.items() if n.startswith(_MOVING)), default=0.0) for r in races]
        if not any(r.cold and t > MOST_SHARE * r.times[r.ours].min_us for r, t in zip(races, least, strict=True)):
            break
        say(f"{races[0].program} {races[0].sizes}: ours moved its memory faster than what does nothing else")
    return races


def examined_elsewhere(result: Superoptimized, say: Callable[[str], None] = complain) -> frozenset[str]:
    """Examine a result and its peers at odd sizes, at which nothing is measured, and return the names of refused peers.

    A version that computes the program at the measured sizes only computes another program. Raises VerificationError where
    ours does.
    """
    program = result.program
    sizes = dict(zip(program.symbols(), _OTHER_SIZES, strict=False))
    with inference():
        inputs = _inputs(result, sizes, seed=3)
        versions = _versions(result, sizes, inputs.arrays, say)
        referee = _referee(result, sizes, inputs)
        referee.examine_all(versions)
        _accepted(f"{program.name} at {sizes}", versions, referee, say)
    return frozenset(referee.refused)


def compare(
    label: str,
    sizes: Mapping[str, int],
    result: Superoptimized,
    evict: Callable[[], None],
    seconds: float = RACE,
    say: Callable[[str], None] = complain,
    without: Collection[str] = (),
) -> list[Race]:
    """Race a result at `sizes` with the program's NumPy versions and its peers, on the same inputs: cache-hot, then cold.

    A peer that the referee refuses, before a race or in it, has no times, and a message says why; those in `without` have none
    either. Raises VerificationError if ours or NumPy's is refused, or if no peer is left.
    """
    program, what = result.program, f"{result.program.name} {label}"
    cost = program_cost(result.verifier.axis_program, sizes)
    batch, chosen = batch_of(program.name, sizes), result.choice(sizes)
    kernels = len(chosen.graph.kernels) if chosen.graph else 0
    with inference():
        inputs = _inputs(result, sizes, seed=1)
        versions = _versions(result, sizes, inputs.arrays, say)
        copies = _versions(result, sizes, _inputs(result, sizes, seed=2).arrays, say)
        # a version is timed with its copy, or not at all
        versions = {name: run for name, run in versions.items() if name in copies and name not in without}
        referee = _referee(result, sizes, inputs)
        referee.examine_all(versions)
        versions = _accepted(what, versions, referee, say)
        written = 4 * math.prod(program.output_types[0].bind(sizes))
        movers = memory_movers(cost[0], written > _WRITTEN * cost[0]) if cost[0] > _MANY else {}
        moving = {f"{_MOVING}, {label}": run for label, run in movers.items()}
        copies |= dict(zip(moving, memory_movers(_SOME, True).values(), strict=False))
        races = []
        for cold in (None, Cold(evict, copies)):
            times = race(versions | moving, seconds=seconds, cold=cold, beside=moving, referee=referee)
            versions = _accepted(what, versions, referee, say)
            times = {name: t for name, t in times.items() if name in versions or name in moving}
            given = frozenset(name for name, is_given in referee.given.items() if is_given)
            races.append(Race(program.name, label, batch, cold is not None, cost, chosen.kind, kernels, times, given))
    return races


def _inputs(result: Superoptimized, sizes: Mapping[str, int], seed: int) -> Inputs:
    """Inputs of a program, of which all but weights change."""
    program = result.program
    weights = WEIGHTS.get(program.name, ())
    arrays = [aligned(x) for x in random_inputs(program, sizes, seed)]
    return Inputs(arrays, [name not in weights for name in program.input_names], seed)


def _referee(result: Superoptimized, sizes: Mapping[str, int], inputs: Inputs) -> Referee:
    program, arrays = result.program, inputs.arrays
    return Referee(
        inputs,
        lambda: (run_reference(program, arrays, sizes, "float64"), run_reference(program, arrays, sizes)),
    )


def _accepted(what: str, versions: Mapping[str, Run], referee: Referee, say: Callable[[str], None]) -> dict[str, Run]:
    """The versions that are not refused. Raises VerificationError if ours or NumPy's is, or if there is no peer among them."""
    for name in versions:
        if reason := referee.refused.get(name):
            if name in (*_OURS, *_NUMPY):
                raise VerificationError(f"{what}: {name}: {reason}")
            say(f"{what}: {name} is not raced: {reason}")
    left = {name: run for name, run in versions.items() if name not in referee.refused}
    if set(left) <= {*_OURS, *_NUMPY}:
        raise VerificationError(f"{what}: no peer is left to compare with; the messages say why")
    return left


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


def row(r: Race, limits: Limits) -> KernelRow:
    """The row of a race on a machine with these limits."""
    ours, peer = r.times[r.ours], r.times[r.best_peer]
    target = processor()
    limit = limit_us(*r.cost, limits, target, cold=r.cold)
    moving = [t.min_us for n, t in r.times.items() if n.startswith(_MOVING)]
    if moving and (r.cold or r.cost[0] > target.cache_bytes):
        limit = max(min(moving), limit_us(0, r.cost[1], limits, target))
    return KernelRow(
        r.program,
        r.sizes,
        r.batch,
        r.cold,
        ours.median_us,
        ours.min_us,
        r.best_peer,
        peer.median_us,
        peer.min_us,
        r.best_peer in r.given,
        min(ours.runs, peer.runs),
        r.ratio,
        min(r.times[n].min_us for n in r.peers) / ours.min_us,
        limit,
        limit / ours.min_us,
        r.kind,
        r.kernels,
        {n: (t.min_us, t.median_us) for n, t in r.times.items()},
    )


def check(rows: Sequence[KernelRow]) -> None:
    """Raises VerificationError where a row took less than its limit."""
    impossible({f"{r.program} {r.sizes} {_caches(r.cold)}": r.limit_share for r in rows})


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
        "result",
        "calls",
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
        r.program, r.sizes, _caches(r.cold), *times, *peer, "given" if r.given else "allocated", str(r.calls),
        f"{r.ratio:.2f}", f"{r.ratio_min:.2f}", _us(r.limit_us), f"{r.limit_share:.0%}", _us(numpy), runs,
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
    check(rows)
