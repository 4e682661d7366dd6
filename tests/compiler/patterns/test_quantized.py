"""Products of quantized numbers in whole programs: weights are packed once, results are those of the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import DTypeError, ShapeError
from mirage.ir.graph.interpret import run_module
from mirage.kernels.cpu.launch import quantized


def number(value: float, dtype: str = "float32") -> np.ndarray:
    """A tensor of one element: numbers have no type of their own in a traced function."""
    return np.array([value], dtype)


def program(x: Any, w: Any, scale: Any, bias: Any) -> Any:
    q = mi.apply("quantize", x, number(0.05), number(3, "int8"), dtype="int8")
    hidden = mi.apply("quantized_matmul", q, w, scale, bias, x_zero=3, relu=True, dtype="uint8", zero=0)
    return mi.apply("dequantize", hidden, number(0.1), number(0, "uint8"))


SPECS = {"x": mi.tensor("m", 40), "w": mi.tensor(40, 24, dtype="int8"), "scale": mi.tensor(24), "bias": mi.tensor(24)}


def arrays(m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(m)
    w = rng.integers(-127, 128, (40, 24)).astype(np.int8)
    return [rng.standard_normal((m, 40), np.float32) * 3, w, rng.random(24, np.float32) / 99, rng.random(24, np.float32)]


@pytest.mark.parametrize("constants", [(), ("w", "scale", "bias")])
def test_compiled_as_interpreted(constants: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[np.ndarray] = []

    def pack(w: np.ndarray, **options: Any) -> Any:
        packed.append(w)
        return once(w, **options)

    once = quantized.pack
    monkeypatch.setattr(quantized, "pack", pack)
    module = mi.trace_module(program, SPECS)
    run = mi.compile(module, constants=constants, without=("superoptimize",), cache=False)
    for m in (1, 5, 130):
        x, *weights = arrays(m)
        if m == 1:
            kept = weights
        found = run(x, *kept)
        np.testing.assert_array_equal(found, run_module(module, [x, *kept]))
    # by the function that programs name, which is not the one above, where the weights never change
    assert len(packed) == (0 if constants else 3)


def test_weights_in_the_module_are_packed_once() -> None:
    _, w, scale, bias = arrays(1)
    module = mi.trace_module(lambda x: program(x, w, scale, bias), {"x": SPECS["x"]})
    run = mi.compile(module, without=("superoptimize",), cache=False)
    assert "cpu.pack_quantized" in str(run.program)
    for m in (1, 7):
        x = arrays(m)[0]
        np.testing.assert_array_equal(run(x), run_module(module, [x]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_quantize_and_dequantize(dtype: str) -> None:
    """Half to even, cut off at the range of the type, along an axis or with one scale."""
    x = np.array([[0.5, 1.5, -2.5, 1e9], [-0.5, np.inf, -1e9, 3.25]], np.float32)
    scale, zero = np.array([1, 0.5, 0.25, 2], np.float32), np.array([0, 1, 2, 3]).astype(dtype)

    def fn(x: Any) -> Any:
        q = mi.apply("quantize", x, scale, zero, dtype=dtype)
        one = mi.apply("quantize", x, number(1), dtype=dtype)
        return q, mi.apply("dequantize", q, scale, zero), one, mi.apply("dequantize", one, np.array([2, 4], np.float32), axis=0)

    module = mi.trace_module(fn, {"x": mi.tensor(2, 4)})
    range_ = np.iinfo(dtype)
    q = np.clip(np.rint(x / scale) + zero.astype(np.float32), range_.min, range_.max).astype(dtype)
    one = np.clip(np.rint(x), range_.min, range_.max).astype(dtype)
    wanted = q, (q.astype(np.int64) - zero).astype(np.float32) * scale, one, one * np.array([[2], [4]], np.float32)
    for found in (run_module(module, [x]), mi.compile(module, without=("superoptimize",), cache=False)(x)):
        for f, w in zip(found, wanted, strict=True):
            assert f.dtype == w.dtype
            np.testing.assert_array_equal(f, w)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: mi.apply("quantize", x, np.ones(3, np.float32)), ShapeError, r"a scale \[3\] of \[a, 4\] along axis -1"),
        (lambda x: mi.apply("quantize", x, np.ones(4, np.float32), axis=2), ShapeError, "axis 2 is out of range"),
        (lambda x: mi.apply("quantize", x, number(1), number(0, "int8"), dtype="uint8"), DTypeError, "the zero point is int8"),
        (lambda x: mi.apply("dequantize", x, number(1)), DTypeError, "the operand is float32"),
        (lambda x: mi.apply("quantize", x, number(1, "float64")), DTypeError, "the scale is float64"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mi.trace_module(call, {"x": mi.tensor("a", 4)})
