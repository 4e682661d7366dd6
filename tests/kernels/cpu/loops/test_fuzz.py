"""Random fused programs of operators, compiled, against the operators one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.loops.kernel import LoopKernel
from tests.ir.loops.random_programs import SIZES, RandomProgram
from tests.sampled import thinned


def check(seed: int) -> None:
    made = RandomProgram(seed)
    kernel = LoopKernel(made.program)
    for sizes in SIZES:
        own, given, results = made.trial(sizes)
        out = [np.empty(t.bind(own), ELEMENTS[t.dtype]) for t in made.program.output_types]
        kernel(given, own, out)
        for found, wanted in zip(out, results, strict=True):
            a, b = found.astype(np.float64), wanted.astype(np.float64)
            scale = max(1.0, float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))))
            message = f"{seed} {sizes}\n{made.program}"
            np.testing.assert_allclose(a, b, made.tolerance, made.tolerance * scale, err_msg=message)


@pytest.mark.parametrize("seed", thinned(range(25), 2))
def test_a_few(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25, 300))
def test_many(seed: int) -> None:
    check(seed)
