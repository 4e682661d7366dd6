"""Scales and zero points that are chosen from values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.compiler.quantize.scales import Seen, affine, choose, quantized, simulated, weight_scales
from mirage.compiler.quantize.scheme import METHODS, Scheme
from mirage.errors import CalibrationError, QuantizationError
from mirage.ir.operators.quantization import quantized_range

REALS = st.floats(-1e6, 1e6, width=32)


def seen_of(x: np.ndarray) -> Seen:
    seen = Seen("x")
    seen.add(x, 0)
    return seen


@given(REALS, REALS, st.sampled_from(["int8", "uint8", "int16"]))
def test_every_value_of_the_range_is_within_half_a_step(a: float, b: float, dtype: str) -> None:
    least, most = min(a, b, 0.0), max(a, b, 0.0)
    scale, zero = affine(least, most, dtype)
    x = np.linspace(least, most, 101, dtype=np.float32)
    # the zero point is rounded, which moves the ends of the range by another half of a step
    assert (np.abs(simulated(x, scale, zero, dtype) - x) <= 1.01 * float(scale) + 1e-30).all()
    assert simulated(np.zeros(1, np.float32), scale, zero, dtype) == 0
    low, high = quantized_range(dtype)
    assert low <= int(zero) <= high and (zero == 0 or low == 0)


def test_nothing_but_zeros_has_a_scale() -> None:
    for method in METHODS:
        scale, zero = choose(seen_of(np.zeros(9, np.float32)), method, 99.0, "uint8")
        assert scale == 1 and zero == 0
    assert (weight_scales(np.zeros((4, 3), np.float32), "channel", "max") == 1).all()


def outlier() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    x[77] = 60
    return x


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_percentile_and_divergence_cut_an_outlier_off(dtype: str) -> None:
    seen = seen_of(outlier())
    widest, _ = choose(seen, "max", 99.9, dtype)
    for method in ("percentile", "kl"):
        scale, _ = choose(seen, method, 99.9, dtype)
        assert scale < widest, method
    assert float(widest) * (127 if dtype == "int8" else 255) == pytest.approx(
        60 if dtype == "int8" else 60 - seen.least, rel=1e-6
    )


def test_mse_is_no_worse_than_any_other() -> None:
    x = outlier()[:10_000]
    seen = seen_of(x)

    def error(method: str) -> float:
        scale, zero = choose(seen, method, 100.0, "uint8")
        return float(np.square(simulated(x, scale, zero, "uint8") - x, dtype=np.float64).sum())

    assert error("mse") <= error("max")
    assert error("mse") <= error("percentile")


def test_a_uniform_distribution_is_not_cut() -> None:
    x = np.linspace(-1, 1, 50_000, dtype=np.float32)
    for method in ("kl", "mse"):
        scale, _ = choose(seen_of(x), method, 100.0, "int8")
        assert float(scale) == pytest.approx(1 / 127, rel=0.1), method


def test_finer_grains_of_weights_have_smaller_errors() -> None:
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((64, 10)) * rng.uniform(0.1, 9, 10) * rng.uniform(0.1, 9, (64, 1))).astype(np.float32)

    def error(grain: str | int, method: str = "max") -> float:
        scale = weight_scales(w, grain, method)
        wide = np.repeat(scale, 64 // scale.shape[0], 0) if scale.ndim == 2 else scale
        return float(np.square(quantized(w, scale) * wide - w, dtype=np.float64).sum())

    assert error("tensor") > error("channel") > error(8)
    assert error("channel", "mse") <= error("channel")
    assert weight_scales(w, 16, "max").shape == (4, 10) and weight_scales(w, "tensor", "max").shape == ()


@pytest.mark.parametrize(("value", "message"), [(np.nan, "gives NaN at x"), (np.inf, "gives infinite values at x")])
def test_values_that_are_not_finite_are_refused(value: float, message: str) -> None:
    with pytest.raises(CalibrationError, match=rf"data\[2\] {message}"):
        Seen("x").add(np.array([1, value], np.float32), 2)
    with pytest.raises(CalibrationError, match="weight has values that are not finite"):
        weight_scales(np.array([[1, value]], np.float32), "channel", "max")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": "int4"}, "activations='int4'; it is one of uint8, int8, int16, float32"),
        ({"method": "median"}, "method='median'"),
        ({"weight_method": "kl"}, "weight_method='kl'"),
        ({"weights": "row"}, "weights='row'"),
        ({"weights": 6}, "weights=6; .*a multiple of 4"),
        ({"weights": True}, "weights=True"),
        ({"percentile": 5.0}, "percentile=5"),
    ],
)
def test_schemes_that_there_are_not(options: dict[str, object], message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        Scheme(**options)  # type: ignore[arg-type]
