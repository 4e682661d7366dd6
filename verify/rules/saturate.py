"""Equality saturation of a program: all rules on all terms, again and again, bounded in terms and seconds.

Tate et al., "Equality saturation: a new approach to optimization" (2009); with egg's back-off: a rule that matches very often
waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage.verify.rules.egraph import EGraph, head_of
from mirage.verify.rules.pattern import Binding
from mirage.verify.rules.registry import rules
from mirage.verify.rules.rule import Facts, Rule, instance
from mirage.verify.rules.terms import Terms

#: terms over classes, and seconds, of one saturation
MAX_NODES = 1500
MAX_SECONDS = 1.0
#: rounds in which every rule is tried, and matches of a rule in one of them, beyond which it waits
MAX_ROUNDS = 10
MATCHES = 250
#: a term that has more operators than the program and so many is not made
GROWTH = 16


@dataclass
class Saturated:
    """An e-graph under the rules. `stop_reason` is "saturated" where no rule says more, else what the bound was."""

    graph: EGraph
    roots: tuple[int, ...]
    facts: Facts
    seconds: float = 0.0
    rounds: int = 0
    stop_reason: str = ""
    #: how often each rule joined two classes
    used: dict[str, int] = field(default_factory=dict)
    #: the rules with what their variables stood for
    tried: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def terms(self) -> Terms:
        return self.graph.terms

    @property
    def nodes(self) -> int:
        """Terms over classes."""
        return len(self.graph)


@dataclass
class _Wait:
    """The round until which a rule waits, and how often it did."""

    until: int = 0
    times: int = 0


def saturate(
    terms: Terms,
    roots: Sequence[int],
    *,
    max_nodes: int = MAX_NODES,
    seconds: float = MAX_SECONDS,
    together: Sequence[tuple[int, int]] = (),
) -> Saturated:
    """The classes of some terms, and of what the rules make of them, until all pairs of roots in `together` are equal, if any."""
    start = time.perf_counter()
    graph = EGraph(terms)
    for x in roots:
        graph.add(x)
    graph.rebuild()
    found = Saturated(graph, tuple(roots), Facts(terms))
    largest = max((terms.count[x] for x in roots), default=0) + GROWTH
    waits: dict[str, _Wait] = {}
    deadline = start + seconds
    if together and all(graph.equal(x, y) for x, y in together):
        found.stop_reason = "equal"
    while not found.stop_reason:
        matched, waited = _matches(found, waits, deadline)
        before = sum(found.used.values())
        for rule, binding in matched:
            if time.perf_counter() > deadline:
                found.stop_reason = "out of time"
                break
            _apply(rule, binding, found, largest)
            if len(graph) > max_nodes:
                found.stop_reason = f"{max_nodes} terms"
                break
        found.rounds += 1
        graph.rebuild()
        if not found.stop_reason and time.perf_counter() > deadline:
            found.stop_reason = "out of time"
        if together and all(graph.equal(x, y) for x, y in together):
            found.stop_reason = "equal"
        if not found.stop_reason and sum(found.used.values()) == before and not waited:
            found.stop_reason = "saturated"
        if not found.stop_reason and found.rounds == MAX_ROUNDS:
            found.stop_reason = f"{MAX_ROUNDS} rounds"
    found.seconds = time.perf_counter() - start
    return found


def _matches(found: Saturated, waits: dict[str, _Wait], deadline: float) -> tuple[list[tuple[Rule, Binding]], bool]:
    """Where the rules match that do not wait, and whether one did."""
    graph = found.graph
    by_head: dict[str, list[int]] = {}
    for root in graph.classes():
        for head in graph.nodes(root):
            by_head.setdefault(head, []).append(root)
    matched: list[tuple[Rule, Binding]] = []
    waited = False
    for rule in rules():
        wait = waits.setdefault(rule.name, _Wait())
        if wait.until > found.rounds:
            waited = True
            continue
        if time.perf_counter() > deadline:
            break
        mine = [(rule, binding) for root in by_head.get(head_of(rule.lhs), ()) for binding in graph.matches(rule.lhs, root)]
        if len(mine) > MATCHES << wait.times:
            wait.times += 1
            wait.until = found.rounds + 1 + wait.times
            waited = True
            continue
        matched += mine
    return matched, waited


def _apply(rule: Rule, binding: Binding, found: Saturated, largest: int) -> None:
    """Join what a rule makes of a match to the class of the match."""
    graph = found.graph
    bound = graph.terms_of(binding)
    key = rule.name, *bound.values()
    if key in found.tried:
        return
    found.tried.add(key)
    made = instance(rule, graph.terms, found.facts, bound)
    if made is None or graph.terms.count[made.right] > largest:
        return
    graph.add(made.left)
    graph.add(made.right)
    if graph.join(made.left, made.right, made):
        found.used[rule.name] = found.used.get(rule.name, 0) + 1
