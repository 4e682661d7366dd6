"""Running random tests over finite fields: values drawn once per program, compared with one candidate
after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mirage.verify.field import FieldArithmetic, Pair, Primes, draw

Runner = Callable[[list[Pair], FieldArithmetic], list[Pair]]

#: tests of a first, quick round
QUICK = 8
#: chunks of tests at one draw, before a graph that divides by zero is given up
_MAX_CHUNKS = 8


@dataclass
class Chunk:
    """Some tests: roots of unity, inputs, what the program makes of them, and where it divides by zero."""

    roots: np.ndarray
    inputs: list[Pair]
    outputs: list[Pair]
    invalid: np.ndarray


class Tests:
    """The random tests of one program at one table of sizes; they grow on demand, and all candidates
    share them.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        primes: Primes,
        seed: int,
        arithmetic: Callable[[np.ndarray], FieldArithmetic],
        program: Runner,
    ) -> None:
        self.shapes = shapes
        self.primes = primes
        self.rng = np.random.default_rng(seed)
        self.arithmetic = arithmetic
        self.program = program
        self.chunks: list[Chunk] = []
        self.outside_lax: set[str] = set()

    def chunk(self, k: int, tests: int) -> Chunk:
        """The k-th chunk; of that many tests, if it is new."""
        if k == len(self.chunks):
            roots = self.rng.integers(0, self.primes.q, tests, dtype=np.int64)
            inputs = [draw(s, tests, self.primes, self.rng) for s in self.shapes]
            ar = self.arithmetic(roots)
            outputs = self.program(inputs, ar)
            self.outside_lax |= ar.outside_lax
            self.chunks.append(Chunk(roots, inputs, outputs, ar.invalid))
        return self.chunks[k]


class Trial:
    """One candidate's way through the tests of a draw.

    Tests in which either side divides by zero are not counted: others are drawn in their place.
    """

    def __init__(self, tests: Tests, candidate: Runner, needed: int) -> None:
        self.tests = tests
        self.candidate = candidate
        self.needed = needed
        self.chunks = 0
        self.passed = 0
        self.redrawn = 0
        self.difference = ""
        self.outside_lax: set[str] = set()

    @property
    def finished(self) -> bool:
        return bool(self.difference) or self.passed >= self.needed

    def step(self) -> None:
        """One chunk of tests."""
        if self.chunks == _MAX_CHUNKS:
            self.difference = "the graph or the program divides by zero in every random test"
            return
        chunk = self.tests.chunk(self.chunks, QUICK if self.chunks == 0 else self.needed - self.passed)
        self.chunks += 1
        ar = self.tests.arithmetic(chunk.roots)
        found = self.candidate(chunk.inputs, ar)
        valid = ~(chunk.invalid | ar.invalid)
        self.outside_lax |= ar.outside_lax
        self.passed += int(valid.sum())
        self.redrawn += int((~valid).sum())
        self.difference = difference(chunk.outputs, found, valid)


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
                return f"{where} is {a[at]} for the program and {b[at]} for the graph, modulo {part}"
    return ""
