"""Is something that can only be run the program, at some sizes of its dims? Random tests over finite fields there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol, TypeVar

import numpy as np

from mirage.ir.arithmetic import Arithmetic
from mirage.ir.interpret import evaluate
from mirage.ir.program import Program
from mirage.verify.certificate import Certificate, Check, Draw
from mirage.verify.counterexample import difference_at
from mirage.verify.equivalence import DELTA
from mirage.verify.field import FieldArithmetic
from mirage.verify.primes import Residues, with_primes
from mirage.verify.tester import first_difference
from mirage.verify.trial import QUICK, Tests, Trial

A = TypeVar("A")

#: elements of a tensor over all tests of a round: a large one is tested once
_MAX_ELEMENTS = 1 << 22


class Executable(Protocol):
    """What computes results from inputs over any arithmetic."""

    def run(self, inputs: Sequence[A], ar: Arithmetic[A]) -> list[A]: ...


def verify_at(program: Program, other: Executable, sizes: Mapping[str, int], what: str, seed: int = 0) -> Certificate:
    """The evidence on `other`, in words a `what`, at these sizes of the program's dim symbols: two checks with primes of their
    own, and a counterexample in floats where one of them finds a difference.

    It is no evidence for other sizes: where the program has symbols, the certificate's condition says so. No error bound is
    known of what can only be run. Raises what `other` raises.
    """
    checks: list[Check] = []
    outside: set[str] = set()
    counterexample = ""
    for own in (seed, Random(f"second check {seed}").getrandbits(32)):
        trial = with_primes(f"{own} {program} {other!r}", partial(_trial, program, other, sizes, own))
        outside |= trial.outside_lax | trial.tests.outside_lax
        draw = Draw(dict(sizes), trial.passed, trial.redrawn, None, None, None)
        primes = trial.tests.primes
        checks.append(Check(own, primes.p, primes.q, (draw,), trial.difference, uncovered=""))
        if trial.difference:
            shapes = [t.bind(sizes) for t in program.input_types]
            counterexample = difference_at(
                lambda inputs, ar: evaluate(program, inputs, ar), other.run, shapes, sizes, what, seed
            )
            break
    return Certificate(
        checks=tuple(checks),
        delta=DELTA,
        proof="not tried",
        condition=", ".join(f"{s} = {n}" for s, n in sizes.items()) or None,
        counterexample=counterexample,
        safe_maximum=False,
        maximum_reason=f"the {what} was only run",
        factor_tests=0,
        lax=not outside,
        notes=(*(f"outside Lax: {o}" for o in sorted(outside)), f"no error bound: the {what} was only run"),
    )


def _trial(program: Program, other: Executable, sizes: Mapping[str, int], seed: int, residues: Residues) -> Trial:
    primes = residues.primes
    largest = max(math.prod(n.type.bind(sizes)) for n in program.nodes)
    count = max(1, min(QUICK, _MAX_ELEMENTS // max(largest, 1)))

    def arithmetic(roots: np.ndarray) -> FieldArithmetic:
        return FieldArithmetic(sizes, primes, roots, seed, residues=residues)

    shapes = [t.bind(sizes) for t in program.input_types]
    tests = Tests(shapes, primes, seed, arithmetic, lambda inputs, ar: evaluate(program, inputs, ar))
    trial = Trial(tests, other.run, lambda redrawn: count, whole=True)
    first_difference([trial])
    return trial
