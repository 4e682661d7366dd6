"""What the results store remembers of a program for a CUDA architecture: its graphs, and per set of sizes the decision among
compiled versions, as the model ranked them or, under the device's name, as a device measured them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mirage.cache import CallStore
from mirage.errors import FormatError
from mirage.ir.axes import AxisProgram
from mirage.kernels.cuda.device import CudaDevice
from mirage.results.cuda.records import CudaDecisionRecord, cuda_record
from mirage.results.recall import Memory, StoredRecord
from mirage.results.records import StoredGraphs
from mirage.search.candidates import Candidate, admitted
from mirage.search.cuda.versions import CudaDecision
from mirage.search.jobs import OUT_OF_TIME
from mirage.verify.equivalence import Verifier


@dataclass(frozen=True, kw_only=True)
class _Ranked(StoredRecord):
    decision: CudaDecisionRecord


class CudaMemory(Memory):
    """The records of one program for one architecture; what was measured on a device is a record of that device."""

    # the search orders graphs by what they move and launch, which says less about a device than about a processor
    kept = 2 * Memory.kept

    def __init__(
        self,
        store: CallStore,
        program: AxisProgram,
        device: CudaDevice,
        constants: Collection[str] = (),
    ) -> None:
        super().__init__(store, program, device.target, constants)
        self.device = device

    def _ranked_key(self, anchors: Sequence[Mapping[str, int]], measured_on: str) -> str:
        return self._sized_key("ranked", anchors, measured_on)

    def ranked(
        self, verifier: Verifier, anchors: Sequence[Mapping[str, int]], budget: float
    ) -> tuple[list[Candidate], CudaDecision] | None:
        """The graphs of a decision, and the decision for these sizes: as the device at hand measured it, else as the model ranked
        it. None where a smaller `budget` (seconds) cut it short.
        """

        def read(r: _Ranked) -> tuple[list[Candidate], CudaDecision]:
            records = StoredGraphs.of_json(r.graphs, self._symbols())
            r.decision.check(records, self._symbols())
            candidates = []
            for known in map(self._from_canonical, records):
                candidate = admitted(verifier, known)
                if candidate is None:
                    raise FormatError("a graph in it does not compute this program")
                candidates.append(candidate)
            return candidates, r.decision.renamed(self.names.renaming.inverse()).restored(candidates, self.device)

        for measured_on in [self.device.name, ""] if self.device.present else [""]:
            found = self._recall(self._ranked_key(anchors, measured_on), _Ranked, read)
            if found is not None and found.enough(budget):
                return found.value
        return None

    def keep_ranked(
        self, anchors: Sequence[Mapping[str, int]], decision: CudaDecision, stop_reason: str, spent: float
    ) -> None:
        """Remember a decision for these sizes, for which `spent` seconds were taken; `stop_reason` says why no more was
        compiled or measured.
        """
        graphs = list({id(v.candidate.graph): v.candidate for v in decision.versions}.values())
        record = _Ranked(
            graphs=self._written_graphs(graphs), decision=cuda_record(decision, graphs).renamed(self.names.renaming),
            complete=OUT_OF_TIME not in stop_reason, spent=spent,
        )  # fmt: skip
        best_us = decision.points[0].times[decision.at(anchors[0])]
        self._keep(self._ranked_key(anchors, decision.measured_on), record, best_us)
