"""Convolutions in C beside NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.launch.convolution import convolution

#: shapes of x and w, strides, dilations, groups
CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = [
    ((2, 3, 11), (5, 3, 4), (2,), (2,), 1),
    ((2, 6, 9, 12), (8, 3, 3, 2), (2, 1), (1, 3), 2),
    ((1, 4, 5, 6, 7), (6, 4, 2, 3, 1), (1, 2, 3), (2, 1, 1), 1),
    # more rows, columns and outputs than one block has
    ((1, 50, 20, 17), (70, 50, 3, 3), (1, 1), (1, 1), 1),
    ((3, 4, 8, 8), (4, 1, 3, 3), (1, 1), (1, 1), 4),
    ((0, 3, 5), (2, 3, 2), (1,), (1,), 1),
    ((2, 0, 5), (2, 0, 2), (1,), (1,), 1),
    ((2, 3, 3), (0, 3, 2), (1,), (1,), 1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_the_operator_means(case: Any, dtype: str) -> None:
    xs, ws, strides, dilations, groups = case
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal(xs).astype(dtype), draw.standard_normal(ws).astype(dtype)
    op = get_operator("convolution")
    attrs = op.check_attrs({"strides": strides, "dilations": dilations, "groups": groups})
    wanted = op.run([x.astype("float64"), w.astype("float64")], attrs, {})
    found = convolution([x, w], attrs, {})
    assert found.dtype == x.dtype
    tolerance = {"float16": 0.05, "float32": 1e-4, "float64": 1e-10}[dtype]
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=tolerance, atol=tolerance)


def test_a_window_that_is_larger_than_a_dim_is_refused() -> None:
    attrs = get_operator("convolution").check_attrs({"strides": (1,), "dilations": (3,)})
    x, w = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 2), np.float32)
    with pytest.raises(InputError, match="window"):
        convolution([x, w], attrs, {})
