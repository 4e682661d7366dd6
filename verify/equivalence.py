"""Is a muGraph the program? A proof first, which takes milliseconds; random tests over finite fields (Mirage, section 5.2), with
the bound that they reach, of what cannot be proved and, in two checks, of what is returned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random

import numpy as np

from mirage.errors import AxisError, GraphError, InputError, VerificationError
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.dims import evaluate as dim_value
from mirage.ir.interpret import evaluate
from mirage.ir.program import Program
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.text import interface_text
from mirage.mugraph.validate import validate
from mirage.mugraph.whole import whole_program
from mirage.verify.bounds import Bound, GraphTerms, compare, read_terms
from mirage.verify.certificate import Certificate, Check, Draw
from mirage.verify.counterexample import counterexample
from mirage.verify.field import ArrayModule, FieldArithmetic, check_module
from mirage.verify.lowering import check_lowering
from mirage.verify.pairing import check_pair, paired
from mirage.verify.primes import Primes, Residues, with_primes
from mirage.verify.proof import compare_graph
from mirage.verify.rules.rewritten import Rewritten, prove_by_rules
from mirage.verify.safety import FACTOR_TESTS, degree_violation
from mirage.verify.tester import (
    DRAWS,
    UNBOUNDED,
    Outcome,
    RandomTester,
    first_difference,
    one_batch,
    summary,
    tests_needed,
)
from mirage.verify.trial import QUICK, Runner, Tests, Trial

DELTA = 2.0**-40
#: elements of a tensor, over all tests, when programs are compared at their own sizes
_MAX_ELEMENTS = 1 << 22


class Verifier:
    """Checks many muGraphs against one program, whose own results are computed once.

    The program may be given over named axes, as that of a muGraph is (`mirage.mugraph.whole`). `seed` makes every
    random choice; `delta` is the error probability to reach. The tests run on arrays of the module `xp`, NumPy or CuPy:
    the verdict and its bound are the same. Raises AxisError if the program has no axis form, and InputError if delta is
    not a probability or `xp` no module of arrays.
    """

    def __init__(
        self, program: Program | AxisProgram, seed: int = 0, delta: float = DELTA, xp: ArrayModule = np
    ) -> None:
        self.source = program
        self.seed = seed
        self.delta = _probability(delta)
        self.xp = check_module(xp)
        self.axis_program = to_axes(program) if isinstance(program, Program) else program
        self.reference = reference_graph(self.axis_program)
        #: graphs that have passed both checks, and their certificates, by the ids of the graphs
        self._confirmed: dict[int, tuple[MuGraph, Certificate]] = {}
        #: programs that are proved equal to this one by rules, with what checks graphs against them
        self._learned: list[tuple[Rewritten, Verifier]] = []
        #: graphs that were proved by way of them, by their ids
        self._of_learned: dict[int, tuple[MuGraph, Verifier]] = {}

    @property
    def program(self) -> Program:
        """The program, where it was not given over named axes."""
        assert isinstance(self.source, Program)
        return self.source

    def check(self, graph: MuGraph) -> Certificate:
        """The certificate of a muGraph, equal or not, with one check; no proof and no condition are looked for.

        Raises GraphError if the graph is malformed or was made for another program.
        """
        validate(graph)
        self._check_interface(graph)
        outcome = self._first.run(graph)
        notes = [*outcome.notes, self.lowering] if outcome.check.equal else outcome.notes
        return _certificate((outcome.check,), outcome.outside_lax, analyze(graph), notes, self.delta)

    def learn(self, target: Rewritten) -> bool:
        """Know a program that follows from this one by rules: its graphs are this program's.

        False, and not known, where a counterexample in floats says that it is another program.
        """
        if counterexample(self.axis_program, reference_graph(target.program), self.seed):
            return False
        if all(known.program != target.program for known, _ in self._learned):
            self._learned.append((target, Verifier(target.program, self.seed, self.delta, self.xp)))
        return True

    def _by_rules(self, graph: MuGraph) -> Certificate | None:
        """The certificate of a graph of a learned program."""
        for target, verifier in self._learned:
            if compare_graph(target.program, graph).equal:
                proved = _certificate((), set(), analyze(graph), (), self.delta).with_proof("proved")
                self._of_learned[id(graph)] = graph, verifier
                return replace(proved, chain=tuple(map(str, target.links)))
        return None

    def admit(self, graph: MuGraph, *, by_rules: bool = False) -> Certificate:
        """The certificate of a muGraph with a proof, and no check, where there is one; else with one check. It says where the
        graph is defined. A proof may be by way of a program that was learned; `by_rules` looks for such a program.

        This is what a kernel needs before it is first called; `confirm` adds what a graph needs to be returned. Raises as
        `check`.
        """
        found = compare_graph(self.axis_program, graph)
        if not found.equal:
            certificate = self._by_rules(graph)
            if certificate is None and by_rules and self._interface_fits(graph):
                target = prove_by_rules(self.axis_program, whole_program(graph))
                if target is not None and self.learn(target):
                    certificate = self._by_rules(graph)
            if certificate is not None:
                return certificate
        proved = found.proof == "proved"
        certificate = _certificate((), set(), analyze(graph), (), self.delta) if proved else self.check(graph)
        return certificate.with_proof(*found)

    def confirm(self, graph: MuGraph, certificate: Certificate) -> Certificate:
        """The certificate with both checks, which graphs pass before they are returned to a user.

        The second has primes and a seed of its own: what one pair of primes hides, such as a difference whose coefficients
        are multiples of p, another does not. The exp-degrees are tested with it (see `factor_tests`). A certificate that is
        not equal, or has a second check, is returned as it is. A graph is tested once, whoever asks.

        Raises VerificationError if a check disagrees with the other or with the proof, or the degrees do not hold: an error of
        this package.
        """
        if not certificate.equal or len(certificate.checks) > 1:
            return certificate
        known = self._confirmed.get(id(graph))
        if known is None:
            known = self._confirmed[id(graph)] = graph, self._both_checks(graph, certificate)
        return known[1]

    def is_confirmed(self, graph: MuGraph) -> bool:
        """Whether a graph has passed both checks."""
        return id(graph) in self._confirmed

    def _both_checks(self, graph: MuGraph, certificate: Certificate) -> Certificate:
        if id(graph) in self._of_learned:
            # random tests take functions for random ones, of which rules know more: the graph is tested as that of the program
            # that the rules lead to, which was compared with this one in floats
            confirmed = self._of_learned[id(graph)][1].confirm(graph, replace(certificate, chain=()))
            return replace(confirmed, chain=certificate.chain)
        name = f"muGraph {graph.name} ({graph.origin or 'of unknown origin'})"
        if not certificate.checks:
            try:
                certificate = self.check(graph).with_proof(certificate.proof, certificate.condition)
            except VerificationError as e:
                raise VerificationError(f"{name}: {e}") from None
            if not certificate.checks:
                return certificate
        outcome = self._second.run(graph)
        seeds = f"seeds {self.seed} and {self._second.seed}"
        if not outcome.check.equal:
            raise VerificationError(
                f"{name}: equal to the program in the first check, different in the second ({seeds}): "
                f"{outcome.check.difference}; please report this program and both seeds"
            )
        maximum = analyze(graph)
        shifted = bool(maximum.sites)
        if shifted and (why := degree_violation(self.axis_program, graph, maximum, self._second.seed, self.xp)):
            raise VerificationError(f"{name}: {why} ({seeds}); please report this program and both seeds")
        return replace(
            certificate,
            checks=(*certificate.checks, outcome.check),
            factor_tests=FACTOR_TESTS if shifted else 0,
            notes=(*certificate.notes, *(n for n in outcome.notes if n not in certificate.notes)),
        )

    @cached_property
    def lowering(self) -> str:
        """How the axis form was compared with the program; raises VerificationError if they differ."""
        if isinstance(self.source, AxisProgram):
            return "the program was given over named axes"
        return check_lowering(self.source, self.reference, self.seed, self.xp)

    @cached_property
    def _first(self) -> RandomTester:
        return RandomTester(self.axis_program, self.reference, self.seed, self.delta, self.xp)

    @cached_property
    def _second(self) -> RandomTester:
        seed = Random(f"second check {self.seed}").getrandbits(32)
        return RandomTester(self.axis_program, self.reference, seed, self.delta, self.xp)

    def _interface_fits(self, graph: MuGraph) -> bool:
        ap = self.axis_program
        same = graph.inputs == ap.inputs and dict(graph.axes) == ap.axes
        return same and [o.dims for o in graph.outputs] == [o.dims for o in ap.outputs]

    def _check_interface(self, graph: MuGraph) -> None:
        ap = self.axis_program
        if not self._interface_fits(graph):
            raise GraphError(
                f"muGraph {graph.name} has other inputs, axes or results than program {ap.name}: {interface_text(graph)}, not "
                f"{interface_text(ap)}; verify it against the program that it was made for, or give it those of this one"
            )


def _certificate(
    checks: tuple[Check, ...], outside_lax: set[str], maximum: RunningMaximum, notes: Sequence[str], delta: float
) -> Certificate:
    return Certificate(
        checks=checks,
        delta=delta,
        proof="not tried",
        condition=None,
        counterexample="",
        safe_maximum=maximum.safe,
        maximum_reason=maximum.reason,
        factor_tests=0,
        lax=not outside_lax,
        notes=(*(f"outside Lax: {o}" for o in sorted(outside_lax)), *notes),
    )


def _program_runner(program: Program) -> Runner:
    return lambda inputs, ar: evaluate(program, inputs, ar)


def _probability(delta: float) -> float:
    if not 0 < delta < 1:
        raise InputError(f"delta={delta} is not a probability between 0 and 1")
    return float(delta)


def verify_graph(
    program: Program, graph: MuGraph, *, seed: int = 0, delta: float = DELTA, xp: ArrayModule = np
) -> Certificate:
    """The certificate of a muGraph for a program; see `Verifier`, which is faster for several graphs."""
    return Verifier(program, seed, delta, xp).check(graph)


def verify_programs(
    a: Program, b: Program, *, seed: int = 0, delta: float = DELTA, xp: ArrayModule = np
) -> Certificate:
    """Are two programs with inputs and outputs of equal types the same function?

    They are compared over named axes, with tests that speak for all sizes. Where they have no form over the same axes, they
    run as written, at symbol sizes of 2 and 3 and their own literal sizes, and the certificate says so. Inputs are paired by
    position. The tests run on arrays of the module `xp`. Raises InputError as `check_pair`, if `delta` is not a probability,
    or `xp` no module of arrays.
    """
    delta, xp = _probability(delta), check_module(xp)
    check_pair(a, b)
    try:
        outcome = _over_axes(a, b, seed, delta, xp)
    except AxisError as e:
        outcome = with_primes(f"{seed} {a} {b}", lambda residues: _as_written(a, b, seed, delta, xp, residues))
        outcome.notes.append(f"the programs are tested as written: {e}")
    try:
        maximum = analyze(reference_graph(to_axes(b)))
    except AxisError as e:
        maximum = RunningMaximum((), f"{b.name} has no axis form: {e}", (), {})
    return _certificate((outcome.check,), outcome.outside_lax, maximum, outcome.notes, delta)


def _over_axes(a: Program, b: Program, seed: int, delta: float, xp: ArrayModule) -> Outcome:
    """Tests over axes that both programs have; raises AxisError where they have none in common."""
    x, y = paired(a, b)
    if [o.dims for o in x.outputs] != [o.dims for o in y.outputs]:
        raise AxisError(f"the results of {a.name} and {b.name} have different axes")
    if len(x.inputs) > len(a.inputs):
        raise AxisError(f"{a.name} reads an argument under several axes")
    reference = reference_graph(x)
    outcome = RandomTester(x, reference, seed, delta, xp, [y]).run(reference_graph(y))
    if outcome.check.equal:
        lowered = (check_lowering(p, reference_graph(to_axes(p)), seed, xp) for p in (a, b))
        outcome.notes.extend(dict.fromkeys(lowered))
    return outcome


def _as_written(a: Program, b: Program, seed: int, delta: float, xp: ArrayModule, residues: Residues) -> Outcome:
    primes = residues.primes
    draws: list[Draw] = []
    trials: list[Trial] = []
    notes: list[str] = []
    counterexample = ""
    for i in range(DRAWS):
        rng = Random(f"program sizes {i} {seed}")
        sizes = {s: rng.randint(2, 3) if i else 2 for s in a.symbols()}
        bound = _program_bound(a, b, sizes, primes)
        largest = max(math.prod(n.type.bind(sizes)) for n in (*a.nodes, *b.nodes))
        needed = max(QUICK, bound.tests(delta)) if isinstance(bound, Bound) else UNBOUNDED
        most = max(QUICK, _MAX_ELEMENTS // max(largest, 1))
        if needed > most:
            notes.append(f"{most} tests of {needed} at {sizes}: {largest} elements in a tensor")
        if isinstance(bound, str):
            notes.append(f"no error bound: {bound}")
        tests = _program_tests(a, sizes, residues, seed + i, xp)
        trials.append(Trial(tests, _program_runner(b), tests_needed(bound, delta, most), one_batch(bound)))
        if first_difference(trials[-1:]) is not None:
            at = ", ".join(f"{s}={n}" for s, n in sizes.items())
            counterexample = f"{trials[-1].difference}; sizes {at}; seed {seed}"
        draws.append(summary(sizes, trials[-1], bound))
        if counterexample:
            break
    uncovered = f"sizes of {', '.join(a.symbols())} above 3" if a.symbols() else ""
    check = Check(seed, primes.p, primes.q, tuple(draws), counterexample, uncovered)
    return Outcome(check, notes, set().union(*(t.outside_lax | t.tests.outside_lax for t in trials)))


def _program_tests(
    program: Program, sizes: dict[str, int], residues: Residues, seed: int, xp: ArrayModule
) -> Tests:
    shapes = [t.bind(sizes) for t in program.input_types]

    def arithmetic(roots: np.ndarray) -> FieldArithmetic:
        return FieldArithmetic(sizes, residues.primes, roots, seed, xp=xp, residues=residues)

    return Tests(shapes, residues.primes, seed, arithmetic, _program_runner(program), xp)


def _program_bound(a: Program, b: Program, sizes: Mapping[str, int], primes: Primes) -> Bound | str:
    terms: list[GraphTerms] = []
    for program in (a, b):
        try:
            ap = to_axes(program)
        except AxisError as e:
            return f"{program.name} has no axis form: {e}"
        axes = {x: dim_value(d, sizes) for x, d in ap.axes.items()}
        terms.append(read_terms(reference_graph(ap), Schedule(()), axes, weighted=False))
    return compare(terms[0], terms[1], primes)
