"""CUTLASS kernels among the versions of a program on a CUDA device: which graphs they serve, with which configurations.

They compute predefined products with what follows them. On a device they are measured like any other version; without one they
are modelled, where they leave nothing to other libraries, which the model cannot compare with kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage.errors import MirageError, NoCompilerError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cuda.compile.kernels import CompiledKernel, checked
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.emitted import EmittedTriton
from mirage.kernels.cuda.gemm.compile import check_installed, compile_gemms
from mirage.kernels.cuda.gemm.gemm import FACTORS, Gemm, configs
from mirage.kernels.cuda.gemm.model import PredefinedGemms
from mirage.kernels.cuda.model.cost import CudaModel
from mirage.kernels.cuda.schedules.schedule import CudaSchedule
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.search.candidates import Candidate
from mirage.verify.equivalence import Verifier

#: configurations that are compiled of a graph for one set of sizes
CONFIGS = 2
#: the compiled CUTLASS kernels of a version
Gemms = Mapping[Gemm, CompiledKernel]


def why_none(program: Program) -> str:
    """Why CUTLASS kernels compute no product of a program on this machine; empty where they may."""
    if not any(n.op == "matmul" for n in to_axes(program).nodes):
        return "no product of matrices"
    if program.input_types[0].dtype not in FACTORS:
        return f"factors of {program.input_types[0].dtype}"
    try:
        check_installed()
    except NoCompilerError as e:
        return str(e)
    return ""


def library_candidate(verifier: Verifier, known: Sequence[Candidate]) -> Candidate | None:
    """The program itself as a graph of predefined operators, which is not among those that are known."""
    graph = reference_graph(verifier.axis_program)
    if any(c.graph.kernel == graph.kernel for c in known):
        return None
    # the search did not cost it: after those that it did
    cost = max((c.cost for c in known), default=0.0)
    return Candidate(graph, verifier.check(graph), analyze(graph), cost)


class GemmModel:
    """The modelled times of graphs with CUTLASS kernels for their predefined operators."""

    def __init__(self, model: CudaModel) -> None:
        self.model = model

    def choices(
        self, c: Candidate, schedule: CudaSchedule, sizes: Mapping[str, int]
    ) -> list[tuple[CudaSchedule, float]]:
        """The schedule with the best configurations for these sizes, and microseconds of a call; none where kernels compute
        nothing of the graph there.
        """
        if not any(n.op == "matmul" for n in c.graph.kernel.nodes):
            return []
        others = self._others(c, schedule, sizes)
        emitted, found = emit(c.graph, schedule, c.maximum), []
        for config in configs(self.model.device):
            predefined = PredefinedGemms(c.graph, replace(emitted, gemm=config), c.maximum, self.model.device)
            if predefined.steps and (us := others + predefined.us(sizes)) < math.inf:
                found.append((replace(schedule, gemm=config), us))
        return sorted(found, key=lambda f: f[1])[:CONFIGS]

    def us(
        self,
        c: Candidate,
        schedule: CudaSchedule,
        emitted: EmittedTriton,
        kernels: Sequence[CompiledKernel],
        gemms: Gemms,
        sizes: Mapping[str, int],
    ) -> float:
        """Microseconds of a call with compiled kernels; infinite where other libraries take part."""
        predefined = PredefinedGemms(c.graph, emitted, c.maximum, self.model.device)
        if not predefined.is_complete:
            return math.inf
        return self._others(c, schedule, sizes, kernels) + predefined.us(sizes, gemms)

    def _others(
        self, c: Candidate, schedule: CudaSchedule, sizes: Mapping[str, int], kernels: Sequence[CompiledKernel] = ()
    ) -> float:
        """Microseconds of generated kernels."""
        library = self.model.library_us(c.graph, schedule, sizes)
        return self.model.us(c.graph, schedule, sizes, kernels) - library


def build_gemms(
    work: Sequence[tuple[Candidate, EmittedTriton | None]], device: CudaDevice
) -> list[Gemms | MirageError]:
    """The CUTLASS kernels of emitted graphs, or why there are none; what was not compiled before is compiled side by side.

    Without their compiler there are those of the cache. Raises UnsafeCacheError if another user could have written that.
    """
    wanted = [
        PredefinedGemms(c.graph, e, c.maximum, device).gemms if e is not None and e.gemm is not None else ()
        for c, e in work
    ]
    every = list(dict.fromkeys(g for gemms in wanted for g in gemms))
    try:
        known = dict(zip(every, compile_gemms(every, device), strict=True))
    except NoCompilerError:
        known = None
    found: list[Gemms | MirageError] = []
    for gemms in wanted:
        try:
            results = compile_gemms(gemms, device) if known is None else [known[g] for g in gemms]
            found.append(dict(zip(gemms, checked(results, device), strict=True)))
        except MirageError as e:
            found.append(e)
    return found
