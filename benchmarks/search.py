"""What the search and the verifier do for every measured program: `python -m benchmarks.search [NAME ...]`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

import mirage as mi
from benchmarks.latency import BUDGET
from benchmarks.programs import PROGRAMS
from mirage.result import Superoptimized


@dataclass(frozen=True)
class SearchRow:
    """One program's search: `checks` operator applications tested, of which `prefixes` were kept."""

    program: str
    seconds: float
    prefixes: int
    checks: int
    candidates: int
    verified: int
    proved: int
    verify_seconds: float
    stop_reason: str


def search_row(result: Superoptimized) -> SearchRow:
    """The figures of a result that was searched for, not taken from the cache."""
    return SearchRow(
        result.program.name,
        result.seconds["search"],
        result.stats.prefixes,
        result.stats.checks,
        result.candidates,
        len(result.graphs),
        sum(c.certificate.proof == "proved" for c in result.graphs),
        result.seconds["verify"],
        result.stats.stop_reason,
    )


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds for each program, tuning included.")] = BUDGET,
) -> None:
    rows = []
    for name in names or PROGRAMS:
        print(f"{name}: searching", file=sys.stderr, flush=True)
        rows.append(search_row(mi.superoptimize(PROGRAMS[name], budget=budget, cache=False, seed=0)))
        print(rows[-1], flush=True)
    if json_file:
        json_file.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
