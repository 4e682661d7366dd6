"""Records of the results store, looked at by themselves: what one says, and whether it is true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage.cache import CallStore
from mirage.cache.records import SCHEMA, Record
from mirage.errors import FormatError, MirageError, UnknownTarget, UnverifiableRecord
from mirage.ir.codec import RESULT, decode
from mirage.ir.dims import sizes_text
from mirage.ir.program import Program
from mirage.kernels.decision import decide, leaves
from mirage.kernels.target import get_target
from mirage.results.forms import StoredForms, StoredKernel
from mirage.results.recall import KeptDecision, Memory, StoredChoice, StoredRecord, StoredSearch
from mirage.search.candidates import Candidate, Known, admitted
from mirage.verify.equivalence import Verifier


@dataclass(frozen=True)
class Finding:
    """What became of a record: `verified` (so many graphs), `bad`, or neither; and why."""

    record: Record
    graphs: int = 0
    bad: bool = False
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"{'bad' if self.bad else 'not verified'}: {self.why}"
        return f"verified: {_graphs(self.graphs)}"


@dataclass(frozen=True)
class OpenRecord:
    """A record with its content, and the graphs in it, in the names of its program; of a choice, the decision besides."""

    record: Record
    stored: StoredRecord
    program: Program
    verifier: Verifier
    graphs: Sequence[Known]
    decision: KeptDecision | None = None


def stored_in(record: Record) -> StoredRecord | StoredForms | StoredKernel:
    """What a record says. Raises FormatError where it is not sound, UnverifiableRecord where it is of another release."""
    if isinstance(record.version, int) and record.version != SCHEMA:
        raise UnverifiableRecord(f"its layout is {record.version}, and this release reads {SCHEMA}")
    try:
        content = record.content()
    except ValueError as e:
        raise FormatError(str(e)) from None
    form = content.get("form", 0)
    if form not in (0, RESULT.schema):
        raise UnverifiableRecord(f"it was made by a release with schema {form!r} of results, and this one has {RESULT.schema}")
    if "whole" in content:
        return decode(StoredForms, content, "record")
    if "kernel" in content:
        return decode(StoredKernel, content, "record")
    return decode(StoredChoice if "decision" in content else StoredSearch, content, "record")


def opened(record: Record, seed: int = 0) -> OpenRecord:
    """The content of a record, none of whose graphs is verified; `seed` is that of their tests.

    Raises FormatError and other MirageErrors where it is not sound, or its key is not that of its program; UnverifiableRecord
    where it is of another release, has no graphs, or its target is not known here.
    """
    stored = stored_in(record)
    if isinstance(stored, StoredForms):
        raise UnverifiableRecord("it has no graphs: it says which forms of a compiled program were the fastest")
    if isinstance(stored, StoredKernel):
        raise UnverifiableRecord("it is a kernel of a compiled program, which is verified when it is recalled")
    if stored.program is None:
        raise UnverifiableRecord("it was made by a release that did not keep programs; it is verified when it is recalled")
    try:
        target = get_target(record.target)
    except UnknownTarget as e:
        raise UnverifiableRecord(str(e)) from None
    program, verifier = stored.program, Verifier(stored.program, seed)
    memory = Memory(CallStore(), verifier.axis_program, target, stored.constants, program)
    if isinstance(stored, StoredSearch):
        _check_key(record, memory.search_key)
        return OpenRecord(record, stored, program, verifier, memory.read_graphs(stored.graphs))
    assert isinstance(stored, StoredChoice)
    if not stored.sizes or any(set(s) != set(program.symbols()) for s in stored.sizes):
        raise FormatError("its sizes are not those of its program")
    _check_key(record, memory.choice_key([dict(s) for s in stored.sizes], stored.machine))
    kept = memory.read_choice(stored)
    kept.check(program.symbols(), target)
    return OpenRecord(record, stored, program, verifier, kept.graphs, kept)


def _check_key(record: Record, key: str) -> None:
    if record.key != key:
        raise FormatError(f"its key is not that of its program, which is {key[:12]}")


def verified(record: Record, seed: int = 0) -> Finding:
    """Whether a record is true: every graph in it is verified, as those that are recalled are."""
    try:
        found = opened(record, seed)
        for i, known in enumerate(found.graphs):
            if admitted(found.verifier, known, recalled=True) is None:
                return Finding(record, bad=True, why=f"graph {i} does not compute its program, {found.program.name}")
        return Finding(record, len(found.graphs))
    except UnverifiableRecord as e:
        return Finding(record, why=str(e))
    except MirageError as e:
        return Finding(record, bad=True, why=str(e))


def described(record: Record, seed: int = 0) -> Iterator[str]:
    """What a record says, as lines: its program, its best graph, the evidence for that, which is made anew, and measurements.

    Raises as `opened`; VerificationError where the best graph does not compute the program.
    """
    stored = stored_in(record)
    found = opened(record, seed) if isinstance(stored, StoredRecord) else None
    yield f"key: {record.key}"
    yield f"target: {record.target}, {record.dtype}" + (f"; {record.processor}" if record.processor else "")
    yield f"created: {record.created}"
    if isinstance(stored, StoredForms):
        yield f"compiled in {stored.spent:.1f} s; the form of {record.program} that was the fastest: {stored.whole}"
        yield from (f"subprogram {s.name}: {s.form}, {s.said}" for s in stored.subprograms)
        return
    if found is None:
        yield f"the kernel of {record.program}, made without a search"
        return
    yield "complete" if found.stored.complete else f"cut short after {found.stored.spent:.1f} s"
    yield f"\n{found.program}"
    if found.decision is None:
        yield f"\n{_graphs(len(found.graphs))}; the cheapest:"
        yield from _graph(found, 0)
        return
    assert isinstance(found.stored, StoredChoice)
    at = "; ".join(sizes_text(sizes) or "fixed sizes" for sizes in found.stored.sizes)
    constants = f", with constant {', '.join(found.stored.constants)}" if found.stored.constants else ""
    yield f"\nchosen at {at}{constants}, among {_graphs(len(found.graphs))}:"
    versions = found.decision.decision.versions
    for where, number in leaves(found.decision.decision.tree):
        timing = versions[number].timing
        took = f"{timing.min_us:,.1f} us min, {timing.median_us:,.1f} us median" if timing else "not measured"
        yield f"at {where}: version {number}, {versions[number].kind}, {took}"
    for name, timing in found.decision.baselines.items():
        yield f"{name}: {timing.min_us:,.1f} us min, {timing.median_us:,.1f} us median"
    first = decide(found.decision.decision.tree, found.stored.sizes[0])
    best = versions[first].graph
    if best is not None:
        yield f"\ngraph of version {first}:"
        yield from _graph(found, best)


def _graphs(count: int) -> str:
    return f"{count} graph{'s' * (count != 1)}"


def _graph(found: OpenRecord, place: int) -> Iterator[str]:
    if not found.graphs:
        return
    candidate: Candidate | None = admitted(found.verifier, found.graphs[place], recalled=True)
    if candidate is None:
        raise FormatError(f"graph {place} does not compute its program, {found.program.name}")
    yield str(candidate.graph)
    yield str(found.verifier.confirm(candidate.graph, candidate.certificate))
