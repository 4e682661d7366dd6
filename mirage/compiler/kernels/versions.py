"""The versions of a kernel: verified and compiled muGraphs with their schedules, or library calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from mirage.errors import VerificationError
from mirage.ir.program import Program
from mirage.kernels.cpu.compile.together import waiting
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.decision import Sizes
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.search.decision import Kind
from mirage.settings import num_threads
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier
from mirage.verify.safety import offered


@dataclass(frozen=True)
class KernelVersion:
    """One way to run a program: "mugraph", for which a graph and its schedule are given, "library" (NumPy and BLAS calls) or
    "reference" (operator by operator).

    `sizes` (dim symbol -> elements) are those that the schedule was chosen for. A version that can be called has a
    certificate and an executable, where it has a graph.
    """

    kind: Kind
    graph: MuGraph | None = None
    schedule: Schedule | None = None
    sizes: Sizes = field(default_factory=dict, hash=False)
    certificate: Certificate | None = field(default=None, repr=False)
    executable: CpuExecutable | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.graph is None:
            return f"{self.kind} (NumPy)"
        count = len(self.graph.kernels)
        return f"{count} kernel{'s' * (count != 1)} ({self.graph.origin})" if count else "library calls"


def compile_versions(
    program: Program, versions: Sequence[KernelVersion], constants: Collection[str] = (), seed: int = 0
) -> tuple[KernelVersion, ...]:
    """The versions with their certificates and executables: every graph is verified twice before it is compiled.

    Raises VerificationError where a graph does not compute the program, or its exponents may overflow where the program's
    cannot; GraphError where it is malformed; ScheduleError, NoCompilerError or CompilerError where it cannot be compiled.
    """
    verifier = Verifier(program, seed)
    certificates: dict[int, Certificate] = {}
    for v in versions:
        if v.graph is not None and id(v.graph) not in certificates:
            certificates[id(v.graph)] = _certificate(verifier, v.graph)

    def compiled(v: KernelVersion) -> KernelVersion:
        if v.graph is None or v.schedule is None:
            return v
        executable = CpuExecutable(v.graph, v.schedule, analyze(v.graph), v.sizes, constants)
        return replace(v, certificate=certificates[id(v.graph)], executable=executable)

    with waiting(), ThreadPoolExecutor(num_threads()) as pool:
        return tuple(pool.map(compiled, versions))


def _certificate(verifier: Verifier, graph: MuGraph) -> Certificate:
    certificate = verifier.confirm(graph, verifier.admit(graph))
    if not certificate.equal or not offered(verifier.program, graph):
        why = certificate.reason or "its exponents may overflow"
        raise VerificationError(
            f"kernel {verifier.program.name}: the muGraph {graph.origin!r} is not the program: {why}; compile the program again"
        )
    return certificate
