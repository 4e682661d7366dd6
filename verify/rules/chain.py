"""Chains of rules from a program to another, checked step by step.

What a saturation says is not believed: each step is an instance of a rule whose guards are evaluated anew, its sides are compared
with what it replaces, and what the last step ends with is what is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirage.verify.rules.egraph import Step
from mirage.verify.rules.registry import find_rule
from mirage.verify.rules.rule import Facts, instance
from mirage.verify.rules.terms import COMMUTATIVE, Terms

#: characters of a side of a link
_SHOWN = 100


class Link(NamedTuple):
    """A step of a chain for people: the rule, and what it replaced by what."""

    rule: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.before} => {self.after}"


#: the name of links that the normal form sees as equal anyway
ARITHMETIC = "arithmetic"


def checked(terms: Terms, before: int, after: int, steps: Sequence[Step]) -> tuple[Link, ...] | None:
    """The links from a term to another, those of arithmetic left out; None unless every step holds.

    Nothing that was known while the steps were found is used.
    """
    facts = Facts(terms)
    links: list[Link] = []
    at = before
    for step in steps:
        rule = step.instance.rule
        if step.before != at or find_rule(rule.name) is not rule:
            return None
        again = instance(rule, terms, facts, step.instance.binding)
        if again is None:
            return None
        old, new = (again.right, again.left) if step.back else (again.left, again.right)
        if not _replaced(terms, at, step.after, old, new):
            return None
        if not facts.same_form(old, new):
            links.append(Link(rule.name, _short(terms.text(old)), _short(terms.text(new))))
        at = step.after
    return tuple(links) if at == after else None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _replaced(terms: Terms, x: int, y: int, old: int, new: int) -> bool:
    """Whether one term becomes the other where some of the places that hold `old` get `new`."""
    known: dict[tuple[int, int], bool] = {}

    def same(a: int, b: int) -> bool:
        if a == b or (a == old and b == new):
            return True
        found = known.get((a, b))
        if found is None:
            m, n = terms.nodes[a], terms.nodes[b]
            found = m.op == n.op and m.data == n.data and len(m.args) == len(n.args) > 0
            if found:
                found = all(map(same, m.args, n.args)) or (
                    m.op in COMMUTATIVE and all(map(same, m.args, n.args[::-1]))
                )
            known[a, b] = found
        return found

    return same(x, y)
