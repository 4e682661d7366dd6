"""Random fused programs of operators, compiled, against the operators one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.loops.fuse import fuse
from mirage.ir.loops.interpret import run_loops
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.loops.kernel import LoopKernel
from tests.ir.loops.random_programs import SIZES, arguments, random_calls


def check(seed: int) -> None:
    v, outputs = random_calls(seed)
    program = fuse("fused", v.calls, outputs)
    kernel = LoopKernel(program)
    for sizes in SIZES:
        arrays = arguments(v, sizes, seed)
        values = dict(arrays)
        for c in v.calls:
            (values[c.results[0]],) = run_loops(c.program, [values[a] for a in c.args], sizes, "float64")
        own = {s: sizes[s] for s in program.symbols}
        out = [np.empty(t.bind(own), ELEMENTS[t.dtype]) for t in program.output_types]
        kernel([arrays[n] for n, _ in program.inputs], own, out)
        for name, found in zip(outputs, out, strict=True):
            wanted = values[name]
            # 16-bit results are rounded; comparisons decide by what is not
            tolerance = {"float64": 1e-9, "float32": 1e-4}.get(v.dtype, 0.05)
            a, b = found.astype(np.float64), wanted.astype(np.float64)
            scale = max(1.0, float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))))
            np.testing.assert_allclose(a, b, tolerance, tolerance * scale, err_msg=f"{seed} {sizes}\n{program}")


@pytest.mark.parametrize("seed", range(25))
def test_a_few(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25, 300))
def test_many(seed: int) -> None:
    check(seed)
