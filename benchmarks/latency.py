"""Latency of every measured program against its peers: `python -m benchmarks.latency [NAME ...] [--json]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

import mirage as mi
from benchmarks.peers import inference, peers
from benchmarks.programs import PROGRAMS
from benchmarks.tables import AsJson, Table, emit
from benchmarks.timing import race
from mirage.errors import InputError, VerificationError
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.result import Superoptimized
from mirage.search.accuracy import random_inputs
from mirage.settings import num_threads

#: seconds to superoptimize one program at one set of sizes, and to time its versions
BUDGET, RACE = 10.0, 2.0
#: names of our versions in a race; all others are peers
_OURS = ("mirage", "reference", "library")


@dataclass(frozen=True)
class LatencyRow:
    """One program at one set of sizes; times are medians in microseconds unless named `min`.

    `ratio` is the best peer's median over ours: above 1, ours is faster. `limit_us` is the least time that the machine's
    bandwidth and arithmetic allow, `limit_share` its share of our minimum. `kind` is what ours runs, and `kernels` of
    how many kernels it is made, where it is a muGraph. `times` holds every version's (minimum, median).
    """

    program: str
    sizes: str
    ours_us: float
    ours_min_us: float
    best_peer: str
    best_peer_us: float
    best_peer_min_us: float
    ratio: float
    limit_us: float
    limit_share: float
    kind: str
    kernels: int
    times: dict[str, tuple[float, float]]


def measure(
    names: Sequence[str], budget: float = BUDGET, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, Superoptimized, LatencyRow]]:
    """Every set of sizes of these programs (all if empty): the set's name, what was superoptimized afresh, its row."""
    for name in names or PROGRAMS:
        function = PROGRAMS[name]
        for label, sizes in function.sizes.items():
            say(f"{name} {label}: superoptimizing for {budget:g} s")
            result = mi.superoptimize(function, sizes=sizes, budget=budget, cache=False, seed=0)
            row = compare(label, result)
            say(f"{name} {label}: {row.ours_us:,.0f} us, {row.ratio:.2f} times {row.best_peer}")
            yield label, result, row


def compare(label: str, result: Superoptimized, seconds: float = RACE) -> LatencyRow:
    """Race a result with the program's NumPy versions and its peers, on the same inputs.

    Raises VerificationError if a peer computes something else.
    """
    program, sizes = result.program, result.sizes
    inputs = random_inputs(program, sizes, seed=1)
    ours = np.asarray(result(*inputs))
    library = LibraryProgram(result.verifier.axis_program)
    rivals = peers(program, inputs, ours.shape, num_threads())
    with inference():
        for name, run in rivals.items():
            _check(f"{program.name}: {name}", np.asarray(run()), ours)
        versions: dict[str, Callable[[], object]] = {
            "mirage": lambda: result(*inputs),
            "reference": lambda: result.reference(inputs, sizes),
            "library": lambda: library(inputs, sizes),
            **rivals,
        }
        times = race(versions, seconds=seconds)
    return _row(label, result, times)


def _check(name: str, found: np.ndarray, ours: np.ndarray) -> None:
    error = float(np.max(np.abs(found - ours)) / np.max(np.abs(ours)))
    # float32 results of sums of some thousand terms
    if not error < 1e-4:
        raise VerificationError(f"{name} differs from ours by {error:.1e} of the largest element")


def _row(label: str, result: Superoptimized, times: dict[str, Timing]) -> LatencyRow:
    rivals = {name: t for name, t in times.items() if name not in _OURS}
    if not rivals:
        raise InputError("no peer is installed; install torch, onnx and onnxruntime")
    best = min(rivals, key=lambda name: rivals[name].median_us)
    ours, peer = times["mirage"], rivals[best]
    graph = result.best.graph
    return LatencyRow(
        result.program.name,
        label,
        ours.median_us,
        ours.min_us,
        best,
        peer.median_us,
        peer.min_us,
        peer.median_us / ours.median_us,
        result.limit_us,
        result.limit_us / ours.min_us,
        result.best.kind,
        len(graph.kernels) if graph else 0,
        {name: (t.min_us, t.median_us) for name, t in times.items()},
    )


def latency_table(rows: Sequence[LatencyRow]) -> Table:
    header = [
        "program",
        "sizes",
        "ours, us",
        "ours min",
        "best peer",
        "its us",
        "its min",
        "ratio",
        "limit, us",
        "share",
        "NumPy, us",
        "runs",
    ]
    return Table(header, [_latency_cells(r) for r in rows])


def _latency_cells(r: LatencyRow) -> list[str]:
    numpy = min(r.times[name][1] for name in ("reference", "library"))
    runs = f"{r.kernels} kernel{'s' * (r.kernels != 1)}" if r.kernels else r.kind
    times = [f"{t:,.0f}" for t in (r.ours_us, r.ours_min_us)]
    peer = [r.best_peer, *(f"{t:,.0f}" for t in (r.best_peer_us, r.best_peer_min_us))]
    return [
        r.program, r.sizes, *times, *peer, f"{r.ratio:.2f}", f"{r.limit_us:,.1f}", f"{r.limit_share:.0%}", f"{numpy:,.0f}", runs,
    ]  # fmt: skip


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    as_json: AsJson = False,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize each set of sizes.")] = BUDGET,
) -> None:
    rows = [row for *_, row in measure(names or [], budget, lambda line: print(line, file=sys.stderr, flush=True))]
    emit(rows, as_json, latency_table)


if __name__ == "__main__":
    typer.run(main)
