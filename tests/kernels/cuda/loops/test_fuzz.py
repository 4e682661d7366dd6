"""Random fused programs of operators as Triton code, against the operators one by one."""

from __future__ import annotations

import pytest

from mirage.ir.loops.fuse import fuse
from mirage.ir.loops.interpret import run_loops
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.interpret import Interpreter
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.loops.random_programs import SIZES, arguments, random_calls
from tests.kernels.cuda.loops.variants import Parts, compare, variants

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


def check(interpreter: Interpreter, seed: int, all_sizes: list[dict[str, int]]) -> None:
    v, outputs = random_calls(seed)
    program = fuse("fused", v.calls, outputs)
    hints = {s: SIZES[0][s] for s in program.symbols}
    versions = LoopVersions(program, DEVICES["sm_90"], hints, Parts(4) if seed % 3 == 0 else None)
    for sizes in all_sizes:
        arrays = arguments(v, sizes, seed)
        values = dict(arrays)
        for c in v.calls:
            (values[c.results[0]],) = run_loops(c.program, [values[a] for a in c.args], sizes, "float64")
        own = {s: sizes[s] for s in program.symbols}
        given, wanted = [arrays[n] for n, _ in program.inputs], [values[o] for o in outputs]
        for emitted in variants(versions, own):
            # 16-bit results are rounded; comparisons decide by what is not
            compare(interpreter, emitted, given, own, wanted, lambda x: TOLERANCE.get(v.dtype, 0.05))


@pytest.mark.parametrize("seed", range(8))
def test_a_few(interpreter: Interpreter, seed: int) -> None:
    check(interpreter, seed, [SIZES[0], SIZES[3]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 80))
def test_many(interpreter: Interpreter, seed: int) -> None:
    check(interpreter, seed, SIZES)
