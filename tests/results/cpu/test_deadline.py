"""What a deadline leaves for the evidence of what is returned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.large import LARGE
from benchmarks.programs import PROGRAMS
from mirage.ir.axes import to_axes
from mirage.results.cpu.tune import FINISH_S, FINISH_SHARE, LARGE_SHARE, OPERATOR_S, Session


def left_for(program: Any, budget: float) -> float:
    verifier = SimpleNamespace(axis_program=to_axes(program.trace()))
    session: Any = SimpleNamespace(work=SimpleNamespace(verifier=verifier))
    return Session._finish_seconds(session, budget)


@pytest.mark.parametrize("budget", [0.5, 2.0, 30.0, 300.0])
def test_large_programs_have_more_time_for_their_evidence(budget: float) -> None:
    assert left_for(PROGRAMS["softmax"], budget) == min(FINISH_S, FINISH_SHARE * budget)
    assert left_for(LARGE["decoder_layer"], budget) == min(41 * OPERATOR_S, LARGE_SHARE * budget)
