"""Running random tests over finite fields: values drawn once per program, compared with one candidate
after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.verify.field import ArrayModule, FieldArithmetic, Pair, draw
from mirage.verify.primes import Primes

Runner = Callable[[list[Pair], FieldArithmetic], list[Pair]]

#: tests of a first, quick round
QUICK = 8
#: chunks of tests at one draw, before a graph that divides by zero is given up
_MAX_CHUNKS = 8


@dataclass
class Chunk:
    """Some tests: roots of unity, inputs, what the program makes of them, and where it divides by zero.

    `joined`: whether a function of the program took all of them together (see FieldArithmetic).
    """

    roots: np.ndarray
    inputs: list[Pair]
    outputs: list[Pair]
    invalid: np.ndarray
    joined: bool


class Tests:
    """The random tests of one program at one table of sizes, drawn as a candidate asks for them. `xp` is the module of the
    arithmetic's arrays.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        primes: Primes,
        seed: int,
        arithmetic: Callable[[np.ndarray], FieldArithmetic],
        program: Runner,
        xp: ArrayModule = np,
    ) -> None:
        self.shapes = shapes
        self.primes = primes
        self.rng = np.random.default_rng(seed)
        self.arithmetic = arithmetic
        self.program = program
        self.xp = xp
        self.outside_lax: set[str] = set()

    def chunk(self, count: int) -> Chunk:
        """So many more tests."""
        roots = self.rng.integers(0, self.primes.q, count, dtype=np.int64)
        inputs = [draw(s, count, self.primes, self.rng, self.xp) for s in self.shapes]
        ar = self.arithmetic(roots)
        outputs = self.program(inputs, ar)
        self.outside_lax |= ar.outside_lax
        return Chunk(roots, inputs, outputs, ar.invalid, ar.joined)


class Trial:
    """One candidate's way through the tests of a draw.

    Tests in which either side divides by zero are not counted: others are drawn in their place. `needed` says how
    many must pass where so many were drawn again, in one batch if `whole`.
    """

    def __init__(self, tests: Tests, candidate: Runner, needed: Callable[[int], int], whole: bool = False) -> None:
        self.tests = tests
        self.candidate = candidate
        self.needed = needed
        self.whole = whole
        self.chunks = 0
        self.passed = 0
        self.redrawn = 0
        self.difference = ""
        self.outside_lax: set[str] = set()

    @property
    def missing(self) -> int:
        """How many tests are still to pass; 0 after a difference."""
        return 0 if self.difference else max(0, self.needed(self.redrawn) - self.passed)

    def step(self, most: int | None = None) -> None:
        """One chunk: all missing tests, or at most so many unless they have to be one batch."""
        if self.chunks == _MAX_CHUNKS:
            self.difference = "the graph or the program divides by zero in every random test"
            return
        count = self.missing if self.whole or most is None else min(self.missing, most)
        chunk = self.tests.chunk(count)
        self.chunks += 1
        ar = self.tests.arithmetic(chunk.roots)
        found = self.candidate(chunk.inputs, ar)
        valid = valid_tests(chunk.invalid | ar.invalid, chunk.joined or ar.joined)
        self.outside_lax |= ar.outside_lax
        self.passed += int(valid.sum())
        self.redrawn += int((~valid).sum())
        self.difference = difference(chunk.outputs, found, valid)


def valid_tests(invalid: np.ndarray, joined: bool) -> np.ndarray:
    """The tests that mean something; none where one that divides by zero is joined with the others."""
    return np.zeros_like(invalid) if joined and invalid.any() else ~invalid


def difference(wanted: Sequence[Pair], found: Sequence[Pair], valid: np.ndarray) -> str:
    """The first place, in words, where valid tests give two values; "" if there is none."""
    for k, (w, f) in enumerate(zip(wanted, found, strict=True)):
        for a, b, part in ((w.p, f.p, "p"), (w.q, f.q, "q")):
            if a is None or b is None:
                continue
            wrong = (a != b) & valid.reshape(-1, *(1,) * (a.ndim - 1))
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                where = f"output {k}{list(at[1:])} in test {at[0]}"
                return f"{where} is {int(a[at])} for the program and {int(b[at])} for the graph, modulo {part}"
    return ""
