"""The largest elements in C, against their meaning in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.launch import order

NAN = np.array([[2.0, np.nan, -np.inf, 0.0, np.nan, -0.0, 2.0], [np.inf, 1.0, 1.0, 1.0, 0.5, 0.5, -7.0]])


def compare(x: np.ndarray, k: int, axis: int, largest: bool) -> None:
    given: Any = {"k": k, "axis": axis, "largest": largest}
    for found, wanted in zip(order.topk([x], given, {}), get_operator("topk").run([x], given, {}), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bfloat16"])
def test_the_first_of_equal_elements_come_first(dtype: str, largest: bool) -> None:
    x = np.random.default_rng(0).integers(-4, 5, (3, 5, 9)).astype(ELEMENTS[dtype])
    for k, axis in ((0, -1), (1, -1), (2, 1), (5, 1), (9, 2), (3, 0)):
        compare(x, k, axis, largest)
    compare(x[:, ::2, ::-1], 2, 1, largest)
    compare(x[:0], 2, -1, largest)


@pytest.mark.parametrize("largest", [True, False])
def test_nan_is_the_largest(largest: bool) -> None:
    for dtype in ("float32", "float64"):
        for k in range(8):
            compare(NAN.astype(dtype), k, -1, largest)


def test_many_elements_are_sorted() -> None:
    compare(np.random.default_rng(0).standard_normal((2, 200)), 65, -1, True)


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(InputError, match="k is within the dim"):
        order.topk([NAN], {"k": 8, "axis": -1, "largest": True}, {})


def test_programs_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("NumPy is not asked")

    monkeypatch.setattr(type(get_operator("topk")), "compute", refused)
    run = mi.compile(lambda x: mi.topk(x, 2, axis=0), {"x": mi.tensor("n", "m")}, cache=False)
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    values, places = run(x)
    np.testing.assert_array_equal(values, -np.sort(-x, 0)[:2])
    np.testing.assert_array_equal(places, np.argsort(-x, 0, kind="stable")[:2])
