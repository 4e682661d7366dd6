"""Random fused programs of operators as Triton code, against the operators one by one."""

from __future__ import annotations

import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.loops.random_programs import SIZES, RandomProgram
from tests.kernels.cuda.loops.variants import Parts, compare, variants


def check(interpreter: Interpreter, seed: int, all_sizes: list[dict[str, int]]) -> None:
    made = RandomProgram(seed)
    hints = {s: SIZES[0][s] for s in made.program.symbols}
    versions = LoopVersions(made.program, DEVICES["sm_90"], hints, Parts(4) if seed % 3 == 0 else None)
    for sizes in all_sizes:
        own, given, wanted = made.trial(sizes)
        for emitted in variants(versions, own):
            compare(interpreter, emitted, given, own, wanted, lambda x: made.tolerance)


@pytest.mark.parametrize("seed", range(8))
def test_a_few(interpreter: Interpreter, seed: int) -> None:
    check(interpreter, seed, [SIZES[0], SIZES[3]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 80))
def test_many(interpreter: Interpreter, seed: int) -> None:
    check(interpreter, seed, SIZES)
