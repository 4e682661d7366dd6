"""Logs of sums of exps in Triton: maxima of the same kernel, of another one or of a library, run by Triton's interpreter."""

from __future__ import annotations

import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.kernels.cuda.emit.mugraph import emit, with_descriptors
from tests.kernels.cuda.simple import simple_schedule
from tests.mugraph.logs import CASES, ROUNDING, SIZES, inputs, largest_error
from tests.sampled import thinned


@pytest.mark.parametrize("name", thinned(CASES))
def test_logs_of_sums_of_exps_neither_overflow_nor_vanish(interpreter: Interpreter, name: str) -> None:
    case = CASES[name]
    for sizes in (SIZES, {"m": 1, "n": 1}):
        emitted = emit(case.graph, simple_schedule(case.graph, SIZES))
        for offset in (0.0, 1e4, -1e4):
            given = inputs(case, offset, sizes)
            (got,) = interpreter.run(emitted, case.graph, given, sizes)
            assert largest_error(case, given, got) < ROUNDING


@pytest.mark.parametrize("name", ["one_kernel", "log_in_the_next_kernel", "split", "scaled"])
def test_kernels_with_descriptors_read_their_operands_alone_by_these(interpreter: Interpreter, name: str) -> None:
    case, sizes = CASES[name], {"m": 8, "n": 32}
    schedule = with_descriptors(case.graph, simple_schedule(case.graph, sizes))
    assert any(k.descriptors for k in schedule.kernels)
    given = inputs(case, 1e4, sizes)
    (got,) = interpreter.run(emit(case.graph, schedule), case.graph, given, sizes)
    assert largest_error(case, given, got) < ROUNDING
