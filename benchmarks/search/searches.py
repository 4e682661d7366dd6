"""What the search and the verifier do for every measured program: `python -m benchmarks.search [NAME ...] [--json]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.programs import PROGRAMS
from benchmarks.search.phases import OTHER, PHASES, clocked
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.frontends.spec import TensorFunction
from mirage.mugraph.degree import program_is_stable
from mirage.search.candidates import Candidates, Known
from mirage.search.decision import MAX_VERSIONS
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier

#: seconds for a search, and for its verification: more than any of them needs
BUDGET = 600.0


@dataclass(frozen=True)
class SearchRow:
    """One program's search at the default limits, the proofs of all graphs found, and the random tests of as many as a result can
    return, in one process.

    `checks` are operator applications tested, of which `prefixes` were kept. `first_seconds` and `first_best_seconds` are
    when the first graph and the one of least modelled cost were found. `phases` divides the seconds of both (`phases.py`).
    """

    program: str
    search_seconds: float
    first_seconds: float
    first_best_seconds: float
    prefixes: int
    checks: int
    tensors: int
    candidates: int
    verified: int
    proved: int
    verify_seconds: float
    ms_per_proof: float
    ms_per_test: float
    limits: dict[str, int]
    phases: dict[str, float]
    stop_reason: str


def measure(
    names: Sequence[str], budget: float = BUDGET, say: Callable[[str], None] = lambda _: None
) -> Iterator[SearchRow]:
    """A row per program; all if none is named. What only the first search of a process does comes before."""
    search_row(PROGRAMS["softmax"], budget)
    for name in names or PROGRAMS:
        say(f"{name}: searching")
        row = search_row(PROGRAMS[name], budget)
        say(f"{name}: {row.search_seconds:.2f} s, {row.candidates} graphs, verified in {row.verify_seconds:.2f} s")
        yield row


def search_row(function: TensorFunction, budget: float = BUDGET) -> SearchRow:
    """The row of a program at its first sizes, of a search and a verification of at most `budget` seconds each."""
    verifier = Verifier(function.trace())
    sizes = next(iter(function.sizes.values()))
    options = SearchOptions(budget=budget)
    with clocked() as phases:
        found = generate(verifier.axis_program, sizes, options, safe=program_is_stable(verifier.program))
        start = time.perf_counter()
        known = [Known(g, cost) for g, cost in zip(found.graphs, found.costs, strict=True)]
        passed = Candidates(verifier, None, known).all(budget)
        prove_seconds = time.perf_counter() - start
        # as many as a result can return
        returned = passed[:MAX_VERSIONS]
        for c in returned:
            verifier.confirm(c.graph, c.certificate)
        verify_seconds = time.perf_counter() - start
    stats = found.stats
    return SearchRow(
        verifier.program.name,
        stats.seconds,
        stats.first_seconds,
        stats.best_seconds,
        stats.prefixes,
        stats.checks,
        stats.tensors,
        stats.candidates,
        len(passed),
        sum(c.certificate.proof == "proved" for c in passed),
        verify_seconds,
        1e3 * prove_seconds / max(len(known), 1),
        1e3 * (verify_seconds - prove_seconds) / max(len(returned), 1),
        stats.limits,
        phases,
        stats.stop_reason,
    )


def search_table(rows: Sequence[SearchRow]) -> Table:
    header = [
        "program", "search, s", "first, s", "best, s", "prefixes", "checks", "tensors", "candidates", "verified", "proved",
        "verify, s", "ms per proof", "ms per tested graph", "stopped",
    ]  # fmt: skip
    cells = [
        [
            r.program,
            *(f"{s:.2f}" for s in (r.search_seconds, r.first_seconds, r.first_best_seconds)),
            *(f"{n:,}" for n in (r.prefixes, r.checks, r.tensors, r.candidates, r.verified, r.proved)),
            f"{r.verify_seconds:.2f}",
            f"{r.ms_per_proof:.1f}",
            f"{r.ms_per_test:.1f}",
            r.stop_reason,
        ]
        for r in rows
    ]
    return Table(header, cells)


def phase_table(rows: Sequence[SearchRow]) -> Table:
    """The share of each phase in the seconds of a search and its verification together."""
    names = (*PHASES, OTHER)
    cells = []
    for r in rows:
        total = sum(r.phases.values())
        cells.append([r.program, f"{total:.2f}", *(f"{r.phases[n] / total:.0%}" for n in names)])
    return Table(["program", "both, s", *names], cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    as_json: AsJson = False,
    budget: Annotated[float, typer.Option(help="Seconds for each search, and for each verification.")] = BUDGET,
) -> None:
    rows = list(measure(names or [], budget, lambda line: print(line, file=sys.stderr, flush=True)))
    emit(rows, as_json, search_table, phase_table)
