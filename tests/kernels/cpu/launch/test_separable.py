"""Convolutions channel by channel with the products around them, beside one after the other in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import LibraryError
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.launch.convolution import pack
from mirage.kernels.cpu.launch.separable import library

TOLERANCES = {"float16": 0.05, "float32": 1e-4, "float64": 1e-10}


def convolved(x: np.ndarray, w: np.ndarray, **attrs: Any) -> np.ndarray:
    op, ones = get_operator("convolution"), (1,) * (x.ndim - 2)
    given = op.check_attrs({"strides": ones, "dilations": ones, "groups": 1} | attrs)
    return np.asarray(op.run([x.astype(np.float64), w.astype(np.float64)], given, {}))


def drawn(draw: np.random.Generator, dtype: str, parts: str) -> tuple[dict[str, np.ndarray], dict[str, Any], np.ndarray]:
    """Operands by their names, with weights as they are; attributes; and what they give, of which there may be less zeros in
    front than windows reach over. `parts` says which products there are.
    """
    rank, batch = int(draw.integers(1, 3)), int(draw.integers(1, 4))
    n = lambda low, high: tuple(map(int, draw.integers(low, high, rank)))  # noqa: E731
    kernel, strides, gaps, low, high = n(1, 5), n(1, 4), n(1, 3), n(0, 4), n(0, 4)
    reach = [(k - 1) * d + 1 - a - b for k, d, a, b in zip(kernel, gaps, low, high, strict=True)]
    space = [max(1, r + int(draw.integers(0, (60, 25)[rank - 1]))) for r in reach]
    wide, channels, outputs = (int(draw.choice([2, 5, 16, 33])) for _ in range(3))
    real = lambda *shape: np.asarray(draw.standard_normal(shape), dtype)  # noqa: E731
    ones = (1,) * rank
    given: dict[str, np.ndarray] = {"x": real(batch, channels if "first" in parts else wide, *space)}
    attrs: dict[str, Any] = {"strides": strides, "dilations": gaps, "low": low}
    y = given["x"].astype(np.float64)
    for part, weight, shape in (
        ("first_", "first", (wide, channels, *ones)), ("", "w", (wide, 1, *kernel)),
        ("second_", "second", (outputs, wide, *ones)),
    ):  # fmt: skip
        if weight not in ("w", *parts.split()):
            continue
        w = given[weight] = real(*shape)
        edges = [(0, 0), (0, 0), *zip(low, high, strict=True)]
        y = convolved(np.pad(y, edges), w, strides=strides, dilations=gaps, groups=wide) if weight == "w" else convolved(y, w)
        if draw.integers(2):
            given[f"{part}bias"] = real(shape[0])
            y = y + given[f"{part}bias"].reshape(-1, *ones)
        if part == "second_" and draw.integers(2):
            given["other"] = real(*y.shape)
            y = y + given["other"]
        for bound, limit in (("least", -0.5), ("most", 1.5)):
            if draw.integers(2):
                attrs[f"{part}{bound}"] = limit
                y = np.maximum(y, limit) if bound == "least" else np.minimum(y, limit)
    return given, attrs | {name: True for name in given if name not in ("x", "w")}, y


def packed(given: dict[str, np.ndarray]) -> list[Any]:
    return [pack(a) if name in ("first", "second") else a for name, a in given.items()]


@pytest.mark.parametrize("threads", ["2", "40"])
@pytest.mark.parametrize("parts", ["first second", "first", "second"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_it_is_one_after_the_other(dtype: str, parts: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bands, and where there are more threads than bands."""
    monkeypatch.setenv("MIRAGE_NUM_THREADS", threads)
    for seed in range(8):
        given, attrs, want = drawn(np.random.default_rng(seed), dtype, parts)
        out = np.full(want.shape, np.nan, dtype)
        library(packed(given), [out], **attrs)
        scale = np.abs(want).max() + 1
        found = out.astype(np.float64) / scale
        np.testing.assert_allclose(found, want / scale, rtol=0, atol=TOLERANCES[dtype], err_msg=str(seed))


def test_an_empty_batch_and_empty_images() -> None:
    given, attrs, want = drawn(np.random.default_rng(3), "float32", "first second")
    given = {name: a[:0] if name in ("x", "other") else a for name, a in given.items()}
    library(packed(given), [np.empty((0, *want.shape[1:]), np.float32)], **attrs)
    # zeros around nothing
    x, w, bias = np.empty((1, 2, 0), np.float32), np.ones((2, 1, 2), np.float32), np.array([3, 4], np.float32)
    out = np.empty((1, 2, 3), np.float32)
    library([x, w, bias, pack(np.eye(2, dtype=np.float32)[:, :, None])], [out],
            strides=(1,), dilations=(1,), low=(2,), bias=True, second=True)  # fmt: skip
    np.testing.assert_array_equal(out, [[[3] * 3, [4] * 3]])


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"x": (2, 4, 9, 9)}, {}, r"no separable convolution of \[2, 4, 9, 9\]"),
    ({"first": (6, 5, 2, 1)}, {}, "no separable convolution"),
    ({"second": (8, 6, 1, 1)}, {}, "no separable convolution"),
    ({"w": (6, 2, 3, 3)}, {}, "there is no convolution"),
    ({"out": (2, 7, 8)}, {}, "there is no convolution"),
    ({}, {"strides": (1, 1, 1)}, "no separable convolution"),
    ({}, {"bias": True}, "reads x, first, w, bias, second; compile the program again"),
]


@pytest.mark.parametrize(("shapes", "attrs", "message"), WRONG, ids=str)
def test_what_does_not_fit_is_refused(shapes: dict[str, Any], attrs: dict[str, Any], message: str) -> None:
    """As a changed file of a program may have it."""
    known = {"x": (2, 5, 9, 9), "first": (6, 5, 1, 1), "w": (6, 1, 3, 3), "second": (7, 6, 1, 1), "out": (2, 7, 7, 7)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in (known | shapes).items()}
    out = arrays.pop("out")
    told: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "low": (0, 0), "first": True, "second": True}
    with pytest.raises(LibraryError, match=message):
        library(packed(arrays), [out], **(told | attrs))


def test_products_read_packed_weights_alone() -> None:
    arrays = [np.zeros(s, np.float32) for s in ((1, 5, 9), (6, 5, 1), (6, 1, 3))]
    with pytest.raises(LibraryError, match="reads x, first, w; compile the program again"):
        library(arrays, [np.zeros((1, 6, 7), np.float32)], strides=(1,), dilations=(1,), low=(0,), first=True)
