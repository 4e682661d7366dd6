"""Products with weights that are stored in 16 and 8 bits, in programs that are compiled without a front end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import MirageError
from mirage.ir.types import ELEMENTS, HALVES, epsilon

OPTIONS: dict[str, Any] = {"without": ("superoptimize",), "cache": False}
RNG = np.random.default_rng(0)
ENDS = np.array([3, 3, 8])


def experts(x: Any, w: Any, ends: Any) -> Any:
    return mi.relu(mi.grouped_matmul(x, w, ends))


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int8/32", "int8/dynamic"])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_experts(dtype: str, weights: str) -> None:
    specs = {"x": mi.tensor("m", 64, dtype=dtype), "w": mi.tensor(3, 64, 50, dtype=dtype), "ends": mi.tensor(3, dtype="int64")}
    run = mi.compile(experts, specs, constants=("w",), weights=weights, **OPTIONS)
    x, w = RNG.standard_normal((9, 64)).astype(ELEMENTS[dtype]), RNG.standard_normal((3, 64, 50)).astype(ELEMENTS[dtype])
    exact = [x[a:b].astype(np.float64) @ e.astype(np.float64) for e, a, b in zip(w, (0, 3, 3), ENDS, strict=True)]
    wanted = np.maximum(np.concatenate([*exact, np.zeros((1, 50))]), 0)
    apart = np.linalg.norm(run(x, w, ENDS).astype(np.float64) - wanted) / np.linalg.norm(wanted)
    kept = weights in ("float32", "int8/dynamic") or (dtype == "float16" and weights == "bfloat16")
    assert apart < (max(epsilon(ELEMENTS[dtype]), 1e-6) if kept else 0.015)
    # whole numbers are multiplied with one matrix alone, and float16 becomes no bfloat16
    assert ("cpu.narrowed_groups" in str(run.program)) == (dtype != "float32" or not kept)
    assert "blas" not in str(run.program)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("constant", [False, True])
def test_products(dtype: str, constant: bool) -> None:
    specs = {"x": mi.tensor("m", 33, dtype=dtype), "w": mi.tensor(33, 20, dtype=dtype), "b": mi.tensor(20, dtype=dtype)}
    run = mi.compile(lambda x, w, b: mi.silu(x @ w + b), specs, constants=("w",) * constant, **OPTIONS)
    w, b = (RNG.standard_normal(s).astype(ELEMENTS[dtype]) for s in ((33, 20), 20))
    for m in (1, 8, 40):
        x = RNG.standard_normal((m, 33)).astype(ELEMENTS[dtype])
        y = x.astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64)
        found = run(x, w, b).astype(np.float64)
        # without a constant weight, the product is rounded, too
        tolerance = 4 * epsilon(ELEMENTS[dtype])
        np.testing.assert_allclose(found, y / (1 + np.exp(-y)), rtol=tolerance, atol=tolerance)
    assert ("cpu.narrowed_matmul" in str(run.program)) == constant


def test_weights_of_another_type_are_an_error() -> None:
    specs = {"x": mi.tensor("m", 33, dtype="bfloat16"), "w": mi.tensor(33, 20, dtype="bfloat16")}
    run = mi.compile(lambda x, w: x @ w, specs, constants=("w",), **OPTIONS)
    with pytest.raises(MirageError, match="w"):
        run(np.ones((2, 33), ELEMENTS["bfloat16"]), np.ones((33, 20), np.float32))
