"""Equality saturation of a program: all rules on all terms, again and again, bounded in terms and seconds.

Tate et al., "Equality saturation: a new approach to optimization" (2009); with egg's back-off: a rule that matches very often
waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mirage.drawing.show import Displayed
from mirage.verify.rules.egraph import EGraph
from mirage.verify.rules.pattern import Binding
from mirage.verify.rules.registry import rules
from mirage.verify.rules.rule import Facts, Rule, instance
from mirage.verify.rules.terms import Terms

#: terms over classes that rules add to those of a program, and seconds, of one saturation
MAX_ADDED = 200
MAX_SECONDS = 1.0
#: rounds in which every rule is tried, and matches of a rule in one of them, beyond which it waits
MAX_ROUNDS = 10
MATCHES = 250
#: rules that are applied between two steps
APPLIED = 16
#: a term that has more operators than the program and so many is not made
GROWTH = 16

#: why a saturation ends that no bound cuts
SATURATED, EQUAL = "saturated", "equal"


@dataclass
class Saturated(Displayed, drawn_by="mirage.verify.rules.draw"):
    """An e-graph under the rules. `stop_reason` is "saturated" where no rule says more, "equal" where all that was to be equal
    is, else what the bound was: "200 added terms", "10 rounds" or "out of time".
    """

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
    def cut(self) -> bool:
        """Whether a bound ended it, so that rules may say more."""
        return self.stop_reason not in (SATURATED, EQUAL)

    @property
    def terms(self) -> Terms:
        return self.graph.terms

    @property
    def nodes(self) -> int:
        """Terms over classes."""
        return len(self.graph)


@dataclass
class _Wait:
    """The round until which a rule waits, how often it did, and the last round in which its matches were taken."""

    until: int = 0
    times: int = 0
    taken: int = -1


class Saturation:
    """A saturation that goes on step by step: the classes of some terms, and of what the rules make of them, until all pairs of
    roots in `together` are equal, if any, within so many terms over classes that are added and seconds of work.
    """

    def __init__(
        self,
        terms: Terms,
        roots: Sequence[int],
        *,
        max_added: int = MAX_ADDED,
        seconds: float = MAX_SECONDS,
        together: Sequence[tuple[int, int]] = (),
    ) -> None:
        graph = EGraph(terms)
        for x in roots:
            graph.add(x)
        graph.rebuild()
        self.found = Saturated(graph, tuple(roots), Facts(terms))
        self._largest = max((terms.count[x] for x in roots), default=0) + GROWTH
        self._max_added = max_added
        self._max_nodes = len(graph) + max_added
        self._seconds = seconds
        self._together = together
        self._waits: dict[str, _Wait] = {}
        self._began = 0.0
        self._steps = self._all()

    def advance(self, seconds: float = math.inf) -> bool:
        """Go on for about so many seconds; whether it has ended. Every call takes one step."""
        start = time.perf_counter()
        self._began = start - self.found.seconds
        for _ in self._steps:
            if time.perf_counter() - start >= seconds:
                break
        self.found.seconds = time.perf_counter() - self._began
        return bool(self.found.stop_reason)

    def _late(self) -> bool:
        return time.perf_counter() - self._began > self._seconds

    def _equal(self) -> bool:
        return bool(self._together) and all(self.found.graph.equal(x, y) for x, y in self._together)

    def _all(self) -> Iterator[None]:
        """All rounds, in steps."""
        found, graph = self.found, self.found.graph
        if self._equal():
            found.stop_reason = EQUAL
        while not found.stop_reason:
            before = sum(found.used.values())
            matched: list[tuple[Rule, Binding]] = []
            waited = yield from self._matches(matched)
            for i, (rule, binding) in enumerate(matched):
                if self._late():
                    found.stop_reason = "out of time"
                    break
                _apply(rule, binding, found, self._largest)
                if len(graph) > self._max_nodes:
                    found.stop_reason = f"{self._max_added} added terms"
                    break
                if i % APPLIED == 0:
                    yield
            found.rounds += 1
            graph.rebuild()
            if not found.stop_reason and self._late():
                found.stop_reason = "out of time"
            if self._equal():
                found.stop_reason = EQUAL
            if not found.stop_reason and sum(found.used.values()) == before and not waited:
                found.stop_reason = SATURATED
            if not found.stop_reason and found.rounds == MAX_ROUNDS:
                found.stop_reason = f"{MAX_ROUNDS} rounds"

    def _matches(self, matched: list[tuple[Rule, Binding]]) -> Generator[None, None, bool]:
        """Add where the rules match that do not wait; whether one did."""
        found, graph = self.found, self.found.graph
        by_head: dict[str, list[int]] = {}
        for root in graph.classes():
            for head in graph.nodes(root):
                by_head.setdefault(head, []).append(root)
        waited = False
        for rule in rules():
            if not rule.heads <= by_head.keys():
                continue
            wait = self._waits.setdefault(rule.name, _Wait())
            if wait.until > found.rounds:
                waited = True
                continue
            if self._late():
                break
            places: Iterable[int] = by_head.get(rule.lhs.head, ())
            if wait.taken == found.rounds - 1:
                near = graph.near_changes(rule.lhs.height)
                places = [root for root in places if root in near]
            mine = [(rule, binding) for root in places for binding in graph.matches(rule.lhs, root)]
            if len(mine) > MATCHES << wait.times:
                wait.times += 1
                wait.until = found.rounds + 1 + wait.times
                waited = True
                continue
            wait.taken = found.rounds
            matched += mine
            yield
        return waited


def saturate(
    terms: Terms,
    roots: Sequence[int],
    *,
    max_added: int = MAX_ADDED,
    seconds: float = MAX_SECONDS,
    together: Sequence[tuple[int, int]] = (),
) -> Saturated:
    """A whole `Saturation`, whose arguments these are."""
    saturation = Saturation(terms, roots, max_added=max_added, seconds=seconds, together=together)
    saturation.advance()
    return saturation.found


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
