"""Random tests of muGraphs against one program, with one seed and one pair of primes (Mirage, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from random import Random

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.codec import encode
from mirage.ir.dims import symbol
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.schedule import Schedule
from mirage.verify.bounds import Bound, GraphTerms, compare, read_terms
from mirage.verify.certificate import Check, Draw
from mirage.verify.field import ArrayModule, FieldArithmetic
from mirage.verify.measure import DrawnMeasure
from mirage.verify.primes import Primes, Residues, with_primes
from mirage.verify.sizes import AxisSizes, SizeTable, axis_symbol, draw_schedule
from mirage.verify.support import elements_needed, read_sums
from mirage.verify.trial import QUICK, Runner, Tests, Trial

#: tables of sizes per check
DRAWS = 3
#: tests at a draw for which no bound is known
UNBOUNDED = 256
#: where delta takes more tests at one draw, smaller sizes are tried, and then fewer tests
_MAX_TESTS = 4096
#: elements up to which axes are drawn, and where that gives no bound
_LARGEST = (6, 3, 2)


@dataclass(frozen=True)
class _Draw:
    """A table of elements per axis, and the terms of the program there."""

    table: SizeTable
    terms: GraphTerms


@dataclass(frozen=True)
class _Plan:
    """What a graph is to pass at one draw."""

    draw: _Draw
    schedule: Schedule
    bound: Bound | str


@dataclass(frozen=True)
class Outcome:
    """A check, with notes on what is missing, and what of the graphs Theorem 2 does not cover."""

    check: Check
    notes: list[str]
    outside_lax: set[str]


class RandomTester:
    """Tests muGraphs against one program.

    Every draw is to reach the error probability `delta`. The tests run on arrays of the module `xp`. `others` are programs over
    the same axes whose reference graphs are tested.
    """

    def __init__(
        self,
        program: AxisProgram,
        reference: MuGraph,
        seed: int,
        delta: float,
        xp: ArrayModule = np,
        others: Sequence[AxisProgram] = (),
    ) -> None:
        self.program = program
        self.reference = reference
        self.seed = seed
        self.delta = delta
        self.xp = xp
        self._sizes = AxisSizes(program, *others)
        self._text = str(program)
        self._sums = read_sums(reference)
        self._draws: dict[tuple[int, frozenset[tuple[str, int]]], list[_Draw]] = {}

    def run(self, graph: MuGraph) -> Outcome:
        """The tests of a valid muGraph with the program's axes, inputs and outputs."""
        return with_primes(f"{self.seed} {self._text} {graph!r}", partial(self._run, graph))

    def _run(self, graph: MuGraph, residues: Residues) -> Outcome:
        needed = elements_needed(self._sums, read_sums(graph), self.program.axes)
        plans, notes = self._plan(graph, needed, residues.primes)
        table = plans[0].draw.table
        few = [f"{a} (which takes {n} elements)" for a, n in needed.items() if not table.speaks_for(a, n)]
        uncovered = f"all sizes of {', '.join(few)}" if few else ""
        trials = [
            Trial(
                self._tests(p.draw.table, f"{i}", residues),
                _runner(graph, p.schedule),
                tests_needed(p.bound, self.delta, _MAX_TESTS),
                whole=one_batch(p.bound),
            )
            for i, p in enumerate(plans)
        ]
        difference = ""
        if (k := first_difference(trials)) is not None:
            plan = plans[k]
            sizes = ", ".join(f"{a}={n}" for a, n in plan.draw.table.elements.items())
            schedule = encode(plan.schedule)["kernels"]
            difference = f"{trials[k].difference}; axes {sizes}; schedule {schedule}; seed {self.seed}"
        draws = tuple(summary(p.draw.table.elements, t, p.bound) for p, t in zip(plans, trials, strict=True))
        check = Check(self.seed, residues.primes.p, residues.primes.q, draws, difference, uncovered)
        return Outcome(check, notes, set().union(*(t.outside_lax | t.tests.outside_lax for t in trials)))

    def _drawn(self, largest: int, needed: Mapping[str, int]) -> list[_Draw]:
        key = largest, frozenset(needed.items())
        if key not in self._draws:
            tables = self._sizes.draw(DRAWS, largest, Random(f"sizes {largest} {self.seed}"), needed)
            self._draws[key] = [_Draw(t, read_terms(self.reference, Schedule(()), t.elements)) for t in tables]
        return self._draws[key]

    def _tests(self, table: SizeTable, name: str, residues: Residues) -> Tests:
        seed = Random(f"tests {name} {residues.primes.p} {self.seed}").getrandbits(63)
        sizes = table.elements
        shapes = [tuple(math.prod(sizes[a] for a in d) for d in x.dims) for x in self.program.inputs]
        symbols = {axis_symbol(i): n for i, n in enumerate(sizes.values())} | dict(table.symbols)

        @lru_cache(maxsize=1)
        def drawn(roots: bytes) -> DrawnMeasure | None:
            # both sides of a chunk have the same
            numbers = np.frombuffer(roots, dtype=np.uint64)
            return None if table.measure is None else DrawnMeasure(table.measure, residues.primes, numbers, seed)

        def arithmetic(roots: np.ndarray) -> FieldArithmetic:
            measure = drawn(roots.tobytes())
            return FieldArithmetic(symbols, residues.primes, roots, seed, measure, self.xp, residues)

        return Tests(shapes, residues.primes, seed, arithmetic, _runner(self.reference, Schedule(())), xp=self.xp)

    def _plan(self, graph: MuGraph, needed: Mapping[str, int], primes: Primes) -> tuple[list[_Plan], list[str]]:
        """A plan per draw, with fewer elements where more give no bound, and notes on what is missing."""
        tried: list[list[_Plan]] = []
        # the first is for axes that need more elements than usual
        for largest in _LARGEST if max(needed.values(), default=0) > _LARGEST[1] else _LARGEST[1:]:
            plans: list[_Plan] = []
            for i, d in enumerate(self._drawn(largest, needed)):
                schedule, sizes = draw_schedule(graph, d.table.elements, Random(f"schedule {i} {self.seed}"))
                plans.append(_Plan(d, schedule, compare(d.terms, read_terms(graph, schedule, sizes), primes)))
            if all(isinstance(p.bound, Bound) and p.bound.tests(self.delta) <= _MAX_TESTS for p in plans):
                return plans, []
            tried.append(plans)
        missing = sorted({p.bound for p in tried[-1] if isinstance(p.bound, str)})
        if missing:
            return tried[0], [f"no error bound: {m}" for m in missing]
        return tried[-1], [f"delta takes more than {_MAX_TESTS} tests"]


def tests_needed(bound: Bound | str, delta: float, most: int) -> Callable[[int], int]:
    """How many tests must pass at a draw where so many were drawn again, `most` of them at most."""
    if isinstance(bound, str):
        return lambda redrawn: min(UNBOUNDED, most)
    return lambda redrawn: min(max(QUICK, bound.tests(delta, redrawn)), most)


def one_batch(bound: Bound | str) -> bool:
    """Whether the bound holds only for tests that are made together."""
    return isinstance(bound, Bound) and bound.pairs > 0


def first_difference(trials: Sequence[Trial]) -> int | None:
    """Run trials until one fails; its index. The first begins with a quick round, which most wrong graphs fail."""
    for k, t in enumerate(trials):
        if k == 0:
            t.step(QUICK)
        while t.missing:
            t.step()
        if t.difference:
            return k
    return None


def summary(sizes: Mapping[str, int], t: Trial, bound: Bound | str) -> Draw:
    """What a trial showed."""
    if isinstance(bound, str):
        return Draw(dict(sizes), t.passed, t.redrawn, None, None, None)
    error = bound.error(t.passed, t.redrawn)
    return Draw(dict(sizes), t.passed, t.redrawn, bound.k, bound.d, error, bound.pairs, bound.argument_k)


def _runner(graph: MuGraph, schedule: Schedule) -> Runner:
    own = replace(graph, axes={a: symbol(axis_symbol(i)) for i, a in enumerate(graph.axes)})
    return lambda inputs, ar: run_mugraph(own, schedule, inputs, ar)
