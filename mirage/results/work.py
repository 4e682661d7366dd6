"""What is known of a program while it is superoptimized, whatever the target."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from mirage.cache import CorruptRecordWarning
from mirage.errors import MirageError
from mirage.ir.program import Program
from mirage.kernels.target import Target
from mirage.mugraph.degree import program_is_stable
from mirage.progress import Say
from mirage.results.recall import Kept, KeptDecision, Memory, search_key
from mirage.results.result import StoredResult
from mirage.search.candidates import Candidates, Known
from mirage.search.checkpoint import Checkpoint, checkpoint_path
from mirage.search.cost import compared_sizes
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.search.large import LargeSearch, is_large
from mirage.search.options import SearchOptions
from mirage.search.rewriting import Rewriting
from mirage.search.stats import SearchStats
from mirage.search.stream import Search
from mirage.verify.equivalence import Verifier
from mirage.verify.safety import offered


@dataclass
class Work:
    """A program with the stream of its verified graphs.

    `anchors` are the given sizes (dim symbol -> elements), `constants` inputs whose contents never change: packed copies of
    them compete. `checkpoint` is that of the search. `recalled` are the statistics of a search that was complete, whose graphs
    were kept. `spent` are the seconds that earlier calls took, `begun` is when this one began (a `perf_counter`).
    """

    verifier: Verifier
    anchors: Sequence[Mapping[str, int]]
    candidates: Candidates
    constants: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    recalled: SearchStats | None = None
    spent: float = 0.0
    begun: float = field(default_factory=time.perf_counter)

    @property
    def stats(self) -> SearchStats:
        """What the search did so far, with the reason why it stops here: all that was left out, of targets and pieces, too."""
        search, rewriting, pieces = self.candidates.search, self.candidates.rewriting, self.candidates.pieces
        if search is None:
            return self.recalled or SearchStats()
        left_out, rules = [], ""
        if rewriting is not None:
            left_out, rules = rewriting.left_out, rewriting.report
        if pieces is not None and not pieces.complete:
            left_out = [f"pieces not searched to the end: {INTERRUPTED if self.candidates.stopped else OUT_OF_TIME}"]
        stats = search.stats
        return replace(stats, rules=rules, stop_reason="; ".join([stats.stop_reason, *left_out]))

    @property
    def complete(self) -> bool:
        """Whether there are no more graphs."""
        return self.candidates.complete

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the search and of the verification, in this call."""
        return {name: s for name, s in self.candidates.seconds.items() if name != "search" or self.candidates.search}

    def save(self) -> None:
        """Keep what the search has finished, for whoever goes on with it; nothing where its graphs were kept as complete."""
        for search in (self.candidates.search, self.candidates.pieces):
            if search is not None:
                search.save()
        if self.complete and self.checkpoint is not None:
            self.checkpoint.discard()

    def elapsed(self) -> float:
        """Seconds since this call began, with those of earlier ones."""
        return self.spent + time.perf_counter() - self.begun


@dataclass
class Request:
    """What `superoptimize` is asked for: a program at the sizes `anchors`, for a target, within `budget` seconds since `begun` (a
    `perf_counter`).

    `memory` is what is kept of it; with `more`, that goes on. A search that is `checkpointed` outlives the process; `executor`
    runs it. `say` is told of progress.
    """

    verifier: Verifier
    anchors: Sequence[Mapping[str, int]]
    target: Target
    options: SearchOptions
    constants: tuple[str, ...] = ()
    budget: float = 30.0
    more: bool = False
    memory: Memory | None = None
    checkpointed: bool = False
    executor: Executor | None = None
    say: Say = print
    begun: float = field(default_factory=time.perf_counter)

    def work(self, kept: Kept[KeptDecision] | None = None, hints: Sequence[Known] = ()) -> Work:
        """The stream of graphs of the program: those that were `kept` with a decision or a search, the `hints`, and what a search
        finds besides.
        """
        verifier, sizes = self.verifier, self.anchors[0]
        options = replace(self.options, compared=compared_sizes(verifier.axis_program))
        graphs = self.memory.graphs() if self.memory is not None else None
        known = [*(_measured(kept) if kept else ()), *hints, *(graphs.value[0] if graphs else ())]
        recalled = graphs.value[1] if graphs and graphs.complete else None
        search = checkpoint = None
        if recalled is None:
            key = search_key(verifier.program, sizes, options)
            checkpoint = Checkpoint(checkpoint_path(key), key) if self.checkpointed else None
            search = Search(
                verifier.axis_program, sizes, options, safe=program_is_stable(verifier.program),
                checkpoint=checkpoint, executor=self.executor,
            )  # fmt: skip
        found = pieces(verifier, sizes, options, checkpoint) if search is not None else None
        targets = rewriting(verifier, sizes, options, self.constants, found) if search is not None else None
        candidates = Candidates(verifier, search, known, found, targets)
        spent = kept.spent if kept else 0.0
        return Work(verifier, self.anchors, candidates, self.constants, checkpoint, recalled, spent, self.begun)


class Answers(Protocol):
    """The module that gives results for a target, see `Target.answers`."""

    def superoptimize(self, request: Request) -> Any:
        """The result for a request."""

    def restored(self, stored: StoredResult, where: str, seed: int) -> Any:
        """The result that was stored: its graphs are verified again with this seed, and its kernels made again. `where` says in
        errors where it comes from.

        Raises VerificationError for a graph that does not compute the program, and the errors of compilation.
        """

    def shapes(self, program: Program, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
        """The shapes of a program's arguments; raises InputError for what does not fit it."""


def answers(target: Target) -> Answers:
    """The module that gives results for a target."""
    return cast(Answers, import_module(target.answers))


def hints_of(kept: Kept[KeptDecision]) -> list[Known]:
    """The graphs of a choice on another machine, with their schedules, the fastest there first: nothing that was measured."""
    return [replace(k, timing=None, accuracy=(), tried=()) for k in _measured(kept)]


def _measured(kept: Kept[KeptDecision]) -> list[Known]:
    """The graphs that were kept with a decision; none, with a warning, where one is malformed."""
    try:
        return list(kept.value.graphs)
    except MirageError as e:
        warnings.warn(f"a record of the results store is not used: {e}", CorruptRecordWarning, stacklevel=5)
        return []


def pieces(
    verifier: Verifier, sizes: Mapping[str, int], options: SearchOptions, checkpoint: Checkpoint | None = None
) -> LargeSearch | None:
    """Graphs of a large program, of the graphs of its pieces."""
    if not is_large(verifier.axis_program):
        return None
    return LargeSearch(verifier.axis_program, sizes, options, partial(offered, verifier.program), checkpoint)


def rewriting(
    verifier: Verifier,
    sizes: Mapping[str, int],
    options: SearchOptions,
    constants: Sequence[str] = (),
    pieces: LargeSearch | None = None,
) -> Rewriting | None:
    """What the rules make of a program; of a large one, beside the search of its `pieces`."""
    if not options.rules:
        return None
    return Rewriting(
        verifier.axis_program, sizes, options, verifier.learn, constants=constants,
        accept=partial(offered, verifier.program), safe=program_is_stable(verifier.program), pieces=pieces,
    )  # fmt: skip
