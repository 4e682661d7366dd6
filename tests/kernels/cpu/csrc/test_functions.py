"""The C functions of vectors: transposition, partial loads and stores, elementary functions, for every vector width."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from tests.kernels.cpu.csrc.micro import MACHINE_FLAGS, Array, address, at_page_end, load

SOURCE = """
#define MI_REAL %s
#include "mirage_vec.h"
typedef ptrdiff_t I;
typedef const mi_real *In;
int width(void) { return MI_W; }
void transpose(I m, I n, In from, I from_step, mi_real *to, I to_step) { mi_transpose(m, n, from, from_step, to, to_step); }
#define APPLY(name, call) \\
    void name(I n, In in, mi_real *o, mi_real a, mi_real b) \\
    { \\
        mi_vec p0 = mi_broadcast(a), p1 = mi_broadcast(b); \\
        (void)p0, (void)p1; \\
        for (I i = 0; i < n; i += MI_W) { \\
            int count = n - i < MI_W ? (int)(n - i) : MI_W; \\
            mi_vec x = mi_load_n(in + i, count); \\
            mi_store_n(o + i, call, count); \\
        } \\
    }
APPLY(copy, x)
APPLY(exp_, mi_fn_exp(x))
APPLY(log_, mi_fn_log(x))
APPLY(sqrt_, mi_fn_sqrt(x))
APPLY(tanh_, mi_fn_tanh(x))
APPLY(sigmoid_, mi_fn_sigmoid(x))
APPLY(erf_, mi_fn_erf(x))
APPLY(silu_, x * mi_fn_sigmoid(x))
APPLY(gelu_, x * mi_fn_gauss_cdf(x))
APPLY(gauss_cdf_, mi_fn_gauss_cdf(x))
APPLY(relu_, mi_fn_relu(x))
APPLY(maximum_, mi_fn_maximum(x, p0))
APPLY(clamp_, mi_fn_clamp(x, p0, p1))
APPLY(pow_, mi_fn_pow(x, p0))
APPLY(sin_, mi_fn_sin(x))
APPLY(cos_, mi_fn_cos(x))
APPLY(abs_, mi_fn_abs(x))
APPLY(floor_, mi_fn_floor(x))
APPLY(ceil_, mi_fn_ceil(x))
APPLY(round_, mi_fn_round(x))
void lanes(I n, I stride, In x, mi_real *o)
{
    o[0] = mi_hsum(mi_load_n(x, n));
    o[1] = mi_hmax(mi_fill_tail(mi_load_n(x, n), n, mi_broadcast(-MI_INFINITY)));
    o[2] = mi_hmin(mi_fill_tail(mi_load_n(x, n), n, mi_broadcast(MI_INFINITY)));
    o[3] = mi_hsum(mi_load_strided_n(x, stride, n));
    mi_vec each[MI_W];
    for (int i = 0; i < MI_W; i++) each[i] = mi_load_strided(x + i, stride);
    mi_store(o + 4, mi_hsum_each(each));
    mi_store_strided_n(o + 4 + MI_W, 2, mi_load(x), n);
}
"""


@dataclass
class Library:
    c: ctypes.CDLL
    dtype: type[np.floating[Any]]
    real: Any
    width: int

    def apply(self, name: str, x: Array, a: float = 0.0, b: float = 0.0) -> Array:
        x = np.asarray(x, self.dtype)
        out = np.empty_like(x)
        function = getattr(self.c, f"{name}_" if name != "copy" else name)
        function(ctypes.c_ssize_t(x.size), address(x), address(out), self.real(a), self.real(b))
        return out


@pytest.fixture(
    scope="module",
    params=[(real, flags) for real in ("float", "double") for flags in MACHINE_FLAGS],
    ids=lambda p: f"{p[0]}{p[1]}",
)
def library(request: pytest.FixtureRequest) -> Library:
    real, flags = request.param
    c = load(SOURCE % real, flags)
    single = real == "float"
    return Library(c, np.float32 if single else np.float64, ctypes.c_float if single else ctypes.c_double, c.width())


def test_transpose(library: Library) -> None:
    """Nothing is read past a row's end, nothing written between rows."""
    w = library.width
    rng = np.random.default_rng(0)
    for m, n in itertools.product((0, 1, 2, w - 1, w, w + 1, 2 * w + 3), repeat=2):
        x = at_page_end(m, n, 3, library.dtype, np.nan)
        x[...] = rng.standard_normal((m, n))
        y = at_page_end(n, m, 2, library.dtype, 7.0)
        gaps = np.lib.stride_tricks.as_strided(y, (max(n - 1, 0), m + 2), (y.strides[0], y.itemsize))[:, m:]
        step = ctypes.c_ssize_t
        library.c.transpose(step(m), step(n), address(x), step(n + 3), address(y), step(m + 2))
        np.testing.assert_array_equal(y, x.T)
        assert (gaps == 7).all()


def test_lanes(library: Library) -> None:
    w = library.width
    rng = np.random.default_rng(0)
    stride = w + 3
    for n in range(1, w + 1):
        x = rng.standard_normal(w * stride + w).astype(library.dtype) - 3
        out = np.full(4 + 3 * w + 1, -77, library.dtype)
        library.c.lanes(ctypes.c_ssize_t(n), ctypes.c_ssize_t(stride), address(x), address(out))
        tolerance = 4 * w * float(np.finfo(library.dtype).eps)
        np.testing.assert_allclose(out[0], x[:n].sum(), rtol=tolerance)
        assert out[1] == x[:n].max()
        assert out[2] == x[:n].min()
        np.testing.assert_allclose(out[3], x[: n * stride : stride].sum(), rtol=tolerance)
        columns = np.lib.stride_tricks.as_strided(x, (w, w), (x.itemsize, stride * x.itemsize))
        np.testing.assert_allclose(out[4 : 4 + w], columns.sum(1), rtol=tolerance)
        stored = out[4 + w :]
        assert (stored[: 2 * n : 2] == x[:n]).all()
        assert (stored[1::2] == -77).all()
        assert (stored[2 * n :] == -77).all()


def test_partial_loads_and_stores(library: Library) -> None:
    for n in range(1, 3 * library.width + 1):
        x, o = (at_page_end(1, n, 0, library.dtype, 0.0) for _ in range(2))
        x[:] = np.arange(1, n + 1)
        library.c.copy(ctypes.c_ssize_t(n), address(x), address(o), library.real(0), library.real(0))
        np.testing.assert_array_equal(o, x)


def points(dtype: type[np.floating[Any]], low: float, high: float, count: int) -> Array:
    """Evenly spaced, and random with every magnitude of a number between the limits."""
    rng = np.random.default_rng(1)
    info = np.finfo(dtype)
    exponents = rng.uniform(info.minexp, np.log2(max(abs(low), abs(high))), count)
    magnitudes = np.exp2(exponents) * rng.choice([-1.0, 1.0], count)
    all_points = np.concatenate([np.linspace(low, high, count), np.clip(magnitudes, low, high)])
    return all_points.astype(dtype)


EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "sqrt": mpmath.sqrt,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "erf": mpmath.erf,
    "gauss_cdf": mpmath.ncdf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    # as operators compose them
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.ncdf(x),
}

# name, range for float and for double, largest error in units in the last place for each
ACCURACY = [
    ("exp", (-110, 95), (-760, 720), 1.1, 1.1),
    ("log", (1e-45, 3e38), (5e-324, 1e308), 1, 1),
    ("log", (0.4, 2.5), (0.4, 2.5), 1, 1),
    ("sqrt", (0, 3e38), (0, 1e308), 0.5, 0.5),
    ("tanh", (-12, 12), (-25, 25), 2.5, 2),
    ("sigmoid", (-100, 100), (-750, 750), 2.5, 2),
    ("erf", (-6, 6), (-8, 8), 3, 2),
    ("silu", (-80, 100), (-700, 750), 3, 2.5),
    ("gelu", (-12, 12), (-36, 36), 6, 5),
    ("gauss_cdf", (-16, 10), (-42, 12), 5.5, 4.5),
    ("gauss_cdf", (-3, 3), (-3, 3), 5.5, 4.5),
    ("sin", (-1e4, 1e4), (-1e6, 1e6), 1, 1),
    ("cos", (-1e4, 1e4), (-1e6, 1e6), 1, 1),
    # also beside numbers that are too large for the vectors
    ("sin", (-1e9, 1e9), (-1e15, 1e15), 1, 1),
    ("cos", (-1e9, 1e9), (-1e15, 1e15), 1, 1),
    # the nearest multiples of a half pi
    ("sin", (3.1, 3.2), (3.1, 3.2), 1, 1),
    ("cos", (-1.6, -1.5), (-1.6, -1.5), 1, 1),
]


@pytest.mark.parametrize(("name", "exact"), [("abs", np.abs), ("floor", np.floor), ("ceil", np.ceil), ("round", np.rint)])
def test_rounding_is_exact(library: Library, name: str, exact: Callable[[Array], Array]) -> None:
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf, -np.inf, np.nan], library.dtype)
    x = np.concatenate([points(library.dtype, -1e9, 1e9, 500), halves])
    np.testing.assert_array_equal(library.apply(name, x), exact(x))


@dataclass
class Exact:
    """A function at these points; of each value the nearest double, what it differs from that, and its unit in the last place."""

    x: Array
    nearest: Array
    rest: Array
    ulp: Array


@functools.cache
def exact(name: str, low: float, high: float, single: bool) -> Exact:
    dtype: type[np.floating[Any]] = np.float32 if single else np.float64
    x = points(dtype, low, high, 1000)
    if name in ("log", "sqrt"):
        x = np.abs(x)
    with mpmath.workdps(40):
        values = [EXACT[name](mpmath.mpf(float(v))) for v in x]
        nearest = [float(e) for e in values]
        rest = [float(e - n) if math.isfinite(n) else 0.0 for e, n in zip(values, nearest, strict=True)]
        exponents = [mpmath.frexp(e)[1] - 1 if e else 0 for e in values]
    ulp = np.ldexp(1.0, np.array(exponents) - np.finfo(dtype).nmant)
    return Exact(x, np.array(nearest), np.array(rest), ulp)


@pytest.mark.parametrize(("name", "single", "double", "ulps", "double_ulps"), ACCURACY)
def test_accuracy(
    library: Library,
    name: str,
    single: tuple[float, float],
    double: tuple[float, float],
    ulps: float,
    double_ulps: float,
) -> None:
    is_single = library.dtype == np.float32
    e = exact(name, *(single if is_single else double), is_single)
    got = library.apply(name, e.x).astype(np.float64)
    info = np.finfo(library.dtype)
    magnitude = np.abs(e.nearest)
    overflows = magnitude > float(info.max)
    # below the smallest normal number a result may be flushed to zero
    tiny = magnitude < 2 * float(info.smallest_normal)
    infinite = np.where(e.nearest > 0, np.inf, -np.inf)
    assert (got[overflows] == infinite[overflows]).all(), f"{name}: overflow expected"
    assert (np.abs(got[tiny] - e.nearest[tiny]) <= 2 * float(info.smallest_normal)).all()
    normal = ~(overflows | tiny)
    error = np.abs(got[normal] - e.nearest[normal] - e.rest[normal]) / e.ulp[normal]
    worst = error.argmax()
    assert error[worst] <= (ulps if is_single else double_ulps), f"{name}({e.x[normal][worst]!r}) is {error[worst]} ulp off"


SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0, 1e-44, -1e-44]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", [np.nan, np.inf, 0, 1, 1, 1]),
        ("sqrt", [np.nan, np.inf, np.nan, 0, None, np.nan]),
        ("tanh", [np.nan, 1, -1, 0, 1e-44, -1e-44]),
        ("sigmoid", [np.nan, 1, 0, 0.5, 0.5, 0.5]),
        ("erf", [np.nan, 1, -1, 0, None, None]),
        ("gauss_cdf", [np.nan, 1, 0, 0.5, 0.5, 0.5]),
        ("log", [np.nan, np.inf, np.nan, -np.inf, np.log(1e-44), np.nan]),
        ("relu", [np.nan, np.inf, 0, 0, 1e-44, 0]),
    ],
)
def test_special_values(library: Library, name: str, expected: list[float | None]) -> None:
    x = np.array(SPECIAL, library.dtype)
    got = library.apply(name, x)
    wanted = np.array([got[i] if e is None else e for i, e in enumerate(expected)])
    tiny = float(np.finfo(library.dtype).smallest_normal)
    np.testing.assert_allclose(got, wanted, rtol=3e-3 if name == "log" else 1e-6, atol=tiny)


def test_exps_that_are_no_normal_numbers_are_zero(library: Library) -> None:
    """Beside elements of a vector that have results; NaN passes."""
    info = np.finfo(library.dtype)
    least = math.log(info.tiny)
    x = np.array([0.0, least - 1e-3, -1.0, -math.inf, least + 1e-3, -1e9, math.nan, -1e-30] * 3, library.dtype)
    found, wide = library.apply("exp", x), np.exp(x.astype(np.longdouble))
    np.testing.assert_array_equal(found[np.isnan(x)], x[np.isnan(x)])
    normal = wide >= info.tiny
    assert np.abs(found[normal] / wide[normal] - 1).max() < 4 * info.eps
    assert (found[wide < info.tiny] == 0).all() and (wide < info.tiny).sum() == 9


def test_functions_with_parameters(library: Library) -> None:
    """As NumPy, NaN included."""
    x = np.array([*SPECIAL, 3.5, -3.5, 0.25, 2.0, -2.0], library.dtype)
    np.testing.assert_array_equal(
        library.apply("maximum", x, 0.25), np.maximum(x, np.array(0.25, library.dtype))
    )
    np.testing.assert_array_equal(library.apply("maximum", x, -np.inf), x)
    np.testing.assert_array_equal(library.apply("clamp", x, -2, 3), np.clip(x, -2, 3))


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4, -1, -2, -3, -4, 5, -6, 0.5, -0.5, 1.5, 2.7, -2.7, 1 / 2.2, 1e-3, 31])
def test_pow(library: Library, power: float) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(0, 3, 300), np.exp2(rng.uniform(-20, 20, 300)), [0, np.inf, np.nan]])
    if power == int(power):
        x = np.concatenate([x, -x])
    x = x.astype(library.dtype)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), np.float64(np.array(power, library.dtype)))
        limits = np.finfo(library.dtype)
        normal = ~((np.abs(expected) < limits.smallest_normal) | (np.abs(expected) > limits.max))
        got = library.apply("pow", x, power)
        np.testing.assert_allclose(got[normal], expected[normal], rtol=3 * float(limits.eps))
        assert (np.abs(got[np.abs(expected) > limits.max]) == np.inf).all()
        below = np.array([-2.5, -np.inf, -0.0, -1e-30], library.dtype)
        if power != int(power):
            found = library.apply("pow", below, power)
            np.testing.assert_array_equal(found[[0, 3]], [np.nan, np.nan])
            np.testing.assert_array_equal(found[[1, 2]], [np.inf, 0] if power > 0 else [0, np.inf])
