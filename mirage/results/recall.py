"""What the results store remembers of a program: its graphs here, and per set of sizes what each target makes of them.

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
from typing import Annotated, Generic, TypeVar

import mirage.search
from mirage.cache import CallStore, CorruptRecordWarning
from mirage.cache.records import sha256
from mirage.errors import FormatError, MirageError
from mirage.ir.axes import AxisProgram
from mirage.ir.canonical import Renaming, canonical_key
from mirage.ir.codec import RESULT, Json, decode, encode, within
from mirage.ir.program import Program
from mirage.kernels.decision import Sizes
from mirage.kernels.profile import Timing
from mirage.kernels.target import Target
from mirage.mugraph.rename import rename_mugraph, rename_schedule
from mirage.results.lazy import LazySequence
from mirage.results.records import Baselines, DecisionRecord, StoredGraphs, decision_record, known, rename_sizes
from mirage.search.candidates import Candidate, Known, admitted
from mirage.search.decision import UNMEASURED, Decision, Version
from mirage.search.jobs import was_cut
from mirage.search.options import SearchOptions
from mirage.search.stats import SearchStats
from mirage.verify.equivalence import Verifier
from mirage.verify.rules.registry import added_rules

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


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """What is stored of a program: graphs, which are read when they are asked for, and what records of a kind add.

    `complete`: whether it did not end for want of time; `spent`: seconds in all. `program` is the one that it was found for, in
    its own names, where arguments are `constants`, `form` the schema of results that the key was made with; these are missing in
    records of earlier releases.
    """

    graphs: tuple[Json, ...]
    complete: bool
    spent: Annotated[float, within(0, 1e12)]
    program: Program | None = None
    constants: tuple[str, ...] = ()
    form: int = 0


Stored = TypeVar("Stored", bound=StoredRecord)


@dataclass(frozen=True, kw_only=True)
class StoredSearch(StoredRecord):
    """The graphs of a search."""

    stats: SearchStats


@dataclass(frozen=True, kw_only=True)
class StoredChoice(StoredRecord):
    """A choice for `sizes`, the given ones, on a machine: in the names of `program`."""

    decision: DecisionRecord
    baselines: Baselines
    stats: SearchStats
    sizes: tuple[Sizes, ...] = ()
    machine: str = ""


def search_key(program: Program, sizes: Mapping[str, int], options: SearchOptions) -> str:
    """The key of a search's checkpoint: of the program as it is, as its graphs are in its own names, and of all that
    decides what a finished unit yields, the search's own code included. The budget does not.
    """
    rules = {**asdict(options), "budget": None}
    return sha256(json.dumps([_search_code(), str(program), dict(sizes), rules], sort_keys=True))


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

    def check(self, symbols: Collection[str], target: Target) -> None:
        """Raises as `DecisionRecord.check`; all graphs that it runs are read for it."""
        self.decision.check(self.graphs, symbols, target)

    def _candidate(self, place: int, verifier: Verifier) -> Candidate:
        candidate = admitted(verifier, self.graphs[place], recalled=True)
        if candidate is None:
            raise FormatError("a graph in it does not compute this program")
        return candidate

    def restored(
        self, verifier: Verifier, target: Target, constants: Collection[str]
    ) -> tuple[list[Candidate], Decision]:
        """The decision with compiled kernels, and its graphs: only what it runs is verified.

        Raises FormatError for a graph of another program, ScheduleError if a schedule packs other inputs than `constants`, and
        what `DecisionRecord.restored` raises.
        """
        self.check(verifier.program.symbols(), target)
        places = sorted({v.graph for v in self.decision.versions if v.graph is not None})
        found = {place: self._candidate(place, verifier) for place in places}
        return list(found.values()), self.decision.restored(found, target, constants)

    def opened(
        self, verifier: Verifier, target: Target, constants: Collection[str]
    ) -> tuple[Sequence[Candidate], Decision]:
        """As `restored`, but that a version, with its graph, is read, verified and checked when it is first asked for, and what
        is wrong with it is raised then. The one of the first sizes is asked for here.
        """
        record, symbols = self.decision, verifier.program.symbols()
        places = sorted({v.graph for v in record.versions if v.graph is not None})
        graphs = LazySequence(len(places), lambda i: self._candidate(places[i], verifier))

        def version(number: int) -> Version:
            v = record.versions[number]
            v.check(self.graphs, symbols, target)
            return v.restored(None if v.graph is None else graphs[places.index(v.graph)], target, constants)

        decision = Decision(LazySequence(len(record.versions), version), record.tree, record.points, record.measured_on)
        decision.at(record.points[0].sizes)
        return graphs, decision

    def try_restored(
        self, verifier: Verifier, target: Target, constants: Collection[str]
    ) -> tuple[list[Candidate], Decision] | None:
        """As `restored`; None, with a warning, where the decision is not of this program or cannot be compiled."""
        return self._tried(self.restored, verifier, target, constants)

    def try_opened(
        self, verifier: Verifier, target: Target, constants: Collection[str]
    ) -> tuple[Sequence[Candidate], Decision] | None:
        """As `opened`; None, with a warning, where the version of the first sizes is not of this program."""
        return self._tried(self.opened, verifier, target, constants)

    @staticmethod
    def _tried(read: Callable[..., Found], *given: object) -> Found | None:
        try:
            return read(*given)
        except MirageError as e:
            warnings.warn(f"a record of the results store is not used: {e}", CorruptRecordWarning, stacklevel=5)
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
    another record. `source` is the program before its dims became axes, for whoever looks at records.
    """

    def __init__(
        self, store: CallStore, program: AxisProgram, target: Target, constants: Collection[str] = (),
        source: Program | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.source = source
        #: checksums of the records that were recalled or kept, which what is kept next replaces
        self._seen: dict[str, str] = {}
        self.program = program
        self.target = target
        self.constants = constants
        self.names = canonical_key(program)

    def _key(self, *more: str) -> str:
        # rules that were added may lead to other graphs
        rules = added_rules()
        own = [f"schema {RESULT.schema}", self.names.text, self.target.name, self.program.dtype, *more]
        return sha256("\n".join([*own, f"rules {rules}"] if rules else own))

    def _sized_key(self, kind: str, anchors: Sequence[Mapping[str, int]], *more: str) -> str:
        """The key of a record for these sizes and constants, in the names of the canonical form."""
        sizes = str([sorted(rename_sizes(a, self.names.renaming.symbols).items()) for a in anchors])
        return self._key(kind, sizes, *more, *self._constants_text())

    def _constants_text(self) -> list[str]:
        inputs = enumerate(self.program.inputs)
        constants = sorted(self.names.renaming.inputs[k] for k, x in inputs if x.argument in self.constants)
        return [f"constants {constants}"] if constants else []

    def _recall(self, key: str, kind: type[Stored], read: Callable[[Stored], Found]) -> Kept[Found] | None:
        """What `read` makes of a record, unless there is none.

        A record that is damaged or not of this program is a warning, and the right one will replace it.
        """
        found = self.store.recall(key)
        if found is None:
            return None
        # what is kept anew knows more, or is right
        self._seen[key] = found.checksum
        try:
            record = decode(kind, found.payload, "record")
            return Kept(read(record), record.complete, record.spent)
        except (MirageError, ValueError) as e:
            text = f"record {key[:12]} of the results store is not used: {e}"
            warnings.warn(text, CorruptRecordWarning, stacklevel=4)
            return None

    def _keep(self, key: str, record: StoredRecord, best_us: float | None, **about: str) -> None:
        """Keep a record in the place of the one that was seen there; of another one only if it is better than that."""
        checksum = self.store.put(
            key, encode(record), program=self.program.name, target=self.target.name, dtype=self.program.dtype, best_us=best_us,
            cut_s=None if record.complete else record.spent, replaces=self._seen.get(key), **about,
        )  # fmt: skip
        if checksum is not None:
            self._seen[key] = checksum

    def keys(self, anchors: Sequence[Mapping[str, int]]) -> list[str]:
        """The keys of all that may be kept for these sizes, on whatever machine."""
        own = [self.search_key, *(self.choice_key(anchors, machine) for machine in self.target.machines)]
        others = [r.key for r in self.store.family(self.family_key(anchors))]
        return list(dict.fromkeys([*own, *others]))

    def seen(self, key: str) -> str | None:
        """The checksum of the record of a key that was recalled or kept last; None where there was none, or a damaged one."""
        return self._seen.get(key)

    def graphs(self) -> Kept[tuple[list[Known], SearchStats]] | None:
        """The graphs of an earlier search, not verified, and its statistics."""
        return self._recall(self.search_key, StoredSearch, lambda r: (self.read_graphs(r.graphs), r.stats))

    def keep_graphs(self, candidates: Sequence[Candidate], stats: SearchStats, *, complete: bool, spent: float) -> None:
        """Remember a search's verified graphs."""
        best = sorted(candidates, key=lambda c: c.cost)[:KEPT]
        record = StoredSearch(
            graphs=self._written_graphs(best), stats=stats, complete=complete, spent=spent, program=self.source,
            constants=tuple(sorted(self.constants)), form=RESULT.schema,
        )  # fmt: skip
        self._keep(self.search_key, record, None)

    @property
    def search_key(self) -> str:
        """The key of the program's graphs."""
        return self._key("graphs", *self._constants_text())

    def choice_key(self, anchors: Sequence[Mapping[str, int]], machine: str) -> str:
        """The key of the choice for these sizes on a machine."""
        return self._sized_key("tuned", anchors, machine)

    def family_key(self, anchors: Sequence[Mapping[str, int]]) -> str:
        """What the choices for these sizes on all machines have in common."""
        return self._sized_key("tuned on any machine", anchors)

    def tuned(self, anchors: Sequence[Mapping[str, int]], budget: float = 0.0) -> Kept[KeptDecision] | None:
        """The choice for these sizes: of the preferred machine of which one is kept that took the `budget` (seconds)."""

        for machine in self.target.machines:
            found = self._recall(self.choice_key(anchors, machine), StoredChoice, self.read_choice)
            if found is not None and found.enough(budget):
                return found
        return None

    def elsewhere(self, anchors: Sequence[Mapping[str, int]]) -> tuple[str, Kept[KeptDecision]] | None:
        """The choice for these sizes on another machine, whose name comes first: of the machine for which most was done."""
        own = {self.choice_key(anchors, machine) for machine in self.target.machines}
        others = [r for r in self.store.family(self.family_key(anchors)) if r.key not in own and r.processor]
        for r in sorted(others, key=lambda r: (r.cut_s is not None, -(r.cut_s or 0.0), r.key)):
            if (found := self._recall(r.key, StoredChoice, self.read_choice)) is not None:
                return str(r.processor), found
        return None

    def read_choice(self, r: StoredChoice) -> KeptDecision:
        """A choice as it is stored, in this program's names, none of whose graphs is read; raises FormatError, and ScheduleError,
        where it is none of it.
        """
        records = StoredGraphs.of_json(r.graphs, self._symbols())
        r.decision.check_form(len(records), self._symbols())
        decision = r.decision.renamed(self.names.renaming.inverse(), self.target)
        return KeptDecision(StoredGraphs(records, self._from_canonical), decision, dict(r.baselines), r.stats)

    def keep_tuned(
        self, anchors: Sequence[Mapping[str, int]], tuned: Chosen, machine: str, stats: SearchStats, spent: float
    ) -> None:
        """Remember a choice on a machine, and the graphs that it was made among, for these sizes, for which `spent` seconds were
        taken in all.
        """
        decision = tuned.decision
        record = StoredChoice(
            graphs=self._written_graphs(tuned.graphs), baselines=tuned.baselines, stats=stats,
            decision=decision_record(decision, tuned.graphs).renamed(self.names.renaming, self.target),
            complete=not was_cut(tuned.stop_reason), spent=spent, program=self.source, form=RESULT.schema,
            sizes=tuple(dict(a) for a in anchors), machine=machine, constants=tuple(sorted(self.constants)),
        )  # fmt: skip
        number = decision.number(anchors[0])
        timing, modelled = decision.versions[number].timing, decision.points[0].times[number]
        self._keep(
            self.choice_key(anchors, machine), record, modelled if timing is UNMEASURED else timing.median_us,
            family=self.family_key(anchors), processor="; ".join(machine.split("\n")),
        )  # fmt: skip

    def _written_graphs(self, candidates: Sequence[Candidate]) -> tuple[Json, ...]:
        """Candidates in the names of the canonical form, in which records are kept."""
        return tuple(encode(self._to_canonical(known(c))) for c in candidates)

    def read_graphs(self, graphs: Sequence[Json]) -> list[Known]:
        """What `_written_graphs` wrote, in this program's names."""
        return [self._from_canonical(k) for k in StoredGraphs.of_json(graphs, self._symbols())]

    def _to_canonical(self, known: Known) -> Known:
        graph = rename_mugraph(known.graph, self.names.renaming, self.names.program)
        return renamed(replace(known, graph=replace(graph, origin=known.graph.origin)), self.names.renaming)

    def _from_canonical(self, known: Known) -> Known:
        back = self.names.renaming.inverse()
        graph = replace(rename_mugraph(known.graph, back, self.program), origin=known.graph.origin)
        return renamed(replace(known, graph=graph), back)

    def _symbols(self) -> list[str]:
        """The dim symbols of the canonical form."""
        return list(self.names.renaming.symbols.values())


def renamed(c: Known, r: Renaming) -> Known:
    """The same with other names of axes and dim symbols in its schedules and sizes."""
    return replace(
        c, schedule=rename_schedule(c.schedule, r.axes) if c.schedule else None,
        sizes=rename_sizes(c.sizes, r.symbols), tried=tuple((rename_schedule(s, r.axes), us) for s, us in c.tried),
    )  # fmt: skip
