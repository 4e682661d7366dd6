"""Every operator of graphs with a loop-level definition, as Triton code, against the meaning of its loop program."""

from __future__ import annotations

import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.ir.types import epsilon
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.loops.operators import FIRST, LOWERED, lowered, trials
from tests.ir.operators.cases import SIZES, Case
from tests.kernels.cuda.loops.variants import compare, variants

#: primes, with more elements than a small block
LONG = {"n": 7, "m": 19, "k": 5}


def check(interpreter: Interpreter, case: Case, all_sizes: list[dict[str, int]], every: bool) -> None:
    program = lowered(case)
    versions = LoopVersions(program, DEVICES["sm_90"], {})
    tried = 0
    for own, arrays, wanted in trials(case, program, all_sizes):
        tried += 1
        for emitted in [*variants(versions, own)][: 2 if every else 1]:
            compare(interpreter, emitted, arrays, own, [wanted], lambda x: max(16 * epsilon(x.dtype), 1e-6))
    assert tried


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_every_operator(interpreter: Interpreter, case: Case) -> None:
    check(interpreter, case, [*SIZES[:3:2], LONG], every=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_every_case(interpreter: Interpreter, case: Case) -> None:
    check(interpreter, case, [*SIZES, LONG], every=True)
