"""The check that a compiled kernel equals its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from tests.kernels.kernels import bound, error, random_inputs


def check(
    program: Program,
    graph: MuGraph,
    schedule: Schedule,
    sizes: Mapping[str, int],
    inputs: Sequence[np.ndarray] | None = None,
    maximum: RunningMaximum | None = None,
    hints: Mapping[str, int] | None = None,
) -> CpuExecutable:
    """Compile, run, and compare with the program in float64."""
    exe = CpuExecutable(graph, schedule, maximum or analyze(graph), hints or sizes)
    inputs = random_inputs(program, sizes) if inputs is None else inputs
    got = exe(inputs, sizes)
    found = error(got, run_reference(program, inputs, sizes, "float64"))
    assert found < bound(program.dtype), f"{graph.name} {schedule} {dict(sizes)}: {found}"
    return exe
