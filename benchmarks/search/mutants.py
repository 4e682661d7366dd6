"""Wrong graphs on purpose, and what verification makes of them: `python -m benchmarks.search.mutants [--count N] [--rules]`.

Graphs that the search finds for the measured programs are changed at random (`mutate.py`). A mutant is
malformed, or different in the random tests, or equal: then it has passed the second check, and two judges that know
nothing of the tests are asked, the proof, and the program as written in float64 at several sizes. A mutant that float64
tells from its program is wrong. One that is equal but not proved may be so for a reason that the exact form does not know,
such as sum(x (x - mean)) = sum((x - mean)^2).

With `--rules`, the programs with a better form (`rewrite_programs.py`) take part, as do the graphs of all targets, and for a
mutant that the random tests tell from its program, rules are looked for by which it is the program: `float64` judges them, too.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Annotated, Literal

import numpy as np
import typer
from rich.console import Console

import mirage as mi
from benchmarks.programs import PROGRAMS
from benchmarks.search.mutate import CHANGES, mutants
from benchmarks.search.rewrite_programs import PROGRAMS as REWRITES
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.errors import GraphError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import read_arguments
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.moves import moved_in
from mirage.ir.program import Program
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.whole import whole_program
from mirage.search.generate import generate, plan_by_plan
from mirage.search.inputs import random_inputs
from mirage.search.options import SearchOptions
from mirage.search.rewriting import Rewriting
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.rules.rewritten import prove_by_rules
from mirage.verify.sizes import draw_schedule

COUNT = 10_000
#: of each program: seconds of its search, and graphs, one per plan, that are changed
SEARCH_SECONDS = 2.0
GRAPHS = 12
#: mutants in a row that were seen before, after which a graph has no more
REPEATED = 200
#: axis sizes and inputs at which accepted mutants are run in float64
FLOAT_RUNS = 4

#: rejected by validation, rejected by the random tests, equal (proved, and in float64), the same by way of rules, equal in
#: float64 but not proved, accepted though float64 tells them apart
Fate = Literal["malformed", "different", "equal", "by rules", "not proved", "wrong"]


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
    by_rules: int = 0
    not_proved: int = 0
    wrong: int = 0


@dataclass(frozen=True)
class Source:
    """A program whose graphs are changed, at the sizes that its search is for."""

    name: str
    program: Program
    sizes: Mapping[str, int]


def sources(rules: bool = False) -> list[Source]:
    """The measured programs; with `rules`, also those with a better form."""
    found = [Source(name, f.trace(), next(iter(f.sizes.values()))) for name, f in PROGRAMS.items()]
    if rules:
        found += [Source(name, mi.trace(r.written, **r.specs), r.sizes) for name, r in REWRITES.items()]
    return found


def found_graphs(
    source: Source, verifier: Verifier, count: int = GRAPHS, seconds: float = SEARCH_SECONDS, rules: bool = False
) -> list[MuGraph]:
    """Graphs that the search finds for a program, of as many plans as possible; with `rules`, as many of its targets before."""
    options = SearchOptions(budget=seconds)
    result = generate(verifier.axis_program, source.sizes, options)
    ranked = [graph for graph, _ in plan_by_plan(list(zip(result.graphs, result.costs, strict=True)))]
    if not rules:
        return ranked[:count]
    targets = Rewriting(verifier.axis_program, source.sizes, options, verifier.learn)
    while not targets.done and targets.seconds < seconds:
        targets.advance(seconds)
    rewritten = plan_by_plan([(graph, f.cost) for f in targets.found for graph in f.graphs])
    return [*(graph for graph, _ in rewritten[:count]), *ranked[:count]]


def difference_in_floats(program: Program, graph: MuGraph) -> str:
    """Where a graph in float64 is not its program as written, at literal dims as they are and symbols from 2 to 7."""
    for seed in range(FLOAT_RUNS):
        rng = Random(seed)
        sizes = {s: rng.randint(2, 7) for s in program.symbols()}
        inputs = random_inputs(program, sizes, seed)
        if seed % 2:
            inputs = [np.abs(x) for x in inputs]
        with np.errstate(all="ignore"):
            wanted = run_reference(program, inputs, sizes, "float64")
        axes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
        schedule = draw_schedule(graph, axes, rng)[0]
        with np.errstate(all="ignore"):
            # several inputs of a graph may read one argument
            ar = FloatArithmetic(sizes)
            exact = read_arguments(program.name, graph.inputs, [x.astype(np.float64) for x in inputs], partial(moved_in, ar))
            found = run_mugraph(graph, schedule, exact, ar)
        for k, (w, f) in enumerate(zip(wanted, found, strict=True)):
            # where the program itself has no value, nothing is compared
            w, f = w[defined := np.isfinite(w)], f[defined]
            if not np.allclose(w, f, rtol=1e-9, atol=1e-9 * float(np.max(np.abs(w), initial=0.0))):
                return f"output {k} differs in float64 at {sizes}, seed {seed}"
    return ""


def judged(verifier: Verifier, graph: MuGraph, rules: bool = False) -> tuple[Fate, str]:
    """What becomes of a mutant, and why where it is wrongly accepted. Raises VerificationError if two checks disagree."""
    try:
        certificate = verifier.check(graph)
    except GraphError:
        return "malformed", ""
    chain = ""
    if not certificate.equal:
        found = prove_by_rules(verifier.axis_program, whole_program(graph)) if rules else None
        if found is None and not (rules and verifier.admit(graph).equal):
            return "different", ""
        chain = "a target" if found is None else "; ".join(map(str, found.links))
    else:
        verifier.confirm(graph, certificate)
    if reason := difference_in_floats(verifier.program, graph):
        return "wrong", f"{reason}; by {chain}" if chain else reason
    if chain:
        return "by rules", ""
    return ("equal" if prove(verifier.axis_program, graph) == "proved" else "not proved"), ""


def corpus(
    given: Sequence[Source],
    count: int,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    rules: bool = False,
) -> Iterator[Mutant]:
    """`count` distinct mutants, program by program in turn; fewer only where the graphs have no more."""
    turns: deque[tuple[str, Verifier, Iterator[tuple[str, MuGraph]]]] = deque()
    for source in given:
        verifier = Verifier(source.program)
        graphs = found_graphs(source, verifier, rules=rules)
        say(f"{source.name}: {len(graphs)} graphs")
        turns.extend((source.name, verifier, distinct(g, Random(f"{seed} {source.name} {i}"))) for i, g in enumerate(graphs))
    while turns:
        name, verifier, found = turn = turns.popleft()
        mutant = next(found, None)
        if mutant is None:
            continue
        if count == 0:
            return
        kind, graph = mutant
        yield Mutant(name, kind, *judged(verifier, graph, rules))
        count -= 1
        turns.append(turn)


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
    header = ["kind", "mutants", "malformed", "different", "equal", "by rules", "not proved", "wrong"]
    return Table(header, [[str(v) for v in asdict(r).values()] for r in rows])


def main(
    count: Annotated[int, typer.Option(help="Mutants over all programs.")] = COUNT,
    seed: Annotated[int, typer.Option(help="Seed of the changes.")] = 0,
    rules: Annotated[bool, typer.Option("--rules", help="Rules may prove mutants, too.")] = False,
    as_json: AsJson = False,
) -> None:
    err = Console(stderr=True)
    start = time.perf_counter()
    found = list(corpus(sources(rules), count, seed, err.print, rules))
    rows = by_kind(found)
    seconds = time.perf_counter() - start
    err.print(f"{len(found)} mutants of {len({m.program for m in found})} programs in {seconds:.0f} s")
    emit(rows, as_json, kind_table)
    for m in found:
        if m.fate in ("wrong", "not proved"):
            err.print(m)
    if rows[-1].wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
