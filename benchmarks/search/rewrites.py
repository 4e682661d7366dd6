"""Programs with a form that is known to be better: `python -m benchmarks.search.rewrites [NAME ...] [--modelled] [--json]`.

Each program (`rewrite_programs.py`) is searched as it is written: with the program's own operators and no rules, with the
operators of Table 1, with rules alone (each target's own operators in one kernel), and with both. It is found if the cheapest
proved graph is, as modelled, no worse than what a search makes of the better form. Kernels of the first and the last search are
measured, too, beside the library version; not with `--modelled`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer

import mirage as mi
from benchmarks.search.rewrite_programs import PROGRAMS, Rewrite
from benchmarks.tables import Table, emit, mean_text
from mirage.api import verify
from mirage.cli_shared import AsJson
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.program import Program
from mirage.kernels.profile import interleave
from mirage.kernels.target import get_target
from mirage.mugraph.degree import program_is_stable
from mirage.results.work import Request, answers
from mirage.search.candidates import Candidate, Candidates
from mirage.search.inputs import random_inputs
from mirage.search.options import SearchOptions
from mirage.search.prices import Prices
from mirage.search.rewriting import Rewriting
from mirage.search.stream import Search
from mirage.search.targets import WORTH_ARITHMETIC
from mirage.verify.equivalence import Verifier

#: seconds of a search, more than most need, and of tuning, in which several kernels are compiled
SEARCH, TUNE = 20.0, 4.0
#: seconds of the race of what was tuned
RACE = 0.7
#: a graph may cost so much more than that of the better form, as modelled
TOLERANCE = 1.05


@dataclass(frozen=True)
class RewriteRow:
    """One program: modelled costs (ns) of the best graph of each search, and of the better form's.

    `written` is the program as it is written, each operator by itself, which the literature compares with. `own` is the search
    with the program's own operators, `table` that with Table 1's, `saturated` has the targets alone, `both` is the default.
    `rules` are those of the best graph's chain. `library_us`, `before_us` and `after_us` are medians of one race, of the library
    version and of what is tuned of the searches `own` and `both`, 0 where nothing was measured; `why` says why a program was not
    found.
    """

    name: str
    written: float
    own: float
    table: float
    saturated: float
    both: float
    better: float
    found: bool
    rules: tuple[str, ...]
    why: str
    seconds: float
    library_us: float
    before_us: float
    after_us: float

    @property
    def modelled_gain(self) -> float:
        """How many times cheaper the best graph has become, as modelled."""
        return self.own / self.both

    @property
    def gain(self) -> float | None:
        """How many times faster it has become, as measured."""
        return self.before_us / self.after_us if self.after_us else None

    @property
    def library_gain(self) -> float | None:
        """How many times faster it is than the library version, as measured."""
        return self.library_us / self.after_us if self.after_us else None


def measure(
    names: Sequence[str], timed: bool = True, say: Callable[[str], None] = lambda _: None
) -> Iterator[RewriteRow]:
    """A row per program; all if none is named."""
    for name in names or PROGRAMS:
        row = rewrite_row(PROGRAMS[name], timed)
        measured = f", {row.gain:.2f} times as measured" if row.gain else ""
        say(f"{name}: {'found' if row.found else row.why}, {row.modelled_gain:.2f} times as modelled{measured}")
        yield row


def rewrite_row(rewrite: Rewrite, timed: bool = True) -> RewriteRow:
    """The row of one program."""
    start = time.perf_counter()
    written = mi.trace(rewrite.written, **rewrite.specs)
    plain = SearchOptions(vocabulary="program", rules=False)
    full = SearchOptions(constants=rewrite.constants)
    both = _graphs(written, rewrite.sizes, full)
    targets = [c for c in both if c.certificate.chain] + _graphs(written, rewrite.sizes, full, alone=True)
    known = replace(plain, constants=rewrite.constants)
    better = _least(_graphs(mi.trace(rewrite.better, **rewrite.specs), rewrite.sizes, known))
    best = min(both, key=lambda c: c.cost, default=None)
    own, least = _least(_graphs(written, rewrite.sizes, plain)), _least(both)
    found = least <= TOLERANCE * better
    library = before = after = 0.0
    if timed:
        library, before, after = _timed(written, rewrite.sizes, (plain, full))
    return RewriteRow(
        rewrite.name,
        _written(written, rewrite.sizes),
        own,
        _least(_graphs(written, rewrite.sizes, replace(full, rules=False))),
        _least(targets),
        least,
        better,
        found,
        _rules(best),
        "" if found else _why(written, mi.trace(rewrite.better, **rewrite.specs), own / better),
        time.perf_counter() - start,
        library,
        before,
        after,
    )


def _rules(best: Candidate | None) -> tuple[str, ...]:
    return () if best is None else tuple(dict.fromkeys(link.partition(":")[0] for link in best.certificate.chain))


def _graphs(
    program: Program, sizes: Mapping[str, int], options: SearchOptions, *, alone: bool = False
) -> list[Candidate]:
    """The proved graphs of a search; `alone`, only those of the targets."""
    verifier = Verifier(program)
    safe = program_is_stable(program)
    search = None if alone else Search(verifier.axis_program, sizes, options, safe=safe)
    rewriting = None
    if options.rules:
        rewriting = Rewriting(
            verifier.axis_program, sizes, options, verifier.learn, constants=options.constants, safe=safe
        )  # fmt: skip
    return Candidates(verifier, search, rewriting=rewriting).all(SEARCH)


def _least(found: Sequence[Candidate]) -> float:
    return min((c.cost for c in found), default=math.inf)


def _why(written: Program, better: Program, gain: float) -> str:
    """Why the better form, which costs `gain` times less than what the program's own operators give, was not found."""
    if program_is_stable(written) and not program_is_stable(better):
        return "refused: its exponents may overflow where the program's do not"
    if len(to_axes(written).inputs) > len(to_axes(better).inputs):
        return "an argument is used along two axes, and what follows from it is computed for each"
    if verify(written, better).condition is not None:
        return "not defined in the same places"
    if 1 < gain < 1 / WORTH_ARITHMETIC:
        return f"costs {gain:.2f} times less, too little for a form that follows by arithmetic alone"
    return "out of the bounds of saturation and search"


def _written(program: Program, sizes: Mapping[str, int]) -> float:
    """The modelled cost of the program's operators, each by itself."""
    axes = to_axes(program)
    table = {a: evaluate(d, sizes) for a, d in axes.axes.items()}
    return Prices.of(axes, table, SearchOptions()).apart(axes)


def _timed(program: Program, sizes: Mapping[str, int], searches: Sequence[SearchOptions]) -> list[float]:
    """Microseconds of the library version, and of the best version of each search."""
    target = get_target("cpu")
    inputs = random_inputs(program, sizes, 0)
    runs: dict[str, Callable[[], object]] = {}
    for i, options in enumerate(searches):
        request = Request(Verifier(program), [dict(sizes)], target, options, options.constants, budget=TUNE, say=lambda _: None)
        result = answers(target).superoptimize(request)
        runs.setdefault("library", partial(result._library, inputs, sizes))
        runs[f"search {i}"] = partial(result, *inputs)
    timings = interleave(runs, seconds=RACE, spinning=("library",))
    return [timings[name].median_us for name in runs]


def rewrites_table(rows: Sequence[RewriteRow]) -> Table:
    """A line per program, and the sum of all."""
    cells = [
        [
            # what needs no rule has the program's own normal form
            r.name, "yes" if r.found else r.why, ", ".join(r.rules) or "normal form",
            *(f"{r.own / c:.2f}" if math.isfinite(c) else "-" for c in (r.table, r.saturated, r.both)),
            f"{r.written / r.both:.2f}",
            *(f"{us:.1f}" if us else "-" for us in (r.library_us, r.before_us, r.after_us)),
            *(f"{gain:.2f}" if gain else "-" for gain in (r.gain, r.library_gain)),
        ]
        for r in rows
    ]  # fmt: skip
    gains = [[gain for r in rows if (gain := one(r))] for one in (lambda r: r.gain, lambda r: r.library_gain)]
    means = [mean_text([r.own / min(getattr(r, s), r.own) for r in rows]) for s in ("table", "saturated", "both")]
    total = [f"{sum(r.found for r in rows)} of {len(rows)}", "found", "", *means]
    as_written = mean_text([r.written / r.both for r in rows])
    cells.append([*total, as_written, "", "", "", *(mean_text(g) or "-" for g in gains)])
    header = [
        "program", "found", "rules", "Table 1", "rules alone", "both", "as written", "library, us", "before, us", "after, us",
        "measured", "over the library",
    ]  # fmt: skip
    return Table(header, cells)


#: what each search is called, and its cost in a row
_SEARCHES: dict[str, Callable[[RewriteRow], float]] = {
    "the program's own operators": lambda r: r.own,
    "and those of Table 1": lambda r: r.table,
    "rules alone: their targets' own operators in one kernel each": lambda r: r.saturated,
    "the program's own search beside these": lambda r: min(r.own, r.saturated),
    "all": lambda r: r.both,
}


def searches_table(rows: Sequence[RewriteRow]) -> Table:
    """What each search adds: how many of the better forms it finds, and how many times less than the first its graphs cost."""
    cells = []
    for name, cost in _SEARCHES.items():
        found = sum(cost(r) <= TOLERANCE * r.better for r in rows)
        cells.append([name, str(found), mean_text([r.own / min(cost(r), r.own) for r in rows])])
    return Table(["search", f"found, of {len(rows)}", "times less"], cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    timed: Annotated[bool, typer.Option("--timed/--modelled", help="Measure kernels, too.")] = True,
    as_json: AsJson = False,
) -> None:
    """Search programs that have a form which is known to be better."""
    rows = list(measure(names or [], timed, lambda text: print(text, file=sys.stderr, flush=True)))
    emit(rows, as_json, rewrites_table)


if __name__ == "__main__":
    typer.run(main)
