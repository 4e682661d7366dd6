"""What the results store remembers of a program for a CUDA architecture: its graphs, and per set of sizes the decision among
compiled versions, as the model ranked them or, under the device's name, as a device measured them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage.errors import MirageError
from mirage.kernels.cuda.device import CudaDevice
from mirage.results.cuda.records import cuda_decision_from_json, cuda_record
from mirage.results.recall import Memory
from mirage.results.records import candidates_from_json, candidates_to_json
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.rank import CudaDecision
from mirage.search.tune import Candidate
from mirage.verify.equivalence import Verifier


class CudaMemory(Memory):
    """The records of one program for one architecture; what was measured on a device is a record of that device."""

    # the search orders graphs by what they move and launch, which says less about a device than about a processor
    kept = 2 * Memory.kept

    def _ranked_key(self, anchors: Sequence[Mapping[str, int]], measured_on: str) -> str:
        return self._key("ranked", self._sizes_text(anchors), measured_on)

    def ranked(
        self, verifier: Verifier, anchors: Sequence[Mapping[str, int]], known: Sequence[Candidate], device: CudaDevice
    ) -> tuple[list[Candidate], CudaDecision] | None:
        """All graphs, with those of the decision first, and the decision for these sizes: as the device at hand measured it,
        else as the model ranked it.
        """
        for measured_on in [device.name, ""] if device.present else [""]:
            found = self._decision(self._ranked_key(anchors, measured_on), verifier, device)
            if found is not None:
                candidates, decision = found
                rest = [c for c in known if all(c.graph.kernel != r.graph.kernel for r in candidates)]
                return [*candidates, *rest], decision
        return None

    def _decision(
        self, key: str, verifier: Verifier, device: CudaDevice
    ) -> tuple[list[Candidate], CudaDecision] | None:
        payload = self._read(key)
        if payload is None:
            return None
        try:
            records = candidates_from_json(payload["graphs"], self._symbols())
            record = cuda_decision_from_json(payload["decision"], records, self._symbols())
            candidates = self._recalled(key, verifier, records)
            if candidates is None:
                return None
            return candidates, record.renamed(self.names.renaming.inverse()).restored(candidates, device)
        except (MirageError, KeyError, TypeError, ValueError) as e:
            self._foreign(key, e)
            return None

    def keep_ranked(self, anchors: Sequence[Mapping[str, int]], decision: CudaDecision, stop_reason: str) -> None:
        """Remember a decision for these sizes; `stop_reason` says why no more was compiled or measured."""
        candidates = list({id(v.candidate.graph): v.candidate for v in decision.versions}.values())
        record = cuda_record(decision, candidates).renamed(self.names.renaming)
        payload = {
            "graphs": candidates_to_json([self._to_canonical(c) for c in candidates]),
            "decision": record.to_json(),
        }
        key = self._ranked_key(anchors, decision.measured_on)
        self._stale.add(key)
        best_us = decision.points[0].times[decision.at(anchors[0])]
        self._write(key, payload, best_us, cut=OUT_OF_TIME in stop_reason)
