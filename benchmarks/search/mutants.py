"""Wrong graphs on purpose, and what verification makes of them: `python -m benchmarks.search.mutants [--count N] [--json]`.

Graphs that the search finds for the measured programs are changed at random (`mirage.verify.mutate`). A mutant is
malformed, or different in the random tests, or equal: then it has passed the second check, and two judges that know
nothing of the tests are asked, the proof, and the program as written in float64 at several sizes. A mutant that float64
tells from its program is wrong. One that is equal but not proved may be so for a reason that the exact form does not know,
such as sum(x (x - mean)) = sum((x - mean)^2).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Annotated, Literal

import numpy as np
import typer
from rich.console import Console

from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.errors import GraphError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.search.accuracy import random_inputs
from mirage.search.generate import generate, plan_by_plan
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier
from mirage.verify.mutate import CHANGES, mutants
from mirage.verify.proof import prove
from mirage.verify.sizes import draw_schedule

COUNT = 10_000
#: of each program: seconds of its search, and graphs, one per plan, that are changed
SEARCH_SECONDS = 2.0
GRAPHS = 12
#: mutants in a row that were seen before, after which a graph has no more
REPEATED = 200
#: axis sizes and inputs at which accepted mutants are run in float64
FLOAT_RUNS = 4

#: rejected by validation, rejected by the random tests, equal (proved, and in float64), equal in float64 but not proved,
#: accepted though float64 tells them apart
Fate = Literal["malformed", "different", "equal", "not proved", "wrong"]


@dataclass(frozen=True)
class Mutant:
    program: str
    kind: str
    fate: Fate
    #: of a wrong one: what tells it apart
    reason: str = ""


@dataclass
class KindRow:
    """Mutants of one kind, by their fate."""

    kind: str
    mutants: int = 0
    malformed: int = 0
    different: int = 0
    equal: int = 0
    not_proved: int = 0
    wrong: int = 0


def found_graphs(name: str, verifier: Verifier, count: int = GRAPHS, seconds: float = SEARCH_SECONDS) -> list[MuGraph]:
    """Graphs that the search finds for a measured program, of as many plans as possible."""
    sizes = next(iter(PROGRAMS[name].sizes.values()))
    result = generate(verifier.axis_program, sizes, SearchOptions(budget=seconds))
    ranked = plan_by_plan(list(zip(result.graphs, result.costs, strict=True)))
    return [graph for graph, _ in ranked[:count]]


def difference_in_floats(program: Program, graph: MuGraph) -> str:
    """Where a graph in float64 is not its program as written, at literal dims as they are and symbols from 2 to 7."""
    for seed in range(FLOAT_RUNS):
        rng = Random(seed)
        sizes = {s: rng.randint(2, 7) for s in program.symbols()}
        inputs = random_inputs(program, sizes, seed)
        if seed % 2:
            inputs = [np.abs(x) for x in inputs]
        wanted = run_reference(program, inputs, sizes, "float64")
        axes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
        schedule = draw_schedule(graph, axes, rng)[0]
        with np.errstate(all="ignore"):
            exact = [x.astype(np.float64) for x in inputs]
            found = run_mugraph(graph, schedule, exact, FloatArithmetic(sizes))
        for k, (w, f) in enumerate(zip(wanted, found, strict=True)):
            if not np.allclose(w, f, rtol=1e-9, atol=1e-9 * float(np.max(np.abs(w), initial=0.0))):
                return f"output {k} differs in float64 at {sizes}, seed {seed}"
    return ""


def judged(verifier: Verifier, graph: MuGraph) -> tuple[Fate, str]:
    """What becomes of a mutant, and why where it is wrongly accepted. Raises VerificationError if two checks disagree."""
    try:
        certificate = verifier.check(graph)
    except GraphError:
        return "malformed", ""
    if not certificate.equal:
        return "different", ""
    verifier.confirm(graph, certificate)
    if reason := difference_in_floats(verifier.program, graph):
        return "wrong", reason
    return ("equal" if prove(verifier.axis_program, graph) == "proved" else "not proved"), ""


def corpus(
    names: list[str], count: int, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> Iterator[Mutant]:
    """`count` distinct mutants, program by program in turn; fewer only where the graphs have no more."""
    sources: deque[tuple[str, Verifier, Iterator[tuple[str, MuGraph]]]] = deque()
    for name in names:
        verifier = Verifier(PROGRAMS[name].trace())
        graphs = found_graphs(name, verifier)
        say(f"{name}: {len(graphs)} graphs")
        sources.extend((name, verifier, distinct(g, Random(f"{seed} {name} {i}"))) for i, g in enumerate(graphs))
    while sources:
        name, verifier, found = source = sources.popleft()
        mutant = next(found, None)
        if mutant is None:
            continue
        if count == 0:
            return
        kind, graph = mutant
        yield Mutant(name, kind, *judged(verifier, graph))
        count -= 1
        sources.append(source)


def distinct(graph: MuGraph, rng: Random) -> Iterator[tuple[str, MuGraph]]:
    """The mutants of a graph without repetition, until `REPEATED` in a row were seen before."""
    seen: set[object] = {graph.kernel}
    repeated = 0
    for kind, mutant in mutants(graph, rng):
        if mutant.kernel not in seen:
            repeated = 0
            seen.add(mutant.kernel)
            yield kind, mutant
        elif (repeated := repeated + 1) == REPEATED:
            return


def by_kind(found: list[Mutant]) -> list[KindRow]:
    """A row per kind of change, and their sum."""
    rows = {kind: KindRow(kind) for kind in (*CHANGES, "all")}
    for m in found:
        for row in (rows[m.kind], rows["all"]):
            row.mutants += 1
            field = m.fate.replace(" ", "_")
            setattr(row, field, getattr(row, field) + 1)
    return list(rows.values())


def kind_table(rows: Sequence[KindRow]) -> Table:
    header = ["kind", "mutants", "malformed", "different", "equal", "not proved", "wrong"]
    return Table(header, [[str(v) for v in asdict(r).values()] for r in rows])


def main(
    count: Annotated[int, typer.Option(help="Mutants over all programs.")] = COUNT,
    seed: Annotated[int, typer.Option(help="Seed of the changes.")] = 0,
    as_json: AsJson = False,
) -> None:
    err = Console(stderr=True)
    found = list(corpus(list(PROGRAMS), count, seed, err.print))
    rows = by_kind(found)
    err.print(f"{len(found)} mutants of {len({m.program for m in found})} programs")
    emit(rows, as_json, kind_table)
    for m in found:
        if m.fate in ("wrong", "not proved"):
            err.print(m)
    if rows[-1].wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
