"""Integers that are only stored, and quantized models: native, and as ONNX's reference evaluator has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import ModelProto, TensorProto, helper

import mirage
from mirage.frontends.onnx.fallback import evaluated
from mirage.ir.types import STORED_INTEGERS
from tests.onnx.models import model, node

#: kernels in C, and operators run one by one
COMPILED: Any = {"without": ("superoptimize",), "cache": False}
PLAIN: Any = {"without": ("superoptimize", "fuse", "libraries", "plan", "merge"), "cache": False}
RANDOM = np.random.default_rng(0)


def whole(dtype: str, *shape: int) -> np.ndarray:
    """Numbers of all of a type's range."""
    range_ = np.iinfo(dtype)
    return RANDOM.integers(range_.min, range_.max, shape, dtype, endpoint=True)


def reals(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(given: ModelProto, calls: list[dict[str, np.ndarray]], **options: Any) -> None:
    """It is native, and gives what the reference evaluator does: numbers but for rounding, whole numbers the same."""
    run: Any = mirage.compile(given, **options)
    for inputs in calls:
        for x, wanted in zip(run.run(inputs), evaluated(given, inputs), strict=True):
            assert x.dtype == wanted.dtype and x.shape == wanted.shape
            if x.dtype == np.float32:
                np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(x, wanted)
    assert not run.programs[0].imported.fallback, run.programs[0].imported.reasons


@pytest.mark.parametrize("dtype", STORED_INTEGERS)
@pytest.mark.parametrize("options", [COMPILED, PLAIN], ids=["compiled", "plain"])
def test_stored_integers_are_moved_compared_cast_and_computed_with(dtype: str, options: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("Concat", ["x", "y"], ["both"], axis=1),
        node("Gather", ["both", "at"], ["rows"], axis=0),
        node("Transpose", ["rows"], ["turned"], perm=[1, 0]),
        node("Add", ["x", "y"], ["sum"]),
        node("Mul", ["sum", "y"], ["product"]),
        node("Less", ["x", "y"], ["less"]),
        node("Where", ["less", "x", "product"], ["chosen"]),
        node("Max", ["x", "y", "product"], ["most"]),
        node("Cast", ["product"], ["real"], to=TensorProto.FLOAT),
        node("Tanh", ["real"], ["tanh"]),
        node("Cast", ["x"], ["long"], to=TensorProto.INT64),
    ]
    outputs = {
        "turned": (["c", "b"], kind), "chosen": (["n", "m"], kind), "most": (["n", "m"], kind), "tanh": ["n", "m"],
        "long": (["n", "m"], TensorProto.INT64), "less": (["n", "m"], TensorProto.BOOL),
    }  # fmt: skip
    given = model(
        nodes, {"x": (["n", "m"], kind), "y": (["n", "m"], kind), "at": (["b"], TensorProto.INT64)}, outputs
    )
    calls = [
        {"x": whole(dtype, n, m), "y": whole(dtype, n, m), "at": RANDOM.integers(-n, n, 4)} for n, m in ((1, 1), (3, 37), (5, 64))
    ]  # fmt: skip
    check(given, calls, **options)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_numbers_are_quantized_and_back(dtype: str, axis: int | None) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attrs: Any = {} if axis is None else {"axis": axis}
    shape = () if axis is None else ((3, 40)[axis],)
    weights = {"scale": np.abs(RANDOM.standard_normal(shape)).astype(np.float32) + np.float32(0.01), "zero": whole(dtype, *shape)}
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **attrs),
        node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **attrs),
    ]
    given = model(nodes, {"x": [3, 40]}, {"q": ([3, 40], kind), "y": [3, 40]}, weights)
    # beyond the range, and halfway between whole numbers
    x = reals(3, 40) * np.float32(1e4)
    x[:, :20] = np.float32(0.5) * np.abs(weights["scale"].flat[0])
    check(given, [{"x": x}], **PLAIN)


def test_quantized_networks_are_exact_sums_of_products() -> None:
    """A product and a convolution, whose sums have more digits than a float32."""
    scales = {n: np.array(v, np.float32) for n, v in (("sx", 0.02), ("sy", 0.7), ("sz", 3.0))}
    zeros = {"zx": np.array(117, np.uint8), "zw": np.array(-3, np.int8), "zy": np.array(131, np.uint8)}
    w, k = whole("int8", 4096, 6), whole("int8", 4, 300, 3, 3)
    weights = {
        **scales, **zeros, "w": w, "k": k, "sk": np.abs(reals(4)) * np.float32(0.01), "zk": np.zeros(4, np.int8),
        "b": RANDOM.integers(-1000, 1000, 4).astype(np.int32),
    }  # fmt: skip
    nodes = [
        node("QLinearMatMul", ["x", "sx", "zx", "w", "sy", "zw", "sz", "zy"], ["y"]),
        node("MatMulInteger", ["x", "w", "zx", "zw"], ["whole"]),
        node("QLinearConv", ["image", "sx", "zx", "k", "sk", "zk", "sz", "zy", "b"], ["z"], pads=[1, 1, 1, 1]),
        node("ConvInteger", ["image", "k", "zx"], ["sums"], strides=[2, 2]),
        node("DynamicQuantizeLinear", ["real"], ["q", "qs", "qz"]),
    ]
    inputs = {"x": (["n", 4096], TensorProto.UINT8), "image": ([1, 300, 6, 7], TensorProto.UINT8), "real": [5, 9]}
    outputs = {
        "y": (["n", 6], TensorProto.UINT8), "whole": (["n", 6], TensorProto.INT32), "z": ([1, 4, 6, 7], TensorProto.UINT8),
        "sums": ([1, 4, 2, 3], TensorProto.INT32), "q": ([5, 9], TensorProto.UINT8), "qs": (), "qz": ((), TensorProto.UINT8),
    }  # fmt: skip
    calls = [{"x": whole("uint8", n, 4096), "image": whole("uint8", 1, 300, 6, 7), "real": reals(5, 9)} for n in (1, 3)]
    check(model(nodes, inputs, outputs, weights), calls, **PLAIN)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_between_quantize_and_dequantize_are_of_whole_numbers(transposed: bool) -> None:
    """QDQ files: weights with a scale per channel, a bias in 32 bits, results that are quantized again."""
    w, v = whole("int8", 24, 96), whole("int8", 96, 70)
    weights: dict[str, Any] = {
        "w": np.ascontiguousarray(w.T) if transposed else w, "v": v, "b": RANDOM.integers(-900, 900, 96, np.int32),
        "ws": RANDOM.uniform(0.01, 0.02, 96).astype(np.float32), "wz": np.zeros(96, np.int8),
        "vs": np.float32(0.01), "vz": np.int8(0), "s": np.float32(0.02), "z": np.uint8(120), "hs": np.float32(0.1),
        "hz": np.uint8(0), "bs": RANDOM.uniform(0.01, 0.02, 96).astype(np.float32), "bz": np.zeros(96, np.int32),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0 if transposed else 1),
        node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
        node("Gemm", ["xd", "wd", "bd"], ["h"], transB=int(transposed)),
        node("Relu", ["h"], ["r"]),
        node("QuantizeLinear", ["r", "hs", "hz"], ["hq"]),
        node("DequantizeLinear", ["hq", "hs", "hz"], ["hd"]),
        node("DequantizeLinear", ["v", "vs", "vz"], ["vd"]),
        node("MatMul", ["hd", "vd"], ["y"]),
    ]
    given = model(nodes, {"x": ("m", 24)}, {"y": ("m", 70)}, weights)
    run: Any = mirage.compile(given, **COMPILED)
    program = str(run.programs[0].executable.program)
    assert program.count("cpu.quantized_matmul") == 2 and program.count("cpu.pack_quantized") == 2
    assert "blas" not in program
    for m in (1, 33):
        x = reals(m, 24) * 2
        (wanted,) = evaluated(given, {"x": x})
        # a tie that is rounded the other way is one step of the hidden layer
        step = 0.1 * 0.01 * 127
        assert np.abs(run(x) - wanted).max() <= 2 * step
        assert np.abs(run(x) - wanted).mean() < 0.01 * np.abs(wanted).mean()
