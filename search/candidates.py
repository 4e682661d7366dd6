"""Verified graphs of a program, one after the other as a search finds them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from mirage.drawing.show import Displayed
from mirage.errors import MirageError
from mirage.ir.codec import above_zero, within
from mirage.kernels.decision import Sizes
from mirage.kernels.profile import Timing
from mirage.kernels.target import Executable
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph, Node
from mirage.mugraph.schedule import Schedule
from mirage.search.accuracy import Accuracy
from mirage.search.large import LargeSearch
from mirage.search.rewriting import Rewriting
from mirage.search.stream import Search
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier
from mirage.verify.safety import offered


@dataclass(frozen=True)
class Candidate(Displayed, drawn_by="mirage.search.draw"):
    """A verified graph with its evidence, and, once tuned, its schedule (of the target), kernel, latency and errors per trial.

    `sizes` (dim symbol -> elements) are those that the schedule and the layouts of the kernel were chosen for; empty for
    one that is not tuned. `timing` is at the first sizes that the program was tuned at. `tried` are the schedules that were
    measured for `sizes`, with their microseconds in proportion to those of all other graphs. `make` gives its
    kernels, each time the same.
    """

    graph: MuGraph
    certificate: Certificate
    maximum: RunningMaximum
    cost: float
    schedule: Any = None
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    make: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    timing: Timing | None = None
    accuracy: tuple[Accuracy, ...] = ()
    tried: tuple[tuple[Any, float], ...] = field(default=(), compare=False, repr=False)

    @property
    def executable(self) -> Any:
        """Its kernels; None if it is not tuned. Those of what was recalled are made when they are first asked for.

        Raises the errors of compilation.
        """
        return self.make() if self.make is not None else None

    def with_kernels(self, executable: Executable) -> Candidate:
        """The same with its kernels."""
        return replace(self, make=lambda: executable)


@dataclass(frozen=True)
class Known:
    """A graph of which it has not been shown yet that it is the program, with what `Candidate` says of it besides."""

    graph: MuGraph
    cost: Annotated[float, within(-1e300, 1e300)]
    schedule: Schedule | None = None
    sizes: Sizes = field(default_factory=dict, hash=False)
    timing: Timing | None = None
    accuracy: tuple[Accuracy, ...] = ()
    tried: tuple[tuple[Schedule, Annotated[float, above_zero]], ...] = ()

    def check_stored(self) -> None:
        """Raises ScheduleError where a schedule that was read is not one of the graph."""
        for schedule in (self.schedule, *(s for s, _ in self.tried)):
            if schedule is not None:
                schedule.check(self.graph)


def admitted(verifier: Verifier, known: Known, *, recalled: bool = False) -> Candidate | None:
    """The graph with the evidence that its kernels need before they are first called; None if it is not the program, or may not
    be offered. For a graph that was `recalled`, rules are looked for by which it may follow.
    """
    graph = known.graph
    try:
        certificate = verifier.admit(graph, by_rules=recalled)
        if not certificate.equal or not offered(verifier.program, graph):
            return None
    except MirageError:
        return None
    more = {f.name: getattr(known, f.name) for f in fields(Known)}
    return Candidate(certificate=certificate, maximum=analyze(graph), **more)


def fewest_plain(candidates: Iterable[Candidate]) -> int:
    """How many exponents may overflow in a candidate that may run, at most: as few as in any of the program's own graphs, and of
    its targets' where there is no other. A target with fewer keeps no kernel of the program from running.
    """
    plain = [(bool(c.certificate.chain), len(c.maximum.plain)) for c in candidates]
    return min([n for chain, n in plain if not chain] or [n for _, n in plain], default=0)


class Candidates:
    """Those of the `known` graphs, and then of those that `search`, its targets (`rewriting`) and, of a large program, its
    `pieces` find, that are the program of `verifier`: a stream that `more` draws from.

    `found` are all so far. `seconds` are those of the search and of the verification.
    """

    def __init__(
        self,
        verifier: Verifier,
        search: Search | None,
        known: Iterable[Known] = (),
        pieces: LargeSearch | None = None,
        rewriting: Rewriting | None = None,
    ) -> None:
        self.verifier = verifier
        self.search = search
        self.pieces = pieces
        self.rewriting = rewriting
        self.found: list[Candidate] = []
        self.seconds = {"search": 0.0, "verify": 0.0}
        self.stopped = False
        self._seen: set[str] = set()
        self._waiting = deque(known)
        #: how many of the known graphs were not looked at yet
        self.unread = len(self._waiting)
        #: how many of the search's graphs, and of its targets', were taken from them
        self._taken = self._rewritten = 0

    @staticmethod
    def of(verifier: Verifier, found: Sequence[Candidate]) -> Candidates:
        """These, which are verified, and no more."""
        candidates = Candidates(verifier, None)
        candidates.found = list(found)
        return candidates

    @property
    def done(self) -> bool:
        """Whether there are no more."""
        ended = all(s is None or s.done for s in (self.search, self.pieces, self.rewriting))
        return self.stopped or (not self._waiting and ended)

    @property
    def complete(self) -> bool:
        """Whether there are no more, however long one looks for them."""
        return self.done and not self.stopped and all(s is None or s.complete for s in (self.pieces, self.rewriting))

    def stop(self) -> None:
        """Look for no more, as an interrupt wants it. If nothing was looked at yet, one graph of what the search has found is."""
        self.stopped = True
        for s in (self.search, self.pieces, self.rewriting):
            if s is not None:
                s.interrupt()
        if self.search is not None:
            self._take(self.search)
        while self._waiting and not self.found:
            self._admit()

    def resume(self, seconds: float) -> None:
        """Go on for so many seconds more, also after `stop`, if need be with a search that begins again: what it finds a second
        time is not new.
        """
        self.stopped = False
        for s in (self.pieces, self.rewriting):
            if s is not None:
                s.resume(seconds)
        if self.search is not None and (search := self.search.anew()) is not self.search:
            self.search, self._taken = search, 0

    def more(self, seconds: float) -> list[Candidate]:
        """What is found in about so many seconds, or sooner: the search goes on, or a graph is looked at, at least."""
        if self.done:
            return []
        end = time.perf_counter() + seconds
        if not self._waiting:
            start = time.perf_counter()
            self._search(seconds)
            self.seconds["search"] += time.perf_counter() - start
        start = time.perf_counter()
        fresh: list[Candidate] = []
        while self._waiting:
            fresh += self._admit()
            if time.perf_counter() > end:
                break
        self.seconds["verify"] += time.perf_counter() - start
        return fresh

    def _admit(self) -> list[Candidate]:
        """Look at the next graph that waits; the candidate that it is, if it is a new one."""
        candidate = admitted(self.verifier, self._waiting[0], recalled=self.unread > 0)
        # only now: an interrupt leaves it waiting
        self._waiting.popleft()
        self.unread = max(self.unread - 1, 0)
        if candidate is None or (key := structure_key(candidate.graph)) in self._seen:
            return []
        self._seen.add(key)
        self.found.append(candidate)
        return [candidate]

    def _search(self, seconds: float) -> None:
        """Let a search go on: the targets while it is their turn, the pieces until there is a first graph, the whole program
        until it has its own operators in one kernel, the other pieces, and then the whole.
        """
        targets, whole, pieces = self.rewriting, self.search, self.pieces
        own = [s for s in (whole, pieces) if s is not None]
        if targets is not None and not targets.done and not targets.waits(*own):
            targets.advance(seconds, *own)
            fresh = targets.found[self._rewritten :]
            self._rewritten += len(fresh)
            self._waiting.extend(Known(graph, found.cost) for found in fresh for graph in found.graphs)
        elif pieces is not None and not pieces.done and (not pieces.begun or whole is None or whole.done or whole.begun):
            joined = pieces.advance(seconds)
            self._waiting.extend(Known(graph, found.cost) for found in joined for graph in found.graphs)
        elif whole is not None:
            whole.advance(seconds)
            self._take(whole)

    def _take(self, search: Search) -> None:
        """What the search has found since it was last asked waits to be looked at."""
        fresh = search.found[self._taken :]
        self._taken += len(fresh)
        self._waiting.extend(Known(graph, found.cost) for found in fresh for graph in found.graphs)

    def measured(self, kernels: Mapping[Node, float]) -> None:
        """Let the search of a large program know what kernels took (us), by their nodes without operands."""
        if self.pieces is not None and not self.stopped:
            self.pieces.measured(kernels)

    def all(self, seconds: float) -> list[Candidate]:
        """Everything that there is, or that is found in so many seconds."""
        end = time.perf_counter() + seconds
        while not self.done and (left := end - time.perf_counter()) > 0:
            self.more(left)
        return self.found

    def preferred(self) -> list[Candidate]:
        """Those that may run: the ones with the fewest exponents that may overflow (`fewest_plain`)."""
        least = fewest_plain(self.found)
        return [c for c in self.found if len(c.maximum.plain) <= least]
