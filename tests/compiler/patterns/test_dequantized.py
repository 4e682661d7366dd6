"""Products with 8-bit weights that are made real: in registers for few rows, in memory for many; packed once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import MirageError
from mirage.kernels.cpu.launch import dequantized
from mirage.kernels.cpu.launch.dequantized import multiply, pack

RNG = np.random.default_rng(0)
#: large enough that folding leaves its 8 bits as they are
K, N = 256, 200
W = RNG.integers(-127, 128, (K, N)).astype(np.int8)
BIAS = RNG.standard_normal(N).astype(np.float32)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.02, shape).astype(np.float32)


TURNED = np.ascontiguousarray(W.T)
#: how weights are made real, and what is computed with the product
CASES: list[tuple[Any, Any]] = [
    (lambda: (W, scales(N), {}), lambda y: y),
    (lambda: (W, scales(1), {}), lambda y: mi.relu(y)),
    (lambda: (W, scales(N), {}), lambda y: y + BIAS),
    (lambda: (W, scales(K // 32, N), {"axis": 0, "group": 32}), lambda y: mi.relu(y + BIAS)),
    (lambda: (TURNED, scales(N), {"axis": 0}), lambda y: mi.relu(BIAS + y)),
]


@pytest.mark.parametrize(("made", "after"), CASES)
@pytest.mark.parametrize("parameter", [False, True])
def test_products_are_those_of_real_weights(made: Any, after: Any, parameter: bool) -> None:
    w, scale, attrs = made()

    def fn(x: Any, w: Any = w) -> Any:
        real = mi.apply("dequantize", w, scale, **attrs)
        return after(x @ (real.T if w.shape == (N, K) else real))

    specs = {"x": mi.tensor("m", K), **({"w": mi.tensor(*w.shape, dtype="int8")} if parameter else {})}
    run = mi.compile(fn, specs, constants=("w",) * parameter, without=("superoptimize",), cache=False)
    assert "cpu.dequantized_matmul" in str(run.program) and "cpu.pack_dequantized" in str(run.program)
    rest = mi.compile(after, {"y": mi.tensor("m", N)}, without=("superoptimize",), cache=False)
    wide = scale.astype(np.float64)
    real = np.asarray(w, np.float64)
    real = real * (np.repeat(wide, 32, 0) if wide.ndim == 2 else wide[:, None] if w is TURNED else wide)
    for m in (1, 3, 8, 9, 300):
        x = RNG.standard_normal((m, K)).astype(np.float32)
        wanted = rest((x @ (real.T if w is TURNED else real)).astype(np.float32))
        np.testing.assert_allclose(run(x, w) if parameter else run(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "fn",
    [
        # scales along the terms of sums, and weights with a zero point
        lambda x: x @ mi.apply("dequantize", W, scales(K), axis=0),
        lambda x: x @ mi.apply("dequantize", W, scales(N), np.ones(N, np.int8)),
    ],
)
def test_what_is_computed_otherwise(fn: Any) -> None:
    run = mi.compile(fn, {"x": mi.tensor("m", K)}, without=("superoptimize",), cache=False)
    assert "cpu.dequantized_matmul" not in str(run.program)


def test_weights_alone_are_quantized_where_activations_stay_float() -> None:
    w = RNG.standard_normal((K, N)).astype(np.float32)
    q = mi.quantize(
        lambda x: x @ w, [np.eye(K, dtype=np.float32)], specs={"x": mi.tensor("m", K)}, scheme=mi.Scheme("float32", weights=32)
    )
    assert q.report.whole == 0 and len(q.report.layers) == 1 and not q.report.scales
    assert 0 < q.report.result.relative < 0.01
    run = mi.compile(q, without=("superoptimize",), cache=False)
    assert "cpu.dequantized_matmul" in str(run.program)


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(W)
    monkeypatch.setattr(dequantized, "compiled", lambda *_: SimpleNamespace(mi_dequantized=lambda *_: -1))
    with pytest.raises(MirageError, match="no memory for a product of 2 rows"):
        multiply(np.ones((2, K), np.float32), packed, scales(N), None, np.empty((2, N), np.float32))
