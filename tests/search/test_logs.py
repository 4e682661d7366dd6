"""Logs of sums of exps, from programs to kernels: losses as they are written, at any magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import schedules
from mirage.mugraph.degree import analyze, program_is_stable
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.search.targets import find_targets
from mirage.verify.safety import offered
from tests.mugraph import logs
from tests.mugraph.logs import ROUNDING, Exact, LogCase, inputs, largest_error, row
from tests.programs import UNLIMITED

SIZES = {"m": 13, "n": 37}
BOTH = {"x": mi.tensor("m", "n"), "y": mi.tensor("m", "n")}
#: the same losses with the operator
WITH_OPERATOR: dict[str, tuple[Program, Exact]] = {
    "log-softmax": (mi.trace(lambda x: mi.log_softmax(x), "log_softmax", x=mi.tensor("m", "n")), logs.LOG_SOFTMAX[1]),
    "cross-entropy": (
        mi.trace(lambda x, y: -row(y * mi.log_softmax(x)), "cross_entropy", **BOTH), logs.CROSS_ENTROPY[1],
    ),
}  # fmt: skip
WRITTEN: dict[str, tuple[Program, Exact]] = {
    "logsumexp": logs.LSE,
    "log-softmax": logs.LOG_SOFTMAX,
    "cross-entropy": logs.CROSS_ENTROPY,
    "label smoothing": logs.SMOOTHED,
}


def single_kernels(p: Program) -> list[MuGraph]:
    """What a complete search finds of one kernel, cheapest first."""
    return list(generate(to_axes(p), SIZES, SearchOptions(budget=UNLIMITED, max_kernels=1)).graphs)


def executable(graph: MuGraph) -> CpuExecutable:
    return CpuExecutable(graph, schedules(graph, SIZES, 1 << 20, 2)[0], analyze(graph), SIZES)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_loss_is_one_kernel_that_neither_overflows_nor_vanishes(name: str) -> None:
    p, exact = WRITTEN[name]
    graph = next(g for g in single_kernels(p) if len(g.kernels) == 1)
    maximum, exe = analyze(graph), executable(graph)
    assert maximum.safe and maximum.logs
    for sizes in (SIZES, {"m": 1, "n": 1}, {"m": 7, "n": 70}):
        for offset in (0.0, 1e4, -1e4):
            case = LogCase(p, graph, exact)
            given = inputs(case, offset, sizes)
            assert largest_error(case, given, exe(given, sizes)[0]) < ROUNDING


@pytest.mark.parametrize("name", WITH_OPERATOR)
def test_the_operator_has_the_kernels_of_what_it_is_written_as(name: str) -> None:
    p, exact = WITH_OPERATOR[name]
    assert program_is_stable(p) and not program_is_stable(WRITTEN[name][0])
    graphs = single_kernels(p)
    assert graphs and all(offered(p, g) for g in graphs)
    case = LogCase(p, graphs[0], exact)
    given = inputs(case, 1e4, SIZES)
    # in float64, that is: the operator itself subtracts the maximum
    want = run_reference(p, [a.astype(np.float64) for a in given], SIZES, "float64")[0]
    np.testing.assert_allclose(want, exact(*(a.astype(np.float64) for a in given)), rtol=1e-9, atol=1e-6)
    (own,) = run_reference(p, given, SIZES)
    assert largest_error(case, given, own) < ROUNDING


@pytest.mark.parametrize("name", ["log of a softmax", "cross-entropy"])
def test_the_target_of_a_log_of_a_softmax_may_be_offered(name: str) -> None:
    p = mi.trace(lambda x: mi.log(mi.softmax(x)), "of_softmax", x=mi.tensor("m", "n"))
    if name == "cross-entropy":
        p = mi.trace(lambda x, y: mi.sum(y * mi.log(mi.softmax(x)), axis=1), "of_both", **BOTH)
    assert program_is_stable(p)
    targets = find_targets(to_axes(p), {"m": 512, "n": 256}, seconds=UNLIMITED).programs
    graphs = [reference_graph(t.program) for t in targets]
    assert any(analyze(g).logs and offered(p, g) for g in graphs)


def weighted(x: Any, y: Any) -> Any:
    return mi.log(row(y * mi.exp(x)))


def test_a_sum_that_may_lack_its_largest_exp_is_computed_as_it_is_written() -> None:
    p = mi.trace(weighted, "weighted", **BOTH)
    graphs = single_kernels(p)
    assert graphs and not any(analyze(g).sites or analyze(g).logs for g in graphs)
    exe = executable(graphs[0])
    x, y = inputs(LogCase(p, graphs[0], logs.LSE[1]), 0.0, SIZES)
    x, y = np.clip(x, -9, 9), y.copy()
    y[np.arange(13), x.argmax(axis=1)] = 0
    with np.errstate(over="ignore"):
        for shift in (0, 1000):
            (want,) = run_reference(p, [x + np.float32(shift), y], SIZES)
            assert np.isfinite(want).all() == (shift == 0)
            np.testing.assert_allclose(exe([x + np.float32(shift), y], SIZES)[0], want, rtol=1e-5, atol=1e-5)
