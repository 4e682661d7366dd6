"""Pruning by indices: what an abstract expression forgets and no later operator can repair.

Two facts about a value that is a prefix of a graph with exactly the target's form:

- a function or a denominator never changes again, so it must occur in the target as it is;
- once an index is summed, no factor can join it, so the set of factors that carry it must be one that the target sums.

So this keeps every graph that can be proved equal (`mirage/mugraph/exact.py`) without terms that cancel, and is far stronger than
the abstract expression alone: summing q over d before it meets k is admitted there and pruned here.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirage.mugraph.exact import ExactAlgebra, Form, Monomial

Group = tuple[str, frozenset[tuple[int, int]]]


def bound_groups(monomial: Monomial) -> set[Group]:
    """Per summed index: its part, and the factors (payload, exponent) that carry it."""
    groups: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for number, index, power in monomial[1]:
        for part, i in index:
            if i:
                groups.setdefault((part, i), set()).add((number, power))
    return {(part, frozenset(fs)) for (part, _), fs in groups.items()}


class IndexPruner:
    """Admits the forms that may become one of the targets."""

    def __init__(self, algebra: ExactAlgebra, targets: Iterable[Form]) -> None:
        self.algebra = algebra
        self.payloads: set[int] = set()
        self.groups: set[Group] = set()
        self._answers: dict[Form, bool] = {}
        todo = list(targets)
        while todo:
            for monomial, _ in todo.pop().terms:
                self.groups |= bound_groups(monomial)
                for number, _, _ in monomial[1]:
                    if number not in self.payloads:
                        self.payloads.add(number)
                        todo.extend(algebra.inside(number))

    def admits(self, form: Form) -> bool:
        """Whether every function, denominator and summed index of the form occurs in a target."""
        answer = self._answers.get(form)
        if answer is None:
            answer = self._answers[form] = all(
                all(number in self.payloads for number, _, _ in m[1]) and bound_groups(m) <= self.groups
                for m, _ in form.terms
            )
        return answer
