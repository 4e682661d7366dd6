"""What each kind of pruning saves (paper, section 7.4): `python -m benchmarks.pruning [--cut SECONDS]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer

from benchmarks.programs import PROGRAMS
from mirage.ir.axes import to_axes
from mirage.search import closure
from mirage.search.generate import SearchOptions, generate

#: seconds after which a search is cut
CUT = 20.0
PROGRAM = "gqa_decode"
OPERATORS = range(4, 10)
#: the ablations: a name, the pruner, and whether only one order of independent operators is built
VARIANTS: dict[str, tuple[str | None, bool]] = {
    "normal form": ("normal-form", True),
    "normal form, all orders": ("normal-form", False),
    "SMT": ("smt", True),
    "no pruning": (None, True),
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
    program, sizes = to_axes(function.trace()), next(iter(function.sizes.values()))
    for kernels in (1, 2):
        for variant, (pruner, canonical) in VARIANTS.items():
            for operators in OPERATORS:
                options = SearchOptions(pruner, canonical, kernels, operators, budget=cut)
                # time alone ends these searches, not the number of prefixes
                with patch.object(closure, "MAX_VALUES", sys.maxsize):
                    stats = generate(program, sizes, options).stats
                row = PruningRow(
                    variant,
                    kernels,
                    operators,
                    stats.seconds,
                    stats.prefixes,
                    stats.checks,
                    stats.candidates,
                    any(why in stats.stop_reason for why in ("budget spent", "extraction limit")),
                )
                say(f"{variant}, {kernels} kernels of {operators} operators: {row.seconds:.1f} s{', cut' * row.cut}")
                yield row
                if row.cut:
                    break


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.")] = None,
    cut: Annotated[float, typer.Option(help="Seconds after which a search is cut.")] = CUT,
) -> None:
    rows = []
    for row in ablation(cut, lambda line: print(line, file=sys.stderr, flush=True)):
        rows.append(asdict(row))
        print(row, flush=True)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
