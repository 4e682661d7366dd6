"""Programs that are proved equal to another one by a chain of rules."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from mirage.errors import AxisError, MirageError
from mirage.ir.axes import AxisProgram
from mirage.ir.program import Program
from mirage.verify.pairing import paired
from mirage.verify.proof import compare_axis_programs
from mirage.verify.rules.chain import Link, checked
from mirage.verify.rules.egraph import EGraph
from mirage.verify.rules.lower import lowered
from mirage.verify.rules.rule import Facts
from mirage.verify.rules.saturate import saturate
from mirage.verify.rules.terms import Terms, read

#: bounds of a saturation that is to prove two programs equal
PROOF_ADDED, PROOF_SECONDS = 1000, 1.0


@dataclass(frozen=True)
class Rewritten:
    """A program, and the rules by which it follows from another one; what arithmetic alone says is left out."""

    program: AxisProgram
    links: tuple[Link, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of its rules, each once, in order."""
        return tuple(dict.fromkeys(link.rule for link in self.links))


def rewriting(
    graph: EGraph, program: AxisProgram, before: Sequence[int], after: Sequence[int]
) -> Generator[None, None, Rewritten | None]:
    """The program whose outputs are the terms `after`, which are in the classes of the program's outputs `before`; in steps.

    None unless the chain that the graph has for it is checked, the program that these terms are is read as these terms, and it
    is defined in the same places as the first.
    """
    terms = graph.terms
    links: list[Link] = []
    for x, y in zip(before, after, strict=True):
        chain = checked(terms, x, y, graph.explain(x, y))
        if chain is None:
            return None
        links += chain
        yield
    try:
        found = lowered(terms, program, after)
        yield
        if not same_terms(terms, read(terms, found).outputs, after):
            return None
        yield
        if compare_axis_programs(program, found).condition is not None:
            return None
    except MirageError:
        return None
    return Rewritten(found, tuple(dict.fromkeys(links)))


def same_terms(terms: Terms, found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether terms are the same, or equal by arithmetic alone."""
    facts = Facts(terms)
    return all(x == y or facts.same_form(x, y) for x, y in zip(found, wanted, strict=True))


def prove_by_rules(a: AxisProgram, b: AxisProgram) -> Rewritten | None:
    """The program `b`, as it follows from `a` by a chain of rules; None where none is found. Both have the same inputs, and the
    same axes.
    """
    terms = Terms(a.axes)
    x, y = read(terms, a).outputs, read(terms, b).outputs
    found = saturate(terms, (*x, *y), max_added=PROOF_ADDED, seconds=PROOF_SECONDS, together=tuple(zip(x, y, strict=True)))
    if not all(found.graph.equal(u, v) for u, v in zip(x, y, strict=True)):
        return None
    links: list[Link] = []
    for u, v in zip(x, y, strict=True):
        chain = checked(terms, u, v, found.graph.explain(u, v))
        if chain is None:
            return None
        links += chain
    return Rewritten(b, tuple(dict.fromkeys(links)))


def prove_programs_by_rules(a: Program, b: Program) -> Rewritten | None:
    """The program `b`, over the axes that both have, as it follows from `a` by a chain of rules; None where none is found, or
    they have no axes in common. Raises InputError as `check_pair`.
    """
    try:
        x, y = paired(a, b)
    except AxisError:
        return None
    return prove_by_rules(x, y) if [o.dims for o in x.outputs] == [o.dims for o in y.outputs] else None
