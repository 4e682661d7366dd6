"""What the results store remembers of a program on the processor: its graphs, and per set of sizes the tuned decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mirage.cache import ResultStore
from mirage.ir.axes import AxisProgram
from mirage.kernels.target import Target
from mirage.results.cpu.records import (
    baselines_from_json,
    baselines_to_json,
    compiled,
    decision_from_json,
    decision_record,
    renamed,
)
from mirage.results.recall import Memory, without
from mirage.results.records import candidates_from_json
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.tune import Candidate, Tuned
from mirage.search.versions import Decision
from mirage.verify.equivalence import Verifier


class CpuMemory(Memory):
    """The records of one program; what was tuned is a record of this kind of processor, with as many cores."""

    def __init__(
        self,
        store: ResultStore,
        program: AxisProgram,
        machine: Target,
        budget: float,
        constants: Collection[str] = (),
    ) -> None:
        super().__init__(store, program, machine.name, budget, constants)
        self.machine = machine

    def _tuned_key(self, anchors: Sequence[Mapping[str, int]]) -> str:
        return self._sized_key("tuned", anchors, self.machine.cpu, str(self.machine.cores))

    def tuned(
        self, verifier: Verifier, anchors: Sequence[Mapping[str, int]], known: Sequence[Candidate]
    ) -> tuple[Tuned, Decision] | None:
        """The tuned choice for these sizes on this machine, compiled."""

        def read(payload: dict[str, Any]) -> tuple[Tuned, Decision]:
            back = self.names.renaming.inverse()
            records = candidates_from_json(payload["graphs"], self._symbols())
            decision = decision_from_json(payload["decision"], records, self._symbols())
            baselines = baselines_from_json(payload["baselines"])
            candidates = self._rechecked(verifier, records)
            ready = [compiled(c, renamed(r, back), self.constants) for c, r in zip(candidates, records, strict=True)]
            chosen = decision.renamed(back).restored(ready, self.constants)
            return Tuned([*ready, *without(known, ready)], baselines, 0, [], "from the cache"), chosen

        return self._recall(self._tuned_key(anchors), read)

    def keep_tuned(self, anchors: Sequence[Mapping[str, int]], tuned: Tuned, decision: Decision) -> None:
        """Remember the measured graphs, and the choice, for these sizes."""
        measured = [c for c in tuned.candidates if c.timing is not None and c.executable is not None][:4]
        kept = {id(c.graph): c for c in measured}
        # versions may be of graphs that did not do well at the given sizes
        others = {id(v.candidate.graph) for v in decision.versions if v.candidate} - kept.keys()
        kept |= {id(c.graph): c for c in tuned.candidates if id(c.graph) in others}
        graphs = [*kept.values()]
        payload = {
            "graphs": self._graphs_to_json(graphs),
            "decision": decision_record(decision, graphs).renamed(self.names.renaming).to_json(),
            "baselines": baselines_to_json(tuned.baselines),
        }
        key = self._tuned_key(anchors)
        # tuning was due because a record was absent, of another program or cut short: this one counts even if slower
        self._stale.add(key)
        best_us = decision.at(anchors[0]).timing.median_us
        self._keep(key, payload, best_us, cut=OUT_OF_TIME in tuned.stop_reason)
