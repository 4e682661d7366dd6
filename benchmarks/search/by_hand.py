"""The blocks of a decoder layer, superoptimized whole, against partitions of them by hand, whose parts are superoptimized alone.

`python -m benchmarks.search.by_hand [NAME ...] [--budget SECONDS] [--json]`. The parts of a partition have equal shares of the
budget that the whole has. All of them are timed in one race, in turns, with the program as a library runs it and as NumPy does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import typer

import mirage as mi
from benchmarks.large import LARGE, LLAMA, Part
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.errors import InputError, VerificationError
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing, interleave, score
from mirage.search.inputs import random_inputs
from mirage.search.options import SearchOptions
from mirage.search.prices import Prices

#: seconds to superoptimize a program, or all parts of a partition, and of the race
BUDGETS, RACE = (20.0, 60.0), 10.0
#: names of the versions that are no partition
WHOLE, LIBRARY, NUMPY = "whole", "library", "NumPy"
#: by how much a version may differ from the library, relative to the largest element
_TOLERANCE = 1e-3

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class ByHandRow:
    """One version of a program at one set of sizes: superoptimized `whole`, a partition by hand, `library` or `NumPy`.

    `kernels` and `modelled_us` are those of all parts together, of which a library version has none, and as modelled operator by
    operator; `ratio` is the geometric mean of minimum and median over that of the whole program's version in the same race: above
    1, the whole is faster.
    """

    program: str
    sizes: str
    budget: float
    version: str
    parts: int
    kernels: int
    modelled_us: float
    min_us: float
    median_us: float
    ratio: float


@dataclass(frozen=True)
class _Answer:
    """Superoptimized parts, with the names of what each one reads and yields."""

    parts: Sequence[tuple[mi.Superoptimized, Sequence[str], Sequence[str]]]

    def run(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The last part's result."""
        tensors = dict(arrays)
        found = None
        for result, reads, yields in self.parts:
            found = result(*(tensors[n] for n in reads))
            tensors.update(zip(yields, found if len(yields) > 1 else (found,), strict=True))
        return np.asarray(found)

    @property
    def kernels(self) -> int:
        return sum(len(r.best.candidate.graph.kernels) for r, _, _ in self.parts if r.best.candidate is not None)

    @property
    def modelled_us(self) -> float:
        return sum(_modelled_us(result) for result, _, _ in self.parts)


def _modelled_us(result: mi.Superoptimized) -> float:
    if result.best.candidate is not None:
        return result.best.candidate.cost / 1e3
    program = result.verifier.axis_program
    axes = {a: evaluate(d, result.sizes) for a, d in program.axes.items()}
    return Prices.of(program, axes, SearchOptions()).apart(program) / 1e3


def measure(
    names: Sequence[str],
    budgets: Sequence[float] = BUDGETS,
    race: float = RACE,
    say: Callable[[str], None] = lambda _: None,
    programs: Mapping[str, mi.TensorFunction] = LARGE,
    partitions: Mapping[str, Mapping[str, Sequence[Part]]] | None = None,
) -> Iterator[ByHandRow]:
    """Rows per program (all if none is named), set of sizes and budget: the whole, the partitions, and what runs without us.

    Raises InputError for the name of no program, VerificationError where two versions differ.
    """
    if unknown := [n for n in names if n not in programs]:
        raise InputError(f"no large program is named {', '.join(unknown)}; choose from {', '.join(programs)}")
    for name in names or programs:
        function = programs[name]
        for sizes in function.sizes.values():
            for budget in budgets:
                answers = {WHOLE: _answer([_whole(function)], sizes, budget)}
                for about, parts in (partitions or LLAMA.by_hand())[name].items():
                    answers[about] = _answer(parts, sizes, budget)
                    say(f"{name}, {sizes}, {budget:g} s: {about}")
                rows = list(_race(name, function.trace(), sizes, budget, answers, race))
                say(f"{name}, {sizes}, {budget:g} s: " + ", ".join(f"{r.version} {r.ratio:.2f}" for r in rows))
                yield from rows


def _whole(function: mi.TensorFunction) -> Part:
    program = function.trace()
    return Part(program, tuple(program.input_names), ("y",), function.constants)


def _answer(parts: Sequence[Part], sizes: Sizes, budget: float) -> _Answer:
    found = []
    for part in parts:
        own = {s: n for s, n in sizes.items() if s in part.program.symbols()}
        result = mi.superoptimize(
            part.program, sizes=own, constants=part.constants, budget=budget / len(parts), cache=False
        )
        assert isinstance(result, mi.Superoptimized)
        found.append((result, part.reads, part.yields))
    return _Answer(found)


def _race(
    name: str, program: Program, sizes: Sizes, budget: float, answers: Mapping[str, _Answer], seconds: float
) -> Iterator[ByHandRow]:
    inputs = random_inputs(program, sizes, 0)
    arrays = dict(zip(program.input_names, inputs, strict=True))
    axes = to_axes(program)
    library = LibraryProgram(axes)
    runs: dict[str, Callable[[], object]] = {about: partial(answer.run, arrays) for about, answer in answers.items()}
    runs[LIBRARY] = partial(library, inputs, sizes)
    runs[NUMPY] = partial(run_reference, program, inputs, sizes)
    (wanted,) = library(inputs, sizes)
    for about, answer in answers.items():
        error = float(np.abs(answer.run(arrays) - wanted).max() / np.abs(wanted).max())
        if not error <= _TOLERANCE:
            raise VerificationError(f"{name}, {sizes}: {about} differs from the library by {error:.1e} of the largest element")
    timings = interleave(runs, seconds=seconds, spinning=(LIBRARY, NUMPY), apart=tuple(answers))
    apart = Prices.of(axes, {a: evaluate(d, sizes) for a, d in axes.axes.items()}, SearchOptions()).apart(axes) / 1e3
    for version, timing in timings.items():
        own = answers.get(version)
        counts = (len(own.parts), own.kernels, own.modelled_us) if own else (1, 0, apart)
        yield _row(name, sizes, budget, version, counts, timing, score(timing) / score(timings[WHOLE]))


def _row(
    name: str, sizes: Sizes, budget: float, version: str, counts: tuple[int, int, float], timing: Timing, ratio: float
) -> ByHandRow:
    at = ", ".join(f"{s}={n}" for s, n in sizes.items())
    return ByHandRow(name, at, budget, version, *counts, timing.min_us, timing.median_us, ratio)


def by_hand_table(rows: Sequence[ByHandRow]) -> Table:
    """Every version, the whole first."""
    header = [
        "program", "sizes", "budget, s", "version", "parts", "kernels", "modelled, us", "min, us", "median, us", "over the whole",
    ]  # fmt: skip
    cells = [
        [
            r.program, r.sizes, f"{r.budget:g}", r.version, str(r.parts), str(r.kernels), f"{r.modelled_us:,.0f}",
            f"{r.min_us:,.0f}", f"{r.median_us:,.0f}", f"{r.ratio:.2f}",
        ]
        for r in rows
    ]  # fmt: skip
    return Table(header, cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs of benchmarks/large.py; all if none is named.")] = None,
    as_json: AsJson = False,
    budget: Annotated[list[float] | None, typer.Option(help="Seconds for a program, and for all parts of a partition.")] = None,
) -> None:
    rows = measure(names or [], budget or BUDGETS, say=lambda line: print(line, file=sys.stderr, flush=True))
    emit(list(rows), as_json, by_hand_table)


if __name__ == "__main__":
    typer.run(main)
