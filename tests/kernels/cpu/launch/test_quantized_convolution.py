"""Convolutions of 8-bit numbers, bit for bit as NumPy's integers of 64 bits give them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mirage.errors import AttributeValueError, DTypeError, InputError, MirageError, ShapeError
from mirage.ir.operator import get_operator
from mirage.ir.types import tensor
from mirage.kernels.cpu.launch import quantized_convolution as module
from mirage.kernels.cpu.launch.quantized_convolution import library, pack, prepare, quantized_convolution

OPERATOR = get_operator("quantized_convolution")


def sums(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Sums of windows in 64 bits, place by place."""
    rank, groups = x.ndim - 2, attrs["groups"]
    edges = list(zip(attrs["low"], attrs["high"], strict=True))
    padded = np.pad(x.astype(np.int64) - attrs["x_zero"], [(0, 0), (0, 0), *edges])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], attrs["dilations"], strict=True)]
    places = [(n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, attrs["strides"], strict=True)]
    found = np.zeros((x.shape[0], w.shape[0], *places), np.int64)
    outer, inner = w.shape[0] // groups, w.shape[1]
    for at in product(*map(range, w.shape[2:])):
        starts = [a * d for a, d in zip(at, attrs["dilations"], strict=True)]
        cut: Any = tuple(slice(a, a + (p - 1) * s + 1, s) for a, p, s in zip(starts, places, attrs["strides"], strict=True))
        part = padded[(slice(None), slice(None), *cut)].reshape(x.shape[0], groups, inner, *places)
        here: Any = (slice(None), slice(None), *at)
        weight = w[here].astype(np.int64).reshape(groups, outer, inner)
        found += np.einsum("bgc...,goc->bgo...", part, weight).reshape(found.shape)
    assert rank == len(places)
    return found


def wanted(given: list[np.ndarray], attrs: dict[str, Any]) -> np.ndarray:
    """The operator's definition."""
    x, w, *rest = given
    along = (-1, *[1] * (x.ndim - 2))
    whole = sums(x, w, attrs)
    scale, bias, other = (*rest, None, None, None)[:3]
    if bias is not None and bias.dtype == np.int32:
        whole, bias = whole + bias.reshape(along), None
    whole = whole.astype(np.int32)
    if scale is None:
        return whole
    range_ = np.iinfo(attrs["dtype"]) if attrs["dtype"] != "float32" else None
    least, most = (float(attrs.get(key, end)) for key, end in (("least", -np.inf), ("most", np.inf)))
    if scale.dtype == np.int32:
        value: Any = whole.astype(np.int64) * scale.reshape(along)
        value = (value + (1 << attrs["shift"] >> 1)) >> attrs["shift"]
    else:
        value = whole.astype(np.float32) * scale.reshape(along)
        if bias is not None:
            value = value + bias.reshape(along)
        if other is not None:
            real = other if other.dtype == np.float32 else (other.astype(np.float32) - attrs["other_zero"])
            value = value + (real if other.dtype == np.float32 else real * np.float32(attrs["other_scale"]))
    value = np.minimum(np.maximum(value, np.float32(least)), np.float32(most))
    if range_ is None:
        return np.asarray(value)
    return np.clip(np.rint(value).astype(np.int64) + attrs["zero"], range_.min, range_.max).astype(attrs["dtype"])


def operands(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str, out: str, places: tuple[int, ...], other: str = ""
) -> list[np.ndarray]:
    rng = np.random.default_rng([*x, *w])
    info = np.iinfo(dtype)
    given = [rng.integers(info.min, info.max + 1, x).astype(dtype), rng.integers(-128, 128, w).astype(np.int8)]
    if out == "int32":
        return given
    given += [rng.uniform(-1e-3, 1e-3, w[0]).astype(np.float32), rng.uniform(-9, 9, w[0]).astype(np.float32)]
    if other:
        shape = (x[0], w[0], *places)
        real = rng.uniform(-9, 9, shape).astype(np.float32)
        among = np.iinfo("uint8" if other == "float32" else other)
        whole = rng.integers(among.min, among.max + 1, shape)
        given.append(real if other == "float32" else whole.astype(other))
    return given


#: x, w, strides, dilations, groups, low, high
SHAPES = [
    ((1, 3, 7, 9), (5, 3, 3, 3), (1, 1), (1, 1), 1, (1, 1), (1, 1)),
    ((2, 7, 11, 8), (9, 7, 1, 1), (1, 1), (1, 1), 1, (0, 0), (0, 0)),
    ((2, 16, 9, 20), (33, 16, 3, 3), (2, 2), (1, 1), 1, (1, 1), (1, 1)),
    ((1, 300, 5, 5), (10, 300, 3, 3), (1, 1), (1, 1), 1, (1, 1), (0, 1)),
    ((3, 8, 12, 12), (12, 2, 3, 2), (1, 2), (2, 1), 4, (2, 0), (2, 3)),
    ((2, 6, 13, 21), (6, 1, 3, 3), (1, 1), (1, 1), 6, (1, 1), (1, 1)),
    ((1, 5, 18, 40), (10, 1, 5, 5), (2, 2), (1, 1), 5, (2, 2), (2, 2)),
    ((2, 4, 60), (6, 4, 5), (3,), (2,), 1, (4,), (0,)),
    ((1, 2, 900), (2, 1, 600), (1,), (1,), 2, (0,), (0,)),
    ((1, 3, 5, 6, 7), (4, 3, 3, 2, 3), (1, 1, 2), (1, 2, 1), 1, (1, 1, 1), (1, 1, 1)),
]


def attributes(shape: Any, **own: Any) -> dict[str, Any]:
    _, _, strides, dilations, groups, low, high = shape
    return OPERATOR.check_attrs(
        {"strides": strides, "dilations": dilations, "groups": groups, "low": low, "high": high, **own}
    )


def check(given: list[np.ndarray], attrs: dict[str, Any]) -> None:
    right = wanted(given, attrs)
    for found in (quantized_convolution(given, attrs, {}), OPERATOR.run(given, attrs, {})):
        np.testing.assert_array_equal(found, right)
        assert found.dtype.name == attrs["dtype"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "x_zero"), [("uint8", 113), ("int8", -7)])
def test_all_kinds_of_results(shape: Any, dtype: str, x_zero: int) -> None:
    x, w = shape[:2]
    places = OPERATOR.infer([tensor(*x, dtype=dtype), tensor(*w, dtype="int8")], attributes(shape, dtype="int32")).shape[2:]
    space = tuple(map(int, places))
    for out, other in (("int32", ""), ("float32", ""), ("uint8", "uint8"), ("int8", "int8"), ("int16", "float32"), ("uint8", "")):
        own: dict[str, Any] = {"x_zero": x_zero, "dtype": out, "zero": 0 if out in ("int32", "float32") else 5}
        if other in ("int8", "uint8"):
            own |= {"other_scale": 0.0625, "other_zero": 9}
        if out in ("float32", "int8"):
            own |= {"least": 0.0, "most": 6.25}
        given = operands(x, w, dtype, out, space, other)
        check(given, attributes(shape, **own))
        if out == "uint8" and not other:
            # the bias of whole numbers, then multipliers, too
            given[3] = np.arange(w[0], dtype=np.int32) * 99 - 500
            check(given, attributes(shape, **own))
            given[2] = (given[2] * 2**30).astype(np.int32)
            check(given, attributes(shape, **own, shift=30, least=-2.0))


def test_threads_and_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_threads", lambda: 3)
    shape = ((2, 40, 24, 24), (80, 40, 3, 3), (1, 1), (1, 1), 1, (1, 1), (1, 1))
    attrs = attributes(shape, dtype="uint8", x_zero=128, zero=3)
    given = operands(shape[0], shape[1], "uint8", "uint8", (24, 24), "uint8")
    check(given, attrs)
    out = np.empty((2, 80, 24, 24), np.uint8)
    own = {key: value for key, value in attrs.items() if key != "dtype"}
    made = [given[0], given[1], pack(given[1]), *given[2:]]
    assert prepare(made, [out], packed=True, **own) is not None
    assert prepare(given, [out], **own) is None
    library(made, [out], packed=True, **own)
    np.testing.assert_array_equal(out, wanted(given, attrs))


def test_of_nothing() -> None:
    attrs = attributes(SHAPES[0], dtype="uint8")
    given = operands((0, 3, 7, 9), (5, 3, 3, 3), "uint8", "uint8", (7, 9))
    assert quantized_convolution(given, attrs, {}).shape == (0, 5, 7, 9)
    none = operands((1, 0, 7, 9), (5, 0, 3, 3), "uint8", "uint8", (7, 9))
    np.testing.assert_array_equal(quantized_convolution(none, attrs, {}), wanted(none, attrs))
    with pytest.raises(InputError, match="window"):
        small = operands((1, 3, 0, 9), (5, 3, 3, 3), "uint8", "uint8", (7, 9))
        quantized_convolution(small, attrs, {})


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        mi_quantized_windows = staticmethod(lambda *_: -1)

    x, w, *rest = operands((1, 3, 7, 9), (5, 3, 3, 3), "uint8", "uint8", (7, 9))
    attrs, packed = attributes(SHAPES[0]), pack(w)
    monkeypatch.setattr(module, "_library", Failing)
    with pytest.raises(MirageError, match=r"no memory for a convolution of \[1, 3, 7, 9\]"):
        library([x, w, packed, *rest], [np.empty((1, 5, 7, 9), np.float32)], packed=True, **attrs)


X, W, S = tensor("b", 4, 9, 9, dtype="int8"), tensor("o", 4, 3, 3, dtype="int8"), tensor("o")
OUT = tensor("b", "o", 7, 7)


@pytest.mark.parametrize(
    ("types", "attrs", "error", "message"),
    [
        ((tensor("b", 4, 9, 9), W, S), {}, DTypeError, "x is float32"),
        ((X, tensor("o", 4, 3, 3), S), {}, DTypeError, "w is float32"),
        ((X, W, tensor("o", dtype="float64")), {}, DTypeError, "scale is float64"),
        ((X, W), {}, DTypeError, "int32 is what has no scale"),
        ((X, W, S), {"dtype": "int32"}, DTypeError, "int32 is what has no scale"),
        ((X, W, tensor("o", dtype="int32")), {}, DTypeError, "of multipliers"),
        ((X, W, tensor("o", dtype="int32"), S), {"dtype": "int8"}, DTypeError, "bias is float32"),
        ((X, W, tensor(3)), {}, ShapeError, r"a scale \[3\]; it is \[o\]"),
        ((X, W, S, S, tensor("b", "o", 7, 6)), {}, ShapeError, "another summand"),
        ((X, W, S), {"low": (1,)}, ShapeError, r"low=\(1,\)"),
        ((X, W, S), {"low": (-1, 0)}, AttributeValueError, "neither has negative"),
        ((X, W, S), {"x_zero": 200}, AttributeValueError, "x_zero=200 is no int8"),
        ((X, W, S), {"zero": 3}, AttributeValueError, "zero=3 is no float32"),
        ((X, W, S), {"shift": 63}, AttributeValueError, "shift=63"),
        ((X, W, S), {"strides": (0, 1)}, AttributeValueError, "strides"),
        ((X, W, S), {"dtype": "int64"}, AttributeValueError, "dtype='int64'"),
    ],
)
def test_what_does_not_fit_is_refused(types: Any, attrs: Any, error: type[MirageError], message: str) -> None:
    plain = {"strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "high": (0, 0)}
    with pytest.raises(error, match=message):
        OPERATOR.infer(types, OPERATOR.check_attrs({**plain, **attrs}))
