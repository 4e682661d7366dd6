"""Products of real numbers with weights in 16 and 8 bits, as their scales say, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage.errors import LibraryError
from mirage.ir.types import ELEMENTS, HALVES, epsilon
from mirage.kernels.cpu.launch import dequantized, quantized
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.narrowed import library, pack, prepare
from mirage.kernels.cpu.launch.rounds import Launch, LaunchedRounds
from tests.kernels.cpu.launch.test_linear import ACTIVATIONS

#: rows, terms, columns, terms of a scale
CASES = [(1, 1, 1, 0), (1, 300, 100, 0), (3, 64, 47, 32), (8, 33, 49, 0), (9, 256, 400, 128), (300, 96, 50, 32), (2, 64, 790, 0)]


def weights(k: int, n: int) -> np.ndarray:
    w = np.random.default_rng([k, n]).standard_normal((k, n)).astype(np.float32)
    w[:, n // 2] = 0
    w[:, -1] *= 1e-30
    return w


def real(w: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights that 8 bits stand for, and half a scale of each."""
    k, n = w.shape
    # in float32: numbers of 16 bits are often halfway between two
    parts = w.reshape(-1, group or k, n)
    scale = np.maximum(np.abs(parts).max(1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    exact = np.rint(parts / scale) * scale.astype(np.float64)
    return exact.reshape(k, n), np.broadcast_to(scale / 2, parts.shape).reshape(k, n)


def launched(launch: Launch | None, tensors: list[np.ndarray]) -> None:
    """Raises what the launch fails with."""
    assert launch is not None
    rounds = LaunchedRounds([[(launch, range(len(tensors)))]], np.zeros((), np.int64), len(tensors))
    rounds.tensors[:] = [address(a) for a in tensors]
    if rounds.run_first() is not None:
        error = rounds.error()
        assert error is not None
        raise error


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("right", [(), (1, 0)])
def test_products_are_those_of_what_8_bits_stand_for(case: tuple[int, int, int, int], right: tuple[int, ...]) -> None:
    m, k, n, group = case
    w = weights(k, n)
    stored, half = real(w, group)
    assert (np.abs(stored - w) <= half * 1.0001).all()
    given = np.ascontiguousarray(w.T) if right else w
    form = pack(given, right=right, group=group)
    assert isinstance(form.panels, np.ndarray) and form.panels.nbytes <= -(-n // 48) * 48 * k
    assert form.scale.shape == ((k // group, n) if group else (n,))
    x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
    out = np.full((m, n), np.nan, np.float32)
    for inputs, packed in (([x, given, form], True), ([x, given], False)):
        out[...] = np.nan
        library(inputs, [out], right=right, group=group, packed=packed)
        np.testing.assert_allclose(out, x @ stored, rtol=1e-4, atol=1e-4 * k**0.5)
    out[...] = np.nan
    launch = prepare([x, given, form], [out], right=right, group=group, packed=True)
    launched(launch, [x, given, x, out])
    np.testing.assert_allclose(out, x @ stored, rtol=1e-4, atol=1e-4 * k**0.5)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("right", [(), (1, 0)])
def test_products_are_those_of_bfloat16(case: tuple[int, int, int, int], right: tuple[int, ...]) -> None:
    m, k, n, _ = case
    w = weights(k, n)
    stored = w.astype(ELEMENTS["bfloat16"]).astype(np.float64)
    given = np.ascontiguousarray(w.T) if right else w
    form = pack(given, right=right, dtype="bfloat16")
    assert isinstance(form.panels, np.ndarray) and form.panels.nbytes == 2 * -(-n // 48) * 48 * (k + k % 2)
    rng = np.random.default_rng(m)
    x, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), n))
    wanted = np.maximum(x @ stored + bias, 0)
    out = np.empty((m, n), np.float32)
    attrs: Any = {"right": right, "dtype": "bfloat16", "bias": True, "activation": "relu"}
    for inputs, packed in (([x, given, form, bias], True), ([x, given, bias], False)):
        out[...] = np.nan
        library(inputs, [out], packed=packed, **attrs)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4 * k**0.5)
    out[...] = np.nan
    launched(prepare([x, given, form, bias], [out], packed=True, **attrs), [x, given, x, bias, out])
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4 * k**0.5)


@pytest.mark.parametrize("right", [(), (1, 0)])
def test_every_float32_becomes_the_nearest_bfloat16(right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, (70, 60), np.uint32)
    # halfway between two, above and below that
    bits[:, 1::2] = bits[:, 1::2] & 0xFFFF0000 | rng.choice([0x7FFF, 0x8000, 0x8001], (70, 30)).astype(np.uint32)
    w = bits.view(np.float32)
    w[0, :6] = np.inf, -np.inf, np.nan, 3.4e38, 1e-45, -0.0
    # all bits of a NaN
    w[1, :2] = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    form = pack(np.ascontiguousarray(w.T) if right else w, right=right, dtype="bfloat16")
    assert isinstance(form.panels, np.ndarray)
    # pairs of terms lie side by side
    found = np.concatenate([p.reshape(-1, 48, 2).swapaxes(1, 2).reshape(-1, 48) for p in form.panels], axis=1)
    assert not found[:, 60:].astype(np.float32).any()
    with np.errstate(all="ignore"):
        wanted = w.astype(ELEMENTS["bfloat16"])
    nan = np.isnan(w)
    assert np.isnan(found[:, :60].astype(np.float32)[nan]).all()
    np.testing.assert_array_equal(found[:, :60][~nan].view(np.uint16), wanted[~nan].view(np.uint16))


#: how weights are stored beside rows of 16 bits: as these are, or in 8 bits
FORMS = [None, 0, 32]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("group", FORMS)
@pytest.mark.parametrize(
    "case", [(1, 1, 1), (1, 320, 100), (3, 96, 47), (8, 33, 49), (9, 256, 400), (300, 97, 50), (40, 1056, 96)], ids=str
)
def test_rows_of_16_bits(case: tuple[int, int, int], group: int | None, half: str) -> None:
    m, k, n = case
    if group and k % group:
        group = 0
    rng, dtype = np.random.default_rng(case), ELEMENTS[half]
    x, w, bias = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), n))
    exact = real(w.astype(np.float32), group)[0] if group is not None else w.astype(np.float64)
    wanted = np.maximum(x.astype(np.float64) @ exact + bias.astype(np.float64), 0)
    out = np.empty((m, n), dtype)
    stored: dict[str, Any] = {"dtype": half} if group is None else {"group": group}
    for right in ((), (1, 0)):
        given = np.ascontiguousarray(w.T) if right else w
        form = pack(given, right=right, **stored)
        attrs: Any = {"right": right, "bias": True, "activation": "relu", **stored}
        launch = prepare([x, given, form, bias], [out], packed=True, **attrs)
        for how in ("packed", "packed anew", "launched"):
            out[...] = -1
            if how == "launched":
                launched(launch, [x, given, x, bias, out])
            else:
                library([x, given, *([form] if how == "packed" else []), bias], [out], packed=how == "packed", **attrs)
            # sums in float32, rounded once
            np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=epsilon(dtype), atol=1e-5 * k**0.5)


@pytest.mark.parametrize("half", HALVES)
def test_rows_of_16_bits_that_are_not_finite(half: str) -> None:
    dtype = ELEMENTS[half]
    x, w = np.ones((3, 5), dtype), np.ones((5, 50), dtype)
    x[0, 4], x[1, 0], w[2, 7] = np.nan, np.inf, -np.inf
    out = np.empty((3, 50), dtype)
    library([x, w], [out], dtype=half)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out.astype(np.float32), x.astype(np.float32) @ w.astype(np.float32))


def test_other_types_do_not_fit() -> None:
    """Programs come from files, too."""
    wide = {name: np.ones((2, 64), ELEMENTS[name]) for name in ("float32", "bfloat16", "float16", "float64", "int16")}
    forms: list[tuple[Any, str]] = [(weights(64, 50).astype(ELEMENTS[half]), half) for half in HALVES]
    for w, half in forms:
        form = pack(w, dtype=half)
        for name, x in wide.items():
            for result in ("float32", "bfloat16", "float16"):
                if name == result and name in ("float32", half):
                    continue
                out = np.empty((2, 50), ELEMENTS[result])
                for call in (library, prepare):
                    with pytest.raises(LibraryError, match="there is no product of"):
                        call([x, w, form], [out], dtype=half, packed=True)
    with pytest.raises(LibraryError, match="have no such form of float16"):
        pack(weights(64, 50), dtype="float16")
    with pytest.raises(LibraryError, match="have no such form of bfloat16"):
        pack(weights(64, 50).astype(np.float16), dtype="bfloat16")
    with pytest.raises(LibraryError, match="have no such form of int4"):
        pack(weights(64, 50), dtype="int4")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 9])
def test_what_is_added_and_functions(activation: str, rows: int) -> None:
    w, function = weights(70, 60), ACTIVATIONS[activation]
    rng = np.random.default_rng(0)
    x, bias = rng.standard_normal((rows, 70)).astype(np.float32), rng.standard_normal(60).astype(np.float32)
    out = np.empty((rows, 60), np.float32)
    form = pack(w)
    attrs: Any = {"bias": True, "activation": activation, "packed": True}
    wanted = function(x @ real(w, 0)[0] + bias)
    library([x, w, form, bias], [out], **attrs)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)
    out[...] = np.nan
    launched(prepare([x, w, form, bias], [out], **attrs), [x, w, x, bias, out])
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", [(1, 1, 1), (1, 300, 100), (7, 33, 49), (40, 1030, 70), (300, 96, 50)], ids=str)
@pytest.mark.parametrize("right", [(), (1, 0)])
def test_dynamic_products_are_those_of_whole_numbers(case: tuple[int, int, int], right: tuple[int, ...]) -> None:
    m, k, n = case
    w = weights(k, n)
    scale = np.maximum(np.abs(w).max(0) / np.float32(127), np.finfo(np.float32).tiny)
    given = np.ascontiguousarray(w.T) if right else w
    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, k)).astype(np.float32) * np.float32(10.0) ** rng.integers(-20, 20, (m, 1)).astype(np.float32)
    x[m // 2] = 0
    bias = rng.standard_normal(n).astype(np.float32)
    widest = np.abs(x).max(1, keepdims=True)
    inverse = np.where(widest > 0, np.float32(127) / np.maximum(widest, np.float32(1e-30)), 0).astype(np.float32)
    sums = np.rint(x * inverse).astype(np.int64) @ np.rint(w / scale).astype(np.int64)
    wanted = sums * scale.astype(np.float64) * (widest / np.float32(127)) + bias
    form = pack(given, right=right, dynamic=True)
    attrs: Any = {"right": right, "dynamic": True, "bias": True}
    out = np.full((m, n), np.nan, np.float32)
    for inputs, packed in (([x, given, form, bias], True), ([x, given, bias], False)):
        out[...] = np.nan
        library(inputs, [out], **attrs, packed=packed)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    out[...] = np.nan
    launched(prepare([x, given, form, bias], [out], **attrs, packed=True), [x, given, x, bias, out])
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_functions_of_dynamic_products(activation: str) -> None:
    w, rng = weights(70, 60), np.random.default_rng(0)
    x, out = rng.standard_normal((9, 70)).astype(np.float32), np.empty((9, 60), np.float32)
    form = pack(w, dynamic=True)
    library([x, w, form], [out], dynamic=True, packed=True)
    plain = out.astype(np.float64)
    assert np.linalg.norm(plain - x @ w) < 0.02 * np.linalg.norm(plain)
    library([x, w, form], [out], dynamic=True, packed=True, activation=activation)
    np.testing.assert_allclose(out, ACTIVATIONS[activation](plain), rtol=1e-5, atol=1e-5)


def test_a_row_that_is_not_finite_is_nan() -> None:
    w, x, out = weights(33, 20), np.ones((4, 33), np.float32), np.empty((4, 20), np.float32)
    x[1, 32], x[2, 0] = np.nan, -np.inf
    library([x, w], [out], dynamic=True)
    np.testing.assert_array_equal(np.isnan(out).all(1), [False, True, True, False])
    assert np.isfinite(out[[0, 3]]).all()


def test_nothing_to_compute() -> None:
    bias = np.arange(3, dtype=np.float32)
    out = np.full((20, 3), np.nan, np.float32)
    none = np.ones((0, 3), np.float32)
    library([np.ones((20, 0), np.float32), none, bias], [out], bias=True)
    np.testing.assert_array_equal(out, np.broadcast_to(bias, (20, 3)))
    x, w = np.ones((0, 4), np.float32), np.ones((4, 3), np.float32)
    library([x, w], [np.ones((0, 3), np.float32)])
    assert prepare([x, w, pack(w)], [np.ones((0, 3), np.float32)], packed=True) is None
    assert prepare([x, w], [np.ones((0, 3), np.float32)]) is None


def test_a_weight_that_is_not_finite_makes_its_column_nan() -> None:
    w = weights(5, 4)
    w[2, 1] = np.nan
    out = np.empty((2, 4), np.float32)
    library([np.ones((2, 5), np.float32), w], [out])
    np.testing.assert_array_equal(np.isnan(out), [[False, True, False, False]] * 2)


def test_what_does_not_fit_is_an_error() -> None:
    """Programs come from files, too."""
    x, w, bias = np.ones((2, 64), np.float32), weights(64, 60), np.ones(60, np.float32)
    out, form = np.empty((2, 60), np.float32), pack(w)
    for inputs, outs in (([x[:, :63], w, form, bias], out), ([x, w, form, bias[:59]], out), ([x, w, form, bias], out[:, :40])):
        for call in (library, prepare):
            with pytest.raises(LibraryError, match="there is no product of"):
                given = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
                call(given, [outs], bias=True, packed=True)


@pytest.mark.parametrize(("shape", "group"), [((64, 60), 7), ((64, 60), -4), ((64,), 0), ((2, 3, 64, 60), 0)])
def test_weights_without_such_groups_are_an_error(shape: tuple[int, ...], group: int) -> None:
    with pytest.raises(LibraryError, match=r"have no groups of|are no matrix"):
        pack(np.ones(shape, np.float32), group=group)


def test_another_packed_form_is_an_error() -> None:
    x, w, out = np.ones((2, 64), np.float32), weights(64, 60), np.empty((2, 60), np.float32)
    for call in (library, prepare):
        with pytest.raises(LibraryError, match="a weight is not packed as int8 or in 16 bits"):
            call([x, w, dequantized.pack(w.astype(np.int8))], [out], packed=True)
        with pytest.raises(LibraryError, match="there is no product of"):
            call([x, w, pack(w, group=32)], [out], packed=True)
    scale = np.ones((2, 60), np.float32)
    with pytest.raises(LibraryError, match="are not packed for groups of 32 terms"):
        quantized.multiply(np.ones((2, 64), np.uint8), quantized.pack(w.astype(np.int8)), scale, None, out, group=32)


def made(name: str) -> tuple[Callable[..., Any], Callable[..., Any], list[Any], np.ndarray, dict[str, Any]]:
    """A library function, what prepares it, inputs with a packed form, a result, and attributes."""
    rng = np.random.default_rng(0)
    w, scale, bias = rng.integers(-127, 128, (64, 50)).astype(np.int8), rng.random(50).astype(np.float32), np.ones(50, np.float32)
    if name == "dequantized":
        x = rng.standard_normal((3, 64)).astype(np.float32)
        out, attrs = np.empty((3, 50), np.float32), dict[str, Any](bias=True, activation="relu", packed=True)
        return dequantized.library, dequantized.prepare, [x, w, dequantized.pack(w), scale, bias], out, attrs
    bits = rng.integers(0, 255, (3, 64)).astype(np.uint8)
    whole = np.arange(50, dtype=np.int32)
    fixed = name == "whole"
    out = np.empty((3, 50), np.uint8)
    attrs = dict[str, Any](x_zero=7, relu=True, zero=3, shift=9 if fixed else 0, packed=True)
    rest = [whole % 5, whole] if fixed else [scale * np.float32(1e-2), bias]
    return quantized.library, quantized.prepare, [bits, w, quantized.pack(w), *rest], out, attrs


@pytest.mark.parametrize("name", ["dequantized", "scaled", "whole"])
def test_launches_do_what_calls_do(name: str) -> None:
    call, prepare, inputs, out, attrs = made(name)
    call(inputs, [out], **attrs)
    wanted = out.copy()
    out[...] = 1
    tensors = [a if isinstance(a, np.ndarray) else inputs[0] for a in inputs]
    launched(prepare(inputs, [out], **attrs), [*tensors, out])
    np.testing.assert_array_equal(out, wanted)
    assert len(np.unique(wanted)) > 20
    assert prepare(inputs, [out[:0]], **attrs) is None
    assert prepare([*inputs[:2], *inputs[3:]], [out], **{**attrs, "packed": False}) is None
