"""Every operator of graphs with a loop-level definition, as Triton code, against the meaning of its loop program."""

from __future__ import annotations

import pytest

from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType, epsilon
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.interpret import Interpreter
from mirage.kernels.cuda.loops.versions import LoopVersions
from tests.ir.operators.cases import CASES, SIZES, Case
from tests.kernels.cuda.loops.variants import compare, variants

#: primes, with more elements than a small block
LONG = {"n": 7, "m": 19, "k": 5}
LOWERED = [c for c in CASES if c.loops]
#: one application of each operator
FIRST = list({c.op: c for c in LOWERED}.values())


def check(interpreter: Interpreter, case: Case, all_sizes: list[dict[str, int]], every: bool) -> None:
    op = get_operator(case.op)
    attrs = op.check_attrs(case.attrs)
    out = op.annotate(case.types, attrs)
    assert isinstance(out, TensorType)
    program = lower_operator(case.op, case.types, attrs, out)
    assert program is not None
    versions = LoopVersions(program, DEVICES["sm_90"], {})
    tried = 0
    for sizes in all_sizes:
        own = {s: sizes[s] for s in program.symbols}
        arrays = case.arrays(sizes)
        try:
            wanted = run_loops(program, arrays, own)
        except InputError:
            # sizes that the operator cannot have, or indices into nothing
            continue
        tried += 1
        for emitted in [*variants(versions, own)][: 2 if every else 1]:
            compare(interpreter, emitted, arrays, own, wanted, lambda x: max(16 * epsilon(x.dtype), 1e-6))
    assert tried


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_every_operator(interpreter: Interpreter, case: Case) -> None:
    check(interpreter, case, [*SIZES[:3:2], LONG], every=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_every_case(interpreter: Interpreter, case: Case) -> None:
    check(interpreter, case, [*SIZES, LONG], every=True)
