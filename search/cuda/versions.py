"""Versions of a program for a CUDA device: graphs with schedules and compiled kernels, and which of them runs at which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from mirage.errors import CompilerError, DimError, MirageError, ScheduleError
from mirage.ir.dims import evaluate
from mirage.kernels.cuda.arguments import typical
from mirage.kernels.cuda.compile.functions import Request, request
from mirage.kernels.cuda.compile.kernels import CompiledKernel, checked, compile_all
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.emitted import EmittedTriton, TritonKernel
from mirage.kernels.cuda.library.libraries import CUBLASLT
from mirage.kernels.cuda.library.predefined import library_operators
from mirage.kernels.cuda.model.cost import held_whole
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.kernels.decision import Tree, decide, leaves, relabel
from mirage.kernels.library import NUMPY
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.thread import with_threads
from mirage.search.candidates import Candidate
from mirage.search.decide import learn
from mirage.search.versions import Point
from mirage.verify.equivalence import Verifier


@dataclass(frozen=True)
class Built:
    """The Triton source of a graph under a schedule, and its kernels as compiled for a device."""

    emitted: EmittedTriton
    kernels: tuple[CompiledKernel, ...]


@dataclass(frozen=True)
class CudaVersion:
    """A verified graph with a schedule that was chosen for `sizes` (dim symbol -> elements), and its compiled kernels."""

    candidate: Candidate
    schedule: CudaSchedule
    sizes: Mapping[str, int] = field(hash=False)
    built: Built = field(compare=False, repr=False)

    @property
    def graph(self) -> MuGraph:
        """The muGraph down to its thread graphs."""
        return with_threads(self.candidate.graph, self.candidate.maximum)

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether the kernels compute the program at these sizes: axes that a block sees whole fit their tiles."""
        return all(evaluate(x.value, sizes) <= x.most for x in self.built.emitted.limits)

    def __str__(self) -> str:
        count = len(self.candidate.graph.kernels)
        tuned = ", ".join(f"{s}={n}" for s, n in self.sizes.items())
        origin = self.candidate.graph.origin + f", {self.schedule.library}" * (self.schedule.library != CUBLASLT)
        kernels = f"{count} kernel{'s' * (count != 1)}" if count else "library calls"
        return f"{kernels} ({origin})" + f", for {tuned}" * bool(tuned)


@dataclass(frozen=True)
class CudaDecision:
    """Versions, those of the leaves of `tree` first, and the table that it was learnt from: microseconds of every version at
    every point, infinite where it does not serve the sizes.

    `measured_on` is the name of the device that the times are of; empty where they are the model's.
    """

    versions: tuple[CudaVersion, ...]
    tree: Tree
    points: tuple[Point, ...]
    measured_on: str = ""

    @staticmethod
    def learnt(
        versions: Sequence[CudaVersion], points: Sequence[Point], wanted: int, measured_on: str = ""
    ) -> CudaDecision:
        """The decision of least regret; at the first `wanted` points the fastest version runs."""
        table = [p for p in points if min(p.times) < np.inf]
        symbols = list(points[0].sizes)
        tree = learn(symbols, [p.sizes for p in table], [p.times for p in table], wanted=wanted)
        used = list(dict.fromkeys([decide(tree, points[0].sizes), *(v for _, v in leaves(tree))]))
        order = [*used, *(k for k in range(len(versions)) if k not in used)]
        renumbered = tuple(Point(p.sizes, tuple(p.times[k] for k in order)) for p in points)
        tree = relabel(tree, {k: i for i, k in enumerate(order)})
        return CudaDecision(tuple(versions[k] for k in order), tree, renumbered, measured_on)

    @property
    def used(self) -> int:
        """How many versions leaves run: the first ones."""
        return 1 + max(v for _, v in leaves(self.tree))

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number of the version that runs at these sizes: the tree's, or the first one that serves them.

        Raises DimError where none does.
        """
        order: tuple[int, ...] = (decide(self.tree, sizes), *range(len(self.versions)))
        for k in order:
            if self.versions[k].serves(sizes):
                return k
        at = ", ".join(f"{s}={n}" for s, n in sizes.items())
        raise DimError(f"no compiled version serves {at}; superoptimize with these sizes among `sizes`")


def build_all(
    work: Sequence[tuple[Candidate, CudaSchedule, Mapping[str, int]]], device: CudaDevice
) -> list[Built | MirageError]:
    """The kernels of candidates with these schedules for aligned arrays of these sizes, or why there are none: the emitter, the
    compiler or the device refuses them. What was not compiled before is compiled side by side.

    Raises NoCompilerError without Triton, UnsafeCacheError if another user could have written the cache.
    """
    emitted: list[EmittedTriton | MirageError] = []
    requests: list[Request] = []
    for c, schedule, sizes in work:
        try:
            schedule.check(c.graph)
            one = emit(c.graph, schedule, c.maximum)
            _prepare(c, one, sizes, device)
            requests += [request(one, k, device, d) for k, d in zip(one.kernels, typical(one, sizes), strict=True)]
            emitted.append(one)
        except MirageError as e:
            emitted.append(e)
    done = iter(compile_all(requests))
    return [
        e if isinstance(e, MirageError) else _built(e, list(islice(done, len(e.kernels))), device) for e in emitted
    ]


def _prepare(c: Candidate, emitted: EmittedTriton, sizes: Mapping[str, int], device: CudaDevice) -> None:
    """Have the library of predefined operators compile what it needs; raises CompilerError."""
    for run in emitted.runs:
        if not isinstance(run, TritonKernel) and emitted.library != CUBLASLT:
            library_operators(c.graph, emitted, run, c.maximum, device, NUMPY).prepare(sizes)


def _built(
    emitted: EmittedTriton, kernels: Sequence[CompiledKernel | CompilerError], device: CudaDevice
) -> Built | MirageError:
    try:
        return Built(emitted, checked(kernels, device))
    except (CompilerError, ScheduleError) as e:
        return e


def library_candidate(verifier: Verifier, known: Sequence[Candidate]) -> Candidate | None:
    """The program itself as a graph of predefined operators, which is not among those that are known."""
    graph = reference_graph(verifier.axis_program)
    if any(c.graph.kernel == graph.kernel for c in known):
        return None
    # the search did not cost it: after those that it did
    cost = max((c.cost for c in known), default=0.0)
    return Candidate(graph, verifier.check(graph), analyze(graph), cost)


def is_limited(graph: MuGraph) -> bool:
    """Whether a schedule serves sizes up to some only: a block holds an axis whole whose size is not known."""
    held = (a for n in graph.kernels if n.graph for a in held_whole(n.graph))
    # the sizes of partial axes are the schedule's
    return any(a in graph.axes and not graph.axes[a].is_Integer for a in held)


def is_generated(graph: MuGraph) -> bool:
    """Whether all operators are in kernels that we generate."""
    return all(n.graph is not None or n.op in ("input", "constant", "size") for n in graph.kernel.nodes)
