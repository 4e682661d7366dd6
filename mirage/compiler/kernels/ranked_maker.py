"""Kernels for targets whose model ranks versions: muGraphs, loop programs, and the target's libraries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from mirage.compiler.fused_graph import fused_graphs
from mirage.compiler.kernels.fused import anchor_sizes
from mirage.compiler.kernels.maker import KernelMaker
from mirage.compiler.kernels.ranked_mugraph import RankedKernel, ranked_from_text
from mirage.compiler.staged_graph import staged_graphs
from mirage.errors import AxisError, SearchError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.results.ranked import Ranked
from mirage.search.candidates import Candidate
from mirage.search.decision import MAX_VERSIONS
from mirage.search.rank import Ranker
from mirage.search.stats import SearchStats
from mirage.verify.equivalence import Verifier
from mirage.verify.safety import offered

#: seconds after which no more versions of a fused kernel are compiled, beside the first ones
FUSED_SECONDS = 1.0


class RankedKernels(KernelMaker):
    """See `KernelMaker`."""

    def superoptimized(self, result: Ranked) -> RankedKernel:
        return RankedKernel(result.program, self.machine, "superoptimized", result)

    def from_text(self, text: str) -> RankedKernel:
        return ranked_from_text(text)

    def fused(
        self,
        program: Program,
        hints: Sequence[Mapping[str, int]],
        *,
        bounds: Mapping[str, int] | None = None,
        constants: Collection[str] = (),
    ) -> RankedKernel | None:
        """One kernel or two for the whole program, of the forms that `fused_graphs` and `staged_graphs` have; the device's model
        orders forms and schedules at the hints. Sizes that no version serves take library calls.
        """
        try:
            axis_program = to_axes(program)
        except AxisError:
            return None
        verifier = Verifier(program, seed=0)
        candidates = [
            c
            for g in chain(fused_graphs(axis_program), staged_graphs(axis_program))
            if (c := _verified(verifier, g)) is not None
        ]
        if not candidates:
            return None
        anchors = anchor_sizes(program, hints, bounds or {})[:MAX_VERSIONS]
        try:
            ranked = Ranker(program, anchors, self.machine, budget=FUSED_SECONDS, constants=constants).run(candidates)
        except SearchError:
            # what the emitter or the compiler refuses may be computed by loops
            return None
        used = {id(v.candidate.graph) for v in ranked.decision.versions if v.candidate}
        result = Ranked(
            program=program, verifier=verifier, anchors=anchors, machine=self.machine,
            graphs=[c for c in candidates if id(c.graph) in used], decision=ranked.decision,
            stats=SearchStats(stop_reason="no search"), seconds={}, compiled=ranked.compiled, rejected=ranked.rejected,
            constants=tuple(constants),
        )  # fmt: skip
        return RankedKernel(program, self.machine, "fused", result)

    def library(self, program: Program) -> RankedKernel:
        return RankedKernel(program, self.machine, "library")


def _verified(verifier: Verifier, graph: MuGraph) -> Candidate | None:
    """The graph with evidence; None where it does not compute the program, or its exponents may overflow."""
    certificate = verifier.admit(graph)
    if not certificate.equal or not offered(verifier.program, graph):
        return None
    return Candidate(graph, certificate, analyze(graph), 0.0)


maker = RankedKernels
