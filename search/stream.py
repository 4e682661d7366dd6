"""The search as a stream: graphs as they are found, the program's own operators in one kernel first (paper, section 4.1)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial
from itertools import chain, islice

from mirage.drawing.show import Displayed
from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisProgram
from mirage.ir.dims import evaluate
from mirage.mugraph.canonical import structure_key
from mirage.search import jobs, native
from mirage.search.checkpoint import Checkpoint
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, run_units
from mirage.search.options import SearchOptions
from mirage.search.stats import SearchStats
from mirage.search.units import FUSED, Accept, Found, Payload, Units, Worker, ranges

#: steps of finding values after which graphs are made, for as many steps, of those that there are; then twice as many, and so
#: on. Not a time, so that a search that ends within the first round finds the same on every machine
ROUND_STEPS = 1000
#: times as long as the program's own operators in one kernel would take if it repeated no work: where a search takes long, graphs
#: that take longer come after all others. If none is found, twice as long, and so on
SOON = 1.25
#: `advance` returns with so many results, or so many seconds after the first
FEW = 8
SOON_S = 0.05


class Search(Displayed, drawn_by="mirage.search.draw"):
    """A search that goes on step by step.

    `sizes` (of the dim symbols) order the search and are among those at which costs are compared. A graph that `accept`
    refuses dominates none. With `safe`, all graphs are refused whose exponents may overflow (`analyze(graph).safe`), before
    they are made. The values that kernels can compute are found first; where that takes long, graphs are made of what there is
    in between.

    Units that are finished are written to the `checkpoint`, and not run again. With an `executor` they run in its workers, and
    have the same results.

    Raises SearchError for impossible options, UnknownPruner for an unknown pruner.
    """

    def __init__(
        self,
        program: AxisProgram,
        sizes: Mapping[str, int],
        options: SearchOptions | None = None,
        *,
        accept: Accept | None = None,
        safe: bool = False,
        checkpoint: Checkpoint | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.options = options or SearchOptions()
        self.options.check()
        self.units = [FUSED, *ranges(self.options.max_kernels)]
        #: the units that are finished
        self.finished: list[str] = []
        #: all that was found so far
        self.found: list[Found] = []
        #: whether nothing more will be found
        self.done = False
        #: seconds that it has worked, and the steps that it has taken
        self.seconds = 0.0
        self.steps = 0
        #: what another search of an equal program has found: what it dominates is not looked at
        self.known: Sequence[Found] = ()
        axis_sizes = {a: evaluate(d, sizes) for a, d in program.axes.items()}
        self._given = program, axis_sizes, self.options, accept, safe
        self._anew = partial(
            Search, program, sizes, options, accept=accept, safe=safe, checkpoint=checkpoint, executor=executor
        )
        self._checkpoint = checkpoint
        self._unsaved: dict[str, list[Found]] = {}
        self._executor = executor
        self._worker = Worker(*self._given)
        #: what units in workers have told
        self._told: set[tuple[object, ...]] = set()
        self._by_unit: dict[str, list[Found]] = {}
        #: seconds that `advance` has left
        self._left = 0.0
        self._running: Units | None = None
        self._refused = ""
        self._interrupted = False
        self._began = time.time()
        self._steps = self._all()
        native.start()

    def advance(self, seconds: float) -> list[Found]:
        """Go on for about so many seconds; what was found. Returns sooner with a few graphs, and where a unit ends.

        The first call ends with the first unit, the program's own operators in one kernel, whatever time that takes; every call
        takes one step. An interrupt (Ctrl-C) ends the search, and is raised; what was found is in `found`.

        Raises JobError if a worker dies.
        """
        start = time.perf_counter()
        before, units = len(self.found), len(self.finished)
        first = None
        try:
            while not self.done and len(self.finished) == units:
                step = next(self._steps, self)
                self.steps += 1
                if step is self:
                    self.done = True
                now = time.perf_counter()
                if len(self.found) > before and first is None:
                    first = now
                some = first is not None and (len(self.found) - before >= FEW or now - first > SOON_S)
                if self.finished and (some or now - start >= seconds):
                    break
                self._left = start + seconds - now
        except KeyboardInterrupt:
            self.interrupt()
            raise
        finally:
            self.seconds += time.perf_counter() - start
        return self.found[before:]

    @property
    def begun(self) -> bool:
        """Whether the first unit, the program's own operators in one kernel, is finished."""
        return bool(self.finished)

    def interrupt(self) -> None:
        """End it, and say so."""
        self._interrupted = self.done = True

    def anew(self) -> Search:
        """The search from its beginning, but for what its checkpoint holds; itself, unless it was interrupted before its end."""
        return self._anew() if self.stop_reason.startswith(INTERRUPTED) else self

    @property
    def stats(self) -> SearchStats:
        """What was done so far."""
        space = self._running.space if self._running else None
        stats = space.stats if space else SearchStats()
        if space:
            stats.limits = asdict(space.limits)
            stats.tensors = len(space.tensors.all)
        if self.found:
            best = min(self.found, key=lambda f: f.cost)
            stats.first_seconds = max(min(f.at for f in self.found) - self._began, 0.0)
            stats.best_seconds = max(best.at - self._began, 0.0)
        stats.candidates = sum(len(f.graphs) for f in self.found)
        stats.seconds = self.seconds
        stats.stop_reason = self.stop_reason
        return stats

    @property
    def stop_reason(self) -> str:
        """ "complete", or why it is not, if it ends here: "budget spent (2 of 4 units left)"."""
        if self._refused:
            return self._refused
        missing = len(self.units) - len(self.finished)
        why = INTERRUPTED if self._interrupted else OUT_OF_TIME
        reason = f"{why} ({missing} of {len(self.units)} units left)" if missing else "complete"
        space = self._running.space if self._running is not None else None
        if missing and space is not None and not space.complete and (untried := space.untried):
            reason = f"{reason}; operators of Table 1 not tried on all values: {', '.join(untried)}"
        return f"{reason}; products of sums left whole" if space is not None and space.whole else reason

    def save(self, *, within: float = 0.0) -> None:
        """Write the finished units to the checkpoint, unless all were finished before it was worth a file: by this search, or by
        what it is a part of, which has taken `within` seconds.
        """
        quick = max(self.seconds, within) <= jobs.PATIENCE_S and len(self.finished) == len(self.units)
        if self._checkpoint is None or not self._unsaved or quick:
            return
        if not self._checkpoint.keep(self._unsaved, Payload):
            self._checkpoint = None
        self._unsaved.clear()

    def _all(self) -> Iterator[None]:
        """All work, in steps."""
        try:
            units = self._running = Units(*self._given)
        except TermTooLarge as e:
            self._refused = f"not searched: {e}"
            return
        yield from self._unit(units, FUSED)
        count = ROUND_STEPS
        while True:
            yield from islice(units.close(), count)
            for found in self.known:
                units.know(found)
            if units.space.complete:
                break
            yield from islice(chain(self._soon(units), self._ranges(units)), count)
            count *= 2
        if self._executor is not None:
            yield from self._in_executor(self._executor)
            return
        every = self._ranges(units)
        yield from islice(every, ROUND_STEPS)
        if len(self.finished) < len(self.units):
            yield from self._soon(units)
        yield from every

    def _ranges(self, units: Units, most: float = math.inf) -> Iterator[None]:
        """All units but the first, with the graphs that take at most so many ns as modelled."""
        for unit in units.ranges:
            yield from self._unit(units, unit, most)

    def _soon(self, units: Units) -> Iterator[None]:
        """Graphs that might be much faster than what there is, before all others: as when a tree is searched ever deeper (Korf,
        1985), a bound that is too low costs little.
        """
        most = SOON * units.together
        while most < min((f.cost for f in self.found), default=math.inf):
            yield from self._ranges(units, most)
            most *= 2

    def _unit(self, units: Units, unit: str, most: float = math.inf) -> Iterator[None]:
        if unit in self.finished:
            return
        kept = self._checkpoint.get(unit, Payload) if self._checkpoint else None
        if kept is not None:
            for found in kept:
                units.know(found)
                self.found.append(found)
            self.finished.append(unit)
            yield
            return
        # what a round found is not found again by the next one
        mine = self._by_unit.setdefault(unit, [])
        for item in units.run(unit, most):
            if item is not None:
                mine.append(item)
                self.found.append(item)
                units.know(item)
            yield
        if unit != FUSED and (most < math.inf or not units.space.complete):
            return
        self.finished.append(unit)
        if self._checkpoint is not None:
            self._unsaved[unit] = mine
            if time.time() - self._began > jobs.PATIENCE_S:
                self.save()
        yield

    def _in_executor(self, executor: Executor) -> Iterator[None]:
        """The units in workers; a step per time that `advance` has left, or until they are finished."""
        self.save()
        while len(self.finished) < len(self.units):
            left = [u for u in self.units if u not in self.finished]
            run = run_units(
                left, self._worker.unit, seconds=max(self._left, 0.05), executor=executor, checkpoint=self._checkpoint,
                kind=Payload,
            )  # fmt: skip
            for unit, outcome in run.outcomes.items():
                for found in outcome.payload:
                    # a unit that was cut short tells again what it has found
                    key = found.entries.tobytes(), *map(structure_key, found.graphs)
                    if key not in self._told:
                        self._told.add(key)
                        self.found.append(found)
                if not outcome.stopped:
                    self.finished.append(unit)
            if run.interrupted:
                raise KeyboardInterrupt
            yield
