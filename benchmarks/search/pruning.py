"""What each kind of pruning saves (paper, Table 5): `python -m benchmarks.search.pruning [--cut SECONDS] [--json]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.ir.axes import to_axes
from mirage.mugraph.degree import program_is_stable
from mirage.search.generate import generate
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.options import SearchOptions

#: seconds after which a search is cut
CUT = 600.0
PROGRAM = "gqa_decode"
#: block operators of a kernel, as in the paper, and kernels
OPERATORS, KERNELS = range(4, 8), (1, 2)
#: the ablations: a name, the pruner, and whether equal values are built once
VARIANTS: dict[str, tuple[str | None, bool]] = {
    "full": ("normal-form", True),
    "without the normal form": ("smt", True),
    "without canonical form": ("normal-form", False),
    "without abstract expressions": (None, True),
}


@dataclass(frozen=True)
class PruningRow:
    """One search; where it was `cut`, its counts are of what it did until then."""

    variant: str
    kernels: int
    operators: int
    seconds: float
    prefixes: int
    checks: int
    candidates: int
    cut: bool


def ablation(cut: float = CUT, say: Callable[[str], None] = lambda _: None) -> Iterator[PruningRow]:
    """Searches with ever more operators per kernel, per variant until one is cut: larger ones would be cut as well."""
    function = PROGRAMS[PROGRAM]
    traced = function.trace()
    program, sizes = to_axes(traced), next(iter(function.sizes.values()))
    for kernels in KERNELS:
        for variant, (pruner, canonical) in VARIANTS.items():
            for operators in OPERATORS:
                options = SearchOptions(
                    pruner, canonical, kernels, operators, budget=cut,
                    # time alone ends these searches, not the number of values
                    max_values=sys.maxsize,
                )  # fmt: skip
                stats = generate(program, sizes, options, safe=program_is_stable(traced)).stats
                row = PruningRow(
                    variant,
                    kernels,
                    operators,
                    stats.seconds,
                    stats.prefixes,
                    stats.checks,
                    stats.candidates,
                    OUT_OF_TIME in stats.stop_reason,
                )
                say(f"{variant}, {kernels} kernels of {operators} operators: {row.seconds:.2f} s{', cut' * row.cut}")
                yield row
                if row.cut:
                    break


def pruning_table(rows: Sequence[PruningRow]) -> Table:
    """Seconds, prefixes and graphs per variant and number of operators; of a search that was cut, what they were then."""
    operators = sorted({r.operators for r in rows})
    found = {(r.kernels, r.variant, r.operators): r for r in rows}
    header = ["search", "kernels", *(f"{n} operators" for n in operators)]
    series = dict.fromkeys((r.kernels, r.variant) for r in rows)
    cells = [[v, str(k), *(_cell(found.get((k, v, n))) for n in operators)] for k, v in series]
    return Table(header, cells)


def _cell(row: PruningRow | None) -> str:
    if row is None:
        return "not tried"
    if row.cut:
        return f"> {row.seconds:.3g} s, {row.prefixes:,}+"
    return f"{row.seconds:.2f} s, {row.prefixes:,}, {row.candidates}"


def main(
    as_json: AsJson = False,
    cut: Annotated[float, typer.Option(help="Seconds after which a search is cut.")] = CUT,
) -> None:
    rows = list(ablation(cut, lambda line: print(line, file=sys.stderr, flush=True)))
    emit(rows, as_json, pruning_table)


if __name__ == "__main__":
    typer.run(main)
