"""What the results store remembers of a program on a target: its graphs, and per set of sizes the decision among versions.

Keys hold the canonical structure of the program over named axes, so that equal programs share results whatever their
names. What is recalled is verified again: a record that fails is a warning and a miss.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import mirage.search
from mirage.cache import CallStore, CorruptRecordWarning
from mirage.cache.records import sha256
from mirage.errors import FormatError, MirageError
from mirage.ir.axes import AxisProgram
from mirage.ir.canonical import Renaming, canonical_key
from mirage.ir.program import Program
from mirage.ir.serial import program_to_json
from mirage.kernels.profile import Timing
from mirage.kernels.target import Target
from mirage.mugraph.rename import rename_mugraph
from mirage.results.records import (
    SCHEMA,
    DecisionRecord,
    StoredGraphs,
    baselines_from_json,
    baselines_to_json,
    candidates_from_json,
    candidates_to_json,
    decision_from_json,
    decision_record,
    rename_sizes,
)
from mirage.search.candidates import Candidate, Known, admitted
from mirage.search.decision import UNMEASURED, Decision
from mirage.search.jobs import was_cut
from mirage.search.options import SearchOptions
from mirage.search.stats import SearchStats
from mirage.verify.equivalence import Verifier

Found = TypeVar("Found")

#: graphs kept of one program, cheapest first: the search orders them by what they move and launch, which is not the whole cost
KEPT = 128

#: share of a budget that work has to have taken to be as much as that budget gives: some goes by before and after it
ENOUGH = 0.9


@dataclass(frozen=True)
class Kept(Generic[Found]):
    """What was kept: whether it is `complete`, or was cut short, after `spent` seconds in all."""

    value: Found
    complete: bool
    spent: float

    def enough(self, budget: float) -> bool:
        """Whether so many seconds would give no more."""
        return self.complete or self.spent >= ENOUGH * budget


def search_key(program: Program, sizes: Mapping[str, int], options: SearchOptions) -> str:
    """The key of a search's checkpoint: of the program as it is, as its graphs are in its own names, and of all that
    decides what a finished unit yields, the search's own code included. The budget does not.
    """
    rules = {**asdict(options), "budget": None}
    return sha256(json.dumps([_search_code(), program_to_json(program), dict(sizes), rules], sort_keys=True))


@functools.cache
def _search_code() -> str:
    files = sorted(Path(mirage.search.__file__).parent.glob("*.py"))
    return sha256("".join(f"{f.name}\n{f.read_text(encoding='utf-8')}" for f in files))


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

    def restored(
        self, verifier: Verifier, target: Target, constants: Collection[str]
    ) -> tuple[list[Candidate], Decision]:
        """The decision with compiled kernels, and its graphs: only what it runs is verified.

        Raises FormatError for a graph of another program, ScheduleError if a schedule packs other inputs than `constants`, and
        what `DecisionRecord.restored` raises.
        """
        found: dict[int, Candidate] = {}
        for place in {v.graph for v in self.decision.versions if v.graph is not None}:
            candidate = admitted(verifier, self.graphs[place])
            if candidate is None:
                raise FormatError("a graph in it does not compute this program")
            found[place] = candidate
        decision = self.decision.restored(found, target, constants)
        return [found[place] for place in sorted(found)], decision


    def try_restored(
        self, verifier: Verifier, target: Target, constants: Collection[str]
    ) -> tuple[list[Candidate], Decision] | None:
        """As `restored`; None, with a warning, where the decision is not of this program or cannot be compiled."""
        try:
            return self.restored(verifier, target, constants)
        except MirageError as e:
            warnings.warn(f"a record of the results store is not used: {e}", CorruptRecordWarning, stacklevel=4)
            return None


@dataclass(frozen=True)
class Chosen:
    """A decision to be kept, with the graphs that it was made among, why no more was tuned, and the timings of what competed."""

    decision: Decision
    graphs: Sequence[Candidate]
    stop_reason: str
    baselines: Mapping[str, Timing]


class Memory:
    """The records of one program on one target. What was tuned is a record of the machine that it was tuned for, of which a
    target may be several (`Target.machines`).

    What was cut short is kept as such, and replaced when more is known. What was made with other `constants` (arguments) is
    another record.
    """

    def __init__(
        self, store: CallStore, program: AxisProgram, target: Target, constants: Collection[str] = ()
    ) -> None:
        self.store = store
        self._stale: set[str] = set()
        self.program = program
        self.target = target
        self.constants = constants
        self.names = canonical_key(program)

    def _key(self, *more: str) -> str:
        return sha256("\n".join([f"schema {SCHEMA}", self.names.text, self.target.name, self.program.dtype, *more]))

    def _sized_key(self, kind: str, anchors: Sequence[Mapping[str, int]], *more: str) -> str:
        """The key of a record for these sizes and constants, in the names of the canonical form."""
        sizes = str([sorted(rename_sizes(a, self.names.renaming.symbols).items()) for a in anchors])
        inputs = enumerate(self.program.inputs)
        constants = sorted(self.names.renaming.inputs[k] for k, x in inputs if x.argument in self.constants)
        return self._key(kind, sizes, *more, *([f"constants {constants}"] if constants else []))

    def _recall(self, key: str, read: Callable[[dict[str, Any]], Found]) -> Kept[Found] | None:
        """What `read` makes of a record, unless there is none.

        A record that is damaged or not of this program is a warning, and the right one will replace it.
        """
        payload = self.store.get(key)
        if payload is None:
            return None
        # what is kept anew knows more, or is right
        self._stale.add(key)
        try:
            complete, spent = payload["complete"], payload["spent"]
            if type(complete) is not bool or type(spent) is not float or not 0 <= spent < 1e12:
                raise FormatError(f"complete={complete!r} and spent={spent!r} do not say how far it was")
            return Kept(read(payload), complete, spent)
        except (MirageError, KeyError, TypeError, ValueError) as e:
            text = f"record {key[:12]} of the results store is not used: {e}"
            warnings.warn(text, CorruptRecordWarning, stacklevel=4)
            return None

    def _keep(
        self, key: str, payload: Mapping[str, Any], best_us: float | None, *, complete: bool, spent: float
    ) -> None:
        """`complete`: whether it did not end for want of time; `spent`: seconds in all."""
        if key in self._stale:
            self.store.discard(key)
        self._stale.add(key)
        self.store.put(
            key,
            {**payload, "complete": complete, "spent": spent},
            program=self.program.name,
            target=self.target.name,
            dtype=self.program.dtype,
            best_us=best_us,
        )

    def graphs(self) -> Kept[tuple[list[Known], SearchStats]] | None:
        """The graphs of an earlier search, not verified, and its statistics."""

        def read(payload: dict[str, Any]) -> tuple[list[Known], SearchStats]:
            return self._graphs_from_json(payload["graphs"]), SearchStats.from_json(payload["stats"])

        return self._recall(self._key("graphs"), read)

    def keep_graphs(self, candidates: Sequence[Candidate], stats: SearchStats, *, complete: bool, spent: float) -> None:
        """Remember a search's verified graphs."""
        graphs = self._graphs_to_json(sorted(candidates, key=lambda c: c.cost)[:KEPT])
        payload = {"graphs": graphs, "stats": stats.to_json()}
        self._keep(self._key("graphs"), payload, None, complete=complete, spent=spent)

    def _tuned_key(self, anchors: Sequence[Mapping[str, int]], machine: str) -> str:
        return self._sized_key("tuned", anchors, machine)

    def tuned(self, anchors: Sequence[Mapping[str, int]], budget: float = 0.0) -> Kept[KeptDecision] | None:
        """The choice for these sizes: of the preferred machine of which one is kept that took the `budget` (seconds)."""

        def read(payload: dict[str, Any]) -> KeptDecision:
            records = StoredGraphs.from_json(payload["graphs"], self._symbols(), self.target)
            decision = decision_from_json(payload["decision"], records, self._symbols(), self.target)
            decision = decision.renamed(self.names.renaming.inverse(), self.target)
            known = StoredGraphs(records, self._from_canonical)
            baselines, stats = baselines_from_json(payload["baselines"]), SearchStats.from_json(payload["stats"])
            return KeptDecision(known, decision, baselines, stats)

        for machine in self.target.machines:
            found = self._recall(self._tuned_key(anchors, machine), read)
            if found is not None and found.enough(budget):
                return found
        return None

    def keep_tuned(
        self, anchors: Sequence[Mapping[str, int]], tuned: Chosen, machine: str, stats: SearchStats, spent: float
    ) -> None:
        """Remember a choice on a machine, and the graphs that it was made among, for these sizes, for which `spent` seconds were
        taken in all.
        """
        payload = {
            "graphs": self._graphs_to_json(tuned.graphs),
            "decision": decision_record(tuned.decision, tuned.graphs).renamed(self.names.renaming, self.target).to_json(),
            "baselines": baselines_to_json(tuned.baselines),
            "stats": stats.to_json(),
        }
        decision = tuned.decision
        number = decision.number(anchors[0])
        timing, modelled = decision.versions[number].timing, decision.points[0].times[number]
        best_us = modelled if timing is UNMEASURED else timing.median_us
        key, complete = self._tuned_key(anchors, machine), not was_cut(tuned.stop_reason)
        self._keep(key, payload, best_us, complete=complete, spent=spent)

    def _graphs_to_json(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Candidates in the names of the canonical form, in which records are kept."""
        return candidates_to_json([self._to_canonical(c) for c in candidates])

    def _graphs_from_json(self, obj: Any) -> list[Known]:
        """What `_graphs_to_json` wrote, in this program's names."""
        return [self._from_canonical(k) for k in candidates_from_json(obj, self._symbols(), self.target)]

    def _to_canonical(self, c: Candidate) -> Candidate:
        graph = rename_mugraph(c.graph, self.names.renaming, self.names.program)
        graph = replace(graph, origin=c.graph.origin)
        return renamed(replace(c, graph=graph), self.names.renaming, self.target)

    def _from_canonical(self, known: Known) -> Known:
        back = self.names.renaming.inverse()
        graph = replace(rename_mugraph(known.graph, back, self.program), origin=known.graph.origin)
        return renamed(replace(known, graph=graph), back, self.target)

    def _symbols(self) -> list[str]:
        """The dim symbols of the canonical form."""
        return list(self.names.renaming.symbols.values())


Tuned = TypeVar("Tuned", Candidate, Known)


def renamed(c: Tuned, r: Renaming, target: Target) -> Tuned:
    """The same with other names of axes and dim symbols in its schedules and sizes."""
    return replace(
        c, schedule=target.renamed(c.schedule, r.axes) if c.schedule else None,
        sizes=rename_sizes(c.sizes, r.symbols), tried=tuple((target.renamed(s, r.axes), us) for s, us in c.tried),
    )  # fmt: skip
