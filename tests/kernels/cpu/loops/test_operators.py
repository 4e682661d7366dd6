"""Every operator of graphs with a loop-level definition, compiled, against the meaning of its loop program."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.types import DTYPES, ELEMENTS, epsilon
from mirage.kernels.cpu.loops.kernel import LoopKernel
from tests.ir.loops.operators import FIRST, LOWERED, lowered, trials
from tests.ir.operators.cases import SIZES, Case

#: rows longer than vectors
LONG = {"n": 37, "m": 83, "k": 19}


def check(case: Case) -> None:
    program = lowered(case)
    kernel = LoopKernel(program)
    (out,) = program.output_types
    tried = 0
    for own, arrays, wanted in trials(case, program, (*SIZES, LONG)):
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
