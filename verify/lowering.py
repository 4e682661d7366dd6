"""Is the axis form of a program the program? Compared at the true literal sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from mirage.errors import VerificationError
from mirage.ir.arithmetic import Arithmetic, FloatArithmetic
from mirage.ir.axes import read_arguments
from mirage.ir.interpret import evaluate, run_reference
from mirage.ir.moves import moved_in
from mirage.ir.program import Program, allowed
from mirage.ir.samples import DRAWN, filled
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.schedule import Schedule
from mirage.verify.field import ArrayModule, FieldArithmetic, draw
from mirage.verify.primes import Residues, with_primes
from mirage.verify.trial import QUICK, difference, valid_tests

A = TypeVar("A")

#: elements of the largest tensor up to which fields, and float64, are affordable
_FIELD_ELEMENTS = 200_000
_FLOAT_ELEMENTS = 20_000_000
_TOLERANCE = 1e-9


def check_lowering(program: Program, reference: MuGraph, seed: int, xp: ArrayModule = np) -> str:
    """How `reference`, the program over named axes, was compared with the program's own operators, in words.

    Symbols get sizes 2 and 3, literal dims their own; the fields' arrays are those of the module `xp`. Raises
    VerificationError if the two differ.
    """
    sizes = allowed(program, {s: 2 + i % 2 for i, s in enumerate(program.symbols())})
    elements = max(math.prod(n.type.bind(sizes)) for n in program.nodes)
    at = ", ".join(f"{a}={n}" for a, n in sizes.items()) or "its sizes"
    if elements <= _FIELD_ELEMENTS:
        tests = max(1, min(QUICK, _FIELD_ELEMENTS // max(elements, 1)))
        key = f"lowering {seed} {program} {reference!r}"
        wrong = with_primes(key, lambda residues: _field(program, reference, sizes, residues, seed, tests, xp))
        how = f"{tests} random tests"
    elif elements <= _FLOAT_ELEMENTS:
        wrong, how = _floats(program, reference, sizes, seed), "float64"
    else:
        return f"the axis form was not compared with the program: {elements} elements at {at}"
    if wrong:
        raise VerificationError(f"program {program.name}: its axis form differs from it at {at}: {wrong}")
    return f"the axis form was compared with the program at {at}: {how}"


def _read(reference: MuGraph, arguments: list[A], ar: Arithmetic[A]) -> list[A]:
    """The arguments as the graph's inputs read them: the same values where several read one."""
    return read_arguments(reference.name, reference.inputs, arguments, partial(moved_in, ar))


def _field(
    program: Program,
    reference: MuGraph,
    sizes: dict[str, int],
    residues: Residues,
    seed: int,
    tests: int,
    xp: ArrayModule,
) -> str:
    primes = residues.primes
    rng = np.random.default_rng(seed)
    roots = rng.integers(0, primes.q, tests, dtype=np.int64)
    inputs = [draw(t.bind(sizes), tests, primes, rng, xp) for t in program.input_types]
    ars = [FieldArithmetic(sizes, primes, roots, seed, xp=xp, residues=residues) for _ in range(2)]
    wanted = evaluate(program, inputs, ars[0])
    found = run_mugraph(reference, Schedule(()), _read(reference, inputs, ars[1]), ars[1])
    valid = valid_tests(ars[0].invalid | ars[1].invalid, ars[0].joined or ars[1].joined)
    return difference(wanted, found, valid)


def _drawn(shapes: Sequence[tuple[int, ...]], rng: np.random.Generator) -> list[np.ndarray]:
    """Random arrays of these shapes, different parts of one: all weights of a layer would take longer to write than to read."""
    # small values, so that the unstable form of softmax does not overflow
    counts = [math.prod(shape) for shape in shapes]
    starts = rng.integers(0, DRAWN, len(shapes))
    whole = filled((max(counts, default=0) + DRAWN,), lambda n: rng.standard_normal(n) / 8)
    return [whole[at : at + n].reshape(shape) for at, n, shape in zip(starts, counts, shapes, strict=True)]


def _floats(program: Program, reference: MuGraph, sizes: dict[str, int], seed: int) -> str:
    inputs = _drawn([t.bind(sizes) for t in program.input_types], np.random.default_rng(seed))
    # roots and logarithms of numbers below 0 tell nothing
    for numbers in (np.asarray, np.abs):
        given = [numbers(x) for x in inputs]
        with np.errstate(all="ignore"):
            wanted = run_reference(program, given, sizes, "float64")
            ar = FloatArithmetic(sizes)
            found = run_mugraph(reference, Schedule(()), _read(reference, given, ar), ar)
        defined = [np.isfinite(w) for w in wanted]
        for k, (w, f, at) in enumerate(zip(wanted, found, defined, strict=True)):
            compared = at if at.all() else at & np.isfinite(f)
            worst = float(np.max(np.abs(w - f), initial=0.0, where=compared))
            if not worst <= _TOLERANCE * (1 + float(np.max(np.abs(w), initial=0.0, where=compared))):
                return f"output {k} by {worst}"
        if all(at.all() for at in defined):
            break
    return ""
