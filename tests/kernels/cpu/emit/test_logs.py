"""Logs of sums of exps, whose maxima are in the same kernel, in another one or in a library: as good as without overflow."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from tests.kernels.kernels import tiles
from tests.mugraph.logs import CASES, ROUNDING, SIZES, inputs, largest_error
from tests.sampled import thinned

#: a library hands on no maxima, and so returns the whole log: the difference has not all its digits
ROUNDED = "a_difference_in_a_kernel"


@pytest.mark.parametrize("name", thinned(CASES))
def test_logs_of_sums_of_exps_neither_overflow_nor_vanish(name: str) -> None:
    case = CASES[name]
    maximum = analyze(case.graph)
    assert maximum.safe and maximum.logs
    schedule = tiles(case.graph, *((4, 3), (7, 5))[len(name) % 2])
    exe = CpuExecutable(case.graph, schedule, maximum, SIZES)
    for sizes in (SIZES, {"m": 1, "n": 1}, {"m": 3, "n": 70}):
        for offset in (0.0, 1e4, -1e4):
            given = inputs(case, offset, sizes)
            assert largest_error(case, given, exe(given, sizes)[0]) < ROUNDING
    if case.program.name == "log_softmax" and name != ROUNDED:
        x = inputs(case, 1e4, SIZES)[0][1:-1]
        (got,) = exe([x], {**SIZES, "m": len(x)})
        # log(sum) rounded to a float32 near 1e4 would be off by 5e-4
        assert np.abs(got - case.exact(x.astype(np.float64))).max() < 4e-6


@pytest.mark.parametrize("name", ["lse", "lse_in_a_loop"])
def test_a_row_of_nothing_is_what_numpy_has(name: str) -> None:
    case = CASES[name]
    exe = CpuExecutable(case.graph, tiles(case.graph, 4), analyze(case.graph), SIZES)
    (empty,) = exe([np.zeros((5, 0), np.float32)], {"m": 5, "n": 0})
    np.testing.assert_array_equal(empty, np.full((5, 1), -np.inf))
    x = np.full((5, 9), -np.inf, np.float32)
    x[1, 3], x[2, 4] = -1e4, np.nan
    (got,) = exe([x], {"m": 5, "n": 9})
    np.testing.assert_array_equal(got[:, 0], np.array([-np.inf, -1e4, np.nan, -np.inf, -np.inf], np.float32))
    # as in a softmax
    x[:] = 0
    x[1, 3] = np.inf
    (got,) = exe([x], {"m": 5, "n": 9})
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2, 3, 4]]).all()
