"""The interpreter of muGraphs agrees with the reference program, tails and empty ranges included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import ScheduleError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.interpret import run_reference
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.mugraph.graphs import CASES, Case, flash_attention, flash_decoding, gated, joined


def error(case: Case, schedule: Schedule, sizes: dict[str, int]) -> float:
    """Largest difference between the muGraph and its program, both in float64."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.bind(sizes)) for t in case.program.input_types]
    (want,) = run_reference(case.program, inputs, sizes, "float64")
    (got,) = run_mugraph(case.graph, schedule, inputs, FloatArithmetic(sizes))
    assert got.shape == want.shape
    return float(np.abs(got - want).max(initial=0))


@pytest.mark.parametrize("name", CASES)
def test_muGraph_equals_its_program(name: str) -> None:
    case = CASES[name]()
    assert error(case, case.schedule, case.sizes) < 1e-13


@given(st.fixed_dictionaries({a: st.integers(1, 4) for a in ("b", "h", "s", "t")}), st.integers(1, 5))
def test_tiles_and_splits_of_any_size_give_the_same_result(tile: dict[str, int], splits: int) -> None:
    case = flash_decoding()
    schedule = Schedule((KernelSchedule(tuple(tile.items()), (("t", splits),)), case.schedule.kernels[1]))
    assert error(case, schedule, {"b": 1, "h": 2, "s": 3, "t": 7}) < 1e-13


@given(
    st.fixed_dictionaries({"m": st.integers(0, 4), "n": st.integers(0, 4), "k": st.integers(0, 4)}),
    st.integers(1, 3),
)
def test_sizes_down_to_zero_with_threads(sizes: dict[str, int], lanes: int) -> None:
    case = gated()
    assert error(case, Schedule((replace(case.schedule.kernels[0], lanes=lanes),)), sizes) < 1e-13


@given(st.integers(1, 6))
def test_a_concat_accumulator_joins_tiles_of_any_size(tile: int) -> None:
    case = joined()
    tiles = {**case.schedule.kernels[0].tile, "k": tile}
    assert error(case, Schedule((KernelSchedule(tuple(tiles.items())),)), case.sizes) < 1e-13


def test_a_schedule_that_leaves_a_tile_open_is_refused() -> None:
    case = flash_attention()
    tiles = {a: n for a, n in case.schedule.kernels[0].tiles if a != "t"}
    with pytest.raises(ScheduleError, match=r"axis t \(loop\) needs a positive tile, got None"):
        error(case, Schedule((KernelSchedule(tuple(tiles.items())),)), case.sizes)
    with pytest.raises(ScheduleError, match="0 kernels, the muGraph 1"):
        error(case, Schedule(()), case.sizes)
