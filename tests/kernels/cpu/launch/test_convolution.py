"""Convolutions in C beside NumPy's, in float64."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import sympy

from mirage.errors import InputError, LibraryError
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.launch.convolution import convolution, convolve, library, pack, window_sizes

#: shapes of x and w, strides, dilations, groups
CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = [
    ((2, 3, 11), (5, 3, 4), (2,), (2,), 1),
    ((2, 6, 9, 12), (8, 3, 3, 2), (2, 1), (1, 3), 2),
    ((1, 4, 5, 6, 7), (6, 4, 2, 3, 1), (1, 2, 3), (2, 1, 1), 1),
    # more rows, columns and outputs than one block has
    ((1, 50, 20, 17), (70, 50, 3, 3), (1, 1), (1, 1), 1),
    # cells of several images, and cells along the outputs
    ((5, 7, 3, 3), (130, 7, 3, 2), (1, 1), (1, 1), 1),
    ((3, 9, 1), (67, 9, 1), (1,), (1,), 1),
    # every other column, a whole vector and more
    ((2, 3, 5, 101), (9, 3, 3, 3), (2, 2), (1, 1), 1),
    ((3, 4, 8, 8), (4, 1, 3, 3), (1, 1), (1, 1), 4),
    # channel by channel: several outputs of each, columns of three remainders, several bands, three dims
    ((2, 3, 9, 40), (9, 1, 2, 5), (2, 3), (2, 2), 3),
    ((1, 2, 90, 130), (2, 1, 7, 7), (1, 2), (1, 1), 2),
    ((2, 3, 4, 5, 37), (3, 1, 2, 3, 2), (1, 2, 1), (2, 1, 3), 3),
    # channel by channel: square windows, one and two vectors, all rows of a block and fewer
    ((2, 3, 11, 40), (3, 1, 5, 5), (1, 1), (1, 1), 3),
    ((1, 4, 13, 37), (4, 1, 5, 5), (2, 2), (1, 1), 4),
    ((2, 2, 9, 21), (2, 1, 3, 3), (2, 2), (1, 1), 2),
    ((1, 3, 16, 33), (3, 1, 7, 7), (1, 1), (1, 1), 3),
    ((1, 2, 20, 50), (2, 1, 7, 7), (2, 2), (1, 1), 2),
    # few channels, whose windows are laid out nowhere: steps of 2, gaps, three dims, several bands, the last one of less rows
    ((2, 3, 30, 36), (21, 3, 7, 7), (2, 2), (1, 1), 1),
    ((1, 5, 40, 48), (9, 5, 3, 3), (1, 1), (1, 2), 1),
    ((2, 4, 5, 9, 19), (6, 2, 2, 3, 3), (1, 2, 1), (2, 1, 1), 2),
    ((1, 2, 7, 66), (3, 2, 4, 5), (3, 1), (1, 3), 1),
    # of one channel, a product
    ((2, 1, 12, 12), (20, 1, 3, 3), (1, 1), (1, 1), 1),
    ((0, 3, 5), (2, 3, 2), (1,), (1,), 1),
    ((2, 0, 5), (2, 0, 2), (1,), (1,), 1),
    ((2, 3, 3), (0, 3, 2), (1,), (1,), 1),
]
TOLERANCES = {"float16": 0.05, "float32": 1e-4, "float64": 1e-10}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_the_operator_means(case: Any, dtype: str) -> None:
    xs, ws, strides, dilations, groups = case
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal(xs).astype(dtype), draw.standard_normal(ws).astype(dtype)
    op = get_operator("convolution")
    attrs = op.check_attrs({"strides": strides, "dilations": dilations, "groups": groups})
    wanted = op.run([x.astype("float64"), w.astype("float64")], attrs, {})
    found = convolution([x, w], attrs, {})
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def drawn(draw: np.random.Generator) -> dict[str, Any]:
    """Sizes of a convolution of any kind, with zeros around the tensor that may reach beyond a whole window."""
    rank = int(draw.integers(1, 4))
    n = lambda low, high: tuple(map(int, draw.integers(low, high, rank)))  # noqa: E731
    kernel, strides, gaps, low, high = n(1, 5), n(1, 4), n(1, 4), n(0, 5), n(0, 5)
    reach = [(k - 1) * d + 1 - a - b for k, d, a, b in zip(kernel, gaps, low, high, strict=True)]
    space = [max(1, r + int(draw.integers(0, (60, 25, 8)[rank - 1]))) for r in reach]
    groups, channels = int(draw.choice([1, 1, 2, 3, 7])), int(draw.choice([1, 1, 2, 3, 5, 17]))
    outputs = int(draw.choice([1, 2, 3, 5, 8, 11, 40]))
    return {
        "x": (int(draw.integers(1, 4)), groups * channels, *space), "w": (groups * outputs, channels, *kernel),
        "strides": strides, "dilations": gaps, "low": low, "high": high, "groups": groups,
    }  # fmt: skip


def reference(x: np.ndarray, w: np.ndarray, case: dict[str, Any]) -> np.ndarray:
    edge = [(0, 0), (0, 0), *zip(case["low"], case["high"], strict=True)]
    op = get_operator("convolution")
    attrs = op.check_attrs({key: case[key] for key in ("strides", "dilations", "groups")})
    return np.asarray(op.run([np.pad(x.astype("float64"), edge), w.astype("float64")], attrs, {}))


@pytest.mark.parametrize("seed", range(60))
def test_zeros_around_what_is_added_and_bounds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    case, dtype = drawn(draw), str(draw.choice(["float32", "float64"]))
    x, w = (draw.standard_normal(case[name]).astype(dtype) for name in ("x", "w"))
    wanted = reference(x, w, case)
    bias = draw.standard_normal(w.shape[0]).astype(dtype) if draw.integers(2) else None
    other = draw.standard_normal(wanted.shape).astype(dtype) if draw.integers(2) else None
    least, most = [(-inf, inf), (0, inf), (-0.5, 0.25)][int(draw.integers(3))]
    if bias is not None:
        wanted = wanted + bias.reshape(-1, *[1] * (wanted.ndim - 2))
    wanted = np.clip(wanted if other is None else wanted + other, least, most)
    out = np.full(wanted.shape, np.nan, dtype)
    told = {key: case[key] for key in ("strides", "dilations", "low", "groups")}
    convolve(x, w, pack(w, groups=case["groups"]), out, **told, bias=bias, other=other, least=least, most=most)
    np.testing.assert_allclose(out, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype], err_msg=str(case))


def test_sums_of_nothing_have_a_bias_and_bounds() -> None:
    x, w = np.zeros((2, 0, 5), np.float32), np.zeros((3, 0, 2), np.float32)
    out, other = np.empty((2, 3, 4), np.float32), np.ones((2, 3, 4), np.float32)
    bias = np.array([-3, 0, 1], np.float32)
    convolve(x, w, pack(w), out, strides=(1,), dilations=(1,), low=(0,), bias=bias, other=other, least=0, most=1.5)
    assert np.array_equal(out, np.broadcast_to(np.array([0, 1, 1.5])[:, None], out.shape))


@pytest.mark.parametrize("groups", [1, 3])
def test_nan_is_not_between_bounds(groups: int) -> None:
    x, w = np.ones((1, 3, 40), np.float32), np.ones((3, 3 // groups, 1), np.float32)
    x[0, :, 7] = np.nan
    out = np.empty((1, 3, 40), np.float32)
    convolve(x, w, pack(w, groups=groups), out, strides=(1,), dilations=(1,), low=(0,), groups=groups, least=0, most=1)
    assert np.isnan(out[..., 7]).all() and np.array_equal(np.delete(out, 7, 2), np.ones((1, 3, 39)))


def test_products_of_matrices_as_programs_call_them() -> None:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((2, 5, 12), np.float32), draw.standard_normal((3, 5, 1, 1), np.float32)
    bias, other = draw.standard_normal((1, 3, 1, 1), np.float32), draw.standard_normal((2, 3, 4, 3), np.float32)
    wanted = np.maximum((w[:, :, 0, 0].astype("float64") @ x).reshape(2, 3, 4, 3) + bias + other, 0)
    for form in ([pack(w)], []):
        out = np.empty((2, 3, 4, 3), np.float32)
        library([x, w, *form, bias, other], [out], packed=bool(form), bias=True, other=True, least=0.0)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


def test_weights_of_single_channels_are_not_packed() -> None:
    w = np.ones((8, 1, 3, 3), np.float32)
    assert pack(w, groups=8).read(window_sizes((1, 8, 9, 9), w.shape, (1, 8, 7, 7), (1, 1), (1, 1), (0, 0), 8)) is w
    w = np.ones((11, 2, 3), np.float32)
    packed = pack(w).read(window_sizes((1, 2, 9), w.shape, (1, 11, 7), (1,), (1,), (0,), 1))
    # blocks of as many rows as a power of two
    assert packed.size in (12 * 6, 16 * 6) and packed.sum() == 11 * 6


def test_one_packed_form_for_few_places_and_one_for_many() -> None:
    form = pack(np.ones((24, 20, 3, 3), np.float32))

    def read(batch: int, rows: int, columns: int) -> np.ndarray:
        x, out = (batch, 20, rows, columns), (batch, 24, rows, columns)
        return form.read(window_sizes(x, (24, 20, 3, 3), out, (1, 1), (1, 1), (1, 1), 1))

    assert read(1, 1, 2).size == 24 * 20 * 9
    assert read(9, 8, 8).size == 24 * 20 * 16
    assert read(9, 8, 8) is read(2, 30, 30), "it is packed once"


@pytest.mark.parametrize("seed", range(24))
def test_tiles_of_windows(seed: int) -> None:
    draw = np.random.default_rng(seed)
    groups, batch = int(draw.integers(1, 3)), int(draw.integers(1, 4))
    # more than are laid out, summed and stored at a time, and not divided by what blocks have
    channels, outputs = (int(n) for n in draw.choice([16, 17, 40, 130, 150], 2))
    space, low = draw.integers((7, 8), (30, 60)), draw.integers(0, 4, 2)
    high = draw.integers(0, 3, 2)
    places = tuple(int(n) for n in space + low + high - 2)
    dtype = ["float32", "float64"][seed % 2]
    x = draw.standard_normal((batch, groups * channels, *space)).astype(dtype)
    w = draw.standard_normal((groups * outputs, channels, 3, 3)).astype(dtype)
    bias, other = draw.standard_normal(len(w)).astype(dtype), draw.standard_normal((batch, len(w), *places)).astype(dtype)
    case: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "low": tuple(low), "high": tuple(high), "groups": groups}
    wanted = np.clip(reference(x, w, case) + bias.reshape(-1, 1, 1) + other, -1, 40)
    out = np.full(wanted.shape, np.nan, dtype)
    told = {key: case[key] for key in ("strides", "dilations", "low", "groups")}
    form = pack(w, groups=groups)
    convolve(x, w, form, out, **told, bias=bias, other=other, least=-1, most=40)
    sizes = window_sizes(x.shape, w.shape, out.shape, (1, 1), (1, 1), tuple(map(int, low)), groups)
    assert form.read(sizes).size >= 16 * outputs * channels * groups, "it was one of tiles"
    np.testing.assert_allclose(out, wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_tiles_are_as_exact_as_windows() -> None:
    """Their largest error is no more than a few times that of sums in order (Lavin and Gray, 2016, section 6.2)."""
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((2, 64, 24, 24)), draw.standard_normal((32, 64, 3, 3)) / 24
    case = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1), "groups": 1}
    given = x.astype(np.float32), w.astype(np.float32)
    wanted = reference(*given, case)
    out = np.empty(wanted.shape, np.float32)
    convolve(*given, pack(given[1]), out, strides=(1, 1), dilations=(1, 1), low=(1, 1))
    assert np.abs(out - wanted).max() < 1e-5


def test_sums_of_tiles_are_sums_of_windows() -> None:
    """Winograd's F(2x2, 3x3) as polynomials: what csrc/mirage_winograd.h computes, for all numbers."""
    d = sympy.Matrix(4, 4, sympy.symbols("d:16"))
    g = sympy.Matrix(3, 3, sympy.symbols("g:9"))
    elements = sympy.Matrix([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    half = sympy.Rational(1, 2)
    weights = sympy.Matrix([[1, 0, 0], [half, half, half], [half, -half, half], [0, 0, 1]])
    places = sympy.Matrix([[1, 1, 1, 0], [0, 1, -1, -1]])
    products = (weights * g * weights.T).multiply_elementwise(elements * d * elements.T)
    windows = sympy.Matrix(2, 2, lambda i, j: sum(d[i + a, j + b] * g[a, b] for a in range(3) for b in range(3)))
    assert (places * products * places.T - windows).expand() == sympy.zeros(2, 2)


def test_a_window_that_is_larger_than_a_dim_is_refused() -> None:
    attrs = get_operator("convolution").check_attrs({"strides": (1,), "dilations": (3,)})
    x, w = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 2), np.float32)
    with pytest.raises(InputError, match="window"):
        convolution([x, w], attrs, {})


@pytest.mark.parametrize("x, w, out", [((1, 4, 9), (6, 3, 3), (1, 6, 7)), ((1, 4, 9), (6, 4, 3), (1, 5, 7)),
                                       ((1, 4, 9), (6, 4, 3), (2, 6, 7)), ((1, 4, 9), (6, 4, 3), (1, 6, 7, 1))])  # fmt: skip
def test_what_does_not_fit_is_an_error(x: Any, w: Any, out: Any) -> None:
    """Programs come from files, too."""
    with pytest.raises(LibraryError, match="there is no convolution"):
        window_sizes(x, w, out, (1,), (1,), (0,), 1)
