"""Searches of the blocks of a decoder layer, with and without each kind of pruning.

`python -m benchmarks.search.large_programs [--cut SECONDS] [--json]`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.large import LARGE
from benchmarks.search.pruning import VARIANTS
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.ir.axes import to_axes
from mirage.search.computed import SOURCES
from mirage.search.large import LargeSearch
from mirage.search.options import SearchOptions

#: seconds after which a search is cut
CUT = 60.0


@dataclass(frozen=True)
class LargeRow:
    """One search, whose counts are of what it did until it was `cut`, if it was.

    `first_seconds` is when the first graph was found, `pieces` are what may be searched of the program, and `searched` how many
    of them were to the end; `modelled_us` is the modelled latency of the best graph.
    """

    program: str
    variant: str
    operators: int
    first_seconds: float
    seconds: float
    prefixes: int
    checks: int
    pieces: int
    searched: int
    graphs: int
    modelled_us: float
    cut: bool


def measure(cut: float = CUT, say: Callable[[str], None] = lambda _: None) -> Iterator[LargeRow]:
    """A row per program and kind of search."""
    for name, function in LARGE.items():
        program, sizes = to_axes(function.trace()), next(iter(function.sizes.values()))
        for variant, (pruner, canonical) in VARIANTS.items():
            start = time.perf_counter()
            search = LargeSearch(program, sizes, SearchOptions(pruner, canonical, budget=cut))
            first, graphs, cost = math.inf, 0, math.inf
            for found in search:
                if found.graphs:
                    first = min(first, time.perf_counter() - start)
                    cost = min(cost, found.cost)
                graphs += len(found.graphs)
            seconds = time.perf_counter() - start
            searched = sum(math.isinf(s) for s in search.spent.values())
            operators = sum(n.op not in SOURCES for n in program.nodes)
            row = LargeRow(
                name, variant, operators, first, seconds, *search.work, len(search.pieces), searched, graphs, cost / 1e3,
                not search.complete,
            )  # fmt: skip
            say(f"{name}, {variant}: {seconds:.1f} s, {graphs} graphs{', cut' * row.cut}")
            yield row


def large_table(rows: Sequence[LargeRow]) -> Table:
    """The seconds of every search, and what it was; of a search that was cut, the counts until then."""
    header = [
        "program", "operators", "search", "first graph, s", "search, s", "prefixes", "checks", "pieces searched to the end",
        "graphs", "best modelled, us",
    ]  # fmt: skip
    cells = [
        [
            r.program,
            str(r.operators),
            r.variant,
            f"{r.first_seconds:.2f}",
            f"> {r.seconds:.3g}" if r.cut else f"{r.seconds:.1f}",
            f"{r.prefixes:,}",
            f"{r.checks:,}",
            f"{r.searched} of {r.pieces}",
            str(r.graphs),
            f"{r.modelled_us:,.0f}",
        ]
        for r in rows
    ]
    return Table(header, cells)


def main(
    as_json: AsJson = False,
    cut: Annotated[float, typer.Option(help="Seconds after which a search is cut.")] = CUT,
) -> None:
    emit(list(measure(cut, lambda line: print(line, file=sys.stderr, flush=True))), as_json, large_table)


if __name__ == "__main__":
    typer.run(main)
