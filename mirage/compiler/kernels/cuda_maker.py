"""Kernels for CUDA devices: muGraphs and loop programs as Triton code, compiled ahead of time; cuBLASLt and CuPy as libraries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from mirage.compiler.fused_graph import fused_graphs
from mirage.compiler.kernels.cuda_mugraph import CudaMuGraphKernel, cuda_mugraph_from_text
from mirage.compiler.kernels.fused import anchor_sizes
from mirage.compiler.staged_graph import staged_graphs
from mirage.errors import AxisError, SearchError
from mirage.ir.axes import to_axes
from mirage.ir.loops.program import LoopProgram
from mirage.ir.program import Program
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from mirage.kernels.cuda.target import CudaTarget
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.runtime.executable import Kernel
from mirage.search.candidates import Candidate
from mirage.search.decision import MAX_VERSIONS
from mirage.search.rank import Ranker
from mirage.search.stats import SearchStats
from mirage.verify.equivalence import Verifier
from mirage.verify.safety import offered

#: seconds after which no more versions of a fused kernel are compiled, beside the first ones
FUSED_SECONDS = 1.0


class CudaKernels:
    """See `KernelMaker`. A device need not be at hand: its figures are those of a table then."""

    def __init__(self, machine: CudaTarget) -> None:
        self.machine = machine
        self.device = machine.device
        self.target = machine.name

    def superoptimized(self, result: CudaSuperoptimized) -> CudaMuGraphKernel:
        return CudaMuGraphKernel(result.program, self.device, "superoptimized", result)

    def from_text(self, text: str) -> CudaMuGraphKernel:
        return cuda_mugraph_from_text(text)

    def fused(
        self,
        program: Program,
        hints: Sequence[Mapping[str, int]],
        *,
        bounds: Mapping[str, int] | None = None,
        constants: Collection[str] = (),
    ) -> CudaMuGraphKernel | None:
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
        result = CudaSuperoptimized(
            program=program, verifier=verifier, anchors=anchors, machine=self.machine,
            graphs=[c for c in candidates if id(c.graph) in used], decision=ranked.decision,
            stats=SearchStats(stop_reason="no search"), seconds={}, compiled=ranked.compiled, rejected=ranked.rejected,
            constants=tuple(constants),
        )  # fmt: skip
        return CudaMuGraphKernel(program, self.device, "fused", result)

    def library(self, program: Program) -> CudaMuGraphKernel:
        return CudaMuGraphKernel(program, self.device, "library")

    def loops(self, program: LoopProgram, hints: Sequence[Mapping[str, int]]) -> CudaLoopKernel:
        return CudaLoopKernel(program, self.device, hints[0] if hints else {})

    def finish(self, kernels: Collection[Kernel]) -> None:
        for k in kernels:
            if isinstance(k, CudaLoopKernel):
                # the first one has all of them compiled
                _ = k.kernels


def _verified(verifier: Verifier, graph: MuGraph) -> Candidate | None:
    """The graph with evidence; None where it does not compute the program, or its exponents may overflow."""
    certificate = verifier.admit(graph)
    if not certificate.equal or not offered(verifier.program, graph):
        return None
    return Candidate(graph, certificate, analyze(graph), 0.0)
