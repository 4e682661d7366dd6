"""What the results store remembers of a program: its graphs, and per set of sizes the tuned choice.

Keys hold the canonical structure of the program over named axes, so that equal programs share results whatever their
names. What is recalled is verified again: a record that fails is a warning and a miss.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mirage.search
from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cache.records import sha256
from mirage.errors import MirageError
from mirage.ir.axes import AxisProgram
from mirage.ir.canonical import canonical_key
from mirage.ir.program import Program
from mirage.ir.serial import program_to_json
from mirage.kernels.cpu.executable import CpuExecutable
from mirage.kernels.target import Target
from mirage.mugraph.degree import analyze
from mirage.mugraph.rename import rename_mugraph, rename_schedule
from mirage.records import (
    SCHEMA,
    GraphRecord,
    baselines_from_json,
    baselines_to_json,
    candidates_from_json,
    candidates_to_json,
)
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.options import SearchOptions
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate, Tuned
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.safety import offered

#: graphs kept of one program, cheapest first
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

    What a smaller `budget` (seconds) than this one cut short is not recalled, and replaced when kept anew.
    """

    def __init__(self, store: ResultStore, program: AxisProgram, target: Target, budget: float) -> None:
        self.store = store
        self.budget = budget
        self._stale: set[str] = set()
        self.program = program
        self.target = target
        self.names = canonical_key(program)

    def _key(self, *more: str) -> str:
        return sha256("\n".join([f"schema {SCHEMA}", self.names.text, self.target.name, self.program.dtype, *more]))

    def _tuned_key(self, sizes: Mapping[str, int]) -> str:
        canonical_sizes = sorted((self.names.renaming.symbols[s], n) for s, n in sizes.items())
        return self._key("tuned", str(canonical_sizes), self.target.cpu, str(self.target.cores))

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
            target=self.target.name,
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
            records = candidates_from_json(payload["graphs"])
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
        schedule = rename_schedule(c.schedule, self.names.renaming.axes) if c.schedule else None
        return replace(c, graph=replace(graph, origin=c.graph.origin), schedule=schedule)

    def _recalled(self, key: str, verifier: Verifier, records: Sequence[GraphRecord]) -> list[Candidate] | None:
        back = self.names.renaming.inverse()
        found = []
        for r in records:
            try:
                graph = replace(rename_mugraph(r.graph, back, self.program), origin=r.graph.origin)
                schedule = rename_schedule(r.schedule, back.axes) if r.schedule else None
            except (MirageError, KeyError) as e:
                self._foreign(key, e)
                return None
            c = recheck(verifier, replace(r, graph=graph))
            if c is None:
                self._foreign(key, "a graph in it does not compute this program")
                return None
            found.append(replace(c, schedule=schedule, timing=r.timing, accuracy=r.accuracy))
        return found

    def keep_graphs(self, candidates: Sequence[Candidate], stats: SearchStats, found: int) -> None:
        """Remember a search's verified graphs."""
        graphs = [self._to_canonical(c) for c in candidates[:KEPT]]
        payload = {"graphs": candidates_to_json(graphs), "stats": stats.to_json(), "candidates": found}
        self._write(self._key("graphs"), payload, None, cut=OUT_OF_TIME in stats.stop_reason)

    def tuned(self, verifier: Verifier, sizes: Mapping[str, int], known: Sequence[Candidate]) -> Tuned | None:
        """The tuned choice at these sizes on this machine, compiled."""
        key = self._tuned_key(sizes)
        payload = self._read(key)
        if payload is None:
            return None
        try:
            records = candidates_from_json(payload["graphs"])
            baselines = baselines_from_json(payload["baselines"])
            candidates = self._recalled(key, verifier, records)
            if candidates is None:
                return None
            ready = [
                replace(c, executable=CpuExecutable(c.graph, c.schedule, c.maximum, sizes)) if c.schedule else c
                for c in candidates
            ]
        except (MirageError, KeyError, TypeError, ValueError) as e:
            self._foreign(key, e)
            return None
        rest = [c for c in known if all(c.graph.kernel != r.graph.kernel for r in ready)]
        return Tuned([*ready, *rest], baselines, 0, [], "from the cache")

    def keep_tuned(self, sizes: Mapping[str, int], tuned: Tuned, best_us: float) -> None:
        """Remember the measured graphs at these sizes."""
        measured = [c for c in tuned.candidates if c.timing is not None and c.executable is not None][:4]
        graphs = [self._to_canonical(c) for c in measured]
        payload = {"graphs": candidates_to_json(graphs), "baselines": baselines_to_json(tuned.baselines)}
        key = self._tuned_key(sizes)
        # tuning was due because a record was absent, of another program or cut short: this one counts even if slower
        self._stale.add(key)
        self._write(key, payload, best_us, cut=tuned.stop_reason == OUT_OF_TIME)
