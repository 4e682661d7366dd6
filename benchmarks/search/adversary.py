"""Pairs of programs made to deceive a verifier: `python -m benchmarks.search.adversary [--count N] [--json]`.

Each pair (`benchmarks/search/pairs.py`) is compared as two programs, as a program and the graph of the other, and by chains of
rules. A verdict is
wrong if it is "equal", without a condition, for programs that are not, or "different" for programs that agree wherever both
are defined. "unknown" is never wrong. The exit status is 1 if a verdict is. Wrong graphs of programs are in
`benchmarks/search/mutants.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmarks.search.pairs import Expected, Pair, generated, named
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.errors import AxisError, GraphError, VerificationError
from mirage.ir.axes import to_axes
from mirage.mugraph.reference import reference_graph
from mirage.results.evidence import compare
from mirage.verify.certificate import Certificate
from mirage.verify.rules.rewritten import prove_programs_by_rules

#: random pairs
COUNT = 330

Form = Literal["programs", "program and graph", "programs by rules"]


@dataclass(frozen=True)
class Judged:
    """The verdict on a pair, as two programs or as a program and a graph; `equal` and `condition` are the certificate's."""

    name: str
    kind: str
    form: Form
    seed: int
    expected: Expected
    verdict: str
    equal: bool
    condition: str | None
    wrong: bool


@dataclass
class AdversaryRow:
    """Pairs of one kind, by what was said of them."""

    kind: str
    comparisons: int = 0
    equal: int = 0
    with_condition: int = 0
    different: int = 0
    unknown: int = 0
    wrong: int = 0


def is_wrong(expected: Expected, certificate: Certificate) -> bool:
    """Whether a certificate says what is not so."""
    said_equal = certificate.verdict in ("proved equal", "tested equal")
    match expected:
        case "equal":
            return certificate.verdict == "different"
        case "different":
            return said_equal
        case "equal where defined":
            return certificate.equal or certificate.verdict == "different"


def judged(pair: Pair) -> Iterator[Judged]:
    """The verdicts on a pair; the second form only where the two programs have the same axes.

    Two checks that disagree are a verdict of their own, which is wrong: "error".
    """
    a, b = pair.programs()
    for form in ("programs", "program and graph"):
        try:
            c = compare(a, b if form == "programs" else reference_graph(to_axes(b)), pair.seed)
        except (AxisError, GraphError):
            continue
        except VerificationError:
            yield Judged(pair.name, pair.kind, form, pair.seed, pair.expected, "error", False, None, True)
            continue
        wrong = is_wrong(pair.expected, c)
        yield Judged(pair.name, pair.kind, form, pair.seed, pair.expected, c.verdict, c.equal, c.condition, wrong)


def judged_by_rules(pair: Pair) -> Judged:
    """What chains of rules prove of a pair, beside the proofs by normal forms."""
    proved = prove_programs_by_rules(*pair.programs()) is not None
    wrong = proved and pair.expected != "equal"
    verdict = "proved equal" if proved else "unknown"
    return Judged(pair.name, pair.kind, "programs by rules", pair.seed, pair.expected, verdict, proved, None, wrong)


def measure(count: int = COUNT, seed: int = 0) -> Iterator[Judged]:
    """The verdicts on all named pairs, and on so many random ones."""
    for pair in chain(named(), generated(count, seed)):
        yield from judged(pair)
        yield judged_by_rules(pair)


def by_kind(found: Iterable[Judged]) -> list[AdversaryRow]:
    """A row per kind, in the order in which they come, and their sum."""
    rows: dict[str, AdversaryRow] = {}
    total = AdversaryRow("all")
    for j in found:
        for row in (rows.setdefault(j.kind, AdversaryRow(j.kind)), total):
            row.comparisons += 1
            row.wrong += j.wrong
            row.different += j.verdict == "different"
            row.unknown += j.verdict == "unknown"
            row.equal += j.equal
            row.with_condition += j.verdict in ("proved equal", "tested equal") and not j.equal
    return [*rows.values(), total]


def adversary_table(rows: Sequence[AdversaryRow]) -> Table:
    header = ["kind", "comparisons", "equal", "with a condition", "different", "unknown", "wrong"]
    return Table(header, [[str(v) for v in asdict(r).values()] for r in rows])


def main(
    count: Annotated[int, typer.Option(help="Random pairs, beside those with names.")] = COUNT,
    seed: Annotated[int, typer.Option(help="Seed of the random pairs.")] = 0,
    as_json: AsJson = False,
) -> None:
    err = Console(stderr=True)
    found = list(measure(count, seed))
    emit(found, as_json, lambda rows: adversary_table(by_kind(rows)))
    *_, total = by_kind(found)
    err.print(f"unknown: {total.unknown} of {total.comparisons}, {total.unknown / max(total.comparisons, 1):.0%}")
    for j in found:
        if j.wrong:
            err.print(j)
    if total.wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
