"""Compiled loop programs refuse sizes at which they would read outside of a tensor."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import tensor
from mirage.kernels.cpu.loops.kernel import LoopKernel


def test_sizes_that_the_program_cannot_have() -> None:
    op = get_operator("update_slice")
    attrs = op.check_attrs({"starts": ("k",)})
    program = lower_operator("update_slice", [tensor("n"), tensor("m")], attrs, tensor("n"))
    assert program is not None
    kernel = LoopKernel(program)
    x, w, out = np.zeros(4, np.float32), np.ones(2, np.float32), np.empty(4, np.float32)
    kernel([x, w], {"n": 4, "m": 2, "k": 2}, [out])
    np.testing.assert_array_equal(out, [0, 0, 1, 1])
    with pytest.raises(InputError, match=r"needs k \+ m <= n \(update_slice: the end .*\), but 5 > 4 at k=3, m=2, n=4"):
        kernel([x, w], {"n": 4, "m": 2, "k": 3}, [out])
