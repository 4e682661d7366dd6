"""The operators of graphs that have a loop-level definition, their loop programs and what these mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.loops.program import LoopProgram
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType
from tests.ir.operators.cases import CASES, Case

LOWERED = [c for c in CASES if c.loops]
#: one application of each operator
FIRST = list({c.op: c for c in LOWERED}.values())


def lowered(case: Case) -> LoopProgram:
    """The loop program of an operator."""
    op = get_operator(case.op)
    attrs = op.check_attrs(case.attrs)
    out = op.annotate(case.types, attrs)
    assert isinstance(out, TensorType)
    program = lower_operator(case.op, case.types, attrs, out)
    assert program is not None
    return program


def trials(
    case: Case, program: LoopProgram, all_sizes: Sequence[Mapping[str, int]]
) -> Iterator[tuple[dict[str, int], list[np.ndarray], np.ndarray]]:
    """(sizes of the program's dims, arguments, result), but for sizes that the operator cannot have, or indices into nothing."""
    for sizes in all_sizes:
        own = {s: sizes[s] for s in program.symbols}
        arrays = case.arrays(sizes)
        try:
            (wanted,) = run_loops(program, arrays, own)
        except InputError:
            continue
        yield own, arrays, wanted
