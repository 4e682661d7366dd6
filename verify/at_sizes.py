"""Is something that can only be run the program, at some sizes of its dims? Random tests over finite fields there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, TypeVar

import numpy as np

from mirage.ir.arithmetic import Arithmetic
from mirage.ir.interpret import evaluate
from mirage.ir.program import Program
from mirage.verify.certificate import Certificate, Check, Draw
from mirage.verify.counterexample import difference_at
from mirage.verify.equivalence import DELTA
from mirage.verify.field import FieldArithmetic, Primes, draw_primes
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
    first = draw_primes(seed)
    second = Random(f"second check {seed}").getrandbits(32)
    rounds = ((seed, first), (second, draw_primes(second, apart_from=first)))
    checks: list[Check] = []
    outside: set[str] = set()
    counterexample = ""
    for own, primes in rounds:
        trial = _trial(program, other, sizes, primes, own)
        first_difference([trial])
        outside |= trial.outside_lax | trial.tests.outside_lax
        draw = Draw(dict(sizes), trial.passed, trial.redrawn, None, None, None)
        checks.append(Check(own, primes.p, primes.q, (draw,), trial.difference))
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


def _trial(program: Program, other: Executable, sizes: Mapping[str, int], primes: Primes, seed: int) -> Trial:
    largest = max(math.prod(n.type.bind(sizes)) for n in program.nodes)
    count = max(1, min(QUICK, _MAX_ELEMENTS // max(largest, 1)))

    def arithmetic(roots: np.ndarray) -> FieldArithmetic:
        return FieldArithmetic(sizes, primes, roots, seed)

    shapes = [t.bind(sizes) for t in program.input_types]
    tests = Tests(shapes, primes, seed, arithmetic, lambda inputs, ar: evaluate(program, inputs, ar), count)
    return Trial(tests, other.run, lambda redrawn: count, whole=True)
