"""Is a muGraph the program? Random tests over finite fields (Mirage, section 5.2), with the bound that
they reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import numpy as np

from mirage.errors import AxisError, GraphError, InputError
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate as dim_value
from mirage.ir.dims import symbol
from mirage.ir.interpret import evaluate
from mirage.ir.program import Program
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.validate import validate
from mirage.verify.bounds import Bound, GraphTerms, compare, read_terms
from mirage.verify.certificate import Certificate, Draw
from mirage.verify.field import FieldArithmetic, Primes, draw_primes
from mirage.verify.lowering import check_lowering
from mirage.verify.sizes import AxisSizes, draw_schedule
from mirage.verify.trial import QUICK, Runner, Tests, Trial

DELTA = 2.0**-40
#: tables of sizes per certificate
_DRAWS = 3
#: tests at a draw for which no bound is known
_UNBOUNDED = 256
#: where delta takes more tests at one draw, smaller sizes are tried, and then fewer tests
_MAX_TESTS = 4096
#: sizes up to which axes are drawn, and where that gives no bound
_LARGEST = (3, 2)
#: elements of a tensor, over all tests, when programs are compared at their own sizes
_MAX_ELEMENTS = 1 << 22


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

    def tests(self, delta: float) -> int:
        return max(QUICK, self.bound.tests(delta)) if isinstance(self.bound, Bound) else _UNBOUNDED


class Verifier:
    """Checks many muGraphs against one program, whose own results are computed once.

    `seed` makes every random choice; `delta` is the error probability to reach. Raises AxisError if the
    program has no axis form, and InputError if delta is not a probability.
    """

    def __init__(self, program: Program, seed: int = 0, delta: float = DELTA) -> None:
        self.program = program
        self.seed = seed
        self.delta = _probability(delta)
        self.axis_program = to_axes(program)
        self.reference = reference_graph(self.axis_program)
        self.primes = draw_primes(seed)
        self._sizes = AxisSizes(self.axis_program)
        self._draws: dict[int, list[_Draw]] = {}

    def check(self, graph: MuGraph) -> Certificate:
        """The certificate of a muGraph, equal or not; `proof` is left at "not tried".

        Raises GraphError if the graph is malformed or was made for another program.
        """
        validate(graph)
        self._check_interface(graph)
        plans, notes = self._plan(graph)
        trials = [
            Trial(p.draw.tests, _runner(graph, p.schedule), min(p.tests(self.delta), _MAX_TESTS))
            for p in plans
        ]
        counterexample = ""
        if (k := _first_difference(trials)) is not None:
            plan = plans[k]
            sizes = ", ".join(f"{a}={n}" for a, n in plan.draw.sizes.items())
            counterexample = (
                f"{trials[k].difference}; axes {sizes}; schedule {plan.schedule.to_json()}; seed {self.seed}"
            )
        else:
            notes.append(self.lowering)
        draws = [_summary(p.draw.sizes, t, p.bound) for p, t in zip(plans, trials, strict=True)]
        return _certificate(
            draws, trials, counterexample, analyze(graph), notes, self.primes, self.seed, self.delta
        )

    @cached_property
    def lowering(self) -> str:
        """How the axis form was compared with the program; raises VerificationError if they differ."""
        return check_lowering(self.program, self.reference, self.primes, self.seed)

    def _check_interface(self, graph: MuGraph) -> None:
        ap = self.axis_program
        same = graph.inputs == ap.inputs and dict(graph.axes) == ap.axes
        if not same or [o.dims for o in graph.outputs] != [o.dims for o in ap.outputs]:
            raise GraphError(
                f"muGraph {graph.name}: its axes, inputs or outputs are not those of program {ap.name}; "
                "verify it against the program that it was made for"
            )

    def _drawn(self, largest: int) -> list[_Draw]:
        if largest not in self._draws:
            tables = self._sizes.draw(_DRAWS, largest, Random(f"sizes {largest} {self.seed}"))
            self._draws[largest] = [self._draw(t, f"{largest} {i}") for i, t in enumerate(tables)]
        return self._draws[largest]

    def _draw(self, sizes: dict[str, int], name: str) -> _Draw:
        seed = Random(f"tests {name} {self.seed}").getrandbits(63)
        shapes = [tuple(math.prod(sizes[a] for a in d) for d in x.dims) for x in self.axis_program.inputs]
        symbols = {_symbol(i): n for i, n in enumerate(sizes.values())}

        def arithmetic(roots: np.ndarray) -> FieldArithmetic:
            return FieldArithmetic(
                symbols, self.primes, roots, seed, lambda dim: self._sizes.value(dim, sizes, seed)
            )

        program = _runner(self.reference, Schedule(()))
        tests = Tests(shapes, self.primes, seed, arithmetic, program)
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
                plans.append(
                    _Plan(d, schedule, compare(d.terms, read_terms(graph, schedule, sizes), self.primes))
                )
            if all(isinstance(p.bound, Bound) and p.tests(self.delta) <= _MAX_TESTS for p in plans):
                return plans, []
            tried.append(plans)
        missing = sorted({p.bound for p in tried[1] if isinstance(p.bound, str)})
        if missing:
            return tried[0], [f"no error bound: {m}" for m in missing]
        return tried[1], [f"delta takes more than {_MAX_TESTS} tests"]


def _first_difference(trials: Sequence[Trial]) -> int | None:
    """Run trials, a quick round first, until one fails; its index."""
    for quick in (True, False):
        for k, t in enumerate(trials):
            if quick:
                t.step()
            while not (quick or t.finished):
                t.step()
            if t.difference:
                return k
    return None


def _summary(sizes: Mapping[str, int], t: Trial, bound: Bound | str) -> Draw:
    if isinstance(bound, str):
        return Draw(dict(sizes), t.passed, t.redrawn, None, None, None)
    return Draw(dict(sizes), t.passed, t.redrawn, bound.k, bound.d, bound.acceptance**t.passed)


def _certificate(
    draws: Sequence[Draw],
    trials: Sequence[Trial],
    counterexample: str,
    maximum: RunningMaximum,
    notes: Sequence[str],
    primes: Primes,
    seed: int,
    delta: float,
) -> Certificate:
    errors = [d.error for d in draws]
    outside = sorted(set().union(*(t.outside_lax | t.tests.outside_lax for t in trials)))
    return Certificate(
        equal=not counterexample,
        seed=seed,
        p=primes.p,
        q=primes.q,
        draws=tuple(draws),
        delta=delta,
        error_bound=None if counterexample or None in errors else max(e for e in errors if e is not None),
        counterexample=counterexample,
        proof="not tried",
        safe_maximum=maximum.safe,
        maximum_reason=maximum.reason,
        lax=not outside,
        notes=(*(f"outside Lax: {o}" for o in outside), *notes),
    )


def _symbol(i: int) -> str:
    """The dim symbol that stands for the i-th axis while axes have sizes of their own."""
    return f"axis{i}"


def _runner(graph: MuGraph, schedule: Schedule) -> Runner:
    own = replace(graph, axes={a: symbol(_symbol(i)) for i, a in enumerate(graph.axes)})
    return lambda inputs, ar: run_mugraph(own, schedule, inputs, ar)


def _program_runner(program: Program) -> Runner:
    return lambda inputs, ar: evaluate(program, inputs, ar)


def _probability(delta: float) -> float:
    if not 0 < delta < 1:
        raise InputError(f"delta={delta} is not a probability between 0 and 1")
    return float(delta)


def verify_graph(program: Program, graph: MuGraph, *, seed: int = 0, delta: float = DELTA) -> Certificate:
    """The certificate of a muGraph for a program; see `Verifier`, which is faster for several graphs."""
    return Verifier(program, seed, delta).check(graph)


def verify_programs(a: Program, b: Program, *, seed: int = 0, delta: float = DELTA) -> Certificate:
    """Are two programs with inputs and outputs of equal types the same function?

    They run as written, at symbol sizes of 2 and 3 and their own literal sizes. Raises InputError if the
    types differ.
    """
    delta = _probability(delta)
    if a.input_types != b.input_types or a.output_types != b.output_types:
        raise InputError(
            f"programs {a.name} and {b.name} differ in type: "
            f"{_types(a)} and {_types(b)}; only programs of one type can be equal"
        )
    primes = draw_primes(seed)
    draws: list[Draw] = []
    trials: list[Trial] = []
    notes: list[str] = []
    counterexample = ""
    for i in range(_DRAWS):
        rng = Random(f"program sizes {i} {seed}")
        sizes = {s: rng.randint(2, 3) if i else 2 for s in a.symbols()}
        bound = _program_bound(a, b, sizes, primes)
        largest = max(math.prod(n.type.bind(sizes)) for n in (*a.nodes, *b.nodes))
        needed = max(QUICK, bound.tests(delta)) if isinstance(bound, Bound) else _UNBOUNDED
        most = max(QUICK, _MAX_ELEMENTS // max(largest, 1))
        if needed > most:
            notes.append(f"{most} tests of {needed} at {sizes}: {largest} elements in a tensor")
        if isinstance(bound, str):
            notes.append(f"no error bound: {bound}")
        tests = _program_tests(a, sizes, primes, seed + i)
        trials.append(Trial(tests, _program_runner(b), min(needed, most)))
        if _first_difference(trials[-1:]) is not None:
            at = ", ".join(f"{s}={n}" for s, n in sizes.items())
            counterexample = f"{trials[-1].difference}; sizes {at}; seed {seed}"
        draws.append(_summary(sizes, trials[-1], bound))
        if counterexample:
            break
    try:
        maximum = analyze(reference_graph(to_axes(b)))
    except AxisError as e:
        maximum = RunningMaximum(False, f"{b.name} has no axis form: {e}", (), {})
    return _certificate(draws, trials, counterexample, maximum, notes, primes, seed, delta)


def _types(program: Program) -> str:
    ins, outs = (", ".join(map(str, ts)) for ts in (program.input_types, program.output_types))
    return f"({ins}) -> ({outs})"


def _program_tests(program: Program, sizes: dict[str, int], primes: Primes, seed: int) -> Tests:
    shapes = [t.bind(sizes) for t in program.input_types]

    def arithmetic(roots: np.ndarray) -> FieldArithmetic:
        return FieldArithmetic(sizes, primes, roots, seed)

    return Tests(shapes, primes, seed, arithmetic, _program_runner(program))


def _program_bound(a: Program, b: Program, sizes: Mapping[str, int], primes: Primes) -> Bound | str:
    terms: list[GraphTerms] = []
    for program in (a, b):
        try:
            ap = to_axes(program)
        except AxisError as e:
            return f"{program.name} has no axis form: {e}"
        axes = {x: dim_value(d, sizes) for x, d in ap.axes.items()}
        terms.append(read_terms(reference_graph(ap), Schedule(()), axes))
    return compare(terms[0], terms[1], primes)
