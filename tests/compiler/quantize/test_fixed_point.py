"""Multipliers and shifts in place of scales: as exact as their bits, and in whole numbers throughout."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage.compiler.quantize import fixed_point
from mirage.compiler.quantize.fixed_point import shift_of
from mirage.compiler.quantize.scales import affine, powers_of_two
from mirage.errors import QuantizationError
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall
from mirage.ir.operators.quantization import shifted

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 128, (24, 10)).astype(np.int8)
X = RNG.integers(0, 256, (50, 24)).astype(np.uint8)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(2.0**-30, 2.0**10, width=32), min_size=1, max_size=5), st.sampled_from([15, 31]), st.booleans()
)
def test_multipliers_are_as_exact_as_their_bits(values: list[float], bits: int, power: bool) -> None:
    scale = np.array(values, np.float32)
    scale = (powers_of_two(scale) if power else scale).astype(np.float64)
    shift = shift_of(scale, bits)
    multiplier = np.rint(np.ldexp(scale, shift))
    assert 0 <= shift <= 62 and np.abs(multiplier).max() <= 2 ** (bits - 1)
    # half a step, of which there are at least 2^(bits - 2) up to the largest scale
    error = np.abs(np.ldexp(multiplier, -shift) - scale)
    assert error.max() <= 2.0 ** -(shift + 1)
    assert not error.any() or shift == 62 or scale.max() * 2.0**shift >= 2 ** (bits - 3)
    if power and np.log2(scale.max() / scale.min()) < bits - 2 and scale.min() <= 1:
        assert not error.any() and multiplier.min() == 1


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**30), 2**30), st.integers(0, 62))
def test_shifts_round_halves_up(total: int, multiplier: int, shift: int) -> None:
    found = int(shifted(np.array(total), np.array(multiplier, np.int32), shift))
    exact = Fraction(total * multiplier, 2**shift) + Fraction(1, 2)
    # of more than 2^62, a half has no room in 64 bits
    if shift < 62:
        assert found == exact.numerator // exact.denominator


@given(st.floats(0, 1e9, width=32), st.floats(0, 1e9, width=32), st.sampled_from(["uint8", "int8", "int16"]))
def test_scales_are_powers_of_two_that_cut_nothing_off(below: float, above: float, dtype: str) -> None:
    scale, zero = affine(-below, above, dtype, power=True)
    assert np.frexp(scale)[0] == 0.5
    info = np.iinfo(dtype)
    reach = [(n - float(zero)) * float(scale) for n in (info.min, info.max)]
    # the zero point is a whole number: up to half a step is cut off
    assert reach[0] <= -below + scale / 2 and reach[1] >= above - scale / 2


def module_of(scale: np.ndarray, bias: np.ndarray, dtype: str = "int8") -> Module:
    def fn(x: Any) -> Any:
        zero = 0 if dtype == "float32" else -9
        return mi.apply("quantized_matmul", x, W, scale, bias, x_zero=100, relu=True, dtype=dtype, zero=zero)

    return mi.trace_module(fn, {"x": mi.tensor("m", 24, dtype="uint8")})


def calls(module: Module) -> list[OpCall]:
    return [b.value for b in module.functions[module.main].bindings if isinstance(b.value, OpCall)]


def test_results_are_at_most_one_step_apart() -> None:
    scale = RNG.uniform(1e-3, 2e-3, 10).astype(np.float32)
    before = module_of(scale, RNG.uniform(-20, 20, 10).astype(np.float32))
    after = fixed_point.run(before)
    (call,) = calls(after)
    assert [a.annotation.dtype for a in call.args[2:]] == ["int32", "int32"]  # type: ignore[union-attr]
    results = [run_module(m, [X]).astype(int) for m in (before, after)]
    steps = np.abs(results[0] - results[1])
    assert steps.max() <= 1 and steps.mean() < 0.01 and len(np.unique(results[0])) > 20


def test_what_keeps_its_scales() -> None:
    scale, bias = np.ones(10, np.float32), np.zeros(10, np.float32)
    for module in (module_of(scale, bias, "float32"), module_of(scale * np.float32(2.0**31), bias)):
        assert calls(fixed_point.run(module)) == calls(module)


def test_unknown_scales_are_refused() -> None:
    with pytest.raises(QuantizationError, match="scales='shift'; it is one of float32, fixed point, power of two"):
        mi.Scheme(scales="shift")
