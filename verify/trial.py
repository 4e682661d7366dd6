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
#: tests that are drawn at a time, where tensors are small
BLOCK = 64
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

    def part(self, start: int, stop: int) -> Chunk:
        inputs, outputs = ([_part(x, start, stop) for x in xs] for xs in (self.inputs, self.outputs))
        return Chunk(self.roots[start:stop], inputs, outputs, self.invalid[start:stop], self.joined)

    def followed_by(self, other: Chunk) -> Chunk:
        inputs, outputs = (
            [_joined(x, y) for x, y in zip(xs, ys, strict=True)]
            for xs, ys in ((self.inputs, other.inputs), (self.outputs, other.outputs))
        )
        roots, invalid = (np.concatenate(pair) for pair in ((self.roots, other.roots), (self.invalid, other.invalid)))
        return Chunk(roots, inputs, outputs, invalid, self.joined)


def _part(x: Pair, start: int, stop: int) -> Pair:
    return Pair(x.p[start:stop], None if x.q is None else x.q[start:stop])


def _joined(x: Pair, y: Pair) -> Pair:
    q = None if x.q is None or y.q is None else np.concatenate((x.q, y.q))
    return Pair(np.concatenate((x.p, y.p)), q)


class Tests:
    """The random tests of one program at one table of sizes; they grow on demand, and all candidates
    share them. They are drawn `block` at a time, so the n-th test is the same whichever candidate asks for it first.
    `xp` is the module of the arithmetic's arrays.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        primes: Primes,
        seed: int,
        arithmetic: Callable[[np.ndarray], FieldArithmetic],
        program: Runner,
        block: int = BLOCK,
        xp: ArrayModule = np,
    ) -> None:
        self.shapes = shapes
        self.primes = primes
        self.rng = np.random.default_rng(seed)
        self.arithmetic = arithmetic
        self.program = program
        self.block = block
        self.xp = xp
        self.outside_lax: set[str] = set()
        self._drawn: Chunk | None = None
        #: by range: joined tests mean something only in the batch in which a candidate runs them
        self._joined: dict[tuple[int, int], Chunk] = {}

    def chunk(self, start: int, stop: int) -> Chunk:
        """Tests `start` to `stop` - 1."""
        have = 0 if self._drawn is None else len(self._drawn.roots)
        if self._drawn is None or have < stop:
            more = self._more(-(-(stop - have) // self.block))
            self._drawn = more if self._drawn is None else self._drawn.followed_by(more)
        part = self._drawn.part(start, stop)
        if not part.joined:
            return part
        if (start, stop) not in self._joined:
            self._joined[start, stop] = self._evaluated(part.roots, part.inputs)
        return self._joined[start, stop]

    def _evaluated(self, roots: np.ndarray, inputs: list[Pair]) -> Chunk:
        ar = self.arithmetic(roots)
        outputs = self.program(inputs, ar)
        self.outside_lax |= ar.outside_lax
        return Chunk(roots, inputs, outputs, ar.invalid, ar.joined)

    def _more(self, blocks: int) -> Chunk:
        drawn = [self._draw() for _ in range(blocks)]
        roots = np.concatenate([r for r, _ in drawn])
        inputs = [
            Pair(*(self.xp.asarray(np.concatenate(part)) for part in zip(*((x.p, x.q) for x in xs), strict=True)))
            for xs in zip(*(inputs for _, inputs in drawn), strict=True)
        ]
        return self._evaluated(roots, inputs)

    def _draw(self) -> tuple[np.ndarray, list[Pair]]:
        roots = self.rng.integers(0, self.primes.q, self.block, dtype=np.int64)
        return roots, [draw(s, self.block, self.primes, self.rng) for s in self.shapes]


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
        start = self.passed + self.redrawn
        count = self.missing if self.whole or most is None else min(self.missing, most)
        chunk = self.tests.chunk(start, start + count)
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
