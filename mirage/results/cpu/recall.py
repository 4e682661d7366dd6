"""What the results store remembers of a program on the processor: its graphs, and per set of sizes the tuned decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mirage.cache import CallStore
from mirage.errors import FormatError
from mirage.ir.axes import AxisProgram
from mirage.kernels.profile import Timing
from mirage.kernels.target import Target
from mirage.results.cpu.records import Baselines, DecisionRecord, decision_record
from mirage.results.recall import Kept, Memory, StoredRecord
from mirage.results.records import StoredGraphs
from mirage.results.result import FROM_CACHE
from mirage.search.candidates import Candidate, Known, admitted
from mirage.search.jobs import was_cut
from mirage.search.stats import SearchStats
from mirage.search.tune import Tuned
from mirage.search.versions import Decision
from mirage.verify.equivalence import Verifier


@dataclass(frozen=True)
class KeptDecision:
    """A decision as it was kept: none of its `graphs` has been verified yet, and but for those that it runs, none has been read.
    Those that were tuned come first.
    """

    graphs: Sequence[Known]
    decision: DecisionRecord
    baselines: dict[str, Timing]
    stats: SearchStats

    @property
    def kernels(self) -> int:
        """How many of the versions are kernels."""
        return sum(v.graph is not None for v in self.decision.versions)

    def restored(self, verifier: Verifier, constants: Collection[str]) -> tuple[Tuned, Decision]:
        """The decision with compiled kernels: of the graphs, only what it runs is verified.

        Raises FormatError for a graph of another program, ScheduleError if a schedule packs other inputs than `constants`.
        """
        found: dict[int, Candidate] = {}
        for place in {v.graph for v in self.decision.versions if v.graph is not None}:
            candidate = admitted(verifier, self.graphs[place])
            if candidate is None:
                raise FormatError("a graph in it does not compute this program")
            found[place] = candidate
        decision = self.decision.restored(found, constants)
        candidates = [found[place] for place in sorted(found)]
        return Tuned(candidates, self.baselines, 0, [], FROM_CACHE), decision


@dataclass(frozen=True, kw_only=True)
class _Tuned(StoredRecord):
    decision: DecisionRecord
    baselines: Baselines
    stats: SearchStats


class CpuMemory(Memory):
    """The records of one program; what was tuned is a record of this kind of processor, with as many cores."""

    def __init__(
        self, store: CallStore, program: AxisProgram, machine: Target, constants: Collection[str] = ()
    ) -> None:
        super().__init__(store, program, machine.name, constants)
        self.machine = machine

    def _tuned_key(self, anchors: Sequence[Mapping[str, int]]) -> str:
        return self._sized_key("tuned", anchors, self.machine.cpu, str(self.machine.cores))

    def tuned(self, anchors: Sequence[Mapping[str, int]]) -> Kept[KeptDecision] | None:
        """The tuned choice for these sizes on this machine."""

        def read(r: _Tuned) -> KeptDecision:
            records = StoredGraphs.of_json(r.graphs, self._symbols())
            r.decision.check(records, self._symbols())
            decision = r.decision.renamed(self.names.renaming.inverse())
            return KeptDecision(StoredGraphs(records, self._from_canonical), decision, dict(r.baselines), r.stats)

        return self._recall(self._tuned_key(anchors), _Tuned, read)

    def keep_tuned(
        self,
        anchors: Sequence[Mapping[str, int]],
        tuned: Tuned,
        decision: Decision,
        stats: SearchStats,
        spent: float,
    ) -> None:
        """Remember the measured graphs, and the choice, for these sizes, for which `spent` seconds were taken in all."""
        measured = {id(c.graph): c for c in tuned.candidates if c.timing is not None or c.tried}
        # versions may be of graphs that did not do well at the given sizes
        others = {id(v.candidate.graph) for v in decision.versions if v.candidate} - measured.keys()
        measured |= {id(c.graph): c for c in tuned.candidates if id(c.graph) in others}
        graphs = [*measured.values()]
        record = _Tuned(
            graphs=self._written_graphs(graphs), decision=decision_record(decision, graphs).renamed(self.names.renaming),
            baselines=tuned.baselines, stats=stats, complete=not was_cut(tuned.stop_reason), spent=spent,
        )  # fmt: skip
        self._keep(self._tuned_key(anchors), record, decision.at(anchors[0]).timing.median_us)
