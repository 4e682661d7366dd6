"""Convolutions of dequantized tensors become those of whole numbers: which ones, and with what they take along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.passes import dead_code, quantized_convolutions
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall
from mirage.ir.types import TensorType
from tests.compiler.passes.running import after, ops

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8)
SCALE = RNG.uniform(0.001, 0.002, 8).astype(np.float32)
BIAS = RNG.standard_normal((8, 1, 1)).astype(np.float32)
X, Z = mi.tensor("b", 4, 9, 7, dtype="uint8"), mi.tensor("b", 8, 9, 7, dtype="uint8")
#: of the result: what one step of it is
STEP = 0.25


def one(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array([value], dtype)


def real(x: Any, scale: float = 0.05) -> Any:
    return mi.apply("dequantize", x, one(scale), one(120, "uint8"))


def padded(x: Any, value: float = 0) -> Any:
    return mi.apply("pad", x, low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=value)


def convolved(x: Any, w: Any = W, scale: Any = SCALE, axis: int = 0, **attrs: Any) -> Any:
    given = {"strides": (1, 1), "dilations": (1, 1), **attrs}
    return mi.apply("convolution", x, mi.apply("dequantize", w, scale, axis=axis), **given)


def bounded(y: Any, which: str, bound: float) -> Any:
    return mi.apply(f"elementwise_{which}", y, np.array(bound, np.float32))


def quantized(y: Any, dtype: str = "uint8") -> Any:
    return mi.apply("quantize", y, one(STEP), one(30, dtype), dtype=dtype)


def folded(fn: Any, specs: Any) -> tuple[Module, Module]:
    module = mi.trace_module(fn, specs)
    return module, after(module, quantized_convolutions.run, dead_code.run)


def same(fn: Any, expected: list[str], **specs: Any) -> Module:
    """The operators are these, and results what they were: at most one step of a quantized result apart."""
    module, found = folded(fn, specs or {"x": X})
    assert ops(found, found.main) == expected
    rng = np.random.default_rng(1)
    given = []
    for p in module.functions[module.main].parameters:
        assert isinstance(p.annotation, TensorType)
        given.append(rng.integers(0, 256, p.annotation.bind({"b": 2})).astype(p.annotation.dtype))
    for wanted, result in zip(*(as_tuple(run_module(m, given)) for m in (module, found)), strict=True):
        if wanted.dtype == np.float32:
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)
        else:
            steps = np.abs(result.astype(int) - wanted.astype(int))
            assert steps.max() <= 1 and np.mean(steps > 0) < 0.01
            assert len(np.unique(wanted)) > 20
    return found


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


ALL = ["quantized_convolution"]


def test_with_zeros_bias_and_bounds() -> None:
    same(lambda x: convolved(real(x)), ALL)
    same(lambda x: convolved(padded(real(x)), strides=(2, 2)) + BIAS, ALL)
    same(lambda x: quantized(mi.relu(convolved(padded(real(x))) + BIAS)), ALL)
    same(lambda x: quantized(convolved(padded(real(x)), scale=one(0.002))), ALL)
    found = same(lambda x: quantized(bounded(bounded(convolved(real(x)), "max", 0), "min", 6), "int8"), ALL)
    (call,) = (b.value for b in found.functions[found.main].bindings if isinstance(b.value, OpCall))
    assert dict(call.attrs)["most"] == 6 / STEP


def test_with_another_summand() -> None:
    specs = {"x": X, "z": Z}
    same(lambda x, z: quantized(mi.relu(convolved(padded(real(x))) + BIAS + real(z, 0.03))), ALL, **specs)
    same(lambda x, z: quantized(real(z, 0.03) + convolved(padded(real(x)))), ALL, **specs)
    # of float32: added where the result stays float32, else before it is quantized
    real_z = {"x": X, "z": mi.tensor("b", 8, 9, 7, dtype="int32")}
    same(lambda x, z: mi.relu(convolved(padded(real(x))) + z.astype("float32")), ["cast", *ALL], **real_z)
    expected = ["cast", *ALL, "quantize"]
    same(lambda x, z: quantized(convolved(padded(real(x))) + z.astype("float32")), expected, **real_z)


def test_the_largest_of_windows() -> None:
    def pooled(x: Any, value: float) -> Any:
        y = padded(mi.relu(convolved(padded(real(x))) + BIAS), value)
        return mi.apply("max_pool", y, kernel=(3, 3), strides=(2, 2), dilations=(1, 1))

    expected = [*ALL, "pad", "max_pool"]
    for value in (0, -3e38):
        same(lambda x, value=value: quantized(pooled(x, value)), expected)
    # float results are pooled as they were
    same(lambda x: pooled(x, 0), expected)


def test_what_others_read_stays() -> None:
    def shared(x: Any) -> Any:
        y = convolved(padded(real(x)))
        return mi.relu(y), quantized(y)

    same(shared, [*ALL, "relu", "quantize", "MakeTuple"])
    same(lambda x: convolved(real(x)) * convolved(real(x), strides=(1, 1)), [*ALL, *ALL, "mul"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: convolved(padded(real(x), 1.0)),
        lambda x: convolved(mi.apply("dequantize", x, np.full(4, 0.1, np.float32), axis=1)),
        lambda x: convolved(real(x), w=W.view(np.uint8)),
        lambda x: convolved(real(x), scale=np.full(3, 0.1, np.float32), axis=2),
    ],
)
def test_what_is_no_convolution_of_whole_numbers(fn: Any) -> None:
    _, found = folded(fn, {"x": X})
    assert "quantized_convolution" not in ops(found, found.main)


def test_compiled_bit_for_bit() -> None:
    """As the interpreter has it, with weights that are packed once."""

    def fn(x: Any, z: Any) -> Any:
        y = quantized(mi.relu(convolved(padded(real(x))) + BIAS + real(z, 0.03)))
        v = RNG.integers(-127, 128, (8, 1, 3, 3)).astype(np.int8)
        return mi.relu(convolved(padded(real(y)), w=v, groups=8)) + 1

    module = mi.trace_module(fn, {"x": X, "z": Z})
    run = mi.compile(module, without=("superoptimize",), cache=False)
    assert str(run.program).count("cpu.pack_quantized_convolution") == 2
    folded_module = after(module, quantized_convolutions.run, dead_code.run)
    for b in (1, 3):
        given = [RNG.integers(0, 256, (b, n, 9, 7)).astype(np.uint8) for n in (4, 8)]
        for _ in range(3):
            np.testing.assert_array_equal(run(*given), run_module(folded_module, given))
