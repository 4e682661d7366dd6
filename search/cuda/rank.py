"""Choosing among verified graphs for a CUDA device by its cost model, where nothing can be measured yet.

As on a processor (`search/tune.py`, `search/versions.py`), schedules are enumerated and compiled, and a decision tree of least
regret is learnt from a table of times at the given sizes and around them (BladeDISC, section 5.2: schedules are chosen by shape
at run time). Here the times are those of `mirage.kernels.cuda.model.cost`; kernels that the compiler rejects, or whose registers
spill, are left out. More versions are compiled than the tree has leaves: a device, once there is one, measures and decides among
all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from mirage.errors import MirageError, ScheduleError, SearchError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.emit.mugraph import with_descriptors
from mirage.kernels.cuda.library.libraries import CUBLASLT, offered
from mirage.kernels.cuda.model.cost import CudaModel, held_whole
from mirage.kernels.cuda.schedules.layouts import with_layouts, with_packed
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from mirage.kernels.cuda.schedules.scheduler import CudaScheduler
from mirage.kernels.cuda.target import CudaTarget
from mirage.kernels.target import Made, Scheduled
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.search.buckets import Sizes, bytes_needed, is_empty, sample_points
from mirage.search.candidates import Candidate
from mirage.search.cutoffs import Cutoffs
from mirage.search.decide import LEAF_PRICE
from mirage.search.decision import Decision, Point, Version
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.verify.equivalence import Verifier

#: versions that are compiled in all; for each of the given sizes, those with library calls beside, and for each further point
MAX_RIVALS, PER_ANCHOR, PER_LIBRARY, PER_POINT = 20, 6, 2, 2
#: schedules of a graph that are ranked
SCHEDULES = 4
#: of the fastest ones so many get layouts for what is between their kernels, and so many are also tried with constants that are
#: read from packed copies
LAID, PACKED = 24, 2
#: what is modelled at so many times the best is not compiled; graphs that are so far behind at all of the given sizes are not
#: modelled at others
FAR, OUT_OF_REACH = 2.0, 4.0
#: share of the budget after which further points are not modelled
MODEL_SHARE = 0.3
#: schedules that are compiled at a time, and the first time, so that there is a result soon
BATCH, FIRST_BATCH = 8, 2
#: bytes of arguments and results, in float64, at a further point: a device will measure it
POINT_BYTES = 2 << 30


#: which candidate, by identity, with which schedule
Pair = tuple[int, CudaSchedule]


@dataclass
class Ranked:
    """The decision among compiled versions, and what happened on the way."""

    decision: Decision
    compiled: int
    rejected: list[str]
    stop_reason: str


@dataclass(frozen=True)
class _Rival:
    """A graph with a schedule, not compiled yet, and its modelled microseconds at the sizes that it was chosen for."""

    candidate: Candidate
    schedule: CudaSchedule
    sizes: Sizes
    us: float

    @property
    def pair(self) -> Pair:
        return id(self.candidate), self.schedule


class Ranker:
    """Ranks the candidates of a program on a device at the given sizes (`anchors`) and around these, within `budget` seconds.
    `constants` are inputs whose contents never change, which kernels may read from packed copies.

    At least one version is compiled, whatever the budget; the best for each of the given sizes are, in twice the budget.
    """

    def __init__(
        self,
        program: Program,
        anchors: Sequence[Mapping[str, int]],
        target: CudaTarget,
        *,
        budget: float,
        constants: Collection[str] = (),
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.program = program
        self.constants = constants
        self.anchors = [dict(a) for a in anchors]
        self.target = target
        self.model = CudaModel(target.device)
        self.libraries = offered(to_axes(program))
        self.deadline = time.perf_counter() + budget
        self.latest = self.deadline + budget
        self.progress = progress
        self.rejected: list[str] = []
        #: what was left out
        self.cutoffs = Cutoffs()
        self.compiled = 0
        self.versions: list[Version] = []
        #: kernels whose registers spill: which work, by identity, with which schedule
        self.spilled: set[tuple[int, CudaKernelSchedule]] = set()

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
                f"{self.program.name}: no kernel compiles for {self.model.device.target}: {why}; use target='cpu'"
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
        return self.model.us(c.graph, c.schedule, sizes, c.executable.kernels)

    # what to compile

    def _rivals(self, candidates: Sequence[Candidate], points: Sequence[Sizes]) -> list[list[_Rival]]:
        """Per point the rivals there, the fastest first; further points only while there is time for them."""
        found: list[list[_Rival]] = []
        until = self.deadline - (1 - MODEL_SHARE) * (self.deadline - time.perf_counter())
        for i, sizes in enumerate(points):
            if i == len(self.anchors):
                near = {id(r.candidate) for rs in found for r in rs if r.us <= OUT_OF_REACH * rs[0].us}
                self.cutoffs.add("graphs out of reach at further sizes", sum(id(c) not in near for c in candidates))
                candidates = [c for c in candidates if id(c) in near]
            if i < len(self.anchors) or time.perf_counter() < until:
                found.append(self._at(candidates, sizes))
        return found

    def _at(self, candidates: Sequence[Candidate], sizes: Sizes) -> list[_Rival]:
        known: dict[tuple[object, ...], list[CudaKernelSchedule]] = {}
        found: list[_Rival] = []
        for c in candidates:
            try:
                best = CudaScheduler(c.graph, sizes, self.model, known).best(SCHEDULES)
            except MirageError as e:
                self._reject(c, e)
                continue
            found += [_Rival(c, r.schedule, sizes, r.us) for r in best]
            if best and any(n.op == "matmul" for n in c.graph.kernel.nodes):
                others = (name for name in self.libraries if name != CUBLASLT)
                found += [_Rival(c, replace(best[0].schedule, library=x), sizes, best[0].us) for x in others]
        found.sort(key=lambda r: r.us)
        for i, r in enumerate(found[:LAID]):
            laid, us = with_layouts(r.candidate.graph, r.schedule, sizes, self.model)
            found[i] = _Rival(r.candidate, laid, sizes, us) if laid != r.schedule else r
        found.sort(key=lambda r: r.us)
        for r in found[:PACKED] if self.constants else ():
            graph = r.candidate.graph
            packed = with_packed(graph, r.schedule, self.constants, sizes, self.model)
            if packed is not None:
                # other tiles may be best for that layout
                layouts = [s.packed for s in packed[0].kernels]
                best = CudaScheduler(graph, sizes, self.model, known, layouts).best(SCHEDULES)
                found += [_Rival(r.candidate, p.schedule, sizes, p.us) for p in best]
        return sorted(found, key=lambda r: r.us)

    def _wanted(self, rivals: Sequence[Sequence[_Rival]], tried: Mapping[Pair, bool]) -> list[_Rival]:
        """What is to be compiled beside what was: the most promising that is not known to fail, for the given sizes, for all
        sizes, and for further points where it gains.
        """
        found: dict[Pair, _Rival] = {}

        def take(ranked: Iterable[_Rival], count: int) -> None:
            alive = list(islice((r for r in ranked if self._is_alive(r, tried)), count))
            found.update((r.pair, r) for r in alive if r.us <= FAR * alive[0].us)

        generated = [[r for r in ranked if is_generated(r.candidate.graph)] for ranked in rivals]
        given = generated[: len(self.anchors)]
        for count in (1, 2):
            for ranked in given:
                take(ranked, count)
        for ranked in given:
            take((r for r in ranked if not is_limited(r.candidate.graph)), 1)
        for count in (1, PER_POINT):
            for ranked in filter(None, generated[len(self.anchors) :]):
                at = ranked[0].sizes
                known = min((self.model.us(r.candidate.graph, r.schedule, at) for r in found.values()), default=np.inf)
                take((r for r in ranked if r.us * (1 + LEAF_PRICE) < known), count)
            for ranked in given:
                take(ranked, PER_ANCHOR // 2 * count)
        for several in rivals[: len(self.anchors)]:
            library = [r for r in several if not is_generated(r.candidate.graph)]
            for name in self.libraries:
                take((r for r in library if r.schedule.library == name), PER_LIBRARY)
        return [r for pair, r in list(found.items())[:MAX_RIVALS] if pair not in tried]

    def _is_alive(self, r: _Rival, tried: Mapping[Pair, bool]) -> bool:
        """Whether it is not known to fail, nor has a kernel that another graph has, and that spills."""
        kernels = zip(r.candidate.graph.kernels, r.schedule.kernels, strict=True)
        return tried.get(r.pair, True) and not any((id(self.model.work(n)), s) in self.spilled for n, s in kernels)

    def _firsts(self, rivals: Sequence[Sequence[_Rival]], tried: Mapping[Pair, bool]) -> list[_Rival]:
        """The most promising for each of the given sizes, where it was not compiled yet."""
        generated = ((r for r in ranked if is_generated(r.candidate.graph)) for ranked in rivals[: len(self.anchors)])
        firsts = (next((r for r in ranked if self._is_alive(r, tried)), None) for ranked in generated)
        return list({r.pair: r for r in firsts if r is not None and r.pair not in tried}.values())

    def _compile(self, rivals: Sequence[Sequence[_Rival]]) -> bool:
        """Compile what is wanted, a batch at a time; whether there was time for all of it."""
        tried: dict[Pair, bool] = {}
        while wanted := self._wanted(rivals, tried):
            if self.versions and time.perf_counter() > self.deadline:
                # a version for other sizes may be poor at the given ones
                wanted = self._firsts(rivals, tried)
                if not wanted or time.perf_counter() > self.latest:
                    return False
            batch = wanted[: BATCH if tried else FIRST_BATCH]
            for r, (described, built) in zip(batch, self._build(batch), strict=True):
                tried[r.pair] = built is not None
                if built is not None:
                    c = replace(r.candidate, schedule=described.schedule, sizes=r.sizes, make=built.make)
                    self.versions.append(Version("mugraph", candidate=c, limits=built.limits))
            self.progress(f"{self.compiled} kernels compiled")
        return True

    def _described(self, r: _Rival) -> _Rival:
        """With those descriptors that the emitter makes: the model does not look at axes that share a dim."""
        if not any(s.descriptors for s in r.schedule.kernels):
            return r
        try:
            able = with_descriptors(r.candidate.graph, r.schedule, r.candidate.maximum)
        except MirageError:
            # which its compilation says
            return r
        kernels = []
        for s, most in zip(r.schedule.kernels, able.kernels, strict=True):
            kept = tuple(d for d in s.descriptors if d in most.descriptors)
            kernels.append(replace(s, descriptors=kept, specialized=s.specialized and kept == s.descriptors))
        return replace(r, schedule=replace(r.schedule, kernels=tuple(kernels)))

    def _build(self, batch: Sequence[_Rival]) -> list[tuple[_Rival, Made | None]]:
        """Each with the descriptors that it has, emitted and compiled, side by side; None, and why is noted, where that failed or
        registers spill.
        """
        found: list[tuple[_Rival, Made | None]] = []
        described = [self._described(r) for r in batch]
        work = [Scheduled(r.candidate.graph, r.candidate.maximum, r.schedule, r.sizes) for r in described]
        all_built = self.target.made(work, self.constants)
        for given, r, built in zip(batch, described, all_built, strict=True):
            self.compiled += 1
            if isinstance(built, Made) and (spills := sum(k.spill_bytes for k in built.make().kernels)):
                together = zip(r.candidate.graph.kernels, given.schedule.kernels, built.make().kernels, strict=True)
                self.spilled |= {(id(self.model.work(n)), s) for n, s, k in together if k.spill_bytes}
                built = ScheduleError(f"registers spill {spills} bytes; choose smaller tiles or more warps")
            if isinstance(built, Made) and (idle := _unspecialized(r.schedule, built.make().kernels)):
                built = ScheduleError(f"Triton does not specialize the warps of kernel {idle[0]}; leave it out")
            if isinstance(built, MirageError):
                self._reject(r.candidate, built)
            found.append((r, built if isinstance(built, Made) else None))
        return found

    def _reject(self, c: Candidate, why: MirageError) -> None:
        text = f"{c.graph.origin}: {why}"
        if text not in self.rejected:
            self.rejected.append(text)


def _unspecialized(schedule: CudaSchedule, kernels: Sequence[CompiledKernel]) -> list[int]:
    """The kernels whose warps are to be specialized, and have got no others for it."""
    together = zip(schedule.kernels, kernels, strict=True)
    return [k for k, (s, kernel) in enumerate(together) if s.specialized and kernel.num_warps <= s.num_warps]


def library_candidate(verifier: Verifier, known: Sequence[Candidate]) -> Candidate | None:
    """The program itself as a graph of predefined operators, which is not among those that are known."""
    graph = reference_graph(verifier.axis_program)
    if any(c.graph.kernel == graph.kernel for c in known):
        return None
    # the search did not cost it: after those that it did
    cost = max((c.cost for c in known), default=0.0)
    return Candidate(graph, verifier.admit(graph), analyze(graph), cost)


def is_limited(graph: MuGraph) -> bool:
    """Whether a schedule serves sizes up to some only: a block holds an axis whole whose size is not known."""
    held = (a for n in graph.kernels if n.graph for a in held_whole(n.graph))
    # the sizes of partial axes are the schedule's
    return any(a in graph.axes and not graph.axes[a].is_Integer for a in held)


def is_generated(graph: MuGraph) -> bool:
    """Whether all operators are in kernels that we generate."""
    return all(n.graph is not None or n.op in ("input", "constant", "size") for n in graph.kernel.nodes)
