"""Products of dequantized tensors become products of whole numbers: which ones, and with what they take along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.passes import dead_code, quantized_products
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall
from mirage.ir.types import TensorType
from tests.compiler.passes.running import after, ops

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 128, (16, 8)).astype(np.int8)
SCALE = RNG.uniform(0.01, 0.02, 8).astype(np.float32)
BIAS = RNG.standard_normal(8).astype(np.float32)
SPECS = {"x": mi.tensor("m", 16, dtype="uint8")}


def one(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array([value], dtype)


def real(x: Any) -> Any:
    return mi.apply("dequantize", x, one(0.05), one(120, "uint8"))


def weights() -> Any:
    return mi.apply("dequantize", W, SCALE)


def quantized(y: Any, dtype: str = "int8") -> Any:
    return mi.apply("quantize", y, one(0.25), one(3, dtype), dtype=dtype)


def folded(fn: Any, specs: Any = SPECS) -> tuple[Module, Module]:
    module = mi.trace_module(fn, specs)
    return module, after(module, quantized_products.run, dead_code.run)


def same(fn: Any, expected: list[str], specs: Any = SPECS, steps: float = 0) -> Module:
    """The operators are these, and results what they were: at most so many steps of a quantized result apart."""
    module, found = folded(fn, specs)
    assert ops(found, found.main) == expected
    rng = np.random.default_rng(1)
    given = []
    for p in module.functions[module.main].parameters:
        assert isinstance(p.annotation, TensorType)
        shape = p.annotation.bind({"m": 5})
        given.append(rng.integers(0, 256, shape).astype(p.annotation.dtype))
    wanted, result = run_module(module, given), run_module(found, given)
    if wanted.dtype == np.float32:
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    else:
        assert np.abs(result.astype(int) - wanted.astype(int)).max() <= steps
    return found


def attrs(module: Module) -> dict[str, Any]:
    calls = [b.value for b in module.functions[module.main].bindings]
    (found,) = [c for c in calls if isinstance(c, OpCall) and c.op == "quantized_matmul"]
    return dict(found.attrs)


def test_a_product_with_all_that_follows_it() -> None:
    found = same(lambda x: quantized(mi.relu(real(x) @ weights() + BIAS)), ["quantized_matmul"], steps=1)
    assert attrs(found) == {"x_zero": 120, "group": 0, "relu": True, "dtype": "int8", "zero": 3, "shift": 0}


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: real(x) @ weights(), ["quantized_matmul"]),
        (lambda x: real(x) @ weights() + BIAS, ["quantized_matmul"]),
        (lambda x: mi.relu(real(x) @ weights()), ["quantized_matmul"]),
        (lambda x: mi.tanh(real(x) @ weights()), ["quantized_matmul", "tanh"]),
        # one bias is taken along, a whole tensor is none, and what follows a relu comes after it
        (lambda x: real(x) @ weights() + BIAS + BIAS, ["quantized_matmul", "add"]),
        (lambda x: mi.relu(real(x) @ weights()) + BIAS, ["quantized_matmul", "add"]),
        (lambda x: real(x) @ weights() + mi.ones(("m", 8)), ["quantized_matmul", "full", "add"]),
    ],
)
def test_what_is_taken_along(fn: Any, expected: list[str]) -> None:
    same(fn, expected)


def test_movements_are_made_of_whole_numbers() -> None:
    def fn(x: Any) -> Any:
        return quantized((real(x) @ weights()).reshape("m", 2, 4).transpose(1, 0, 2), "uint8")

    found = same(fn, ["quantized_matmul", "reshape", "transpose"], steps=1)
    assert attrs(found)["dtype"] == "uint8"


def test_a_result_that_others_read_too_stays_float() -> None:
    def fn(x: Any) -> Any:
        y = real(x) @ weights()
        return mi.cast(quantized(y), "float32") + mi.abs(y)

    same(fn, ["quantized_matmul", "quantize", "cast", "abs", "add"])


def test_scales_of_groups_and_of_the_whole_tensor() -> None:
    scales = RNG.uniform(0.01, 0.02, (4, 8)).astype(np.float32)
    found = same(lambda x: real(x) @ mi.apply("dequantize", W, scales, axis=0, group=4), ["quantized_matmul"])
    assert attrs(found)["group"] == 4
    same(lambda x: real(x) @ mi.apply("dequantize", W, one(0.5)), ["quantized_matmul"])


def test_weights_that_are_transposed() -> None:
    turned = np.ascontiguousarray(W.T)
    same(lambda x: real(x) @ mi.apply("dequantize", turned, SCALE, axis=0).T, ["quantized_matmul"])
    specs = {**SPECS, "w": mi.tensor(8, 16, dtype="int8")}
    fn = lambda x, w: real(x) @ mi.apply("dequantize", w, SCALE, axis=0).T  # noqa: E731
    same(fn, ["transpose", "quantized_matmul"], specs)


@pytest.mark.parametrize(
    "fn",
    [
        # scales along the terms of a sum are no factor of it; a zero point of weights; activations with many scales
        lambda x: real(x) @ mi.apply("dequantize", W, np.ones(16, np.float32), axis=0),
        lambda x: real(x) @ mi.apply("dequantize", W, SCALE, np.ones(8, np.int8)),
        lambda x: mi.apply("dequantize", x, np.ones(16, np.float32)) @ weights(),
        lambda x: real(x) @ mi.apply("dequantize", W, np.full((8, 8), 0.5, np.float32), axis=0, group=2),
        lambda x: real(x) @ mi.apply("dequantize", W, one(np.inf)),
        lambda x: mi.cast(x, "float32") @ weights(),
    ],
)
def test_what_stays_as_it_is(fn: Any) -> None:
    _, found = folded(fn)
    assert "quantized_matmul" not in ops(found, found.main) and "matmul" in ops(found, found.main)


def test_two_products_in_a_row_hand_on_whole_numbers() -> None:
    v = RNG.integers(-127, 128, (8, 4)).astype(np.int8)

    def fn(x: Any) -> Any:
        hidden = quantized(mi.relu(real(x) @ weights() + BIAS))
        return mi.apply("dequantize", hidden, one(0.25), one(3, "int8")) @ mi.apply("dequantize", v, one(0.1))

    found = same(fn, ["quantized_matmul", "quantized_matmul"])
    assert [b.var.annotation.dtype for b in found.functions[found.main].bindings] == ["int8", "float32"]  # type: ignore[union-attr]


def test_a_bias_that_is_a_parameter_is_divided_by_the_scale() -> None:
    module, found = folded(lambda x, b: quantized(real(x) @ weights() + b), {**SPECS, "b": mi.tensor(8)})
    assert ops(found, found.main) == ["div", "quantized_matmul"]
    x = np.random.default_rng(1).integers(0, 256, (5, 16)).astype(np.uint8)
    difference = run_module(found, [x, BIAS]).astype(int) - run_module(module, [x, BIAS])
    assert np.abs(difference).max() <= 1
