"""Products of 8-bit numbers, bit for bit as NumPy's integers of 64 bits give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import AttributeValueError, DTypeError, LibraryError, MirageError, ShapeError
from mirage.ir.operator import get_operator
from mirage.ir.types import tensor
from mirage.kernels.cpu.launch import dequantized
from mirage.kernels.cpu.launch import quantized as module
from mirage.kernels.cpu.launch.quantized import multiply, pack, quantized_matmul
from tests.kernels.kernels import in_threads

OPERATOR = get_operator("quantized_matmul")


def operands(m: int, k: int, n: int, dtype: str, group: int = 0, lead: tuple[int, ...] = ()) -> list[np.ndarray]:
    rng = np.random.default_rng([m, k, n, group])
    range_ = np.iinfo(dtype)
    x = rng.integers(range_.min, range_.max + 1, (*lead, m, k)).astype(dtype)
    w = rng.integers(-128, 128, (k, n)).astype(np.int8)
    scale = rng.uniform(-1e-3, 1e-3, (k // group, n) if group else n).astype(np.float32)
    return [x, w, scale, rng.uniform(-9, 9, n).astype(np.float32)]


def wanted(given: list[np.ndarray], attrs: dict[str, Any]) -> np.ndarray:
    """The operator's definition, with integers of 64 bits."""
    x, w, scale, *bias = given
    group = attrs["group"] or w.shape[0]
    value: Any = None
    offset = bias.pop().astype(np.int64) if bias and bias[0].dtype == np.int32 else np.int64(0)
    for g in range(w.shape[0] // group):
        part = slice(g * group, (g + 1) * group)
        sums = (x[..., part].astype(np.int64) - attrs["x_zero"]) @ w[part].astype(np.int64)
        sums = sums + offset
        if scale.dtype == np.int32:
            value = (sums * scale + (1 << attrs["shift"] >> 1)) >> attrs["shift"]
            break
        scaled = sums.astype(np.float32) * (scale[g] if attrs["group"] else scale)
        value = scaled if g == 0 else value + scaled
    if bias:
        value = value + bias[0]
    if attrs["relu"]:
        value = np.maximum(value, value.dtype.type(0))
    if attrs["dtype"] == "float32":
        return np.asarray(value)
    range_ = np.iinfo(attrs["dtype"])
    return np.clip(np.rint(value).astype(np.int64) + attrs["zero"], range_.min, range_.max).astype(attrs["dtype"])


def check(given: list[np.ndarray], **own: Any) -> None:
    attrs = OPERATOR.check_attrs(own)
    for found in (quantized_matmul(given, attrs, {}), OPERATOR.run(given, attrs, {})):
        np.testing.assert_array_equal(found, wanted(given, attrs))
        assert found.dtype.name == attrs["dtype"]


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6, 13])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_all_sizes(m: int, dtype: str) -> None:
    for k in (1, 3, 4, 7, 64, 301):
        for n in (1, 5, 16, 63, 64, 200):
            check(operands(m, k, n, dtype), x_zero=113, dtype="int8", zero=-5, relu=True)
            check(operands(m, k, n, dtype)[:3], x_zero=-0)


@pytest.mark.parametrize("out", ["float32", "int8", "uint8", "int16"])
@pytest.mark.parametrize("group", [4, 32, 128])
def test_scales_of_groups(group: int, out: str) -> None:
    check(operands(7, 256, 70, "int8", group), group=group, dtype=out, zero=0 if out == "float32" else 9)


def test_threads_dims_in_front_and_transposed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_threads", lambda: 3)
    given = operands(33, 700, 530, "uint8", lead=(2, 1))
    given[1] = np.ascontiguousarray(given[1].T).T
    check(given, x_zero=128, dtype="uint8", zero=200)
    # a band of rows is longer than the second-level cache has room for
    check(operands(50, 9000, 70, "int8"), x_zero=-128)


def test_sums_wrap_around() -> None:
    """255 * 127 * 70,000 is more than 32 bits hold: the operator says what is left of it."""
    x, w = np.full((1, 70_000), 255, np.uint8), np.full((70_000, 1), 127, np.int8)
    one = np.ones(1, np.float32)
    left = np.float32(np.int64(255 * 127 * 70_000).astype(np.int32))
    for found in (
        quantized_matmul([x, w, one], OPERATOR.check_attrs({}), {}),
        OPERATOR.run([x, w, one], OPERATOR.check_attrs({}), {}),
    ):
        assert found[0, 0] == left < 0


def test_sums_of_16_bits_do_not() -> None:
    """32,767 * 127 * 3,000 is more than 32 bits hold."""
    x, w = np.full((1, 3000), 32767, np.int16), np.full((3000, 1), 127, np.int8)
    one = np.ones(1, np.float32)
    attrs = OPERATOR.check_attrs({"x_zero": -1})
    for found in (quantized_matmul([x, w, one], attrs, {}), OPERATOR.run([x, w, one], attrs, {})):
        assert found[0, 0] == np.float32(32768 * 127 * 3000)


@pytest.mark.parametrize("m", [1, 3, 13])
def test_activations_of_16_bits(m: int) -> None:
    for k, n in ((1, 1), (7, 16), (300, 70), (1030, 33)):
        check(operands(m, k, n, "int16"), x_zero=-300, dtype="int16", zero=3, relu=True)
        check(operands(m, k, n, "int16")[:3])
    check(operands(m, 1024, 40, "int16", 128), group=128, dtype="int8", zero=3)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_multipliers_and_shifts(dtype: str) -> None:
    """In whole numbers from beginning to end: halves are rounded up."""
    for m, k, n in ((1, 5, 3), (7, 300, 70)):
        x, w, _, _ = operands(m, k, n, dtype)
        rng = np.random.default_rng(k)
        bias = rng.integers(-(2**15), 2**15, n).astype(np.int32)
        for shift, most in ((0, 3), (1, 3), (30, 2**21)):
            scale = rng.integers(-most, most, n).astype(np.int32)
            check([x, w, scale, bias], shift=shift, x_zero=5, dtype="uint8", zero=100, relu=True)
            check([x, w, scale], shift=shift, dtype="int16")
        # the bias of whole numbers beside scales of float32, too
        check([x, w, rng.random(n, np.float32), bias], dtype="int8")


def test_no_terms_and_no_rows() -> None:
    bias = np.arange(3, dtype=np.float32)
    nothing = [np.zeros((2, 0), np.int8), np.zeros((0, 3), np.int8), np.ones(3, np.float32), bias]
    np.testing.assert_array_equal(quantized_matmul(nothing, OPERATOR.check_attrs({}), {}), [bias, bias])
    found = quantized_matmul(operands(0, 8, 4, "int8"), OPERATOR.check_attrs({}), {})
    assert found.shape == (0, 4)


def test_many_callers_of_one_packed_weight() -> None:
    x, w, scale, bias = operands(4, 96, 80, "int8")
    packed, right = pack(w), wanted([x, w, scale, bias], OPERATOR.check_attrs({}))

    def work(_: int) -> None:
        out = np.empty((4, 80), np.float32)
        for _ in range(20):
            multiply(x, packed, scale, bias, out)
            np.testing.assert_array_equal(out, right)

    in_threads(work)


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        mi_quantized = staticmethod(lambda *_: -1)

    x, w, scale, _ = operands(2, 8, 4, "int8")
    packed = pack(w)
    monkeypatch.setattr(module, "_library", lambda wide: Failing)
    with pytest.raises(MirageError, match="no memory for a product of 2 rows"):
        multiply(x, packed, scale, None, np.empty((2, 4), np.float32))


X, W, S = tensor("m", 64, dtype="int8"), tensor(64, "n", dtype="int8"), tensor("n")


@pytest.mark.parametrize(
    ("types", "attrs", "error", "message"),
    [
        ((tensor("m", 64), W, S), {}, DTypeError, "x is float32"),
        ((X, tensor(64, "n", dtype="uint8"), S), {}, DTypeError, "w is uint8"),
        ((X, W, tensor("n", dtype="float64")), {}, DTypeError, "scale is float64"),
        ((X, tensor(63, "n", dtype="int8"), S), {}, ShapeError, r"\[m, 64\] and w \[63, n\]"),
        ((X, W, tensor(2, "n")), {}, ShapeError, r"scale \[2, n\]; it is \[n\]"),
        ((X, W, tensor(2, "n")), {"group": 24}, ShapeError, "64 terms in groups of 24"),
        ((X, W, S, tensor("m")), {}, ShapeError, r"bias \[m\]; it is \[n\]"),
        ((X, W, S), {"x_zero": 200}, AttributeValueError, "x_zero=200 is no int8; it is -128 to 127"),
        ((X, W, S), {"zero": 3}, AttributeValueError, "zero=3 is no float32"),
        ((X, W, S), {"group": 6}, AttributeValueError, "multiple of 4"),
        ((X, W, tensor("n", dtype="int32")), {}, DTypeError, "of multipliers"),
        ((X, W, tensor("n", dtype="int32"), S), {"dtype": "int8"}, DTypeError, "bias is float32"),
        ((X, W, tensor(4, "n"), tensor("n", dtype="int32")), {"group": 16}, DTypeError, "only those of float32 have groups"),
        ((X, W, S), {"shift": -1}, AttributeValueError, "shift=-1"),
        ((X, W, S), {"dtype": "int32"}, AttributeValueError, "dtype='int32'"),
    ],
)
def test_what_does_not_fit_is_refused(types: Any, attrs: Any, error: type[MirageError], message: str) -> None:
    with pytest.raises(error, match=message):
        OPERATOR.infer(types, OPERATOR.check_attrs(attrs))


def test_what_does_not_fit_is_an_error() -> None:
    """Programs come from files, too."""
    x, w, scale, bias = operands(4, 96, 80, "int8")
    out, packed, panels = np.empty((4, 80), np.float32), pack(w), dequantized.pack(w)
    real = x.astype(np.float32)
    for changed in (
        {"x": x[:, :95]}, {"x": x[:3]}, {"scale": scale[:79]}, {"bias": bias[:79]}, {"out": out[:, :64]}, {"out": out[:3]}
    ):  # fmt: skip
        given = {"x": x, "scale": scale, "bias": bias, "out": out} | changed
        with pytest.raises(LibraryError, match="there is no product of"):
            multiply(given["x"], packed, given["scale"], given["bias"], given["out"])
        own = given | {"x": real[: len(given["x"]), : given["x"].shape[1]]}
        with pytest.raises(LibraryError, match="there is no product of"):
            dequantized.multiply(own["x"], panels, own["scale"], own["bias"], own["out"])
