"""Every operator of graphs with a loop-level definition, compiled, against the meaning of its loop program."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import DTYPES, ELEMENTS, TensorType, epsilon
from mirage.kernels.cpu.loops.kernel import LoopKernel
from tests.ir.operators.cases import CASES, SIZES, Case

#: rows longer than vectors
LONG = {"n": 37, "m": 83, "k": 19}
LOWERED = [c for c in CASES if c.loops]
#: one application of each operator
FIRST = list({c.op: c for c in LOWERED}.values())


def check(case: Case) -> None:
    op = get_operator(case.op)
    attrs = op.check_attrs(case.attrs)
    out = op.annotate(case.types, attrs)
    assert isinstance(out, TensorType)
    program = lower_operator(case.op, case.types, attrs, out)
    assert program is not None
    kernel = LoopKernel(program)
    tried = 0
    for sizes in (*SIZES, LONG):
        own = {s: sizes[s] for s in program.symbols}
        arrays = case.arrays(sizes)
        try:
            (wanted,) = run_loops(program, arrays, own)
        except InputError:
            # sizes that the operator cannot have, or indices into nothing
            continue
        tried += 1
        found = np.empty(out.bind(own), ELEMENTS[out.dtype])
        kernel(arrays, own, [found])
        if out.dtype in DTYPES:
            tolerance = max(16 * epsilon(found.dtype), 1e-6)
            a, b = found.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=str(own))
        else:
            np.testing.assert_array_equal(found, wanted, str(own))
    assert tried >= 2


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_every_operator(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in LOWERED if c not in FIRST], ids=str)
def test_every_case(case: Case) -> None:
    check(case)
