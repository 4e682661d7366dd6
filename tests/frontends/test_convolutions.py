"""Transposed convolutions as convolutions, beside their definition."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.frontends.convolutions import transposed
from mirage.ir.graph.nodes import OpCall


def wanted(
    x: np.ndarray, w: np.ndarray, strides: Any, low: Any, high: Any, dilations: Any, groups: int
) -> np.ndarray:
    """Every element adds its multiple of the weights to the results that it reaches."""
    channels, count = w.shape[0] // groups, w.shape[1]
    space, kernel = x.shape[2:], w.shape[2:]
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(space, strides, kernel, dilations, strict=True)]
    y = np.zeros((x.shape[0], groups * count, *whole))
    for g in range(groups):
        rows, columns = slice(g * channels, (g + 1) * channels), slice(g * count, (g + 1) * count)
        for tap in product(*map(range, kernel)):
            index: Any = (rows, slice(None), *tap)
            part = np.einsum("bc...,co->bo...", x[:, rows], w[index])
            to = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, space, strides, strict=True)]
            y[(slice(None), columns, *to)] += part
    for k, (a, b) in enumerate(zip(low, high, strict=True), 2):
        y = np.moveaxis(y, k, 0)
        y = y[max(a, 0) : len(y) - max(b, 0)]
        y = np.concatenate([np.zeros((max(-a, 0), *y.shape[1:])), y, np.zeros((max(-b, 0), *y.shape[1:]))])
        y = np.moveaxis(y, 0, k)
    return y


CASES = [
    # channels, results, space, kernel, strides, low, high, dilations, groups
    (3, 4, (5,), (2,), (2,), (0,), (0,), (1,), 1),
    (3, 4, (5,), (4,), (2,), (1,), (1,), (1,), 1),
    (2, 2, (5,), (3,), (2,), (1,), (0,), (1,), 2),
    (2, 3, (4, 3), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1), 1),
    (4, 2, (4, 3), (3, 5), (2, 3), (1, 2), (0, 1), (1, 1), 2),
    (1, 1, (4, 3), (1, 2), (3, 4), (0, 0), (0, 0), (1, 1), 1),
    (2, 3, (4, 3), (3, 2), (1, 2), (1, 0), (1, -2), (1, 1), 1),
    (2, 3, (4, 3), (3, 2), (2, 2), (0, -1), (1, 0), (1, 1), 1),
    (2, 3, (2, 3, 2), (2, 3, 1), (2, 1, 3), (0, 1, 0), (0, 1, 0), (1, 1, 1), 1),
    (2, 3, (4, 3), (3, 2), (2, 2), (0, 0), (0, 0), (2, 1), 1),
    (2, 3, (4, 3), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_element_adds_its_multiple_of_the_weights(case: Any) -> None:
    channels, count, space, kernel, strides, low, high, dilations, groups = case
    rest = strides, low, high, dilations, groups
    sizes = [f"n{k}" for k in range(len(space))]
    specs = {"x": mi.tensor("b", channels, *sizes), "w": mi.tensor(channels, count, *kernel)}
    run = mi.compile(
        lambda x, w: transposed(x, w, *rest), specs, constants=("w",), without=("superoptimize",), cache=False
    )
    rng = np.random.default_rng(0)
    w = rng.standard_normal((channels, count, *kernel)).astype(np.float32)
    for b, more in ((2, 0), (1, 3)):
        x = rng.standard_normal((b, channels, *(n + more for n in space))).astype(np.float32)
        np.testing.assert_allclose(run(x, w), wanted(x, w, *rest), rtol=1e-4, atol=1e-4)


def test_no_product_with_zeros_between_elements() -> None:
    """Of a window as wide as the step, each result is one product."""
    specs = {"x": mi.tensor("b", 3, "h", "w"), "w": mi.tensor(3, 4, 2, 2)}
    two = (2, 2), (0, 0), (0, 0), (1, 1), 1
    module = mi.trace_module(lambda x, w: transposed(x, w, *two), specs)
    operators = [b.value.op for f in module for b in f.bindings if isinstance(b.value, OpCall)]
    assert "convolution" not in operators and operators.count("matmul") == 1
