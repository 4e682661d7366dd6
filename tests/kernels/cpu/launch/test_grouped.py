"""Products of groups of rows in C, against the meaning of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError, MirageError
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.launch import grouped as module
from mirage.kernels.cpu.launch.grouped import grouped_matmul, library, prepare
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.rounds import LaunchedRounds

#: rows, and where groups end: some have no rows, some rows no group
GROUPS: list[tuple[int, list[int]]] = [
    (7, [2, 2, 5, 7]), (7, [0, 0, 0, 7]), (50, [0, 3, 40, 47]), (5, [0, 0, 0, 0]), (3, []), (0, [0, 0]), (1, [0, 1]),
]  # fmt: skip


def operands(rows: int, ends: list[int], dtype: str = "float32", k: int = 37, n: int = 45) -> list[np.ndarray]:
    rng = np.random.default_rng([rows, *ends])
    x, w = (rng.standard_normal(s).astype(ELEMENTS[dtype]) for s in ((rows, k), (len(ends), k, n)))
    return [x, w, np.array(ends, np.int64)]


def wanted(given: list[np.ndarray]) -> Any:
    x, w, ends = given
    found = get_operator("grouped_matmul").run([x.astype(np.float64), w.astype(np.float64), ends], {}, {})
    # what lies behind the last group is 0
    assert not found[ends[-1] if len(ends) else 0 :].any()
    return found


@pytest.mark.parametrize(("rows", "ends"), GROUPS)
def test_groups_of_any_rows(rows: int, ends: list[int]) -> None:
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12), ("bfloat16", 0.1)):
        for size in (np.int32, np.int64):
            x, w, last = operands(rows, ends, dtype)
            found = grouped_matmul([x, w, last.astype(size)], {}, {})
            assert found.dtype == x.dtype
            np.testing.assert_allclose(found.astype(np.float64), wanted([x, w, last]), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "ends"), GROUPS)
def test_matrices_in_another_order_and_calls_again_and_again(rows: int, ends: list[int]) -> None:
    x, w, last = given = operands(rows, ends)
    inputs = [x, np.ascontiguousarray(w.transpose(0, 2, 1)), last]
    out = np.full((rows, w.shape[2]), np.nan, np.float32)
    library(inputs, [out], right=(0, 2, 1))
    np.testing.assert_allclose(out, wanted(given), rtol=1e-5, atol=1e-5)
    launch = prepare(inputs, [out], right=(0, 2, 1))
    assert launch is not None
    assert prepare([a.astype("float64") for a in (x, w)] + [last], [out]) is None
    out[...] = np.nan
    rounds = LaunchedRounds([[(launch, range(4))]] * 3, np.zeros((), np.int64), 4)
    assert rounds.run(3, [address(a) for a in (*inputs, out)]) is None
    np.testing.assert_allclose(out, wanted(given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ends", [[3, 8], [3, 2], [-1, 2], [8, 7]])
def test_ends_that_are_wrong_write_nothing(ends: list[int]) -> None:
    x, w, _ = operands(7, [3, 7])
    out = np.full((7, 45), 5, np.float32)
    for dtype in (np.int32, np.int64):
        with pytest.raises(InputError, match="grouped_matmul: ends of groups of 7 rows have to be 0 to 7"):
            library([x, w, np.array(ends, dtype)], [out])
    assert (out == 5).all()
    launch = prepare([x, w, np.array(ends)], [out])
    assert launch is not None and isinstance(launch.error(module._WRONG_ENDS), InputError)


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_function", lambda: lambda *_: -1)
    with pytest.raises(MirageError, match="no memory for products of 7 rows"):
        grouped_matmul(operands(7, [3, 7]), {}, {})


@pytest.mark.parametrize("x, w, ends, out", [((8, 6), (2, 6, 5), 2, (4, 5)), ((8, 6), (2, 7, 5), 2, (8, 5)),
                                             ((8, 6), (2, 6, 5), 3, (8, 5)), ((8, 6), (2, 6, 5), 2, (8, 6))])  # fmt: skip
def test_what_does_not_fit_is_not_prepared(x: Any, w: Any, ends: int, out: Any) -> None:
    """Programs come from files, too."""
    given = np.ones(x, np.float32), np.ones(w, np.float32), np.full(ends, 8)
    assert prepare(given, (np.zeros(out, np.float32),)) is None
