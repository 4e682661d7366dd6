"""Choosing among verified graphs for a target by its cost model, where nothing can be measured yet.

As on the processor (`search/tune.py`, `search/versions.py`), schedules are enumerated and compiled, and a decision tree of least
regret is learnt from a table of times at the given sizes and around them (BladeDISC, section 5.2: schedules are chosen by shape
at run time). Here the times are those of the target's model (`Tuning`); what it cannot compile is left out. More versions are
compiled than the tree has leaves: a device, once there is one, measures and decides among all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from mirage.errors import MirageError, SearchError, VerificationError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.library import LibraryProgram
from mirage.kernels.target import Made, Scheduled, Target
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.whole import whole_program
from mirage.search.accuracy import Trials
from mirage.search.buckets import Sizes, bytes_needed, is_empty, sample_points
from mirage.search.candidates import Candidate
from mirage.search.cutoffs import Cutoffs
from mirage.search.decide import LEAF_PRICE
from mirage.search.decision import Decision, Point, Version
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.verify.equivalence import Verifier

#: versions that are compiled in all; for each of the given sizes, those with library calls beside, and for each further point
MAX_RIVALS, PER_ANCHOR, PER_LIBRARY, PER_POINT = 20, 6, 2, 2
#: what is modelled at so many times the best is not compiled; graphs that are so far behind at all of the given sizes are not
#: modelled at others
FAR, OUT_OF_REACH = 2.0, 4.0
#: share of the budget after which further points are not modelled
MODEL_SHARE = 0.3
#: share of the time left that the trials of graphs may take, each of them
TRIAL_SHARE = 0.1
#: schedules that are compiled at a time, and the first time, so that there is a result soon
BATCH, FIRST_BATCH = 8, 2
#: bytes of arguments and results, in float64, at a further point: a device will measure it
POINT_BYTES = 2 << 30


#: which graph, by identity, with which schedule
Pair = tuple[int, Any]


@dataclass
class Ranked:
    """The decision among compiled versions, and what happened on the way."""

    decision: Decision
    compiled: int
    rejected: list[str]
    stop_reason: str


class Ranker:
    """Ranks the candidates of a program on a device at the given sizes (`anchors`) and around these, within `budget` seconds.
    `constants` are inputs whose contents never change, which kernels may read from packed copies.

    At least one version is compiled, whatever the budget; the best for each of the given sizes are, in twice the budget.
    """

    def __init__(
        self,
        program: Program,
        anchors: Sequence[Mapping[str, int]],
        target: Target,
        *,
        budget: float,
        constants: Collection[str] = (),
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.program = program
        self.anchors = [dict(a) for a in anchors]
        self.target = target
        self.tuning = target.tuning(to_axes(program), constants)
        self.deadline = time.perf_counter() + budget
        self.latest = self.deadline + budget
        self.progress = progress
        self.rejected: list[str] = []
        #: what was left out
        self.cutoffs = Cutoffs()
        self.compiled = 0
        self.versions: list[Version] = []
        _, flops = program_cost(to_axes(program), self.anchors[0])
        self.trials = Trials.small(program, self.anchors[0], flops, seed=0)
        #: whether graphs, by their identity, are accurate
        self._accurate: dict[int, bool] = {}
        #: candidates by the identity of their graphs
        self._of: dict[int, Candidate] = {}

    def run(self, candidates: Sequence[Candidate]) -> Ranked:
        """The decision for all sizes. An interrupt ends compilation; what was compiled by then is ranked.

        Raises SearchError where no graph that serves the first of the given sizes compiles for the device.
        """
        ended = ""
        points = [*self.anchors, *sample_points(self.anchors, self._allowed)]
        rivals = self._rivals(candidates, points)
        try:
            if not self._compile(rivals):
                ended = OUT_OF_TIME
        except KeyboardInterrupt:
            if not self.versions:
                raise
            ended = INTERRUPTED
        modelled = {r.pair for ranked in rivals for r in ranked}
        self.cutoffs.add("modelled schedules not compiled", max(len(modelled) - self.compiled, 0))
        self.cutoffs.add("further sizes not modelled", len(points) - len(rivals))
        reason = ended if ended == INTERRUPTED else self.cutoffs.reason(ended)
        table = [Point(p, tuple(self._us(v, p) for v in self.versions)) for p in points]
        if min(table[0].times, default=math.inf) == math.inf:
            why = "; ".join(self.rejected[:3]) or "it has no graph of generated kernels"
            raise SearchError(
                f"{self.program.name}: no kernel compiles for {self.target.name}: {why}; use target='cpu'"
            )
        decision = Decision.learnt(self.versions, table, len(self.anchors))
        return Ranked(decision, self.compiled, self.rejected, reason)

    def _allowed(self, sizes: Sizes) -> bool:
        return not is_empty(self.program, sizes) and bytes_needed(self.program, sizes) <= POINT_BYTES

    def _us(self, version: Version, sizes: Mapping[str, int]) -> float:
        """Microseconds as modelled; infinite for one with library calls, which only a device can compare with kernels."""
        c = version.candidate
        if c is None or not is_generated(c.graph):
            return math.inf
        return self.tuning.us(c.graph, c.schedule, sizes, c.executable)

    # what to compile

    def _rivals(self, candidates: Sequence[Candidate], points: Sequence[Sizes]) -> list[list[Scheduled]]:
        """Per point the rivals there, the fastest first; further points only while there is time for them."""
        found: list[list[Scheduled]] = []
        until = self.deadline - (1 - MODEL_SHARE) * (self.deadline - time.perf_counter())
        for i, sizes in enumerate(points):
            if i == len(self.anchors):
                near = {id(r.graph) for rs in found for r in rs if r.us <= OUT_OF_REACH * rs[0].us}
                self.cutoffs.add("graphs out of reach at further sizes", sum(id(c.graph) not in near for c in candidates))
                candidates = [c for c in candidates if id(c.graph) in near]
            if i < len(self.anchors) or time.perf_counter() < until:
                found.append(self._at(candidates, sizes))
        return found

    def _at(self, candidates: Sequence[Candidate], sizes: Sizes) -> list[Scheduled]:
        """The schedules of candidates at these sizes, the fastest first as modelled."""
        found, refused = self.tuning.at([(c.graph, c.maximum) for c in candidates], sizes)
        for graph, why in refused:
            self._reject(graph, why)
        self._of |= {id(c.graph): c for c in candidates}
        return found

    def _wanted(self, rivals: Sequence[Sequence[Scheduled]], tried: Mapping[Pair, bool]) -> list[Scheduled]:
        """What is to be compiled beside what was: the most promising that is not known to fail, for the given sizes, for all
        sizes, and for further points where it gains.
        """
        found: dict[Pair, Scheduled] = {}

        def take(ranked: Iterable[Scheduled], count: int) -> None:
            alive = list(islice((r for r in ranked if self._is_alive(r, tried)), count))
            found.update((r.pair, r) for r in alive if r.us <= FAR * alive[0].us)

        generated = [[r for r in ranked if is_generated(r.graph)] for ranked in rivals]
        given = generated[: len(self.anchors)]
        for count in (1, 2):
            for ranked in given:
                take(ranked, count)
        for ranked in given:
            take((r for r in ranked if not self.tuning.is_limited(r.graph)), 1)
        for count in (1, PER_POINT):
            for ranked in filter(None, generated[len(self.anchors) :]):
                at = ranked[0].sizes
                known = min((self.tuning.us(r.graph, r.schedule, at) for r in found.values()), default=np.inf)
                take((r for r in ranked if r.us * (1 + LEAF_PRICE) < known), count)
            for ranked in given:
                take(ranked, PER_ANCHOR // 2 * count)
        for several in rivals[: len(self.anchors)]:
            library = [r for r in several if not is_generated(r.graph)]
            for name in self.tuning.libraries:
                take((r for r in library if r.library == name), PER_LIBRARY)
        return [r for pair, r in list(found.items())[:MAX_RIVALS] if pair not in tried]

    def _is_alive(self, r: Scheduled, tried: Mapping[Pair, bool]) -> bool:
        """Whether it is not known to fail."""
        return tried.get(r.pair, True) and not self.tuning.is_hopeless(r)

    def _firsts(self, rivals: Sequence[Sequence[Scheduled]], tried: Mapping[Pair, bool]) -> list[Scheduled]:
        """The most promising for each of the given sizes, where it was not compiled yet."""
        generated = ((r for r in ranked if is_generated(r.graph)) for ranked in rivals[: len(self.anchors)])
        firsts = (next((r for r in ranked if self._is_alive(r, tried)), None) for ranked in generated)
        return list({r.pair: r for r in firsts if r is not None and r.pair not in tried}.values())

    def _compile(self, rivals: Sequence[Sequence[Scheduled]]) -> bool:
        """Compile what is wanted, a batch at a time; whether there was time for all of it."""
        tried: dict[Pair, bool] = {}
        while wanted := self._wanted(rivals, tried):
            if self.versions and time.perf_counter() > self.deadline:
                # a version for other sizes may be poor at the given ones
                wanted = self._firsts(rivals, tried)
                if not wanted or time.perf_counter() > self.latest:
                    return False
            batch = wanted[: BATCH if tried else FIRST_BATCH]
            tried |= {r.pair: False for r in batch}
            batch = [r for r in batch if self._is_accurate(r.graph)]
            tried |= dict(zip((r.pair for r in batch), self._make(batch), strict=True))
            self.progress(f"{self.compiled} kernels compiled")
        return True

    def _make(self, batch: Sequence[Scheduled]) -> Iterator[bool]:
        """Compile a batch, side by side; whether each of it is a version now. Why one is not is noted."""
        for w, made in self.tuning.made(batch):
            self.compiled += 1
            if isinstance(made, Made):
                c = replace(self._of[id(w.graph)], schedule=w.schedule, sizes=w.sizes, make=made.make)
                self.versions.append(Version("mugraph", candidate=c, limits=made.limits))
            else:
                self._reject(w.graph, made)
            yield isinstance(made, Made)

    def _is_accurate(self, graph: MuGraph) -> bool:
        """Whether a graph, computed operator by operator with NumPy in the program's dtype, is about as near to float64 as the
        program, in the trials at small sizes that there is time for: no kernel runs here that could be tried itself.
        """
        while self.trials.needed <= TRIAL_SHARE * (self.latest - time.perf_counter()):
            self.trials.next()
        found = self._accurate.get(id(graph))
        if found is None:
            run = LibraryProgram(whole_program(graph))
            wrong = [t.name for t in self.trials.made if not t.measure(run)[1]]
            found = self._accurate[id(graph)] = not wrong
            if wrong:
                self._reject(graph, VerificationError(f"its results differ from the program's at {wrong[0]}"))
        return found

    def _reject(self, graph: MuGraph, why: MirageError) -> None:
        text = f"{graph.origin}: {why}"
        if text not in self.rejected:
            self.rejected.append(text)


def library_candidate(verifier: Verifier, known: Sequence[Candidate]) -> Candidate | None:
    """The program itself as a graph of predefined operators, which is not among those that are known."""
    graph = reference_graph(verifier.axis_program)
    if any(c.graph.kernel == graph.kernel for c in known):
        return None
    # the search did not cost it: after those that it did
    cost = max((c.cost for c in known), default=0.0)
    return Candidate(graph, verifier.admit(graph), analyze(graph), cost)


def is_generated(graph: MuGraph) -> bool:
    """Whether all operators are in kernels that we generate."""
    return all(n.graph is not None or n.op in ("input", "constant", "size") for n in graph.kernel.nodes)
