"""Every operator of graphs, compiled: as in NumPy, also for NaN, for the extremes of integers, and for no elements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError
from tests.frontends.operator_calls import ARRAYS, CASES, SPECS

IDS = [inspect.getsource(f).strip()[:60] for f, _ in CASES]


def call(fn: Callable[..., Any], **arrays: np.ndarray) -> Any:
    """The result of a compiled function of arrays, of which all dims are symbolic."""
    specs = {name: mi.tensor(*(f"{name}{i}" for i in range(a.ndim)), dtype=a.dtype.name) for name, a in arrays.items()}
    return mi.compile(fn, specs, without=("superoptimize",), cache=False)(*arrays.values())


def same(found: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("fn", "expected"), CASES, ids=IDS)
def test_compiled(fn: Callable[..., Any], expected: Callable[..., Any]) -> None:
    names = list(inspect.signature(fn).parameters)
    f = mi.compile(fn, {n: SPECS[n] for n in names}, without=("superoptimize",), cache=False)
    found, wanted = f(*(ARRAYS[n] for n in names)), np.asarray(expected(*(ARRAYS[n] for n in names)))
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_nan() -> None:
    x = np.array([[1, np.nan, 3], [-1, -2, -3]], np.float32)

    def fn(x: Any) -> Any:
        flipped = mi.flip(x, 1)
        extremes = mi.max(x, 1), mi.min(x, 1), mi.argmax(x, 1), mi.argmin(x, 1)
        return *extremes, mi.maximum(x, flipped), mi.minimum(x, flipped), mi.sign(x), mi.isnan(x)

    flipped = x[:, ::-1]
    extremes = x.max(1), x.min(1), x.argmax(1), x.argmin(1)
    expected = (*extremes, np.maximum(x, flipped), np.minimum(x, flipped), np.sign(x), np.isnan(x))
    for f, e in zip(call(fn, x=x), expected, strict=True):
        same(f, e)


def test_extremes_of_integers() -> None:
    i = np.array([-(2**31), 7, -7, 2**31 - 1], np.int32)
    j = np.array([-1, 0, 2, -2], np.int32)

    def fn(i: Any, j: Any) -> Any:
        j = mi.match_cast(j, mi.tensor("i0", dtype="int32"))
        return i // j, i % j, mi.sum(i), mi.prod(i), i * j, mi.abs(i), -i

    with np.errstate(all="ignore"):
        sums = i.sum(dtype=np.int32), i.prod(dtype=np.int32)
        expected = (i // j, i % j, *sums, i * j, np.abs(i), -i)
    for f, e in zip(call(fn, i=i, j=j), expected, strict=True):
        same(f, e)


def test_16_bit_types() -> None:
    x = np.array([0.1, 2.7, -3.3, 1e30, 0], ml_dtypes.bfloat16)
    wide = x.astype(np.float32)

    def fn(x: Any) -> Any:
        triple = mi.cast(x, "float32") * 3
        return mi.cast(x, "bool"), triple, mi.cast(triple, "bfloat16"), mi.max(x), mi.sum(x), mi.sort(x)

    expected = (wide != 0, wide * 3, (wide * 3).astype(x.dtype), x.max(), wide.sum().astype(x.dtype), np.sort(x))
    for f, e in zip(call(fn, x=x), expected, strict=True):
        same(f, e)


def test_no_elements() -> None:
    x = np.zeros((0, 3), np.float32)

    def fn(x: Any) -> Any:
        reduced = mi.max(x, 0), mi.min(x, 0), mi.argmax(x, 0), mi.prod(x)
        return *reduced, mi.pad(x, (1, 0), (0, 1), 2), mi.flip(x), mi.topk(x, 1)[0], mi.unique(x)

    reduced = np.full(3, -np.inf), np.full(3, np.inf), np.zeros(3, np.int64), np.float32(1)
    rest = np.full((1, 4), 2), x, np.zeros((0, 1)), np.zeros(0)
    for f, e in zip(call(fn, x=x), (*reduced, *rest), strict=True):
        same(f, np.asarray(e, f.dtype))


def test_indices() -> None:
    x, i = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([-1, 0, -3])

    def fn(x: Any, i: Any) -> Any:
        return mi.take(x, i) * 2

    same(call(fn, x=x, i=i), x[i] * 2)
    for wrong in (3, -4):
        with pytest.raises(InputError, match=rf"take: axis 0: index {wrong} is out.*of 3 elements; use -3 to 2"):
            call(fn, x=x, i=np.array([0, wrong]))
