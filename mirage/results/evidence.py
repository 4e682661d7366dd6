"""Evidence that two things compute the same: programs, muGraphs, candidates of an upstream file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mirage.errors import FormatError, GraphError, MirageError, VerificationError
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.program import Program
from mirage.ir.refine import with_factors
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.validate import validate
from mirage.mugraph.whole import whole_program
from mirage.verify.at_sizes import verify_at
from mirage.verify.certificate import Certificate
from mirage.verify.counterexample import counterexample
from mirage.verify.equivalence import Verifier, verify_programs
from mirage.verify.proof import compare_graph, compare_programs
from mirage.verify.rules.rewritten import prove_programs_by_rules

if TYPE_CHECKING:
    from mirage.frontends.upstream import UpstreamFile


def compare(a: Program | MuGraph, b: Program | MuGraph, seed: int) -> Certificate:
    """The evidence that two programs, a program and a muGraph, or two muGraphs compute the same.

    Raises what `mirage.api.verify` raises.
    """
    if isinstance(a, Program) and isinstance(b, Program):
        certificate = verify_programs(a, b, seed=seed).with_proof(*compare_programs(a, b))
        certificate = _decided(certificate, a, b, seed)
        found = prove_programs_by_rules(a, b) if certificate.verdict == "unknown" else None
        return certificate if found is None else replace(certificate.with_proof("proved"), chain=tuple(map(str, found.links)))
    if isinstance(a, MuGraph) and isinstance(b, MuGraph):
        return compare_graphs(a, b, seed)
    program, graph = (a, b) if isinstance(b, MuGraph) else (b, a)
    assert isinstance(program, Program) and isinstance(graph, MuGraph)
    validate(graph)
    return certify(Verifier(seen_as(program, graph), seed), graph)


def certify(verifier: Verifier, graph: MuGraph) -> Certificate:
    """The certificate of a muGraph after both checks, a proof if there is one, a counterexample where both fail, and a proof by
    rules where there is none.
    """
    certificate = verifier.confirm(graph, verifier.check(graph))
    certificate = certificate.with_proof(*compare_graph(verifier.axis_program, graph))
    certificate = _decided(certificate, verifier.source, graph, verifier.seed)
    if certificate.verdict == "unknown" and (by_rules := verifier.admit(graph, by_rules=True)).chain:
        return verifier.confirm(graph, by_rules)
    return certificate


def _decided(certificate: Certificate, a: Program | AxisProgram, b: Program | MuGraph, seed: int) -> Certificate:
    """The certificate, with a counterexample in floats where it is neither proved nor tested equal, and one is found."""
    if certificate.verdict != "unknown":
        return certificate
    return certificate.with_counterexample(counterexample(a, b, seed))


def compare_graphs(a: MuGraph, b: MuGraph, seed: int) -> Certificate:
    """The evidence that `b` computes the program that `a` is (`mirage.mugraph.whole`)."""
    program = whole_program(a)
    verifier = Verifier(program, seed)
    own = certify(verifier, a)
    if not own.equal:
        raise VerificationError(
            f"muGraph {a.name}: its result depends on its tiles ({own.reason}); please report this graph"
        )
    certificate = certify(verifier, b)
    if certificate.proof == "proved" and own.proof != "proved":
        return certificate.with_proof("not proved")
    return certificate


def seen_as(program: Program, graph: MuGraph) -> Program:
    """The program with the inputs' dims as products of the axes that the graph's inputs have, where it has others."""
    if _axes(to_axes(program)) == _axes(graph) or len(graph.inputs) != len(program.inputs):
        return program
    try:
        return with_factors(program, [[[graph.axes[a] for a in d] for d in x.dims] for x in graph.inputs])
    except MirageError:
        # the verifier says how the inputs differ
        return program


def _axes(x: AxisProgram | MuGraph) -> tuple[Any, ...]:
    return dict(x.axes), x.inputs


@dataclass(frozen=True)
class Verdict:
    """What was found of one candidate of a file: a certificate, or the error for which it has none.

    `kernels` is the number of kernels, 0 where the candidate could not be read. Where no muGraph of the program expresses it,
    but it was `executed` as it is written, the certificate is of that, and `error` says why there is no graph.
    """

    index: int
    kernels: int
    certificate: Certificate | None
    error: FormatError | GraphError | None = None

    @property
    def executed(self) -> bool:
        return self.certificate is not None and self.error is not None

    @property
    def equal(self) -> bool:
        return self.certificate is not None and self.certificate.equal

    @property
    def verdict(self) -> str:
        """That of the certificate, "equal at these sizes" where it was executed; "malformed", or "no graph" where no muGraph of
        the program expresses it, nor can it be executed.
        """
        if self.certificate is None:
            return "no graph" if isinstance(self.error, GraphError) else "malformed"
        if self.executed and self.certificate.verdict == "tested equal":
            return "equal at these sizes"
        return self.certificate.verdict

    @property
    def explanation(self) -> str:
        """Why it is not equal, or the error; "" where the candidate is equal."""
        return str(self.error) if self.certificate is None else self.certificate.reason

    def to_json(self) -> dict[str, Any]:
        certificate = None if self.certificate is None else self.certificate.to_json()
        return {
            "candidate": self.index,
            "kernels": self.kernels,
            "verdict": self.verdict,
            "equal": self.equal,
            "explanation": self.explanation,
            "certificate": certificate,
        }


def verdicts(program: Program, file: UpstreamFile, seed: int) -> Iterator[Verdict]:
    """A verdict per candidate of a file, in order; raises FormatError where the file as a whole is none of candidates."""
    verifiers: dict[Program, Verifier] = {}
    for index in file.indices:
        try:
            found = file.load(index, program)
        except GraphError as e:
            yield _executed(program, file, index, e, seed)
            continue
        except FormatError as e:
            yield Verdict(index, 0, None, e)
            continue
        if found.program not in verifiers:
            verifiers[found.program] = Verifier(found.program, seed)
        certificate = certify(verifiers[found.program], found.graph)
        conditions = [c for c in (certificate.condition, found.condition) if c]
        certificate = replace(
            certificate, condition=" and ".join(conditions) or None, notes=(*certificate.notes, *found.cuts)
        )
        yield Verdict(index, len(found.graph.kernel.compute_nodes()), certificate)


def _executed(program: Program, file: UpstreamFile, index: int, error: GraphError, seed: int) -> Verdict:
    """The verdict on a candidate that no graph expresses, from what it computes at its own sizes as it is written."""
    try:
        execution = file.execution(index, program)
        certificate = verify_at(program, execution, execution.sizes, "candidate", seed)
    except FormatError as e:
        return Verdict(index, 0, None, e)
    except GraphError:
        return Verdict(index, 0, None, error)
    certificate = replace(certificate, notes=(*certificate.notes, f"executed as it is written: {error}"))
    return Verdict(index, execution.kernels, certificate, error)
