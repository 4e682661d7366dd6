"""What rules and the operators of Table 1 cost a search, and gain: `python -m benchmarks.search.rules [NAME ...] [--json]`.

Each measured program is searched to its end in four ways, in turns: with its own operators, with those of Table 1, by what the
rules make of it alone, and with all. Times are the processor's, so that a busy machine does not change them. `--rewrites` does
the same for the programs with a better form.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

import mirage as mi
from benchmarks.programs import PROGRAMS
from benchmarks.search.rewrite_programs import PROGRAMS as REWRITES
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.ir.program import Program
from mirage.mugraph.degree import program_is_stable
from mirage.search.options import SearchOptions
from mirage.search.rewriting import Rewriting
from mirage.search.stream import Search
from mirage.verify.equivalence import Verifier

#: how often each program is searched in each way; once where that takes longer than so many seconds
REPEATS, LONG_S = 5, 5.0
#: seconds of a turn of a search
TURN_S = 0.05


@dataclass(frozen=True)
class RulesRow:
    """Seconds of the processor, the least, and the least modelled cost (ns), of four searches of a program.

    `own` is the search with the program's own operators, `table` that with Table 1's, `saturated` has the targets alone, 0 where
    nothing was found, and `both` is the default. `report` says what saturation came to. Prefixes are those of the paper (values
    of a kernel that passed every check) of the program's own search, with its operators and with Table 1's.
    """

    program: str
    own_s: float
    table_s: float
    saturated_s: float
    both_s: float
    own: float
    table: float
    saturated: float
    both: float
    own_prefixes: int
    table_prefixes: int
    report: str

    @property
    def ratio(self) -> float:
        """How many times longer the search takes with all."""
        return self.both_s / self.own_s


@dataclass(frozen=True)
class _Searched:
    seconds: float
    best: float
    prefixes: int = 0
    report: str = ""


def measure(names: Sequence[str], rewrites: bool = False, say: Callable[[str], None] = lambda _: None) -> Iterator[RulesRow]:
    """A row per program; all if none is named. What only the first search of a process does comes before."""
    programs = _programs(rewrites)
    rules_row(*programs[next(iter(programs))], name="")
    for name in names or programs:
        row = rules_row(*programs[name], name=name)
        say(f"{name}: {row.own_s:.3f} s, with rules and Table 1 {row.ratio:.2f} times as long; {row.report}")
        yield row


def _programs(rewrites: bool) -> dict[str, tuple[Program, Mapping[str, int], tuple[str, ...]]]:
    if rewrites:
        return {n: (mi.trace(r.written, **r.specs), r.sizes, r.constants) for n, r in REWRITES.items()}
    return {n: (f.trace(), next(iter(f.sizes.values())), ()) for n, f in PROGRAMS.items()}


def rules_row(program: Program, sizes: Mapping[str, int], constants: tuple[str, ...], name: str) -> RulesRow:
    """The row of a program at these sizes."""
    full = SearchOptions(constants=constants)
    table = replace(full, rules=False)
    ways: dict[str, Callable[[], _Searched]] = {
        "own": lambda: _searched(program, sizes, replace(table, vocabulary="program")),
        "table": lambda: _searched(program, sizes, table),
        "saturated": lambda: _searched(program, sizes, full, alone=True),
        "both": lambda: _searched(program, sizes, full),
    }
    found: dict[str, list[_Searched]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, search in ways.items():
            found[way].append(search())
        if sum(runs[0].seconds for runs in found.values()) > LONG_S:
            break
    seconds = {way: min(run.seconds for run in runs) for way, runs in found.items()}
    best = {way: min(run.best for run in runs) for way, runs in found.items()}
    return RulesRow(
        name,
        *(seconds["own"], seconds["table"], seconds["saturated"], seconds["both"]),
        *(best["own"], best["table"], best["saturated"], best["both"]),
        *(found["own"][-1].prefixes, found["table"][-1].prefixes),
        found["both"][-1].report,
    )


def _searched(program: Program, sizes: Mapping[str, int], options: SearchOptions, alone: bool = False) -> _Searched:
    """A search to its end; `alone`, only those of the targets."""
    # what other searches have left is not looked through in this one
    gc.collect()
    gc.freeze()
    verifier, safe = Verifier(program), program_is_stable(program)
    start = time.process_time()
    search = None if alone else Search(verifier.axis_program, sizes, options, safe=safe)
    targets = None
    if options.rules:
        targets = Rewriting(
            verifier.axis_program, sizes, options, verifier.learn, constants=options.constants, safe=safe
        )  # fmt: skip
    own = [search] if search is not None else []
    while True:
        if targets is not None and not targets.done and not targets.waits(*own):
            targets.advance(TURN_S, *own)
        elif search is not None and not search.done:
            search.advance(TURN_S)
        else:
            break
    seconds = time.process_time() - start
    found = [*(search.found if search else ()), *(targets.found if targets else ())]
    prefixes = search.stats.prefixes if search else 0
    return _Searched(seconds, min((f.cost for f in found), default=0.0), prefixes, targets.report if targets else "")


def rules_table(rows: Sequence[RulesRow]) -> Table:
    """A line per program, and the sum of all."""
    header = [
        "program", "own operators, s", "Table 1, s", "rules alone, s", "both, s", "times as long", "cost", "prefixes",
        "with Table 1", "rules",
    ]  # fmt: skip
    cells = [
        [
            r.program,
            *(f"{s:.3f}" for s in (r.own_s, r.table_s, r.saturated_s, r.both_s)),
            f"{r.ratio:.2f}", f"{r.both / r.own:.2f}", f"{r.own_prefixes:,}", f"{r.table_prefixes:,}", r.report,
        ]
        for r in rows
    ]  # fmt: skip
    sums = [sum(getattr(r, f"{way}_s") for r in rows) for way in ("own", "table", "saturated", "both")]
    cells.append(["all", *(f"{s:.3f}" for s in sums), f"{sums[-1] / sums[0]:.2f}", "", "", "", ""])
    return Table(header, cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    rewrites: Annotated[bool, typer.Option("--rewrites", help="The programs with a better form.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search programs with and without rules and the operators of Table 1."""
    rows = list(measure(names or [], rewrites, lambda text: print(text, file=sys.stderr, flush=True)))
    emit(rows, as_json, rules_table)


if __name__ == "__main__":
    typer.run(main)
