"""Kernels of muGraphs as text: JSON of the program, its graphs, their schedules and the decision among them.

No code and no evidence is stored: what is read is verified and compiled again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from mirage.compiler.kernels.versions import KernelVersion
from mirage.errors import FormatError
from mirage.ir.codec import KERNEL, Json, encode, one_of
from mirage.ir.program import Program
from mirage.kernels.decision import Tree
from mirage.kernels.target import get_target
from mirage.results.records import DecisionRecord, VersionRecord
from mirage.search.candidates import Known

Origin: TypeAlias = Annotated[str, one_of("superoptimized", "fused", "library")]


@dataclass(frozen=True)
class KernelParts:
    """What a kernel of muGraphs is made of. What was read has neither been verified nor compiled."""

    program: Program
    versions: tuple[KernelVersion, ...]
    tree: Tree
    origin: Origin
    constants: tuple[str, ...]

    def to_text(self) -> str:
        """JSON on one line, of which `parts_from_text` makes the parts again."""
        graphs = {id(v.graph): v.graph for v in self.versions if v.graph is not None}
        places = {key: k for k, key in enumerate(graphs)}
        versions = tuple(
            VersionRecord(v.kind, None, places[id(v.graph)] if v.graph else None, Json(encode(v.schedule)), v.sizes)
            for v in self.versions
        )
        known = tuple(Known(g, 0.0) for g in graphs.values())
        decision = DecisionRecord(versions, self.tree, ())
        return KERNEL.to_text(_Stored(self.origin, self.program, known, decision, self.constants))


@dataclass(frozen=True)
class _Stored:
    origin: Origin
    program: Program
    graphs: tuple[Known, ...]
    decision: DecisionRecord
    constants: tuple[str, ...]


def parts_from_text(text: str) -> KernelParts:
    """The parts that `KernelParts.to_text` wrote; raises FormatError for any other text."""
    found = KERNEL.from_text(_Stored, text)
    if not set(found.constants) <= set(found.program.input_names):
        raise FormatError(f"kernel: constants must be inputs of the program, got {found.constants!r}"[:200])
    target = get_target("cpu")
    found.decision.check(found.graphs, found.program.symbols(), target)
    versions = tuple(
        KernelVersion(v.kind)
        if v.graph is None
        else KernelVersion(v.kind, found.graphs[v.graph].graph, target.schedule_from_json(v.schedule), v.sizes)
        for v in found.decision.versions
    )
    return KernelParts(found.program, versions, found.decision.tree, found.origin, found.constants)
