"""What the results store remembers of a program: its graphs, and per set of sizes the tuned decision.

Keys hold the canonical structure of the program over named axes, so that equal programs share results whatever their
names. What is recalled is verified again: a record that fails is a warning and a miss.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import mirage.search
from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cache.records import sha256
from mirage.errors import MirageError
from mirage.ir.axes import AxisProgram
from mirage.ir.canonical import Renaming, canonical_key
from mirage.ir.program import Program
from mirage.ir.serial import program_to_json
from mirage.kernels.cpu.executable import CpuExecutable
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.decision import rename
from mirage.kernels.target import Target
from mirage.mugraph.degree import analyze
from mirage.mugraph.rename import rename_mugraph, rename_schedule
from mirage.results.records import (
    SCHEMA,
    DecisionRecord,
    GraphRecord,
    VersionRecord,
    baselines_from_json,
    baselines_to_json,
    candidates_from_json,
    candidates_to_json,
    decision_from_json,
    decision_to_json,
)
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.options import SearchOptions
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate, Tuned
from mirage.search.versions import Decision, Point, Version
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.safety import offered

Scheduled = TypeVar("Scheduled", GraphRecord, VersionRecord)

#: graphs kept of one program
KEPT = 32


def recheck(verifier: Verifier, record: GraphRecord) -> Candidate | None:
    """The record's graph with fresh evidence, or None if it does not compute the verifier's program."""
    try:
        certificate = verifier.check(record.graph)
        if not certificate.equal or not offered(verifier.program, record.graph):
            return None
        proof = prove(verifier.axis_program, record.graph)
    except MirageError:
        return None
    return Candidate(record.graph, certificate.with_proof(proof), analyze(record.graph), record.cost)


def compiled(c: Candidate, record: GraphRecord | VersionRecord, constants: Collection[str]) -> Candidate:
    """The candidate as the record has it tuned, with its kernel.

    Raises ScheduleError if that packs other inputs than `constants`.
    """
    if record.schedule is None:
        return c
    return replace(
        c, schedule=record.schedule, sizes=record.sizes, timing=record.timing, accuracy=record.accuracy,
        executable=CpuExecutable(c.graph, record.schedule, c.maximum, record.sizes, constants),
    )  # fmt: skip


def compiled_decision(
    record: DecisionRecord, candidates: Sequence[Candidate], constants: Collection[str]
) -> Decision:
    """The versions of the record with their kernels; `candidates` are its graphs. Nothing is measured or chosen again."""
    versions = [
        Version(v.kind, v.timing, None if v.graph is None else compiled(candidates[v.graph], v, constants))
        for v in record.versions
    ]
    return Decision(tuple(versions), record.tree, record.points)


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


class Memory:
    """The records of one program on one target.

    What a smaller `budget` (seconds) than this one cut short is not recalled, and replaced when kept anew. What was tuned with
    other `constants` (arguments) is another record.
    """

    #: graphs kept of a search, cheapest first
    kept = KEPT

    def __init__(
        self,
        store: ResultStore,
        program: AxisProgram,
        target: Target | CudaDevice,
        budget: float,
        constants: Collection[str] = (),
    ) -> None:
        self.store = store
        self.budget = budget
        self._stale: set[str] = set()
        self.program = program
        self.target = target
        #: such as "cpu" or "cuda:sm_90"
        self.target_name = target.target if isinstance(target, CudaDevice) else target.name
        self.constants = constants
        self.names = canonical_key(program)

    def _key(self, *more: str) -> str:
        return sha256("\n".join([f"schema {SCHEMA}", self.names.text, self.target_name, self.program.dtype, *more]))

    def _tuned_key(self, anchors: Sequence[Mapping[str, int]]) -> str:
        assert isinstance(self.target, Target)
        inputs = enumerate(self.program.inputs)
        constants = sorted(self.names.renaming.inputs[k] for k, x in inputs if x.argument in self.constants)
        fixed = [f"constants {constants}"] if constants else []
        return self._key("tuned", self._sizes_text(anchors), self.target.cpu, str(self.target.cores), *fixed)

    def _sizes_text(self, anchors: Sequence[Mapping[str, int]]) -> str:
        """Sizes in the names of the canonical form."""
        return str([sorted(_renamed(a, self.names.renaming.symbols).items()) for a in anchors])

    def _read(self, key: str) -> dict[str, Any] | None:
        """The payload, unless a smaller budget cut short what it records."""
        payload = self.store.get(key)
        budget = payload.get("cut_at") if payload is not None else None
        if isinstance(budget, int | float) and budget < self.budget:
            self._stale.add(key)
            return None
        return payload

    def _write(self, key: str, payload: Mapping[str, Any], best_us: float | None, *, cut: bool) -> None:
        """`cut`: whether the budget ended the work before it was complete."""
        if key in self._stale:
            self.store.discard(key)
        self.store.put(
            key,
            {**payload, "cut_at": self.budget if cut else None},
            program=self.program.name,
            target=self.target_name,
            dtype=self.program.dtype,
            best_us=best_us,
        )

    def _foreign(self, key: str, why: object) -> None:
        """Warn of a record that is not of this program; the right one will replace it."""
        warnings.warn(f"record {key[:12]} of the results store is not used: {why}", CorruptRecordWarning, stacklevel=4)
        self._stale.add(key)

    def graphs(self, verifier: Verifier) -> tuple[list[Candidate], SearchStats, int] | None:
        """The verified graphs of an earlier search, its statistics and its number of candidates."""
        key = self._key("graphs")
        payload = self._read(key)
        if payload is None:
            return None
        try:
            records = candidates_from_json(payload["graphs"], self._symbols())
            stats = SearchStats.from_json(payload["stats"])
            found = int(payload["candidates"])
        except (MirageError, KeyError, TypeError, ValueError) as e:
            self._foreign(key, e)
            return None
        candidates = self._recalled(key, verifier, records)
        return None if candidates is None else (candidates, stats, found)

    def _to_canonical(self, c: Candidate) -> Candidate:
        """A candidate in the names of the canonical form, in which records are kept."""
        graph = rename_mugraph(c.graph, self.names.renaming, self.names.program)
        graph = replace(graph, origin=c.graph.origin)
        if c.schedule is None:
            return replace(c, graph=graph)
        schedule = rename_schedule(c.schedule, self.names.renaming.axes)
        return replace(c, graph=graph, schedule=schedule, sizes=_renamed(c.sizes, self.names.renaming.symbols))

    def _symbols(self) -> list[str]:
        """The dim symbols of the canonical form."""
        return list(self.names.renaming.symbols.values())

    def _recalled(self, key: str, verifier: Verifier, records: Sequence[GraphRecord]) -> list[Candidate] | None:
        """The records' graphs, checked, in this program's names."""
        back = self.names.renaming.inverse()
        found = []
        for r in records:
            try:
                graph = replace(rename_mugraph(r.graph, back, self.program), origin=r.graph.origin)
            except (MirageError, KeyError) as e:
                self._foreign(key, e)
                return None
            c = recheck(verifier, replace(r, graph=graph))
            if c is None:
                self._foreign(key, "a graph in it does not compute this program")
                return None
            found.append(c)
        return found

    def keep_graphs(self, candidates: Sequence[Candidate], stats: SearchStats, found: int) -> None:
        """Remember a search's verified graphs."""
        graphs = [self._to_canonical(c) for c in candidates[: self.kept]]
        payload = {"graphs": candidates_to_json(graphs), "stats": stats.to_json(), "candidates": found}
        self._write(self._key("graphs"), payload, None, cut=OUT_OF_TIME in stats.stop_reason)

    def tuned(
        self, verifier: Verifier, anchors: Sequence[Mapping[str, int]], known: Sequence[Candidate]
    ) -> tuple[Tuned, Decision] | None:
        """The tuned choice for these sizes on this machine, compiled."""
        key = self._tuned_key(anchors)
        payload = self._read(key)
        if payload is None:
            return None
        back = self.names.renaming.inverse()
        try:
            records = candidates_from_json(payload["graphs"], self._symbols())
            decision = decision_from_json(payload["decision"], records, self._symbols())
            baselines = baselines_from_json(payload["baselines"])
            candidates = self._recalled(key, verifier, records)
            if candidates is None:
                return None
            ready = [compiled(c, _scheduled(r, back), self.constants) for c, r in zip(candidates, records, strict=True)]
            decision = DecisionRecord(
                tuple(_scheduled(v, back) for v in decision.versions),
                rename(decision.tree, back.symbols),
                tuple(Point(_renamed(p.sizes, back.symbols), p.times) for p in decision.points),
            )
            chosen = compiled_decision(decision, ready, self.constants)
        except (MirageError, KeyError, TypeError, ValueError) as e:
            self._foreign(key, e)
            return None
        rest = [c for c in known if all(c.graph.kernel != r.graph.kernel for r in ready)]
        return Tuned([*ready, *rest], baselines, 0, [], "from the cache"), chosen

    def keep_tuned(self, anchors: Sequence[Mapping[str, int]], tuned: Tuned, decision: Decision) -> None:
        """Remember the measured graphs, and the choice, for these sizes."""
        measured = [c for c in tuned.candidates if c.timing is not None and c.executable is not None][:4]
        kept = {id(c.graph): c for c in measured}
        # versions may be of graphs that did not do well at the given sizes
        others = {id(v.candidate.graph) for v in decision.versions if v.candidate} - kept.keys()
        kept |= {id(c.graph): c for c in tuned.candidates if id(c.graph) in others}
        graphs = {key: self._to_canonical(c) for key, c in kept.items()}
        symbols = self.names.renaming.symbols
        versions = [
            replace(v, candidate=replace(self._to_canonical(v.candidate), graph=graphs[id(v.candidate.graph)].graph))
            if v.candidate
            else v
            for v in decision.versions
        ]
        points = [Point(_renamed(p.sizes, symbols), p.times) for p in decision.points]
        canonical = Decision(tuple(versions), rename(decision.tree, symbols), tuple(points))
        payload = {
            "graphs": candidates_to_json([*graphs.values()]),
            "decision": decision_to_json(canonical, [*graphs.values()]),
            "baselines": baselines_to_json(tuned.baselines),
        }
        key = self._tuned_key(anchors)
        # tuning was due because a record was absent, of another program or cut short: this one counts even if slower
        self._stale.add(key)
        best_us = decision.at(anchors[0]).timing.median_us
        self._write(key, payload, best_us, cut=OUT_OF_TIME in tuned.stop_reason)


def _renamed(sizes: Mapping[str, int], symbols: Mapping[str, str]) -> dict[str, int]:
    return {symbols[s]: n for s, n in sizes.items()}


def _scheduled(record: Scheduled, renaming: Renaming) -> Scheduled:
    """The record with the names in its schedule and sizes replaced."""
    if record.schedule is None:
        return record
    schedule = rename_schedule(record.schedule, renaming.axes)
    return replace(record, schedule=schedule, sizes=_renamed(record.sizes, renaming.symbols))
