"""Products of groups of rows in C, against the meaning of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError, LibraryError, MirageError
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.launch import grouped as module
from mirage.kernels.cpu.launch.grouped import grouped_matmul, library, prepare
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.panels import pack
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


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("right", [(), (0, 2, 1)])
@pytest.mark.parametrize(("rows", "ends"), GROUPS)
def test_orders_panels_and_gates_again_and_again(
    rows: int, ends: list[int], right: tuple[int, ...], packed: bool, gated: bool
) -> None:
    x, w, last = operands(rows, ends)
    gate = np.flip(w, 2).copy()
    expected = wanted([x, w, last])
    if gated:
        expected = np.tanh(expected) * wanted([x, gate, last])
    weights = [np.ascontiguousarray(m.transpose(right or (0, 1, 2))) for m in (w, gate)[: 1 + gated]]
    inputs = [x, *weights, *([pack(m, right=right) for m in weights] if packed else []), last]
    attrs: dict[str, Any] = {"right": right, "packed": packed, **({"gated": True, "activation": "tanh"} if gated else {})}
    out = np.full((rows, w.shape[2]), np.nan, np.float32)
    library(inputs, [out], **attrs)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    launch = prepare(inputs, [out], **attrs)
    assert launch is not None
    out[...] = np.nan
    rounds = LaunchedRounds([[(launch, range(len(inputs) + 1))]] * 3, np.zeros((), np.int64), len(inputs) + 1)
    rounds.tensors[:] = [address(a) if isinstance(a, np.ndarray) else 0 for a in (*inputs, out)]
    assert not rounds.some(0, 3)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_what_is_not_in_c() -> None:
    x, w, last = operands(7, [3, 7])
    wide = [x.astype("float64"), w.astype("float64"), last]
    out = np.empty((7, 45))
    assert prepare(wide, [out]) is None
    with pytest.raises(LibraryError, match="no gated groups of float64"):
        library([wide[0], wide[1], wide[1], last], [out], gated=True, activation="silu")


def test_panels_that_do_not_fit() -> None:
    x, w, last = operands(7, [3, 7])
    out = np.empty((7, 45), np.float32)
    for other in (w[:1], w[:, 1:], w[:, :, 1:], w[0]):
        assert prepare([x, w, pack(other), last], [out], packed=True) is None
    with pytest.raises(LibraryError, match="grouped_matmul: 2 operands beside rows and ends"):
        prepare([x, w, w, last], [out])
    with pytest.raises(LibraryError, match="no gated groups"):
        library([x, w, w, pack(w), pack(w[:1]), last], [out], packed=True, gated=True, activation="silu")


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
