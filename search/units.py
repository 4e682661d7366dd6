"""The units of one search: parts of it that can be finished, kept in a checkpoint, and skipped when it goes on."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.codec import decode, register
from mirage.mugraph.degree import SafetyCheck
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.search.assemble import Assembler
from mirage.search.compose import Composer, Kernel
from mirage.search.computed import fold
from mirage.search.cost import Cost
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME, Outcome
from mirage.search.options import SearchOptions
from mirage.search.prices import Prices
from mirage.search.space import Space
from mirage.search.tensors import KernelTensor

#: the unit that comes first, so that a search that is cut short has its graphs
FUSED = "the program's own operators in one kernel"

#: which graphs a search may return; picklable, where an executor is used
Accept = Callable[[MuGraph], bool]


@dataclass(frozen=True)
class Found:
    """A graph, and the one in which its kernels of a single operator are library calls: those of them that are accepted.

    `cost` is modelled, in ns at the hinted sizes, `entries` the cost vector. `foreign`: it takes a difference that the program
    does not take. `at` is when it was found (`time.time()`).
    """

    graphs: list[MuGraph]
    cost: float
    entries: Cost
    foreign: bool
    at: float


#: what a unit found
Payload = list[Found]

register(np.ndarray, None, np.ndarray.tolist, lambda data: np.array(decode(list[float], data, "entries")))


def ranges(max_kernels: int) -> dict[str, tuple[int, int]]:
    """The units beside `FUSED`, in order: how many kernels their graphs have, at least and at most."""
    bounds = [(k, k) for k in (1, 2) if k <= max_kernels]
    if max_kernels > 2:
        bounds.append((3, max_kernels))
    return {f"{few} kernels" if few == most else f"{few} to {most} kernels": (few, most) for few, most in bounds}


class Units:
    """Runs units in this process, where they share the space.

    `safe`: only graphs of which `analyze(graph).safe` holds are found. Raises TermTooLarge if an expression of the program is
    too large.
    """

    def __init__(
        self,
        program: AxisProgram,
        axis_sizes: Mapping[str, int],
        options: SearchOptions,
        accept: Accept | None,
        safe: bool,
    ) -> None:
        self.ranges = ranges(options.max_kernels)
        self._folded = fold(program)
        self.space = Space(self._folded.core, axis_sizes, options)
        self._accept = accept
        self._safety = SafetyCheck() if safe else None
        self._assembler = Assembler(self._folded.core)
        self._closing = self.space.close()
        #: by how long graphs may take (ns)
        self._composers: dict[float, Composer] = {}
        self._known: dict[int, Found] = {}

    def close(self) -> Iterator[None]:
        """Close the space, in steps; where they were left, they go on."""
        self._composers.clear()
        # not `yield from`, which would end it with this generator
        for _ in self._closing:
            yield

    def know(self, found: Found) -> None:
        """A graph is there already: what it dominates is not looked at."""
        if id(found) not in self._known:
            self._known[id(found)] = found
            for composer in self._composers.values():
                composer.know(found.entries, found.foreign)

    @property
    def together(self) -> float:
        """What the program's own operators cost as one kernel that repeats no work (ns)."""
        space = self.space
        return Prices(space.model).together(space.program)

    def run(self, unit: str, most: float = math.inf) -> Iterator[Found | None]:
        """The graphs of a unit that take at most so many ns as modelled; None between steps of the work. All but those of `FUSED`
        are of the values that there are.
        """
        if unit == FUSED:
            yield from self._fused()
            return
        composer = self._composed(most)
        few, most = self.ranges[unit]
        outputs = self.space.tensors.outputs()
        for graph in composer.compose(few, most, lambda kernels: self._accepted(kernels, outputs)):
            if graph is None:
                yield None
            else:
                cost = self.space.model.total(graph.cost)
                yield Found(list(graph.graphs), cost, graph.cost, graph.foreign, graph.at)

    def _composed(self, most: float) -> Composer:
        composer = self._composers.get(most)
        if composer is None:
            # those of less time than this are not asked again
            self._composers = {m: c for m, c in self._composers.items() if m > most}
            composer = self._composers[most] = self.space.composer(most)
            for found in self._known.values():
                composer.know(found.entries, found.foreign)
        return composer

    def _fused(self) -> Iterator[Found | None]:
        for kernels in self.space.fused():
            (kernel,) = kernels
            outputs = [next((t for t in kernel.tensors if k in t.outputs), None) for k in self._outputs()]
            cost = self.space.model.of_kernel(kernel.choice.cost)
            if graphs := self._accepted(kernels, outputs):
                yield Found(graphs, self.space.model.total(cost), cost, kernel.choice.foreign, time.time())
            yield None

    def _outputs(self) -> range:
        return range(len(self.space.program.outputs))

    def _accepted(self, kernels: list[Kernel], outputs: Sequence[KernelTensor | None]) -> list[MuGraph]:
        graph = self._folded.expand(self._assembler.graph(kernels, outputs))
        calls = with_predefined(graph)
        found = [graph] if calls is graph else [graph, calls]
        if self._safety is not None:
            found = [g for g in found if self._safety.safe(g)]
        return [g for g in found if self._accept is None or self._accept(g)]


class Worker:
    """Runs units in a process or thread of an executor. Workers build their own space, once each; picklable."""

    def __init__(
        self,
        program: AxisProgram,
        axis_sizes: Mapping[str, int],
        options: SearchOptions,
        accept: Accept | None,
        safe: bool,
    ) -> None:
        self._given = program, axis_sizes, options, accept, safe
        self._search = uuid.uuid4().hex
        self._units: Units | None = None
        #: what units have found by now, and what is left to do of them
        self._found: dict[str, list[Found]] = {}
        self._steps: dict[str, Iterator[Found | None]] = {}
        # threads of one process share the space, one at a time
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., Worker], tuple[object, ...]]:
        return _restored, (self._search, *self._given)

    def unit(self, unit: str, seconds: float) -> Outcome:
        """The graphs of a unit; one that was cut short goes on."""
        deadline = time.perf_counter() + seconds
        with self._turn:
            found = self._found.setdefault(unit, [])
            steps = self._steps.setdefault(unit, self._run(unit))
            stopped = ""
            try:
                for item in steps:
                    if item is not None:
                        found.append(item)
                    if time.perf_counter() > deadline:
                        stopped = OUT_OF_TIME
                        break
            except KeyboardInterrupt:
                stopped = INTERRUPTED
            return Outcome([*found], stopped)

    def _run(self, unit: str) -> Iterator[Found | None]:
        if self._units is None:
            self._units = Units(*self._given)
        if not self._units.space.complete:
            yield from self._units.close()
        yield from self._units.run(unit)


#: the worker that this process restored last
_last: dict[str, Worker] = {}


def _restored(key: str, *given: Any) -> Worker:
    if key not in _last:
        _last.clear()
        _last[key] = Worker(*given)
    return _last[key]
