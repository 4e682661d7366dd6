"""Generated C of loop programs runs clean under the sanitizers at awkward sizes, on tensors with gaps between rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod

import numpy as np
import pytest

from mirage.ir.dim_values import value_at
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cpu.loops.access import last_long
from mirage.kernels.cpu.loops.emit import Source, emit
from tests.ir.loops.programs import inputs, programs
from tests.kernels.cpu.sanitize import BUILDS, GAP, Tensor, compiled, numbers, run_launchers

#: nothing, one, and primes below, between and above vectors; a dim of several cells
SIZES = [
    dict(b=2, n=3, m=7, k=2),
    dict(b=1, n=1, m=1, k=1),
    dict(b=2, n=13, m=37, k=17),
    dict(b=1, n=2, m=131, k=67),
    dict(b=2, n=0, m=5, k=3),
    dict(b=2, n=3, m=0, k=0),
]
#: so many elements are more than one cell
SEVERAL_CELLS = dict(b=1, n=601, m=67, k=2)


class Case:
    """The arguments of one call, with `gap` bytes at least after each row of an input."""

    def __init__(self, program: LoopProgram, source: Source, sizes: Mapping[str, int], gap: int) -> None:
        self.program = program
        self.sizes = {s: sizes[s] for s in program.symbols}
        self.arrays = inputs(program, sizes)
        self.values = [value_at(d, self.sizes) for d in source.dims]
        self.tensors: list[Tensor] = []
        self.strides: list[int] = []
        for t, a in zip(program.input_types, self.arrays, strict=True):
            tensor = Tensor(a.shape, _steps(a.shape, a.itemsize, gap, last_long(t.shape)), ELEMENTS[t.dtype])
            tensor.elements[...] = a
            self.tensors.append(tensor)
            self.strides += tensor.strides
        for t in (*program.output_types, *source.workspace):
            shape = t.bind(self.sizes)
            self.tensors.append(Tensor(shape, _steps(shape, 1, 0, -1), ELEMENTS[t.dtype]))

    def record(self) -> bytes:
        head = numbers(len(self.values), *self.values, len(self.strides), *self.strides, len(self.tensors))
        return head + b"".join(t.record() for t in self.tensors)

    def take(self, data: np.ndarray) -> np.ndarray:
        """Take the tensors from the front of `data`; the rest of it."""
        for t in self.tensors:
            t.image[...] = data[: t.image.size]
            data = data[t.image.size :]
        return data

    def check(self) -> None:
        """The inputs are as they were, the outputs what they should be."""
        for a, t in zip(self.arrays, self.tensors, strict=False):
            np.testing.assert_array_equal(t.elements, a)
        wanted = run_loops(self.program, self.arrays, self.sizes, "float64")
        for w, t in zip(wanted, self.tensors[len(self.arrays) :], strict=False):
            tolerance = 0.02 if w.dtype.name in DTYPES else 0
            found = t.elements.astype(w.dtype)
            np.testing.assert_allclose(found, w, tolerance, tolerance, err_msg=f"{self.program}\n{self.sizes}")


def _steps(shape: tuple[int, ...], itemsize: int, gap: int, last: int) -> list[int]:
    """Strides in elements; a row, along dim `last`, ends so many bytes at least before the next."""
    steps = [prod(shape[k + 1 :]) for k in range(len(shape))]
    if gap and last > 0 and shape[last] > 0:
        row = -(-(shape[last] * itemsize + gap) // 8) * 8 // itemsize
        steps = [s // shape[last] * row for s in steps[:last]] + steps[last:]
    return steps


def check(name: str, build: str, sizes: list[dict[str, int]], threads: int = 0) -> None:
    program = programs()[name]
    source = emit(program)
    # an index into nothing is an error
    fitting = [s for s in sizes if name not in ("take_along", "embedding") or (s["m"] and s["k"])]
    cases = [Case(program, source, s, gap) for s, gap in zip(fitting, itertools.cycle((GAP, 0)), strict=False)]
    library = compiled(build, source.text, f"loops_{name}")
    done, data = run_launchers(build, library, ["mirage_run"], [c.record() for c in cases], threads)
    assert done.status == 0, f"{program}\n{done.text}"
    for c in cases:
        data = c.take(data)
        c.check()


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", programs())
def test_every_program(name: str, build: str) -> None:
    check(name, build, [SEVERAL_CELLS] if build == "thread" else SIZES, 3 if build == "thread" else 0)


@pytest.mark.parametrize(
    ("name", "build"),
    [("masked_softmax", "address"), ("concatenated", "native"), ("mixed", "address"), ("columns", "thread")],
)
def test_a_few(name: str, build: str) -> None:
    check(name, build, [SEVERAL_CELLS] if build == "thread" else SIZES, 3 if build == "thread" else 0)


def test_a_row_that_is_too_long() -> None:
    program = programs()["masked_softmax"]
    source = emit(program)
    case = Case(program, source, dict(n=3, m=13), GAP)
    case.values = [v + 1 if v == 13 else v for v in case.values]
    library = compiled("address", source.text, "loops_masked_softmax")
    done, _ = run_launchers("address", library, ["mirage_run"], [case.record()], 0)
    assert done.status != 0 and "AddressSanitizer" in done.text
