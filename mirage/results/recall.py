"""What the results store remembers of a program: its graphs here, and per set of sizes what each target makes of them.

Keys hold the canonical structure of the program over named axes, so that equal programs share results whatever their
names. What is recalled is verified again: a record that fails is a warning and a miss.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import mirage.search
from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cache.records import sha256
from mirage.errors import FormatError, MirageError
from mirage.ir.axes import AxisProgram
from mirage.ir.canonical import canonical_key
from mirage.ir.program import Program
from mirage.ir.serial import program_to_json
from mirage.mugraph.rename import rename_mugraph, rename_schedule
from mirage.results.candidates import recheck
from mirage.results.records import SCHEMA, GraphRecord, candidates_from_json, candidates_to_json, rename_sizes
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.options import SearchOptions
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate
from mirage.verify.equivalence import Verifier

Found = TypeVar("Found")

#: graphs kept of one program
KEPT = 32


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
    """The records of one program on one target, such as "cpu" or "cuda:sm_90".

    What a smaller `budget` (seconds) than this one cut short is not recalled, and replaced when kept anew. What was made with
    other `constants` (arguments) is another record.
    """

    #: graphs kept of a search, cheapest first
    kept = KEPT

    def __init__(
        self,
        store: ResultStore,
        program: AxisProgram,
        target: str,
        budget: float,
        constants: Collection[str] = (),
    ) -> None:
        self.store = store
        self.budget = budget
        self._stale: set[str] = set()
        self.program = program
        self.target = target
        self.constants = constants
        self.names = canonical_key(program)

    def _key(self, *more: str) -> str:
        return sha256("\n".join([f"schema {SCHEMA}", self.names.text, self.target, self.program.dtype, *more]))

    def _sized_key(self, kind: str, anchors: Sequence[Mapping[str, int]], *more: str) -> str:
        """The key of a record for these sizes and constants, in the names of the canonical form."""
        sizes = str([sorted(rename_sizes(a, self.names.renaming.symbols).items()) for a in anchors])
        inputs = enumerate(self.program.inputs)
        constants = sorted(self.names.renaming.inputs[k] for k, x in inputs if x.argument in self.constants)
        return self._key(kind, sizes, *more, *([f"constants {constants}"] if constants else []))

    def _recall(self, key: str, read: Callable[[dict[str, Any]], Found]) -> Found | None:
        """What `read` makes of a record, unless there is none or a smaller budget cut it short.

        A record that is damaged or not of this program is a warning, and the right one will replace it.
        """
        payload = self.store.get(key)
        if payload is None:
            return None
        budget = payload.get("cut_at")
        if isinstance(budget, int | float) and budget < self.budget:
            self._stale.add(key)
            return None
        try:
            return read(payload)
        except (MirageError, KeyError, TypeError, ValueError) as e:
            text = f"record {key[:12]} of the results store is not used: {e}"
            warnings.warn(text, CorruptRecordWarning, stacklevel=4)
            self._stale.add(key)
            return None

    def _keep(self, key: str, payload: Mapping[str, Any], best_us: float | None, *, cut: bool) -> None:
        """`cut`: whether the budget ended the work before it was complete."""
        if key in self._stale:
            self.store.discard(key)
        self.store.put(
            key,
            {**payload, "cut_at": self.budget if cut else None},
            program=self.program.name,
            target=self.target,
            dtype=self.program.dtype,
            best_us=best_us,
        )

    def graphs(self, verifier: Verifier) -> tuple[list[Candidate], SearchStats, int] | None:
        """The verified graphs of an earlier search, its statistics and its number of candidates."""

        def read(payload: dict[str, Any]) -> tuple[list[Candidate], SearchStats, int]:
            records = candidates_from_json(payload["graphs"], self._symbols())
            stats = SearchStats.from_json(payload["stats"])
            found = int(payload["candidates"])
            return self._rechecked(verifier, records), stats, found

        return self._recall(self._key("graphs"), read)

    def keep_graphs(self, candidates: Sequence[Candidate], stats: SearchStats, found: int) -> None:
        """Remember a search's verified graphs."""
        graphs = self._graphs_to_json(candidates[: self.kept])
        payload = {"graphs": graphs, "stats": stats.to_json(), "candidates": found}
        self._keep(self._key("graphs"), payload, None, cut=OUT_OF_TIME in stats.stop_reason)

    def _graphs_to_json(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Candidates in the names of the canonical form, in which records are kept."""
        return candidates_to_json([self._to_canonical(c) for c in candidates])

    def _to_canonical(self, c: Candidate) -> Candidate:
        graph = rename_mugraph(c.graph, self.names.renaming, self.names.program)
        graph = replace(graph, origin=c.graph.origin)
        if c.schedule is None:
            return replace(c, graph=graph)
        schedule = rename_schedule(c.schedule, self.names.renaming.axes)
        return replace(c, graph=graph, schedule=schedule, sizes=rename_sizes(c.sizes, self.names.renaming.symbols))

    def _symbols(self) -> list[str]:
        """The dim symbols of the canonical form."""
        return list(self.names.renaming.symbols.values())

    def _rechecked(self, verifier: Verifier, records: Sequence[GraphRecord]) -> list[Candidate]:
        """The records' graphs with fresh evidence, in this program's names; raises FormatError for one of another program."""
        back = self.names.renaming.inverse()
        found = []
        for r in records:
            graph = replace(rename_mugraph(r.graph, back, self.program), origin=r.graph.origin)
            c = recheck(verifier, replace(r, graph=graph))
            if c is None:
                raise FormatError("a graph in it does not compute this program")
            found.append(c)
        return found


def without(known: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """Those of the known candidates whose graphs are none of the others'."""
    return [c for c in known if all(c.graph.kernel != other.graph.kernel for other in others)]
