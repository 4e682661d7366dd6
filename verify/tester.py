"""Random tests of muGraphs against one program, with one seed and one pair of primes (Mirage, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.dims import symbol
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.schedule import Schedule
from mirage.verify.bounds import Bound, GraphTerms, compare, read_terms
from mirage.verify.certificate import Check, Draw
from mirage.verify.field import ArrayModule, FieldArithmetic, Primes
from mirage.verify.sizes import AxisSizes, draw_schedule
from mirage.verify.trial import QUICK, Runner, Tests, Trial

#: tables of sizes per check
DRAWS = 3
#: tests at a draw for which no bound is known
UNBOUNDED = 256
#: where delta takes more tests at one draw, smaller sizes are tried, and then fewer tests
_MAX_TESTS = 4096
#: sizes up to which axes are drawn, and where that gives no bound
_LARGEST = (3, 2)


@dataclass(frozen=True)
class _Draw:
    """A table of axis sizes with its tests, and the terms of the program there."""

    sizes: dict[str, int]
    tests: Tests
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
    """Tests many muGraphs against one program, whose own results are computed once.

    Every draw is to reach the error probability `delta`. The tests run on arrays of the module `xp`.
    """

    def __init__(
        self,
        program: AxisProgram,
        reference: MuGraph,
        seed: int,
        primes: Primes,
        delta: float,
        xp: ArrayModule = np,
    ) -> None:
        self.program = program
        self.reference = reference
        self.seed = seed
        self.primes = primes
        self.delta = delta
        self.xp = xp
        self._sizes = AxisSizes(program)
        self._draws: dict[int, list[_Draw]] = {}

    def run(self, graph: MuGraph) -> Outcome:
        """The tests of a valid muGraph with the program's axes, inputs and outputs."""
        plans, notes = self._plan(graph)
        trials = [
            Trial(
                p.draw.tests,
                _runner(graph, p.schedule),
                tests_needed(p.bound, self.delta, _MAX_TESTS),
                whole=one_batch(p.bound),
            )
            for p in plans
        ]
        counterexample = ""
        if (k := first_difference(trials)) is not None:
            plan = plans[k]
            sizes = ", ".join(f"{a}={n}" for a, n in plan.draw.sizes.items())
            counterexample = (
                f"{trials[k].difference}; axes {sizes}; schedule {plan.schedule.to_json()}; seed {self.seed}"
            )
        draws = tuple(summary(p.draw.sizes, t, p.bound) for p, t in zip(plans, trials, strict=True))
        check = Check(self.seed, self.primes.p, self.primes.q, draws, counterexample)
        return Outcome(check, notes, set().union(*(t.outside_lax | t.tests.outside_lax for t in trials)))

    def _drawn(self, largest: int) -> list[_Draw]:
        if largest not in self._draws:
            tables = self._sizes.draw(DRAWS, largest, Random(f"sizes {largest} {self.seed}"))
            self._draws[largest] = [self._draw(t, f"{largest} {i}") for i, t in enumerate(tables)]
        return self._draws[largest]

    def _draw(self, sizes: dict[str, int], name: str) -> _Draw:
        seed = Random(f"tests {name} {self.seed}").getrandbits(63)
        shapes = [tuple(math.prod(sizes[a] for a in d) for d in x.dims) for x in self.program.inputs]
        symbols = {_symbol(i): n for i, n in enumerate(sizes.values())}

        def arithmetic(roots: np.ndarray) -> FieldArithmetic:
            dims = partial(self._sizes.value, sizes=sizes, seed=seed)
            return FieldArithmetic(symbols, self.primes, roots, seed, dims, self.xp)

        program = _runner(self.reference, Schedule(()))
        tests = Tests(shapes, self.primes, seed, arithmetic, program, xp=self.xp)
        return _Draw(sizes, tests, read_terms(self.reference, Schedule(()), sizes))

    def _plan(self, graph: MuGraph) -> tuple[list[_Plan], list[str]]:
        """A plan per draw, at smaller sizes where the larger ones give no bound, and notes on what is
        missing.
        """
        tried: list[list[_Plan]] = []
        for largest in _LARGEST:
            plans: list[_Plan] = []
            for i, d in enumerate(self._drawn(largest)):
                schedule, sizes = draw_schedule(graph, d.sizes, Random(f"schedule {i} {self.seed}"))
                plans.append(_Plan(d, schedule, compare(d.terms, read_terms(graph, schedule, sizes), self.primes)))
            if all(isinstance(p.bound, Bound) and p.bound.tests(self.delta) <= _MAX_TESTS for p in plans):
                return plans, []
            tried.append(plans)
        missing = sorted({p.bound for p in tried[1] if isinstance(p.bound, str)})
        if missing:
            return tried[0], [f"no error bound: {m}" for m in missing]
        return tried[1], [f"delta takes more than {_MAX_TESTS} tests"]


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


def _symbol(i: int) -> str:
    """The dim symbol that stands for the i-th axis while axes have sizes of their own."""
    return f"axis{i}"


def _runner(graph: MuGraph, schedule: Schedule) -> Runner:
    own = replace(graph, axes={a: symbol(_symbol(i)) for i, a in enumerate(graph.axes)})
    return lambda inputs, ar: run_mugraph(own, schedule, inputs, ar)
