"""The C headers: matrix micro-kernels and vector functions, for all element types and every vector width.

Operands end at a page boundary, before a page that cannot be touched, and gaps between rows hold NaN: an
access past a row's end is a crash or a wrong result.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest

from mirage.ir.types import DTYPES
from mirage.kernels.cpu.compile import toolchain

Array = npt.NDArray[Any]

PROT_NONE = 0  # of <sys/mman.h>

SOURCE = """
#define MI_REAL %s
#include "mirage_gemm_outer.c"
#include "mirage_gemm_stream.c"
#include "mirage_gemm_dot.c"
typedef ptrdiff_t I;
typedef const mi_real *In;
#ifdef MI_HALF
#include "mirage_half_gemm.c"
typedef const mi_half *InY;
#define OF_Y(f) f##_half
#else
typedef In InY;
#define OF_Y(f) f
#endif
int width(void) { return MI_W; }
int panel_rows(void) { return MI_PANEL_ROWS; }
int dot_steps(void) { return MI_DOT_STEPS; }
void outer(I m, I k, I n, In x, I xs_m, I xs_k, InY y, I ys_k, mi_real *o, I os_m, int accumulate)
{
    OF_Y(mi_gemm_outer)(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
}
void stream(I m, I k, I n, In x, I xs_m, I xs_k, InY y, I ys_k, mi_real *o, I os_m, int accumulate)
{
    OF_Y(mi_gemm_stream)(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
}
void dot(I m, I k, I n, In x, I xs_m, InY y, I ys_n, mi_real *o, I os_m, int accumulate)
{
    OF_Y(mi_gemm_dot)(m, k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
}
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
    panel_rows: int
    dot_steps: int
    #: of the second operand of products
    y_dtype: np.dtype[Any]

    def apply(self, name: str, x: Array, a: float = 0.0, b: float = 0.0) -> Array:
        x = np.asarray(x, self.dtype)
        out = np.empty_like(x)
        function = getattr(self.c, f"{name}_" if name != "copy" else name)
        function(ctypes.c_ssize_t(x.size), address(x), address(out), self.real(a), self.real(b))
        return out


# The widest vectors of this machine, and the narrower ones.
MACHINE_FLAGS = ["", "-mno-avx512f", "-mno-avx"] if platform.machine() in ("x86_64", "AMD64") else [""]


def compiled(real: str, half: str, flags: str) -> Library:
    """The functions over `real`; `half` is the type of the second operand of products, where that is another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_CFLAGS", f"{flags} -Wall -Wextra -Werror")
        chosen = f"{real}\n#define MI_HALF {half}" if half else real
        c = toolchain.load(toolchain.compile(SOURCE % chosen, name="micro"))
    dtype = np.float32 if real == "float" else np.float64
    y_dtype = DTYPES[half] if half else np.dtype(dtype)
    return Library(
        c, dtype, ctypes.c_float if real == "float" else ctypes.c_double, c.width(), c.panel_rows(), c.dot_steps(), y_dtype
    )


@pytest.fixture(
    scope="module",
    params=[(real, flags) for real in ("float", "double") for flags in MACHINE_FLAGS],
    ids=lambda p: f"{p[0]}{p[1]}",
)
def library(request: pytest.FixtureRequest) -> Library:
    real, flags = request.param
    return compiled(real, "", flags)


@pytest.fixture(
    scope="module",
    params=[
        (real, half, flags)
        for real, half in (("float", ""), ("double", ""), ("float", "float16"), ("float", "bfloat16"))
        for flags in MACHINE_FLAGS
    ],
    ids=lambda p: f"{p[1] or p[0]}{p[2]}",
)
def products(request: pytest.FixtureRequest) -> Library:
    return compiled(*request.param)


def address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def at_page_end(rows: int, columns: int, gap: int, dtype: type[np.floating[Any]], fill: float) -> Array:
    """[rows, columns] with `gap` elements of `fill` between rows; the last row ends where access ends."""
    item = np.dtype(dtype).itemsize
    count = max(rows * (columns + gap) - gap, 0)
    page = mmap.PAGESIZE
    used = (count * item + page - 1) // page * page
    memory = mmap.mmap(-1, used + page)
    base = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base.ctypes.data + used), ctypes.c_size_t(page), PROT_NONE) == 0
    flat = base[used - count * item : used].view(dtype)
    flat[:] = fill
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), ((columns + gap) * item, item))


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


def sizes(library: Library) -> list[tuple[int, int, int]]:
    w, kc, steps = library.width, library.panel_rows, library.dot_steps
    every_n = [1, w - 1, w, w + 1, 2 * w + 1, 3 * w, 4 * w, 5 * w - 1, 97]
    cases = [(m, k, n) for m in (1, 2, 3, 5, 7, 8, 9) for k in (1, w - 1, w, 2 * w + 1, 37) for n in every_n]
    cases += [(m, k, n) for m in (1, 4, 13, 24, 31) for k in (kc, kc + 1) for n in (1, 3 * w + 1, 4 * w)]
    # blocks and strips of mi_gemm_stream end inside these, and there are more rows than it takes at once
    cases += [(m, 9, n) for m in (1, 3, 8) for n in (4095, 4097, 6150)]
    cases += [(m, k, n) for m in (2, 4, 6, 16, 17, 33) for k in (8, 24, 31) for n in (2 * w, 4 * w + 1, 1050)]
    # parts of k of mi_gemm_dot end inside these, and columns in the middle of a block
    cases += [(m, k, n) for m in (4, 6, 11, 16, 17) for k in (steps + 1, 4 * steps + 3) for n in (8, w + 1, 2 * w + 3)]
    return [case for case in cases if min(case) > 0]


def check_product(
    library: Library, kind: str, m: int, k: int, n: int, accumulate: bool, transposed: bool = False, gap: int = 5
) -> None:
    """`gap` elements lie between rows of y."""
    rng = np.random.default_rng([m, k, n])
    dtype, nan = library.dtype, float("nan")
    x = at_page_end(k, m, 2, dtype, nan).T if transposed else at_page_end(m, k, 3, dtype, nan)
    y_type = library.y_dtype.type
    y = at_page_end(n, k, gap, y_type, nan).T if kind == "dot" else at_page_end(k, n, gap, y_type, nan)
    x[:] = rng.standard_normal((m, k))
    y[:] = rng.standard_normal((k, n))
    o_gap = 2
    o = at_page_end(m, n, o_gap, dtype, -77.0)
    before = rng.standard_normal((m, n)).astype(dtype)
    o[:] = before if accumulate else nan
    item = np.dtype(dtype).itemsize
    xs_m, xs_k = (s // item for s in x.strides)
    ys_k, ys_n = (s // y.itemsize for s in y.strides)
    i = ctypes.c_ssize_t
    if kind == "dot":
        strides = [address(x), i(xs_m), address(y), i(ys_n)]
    else:
        strides = [address(x), i(xs_m), i(xs_k), address(y), i(ys_k)]
    getattr(library.c, kind)(i(m), i(k), i(n), *strides, address(o), i(n + o_gap), int(accumulate))

    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    start = before.astype(np.float64) * accumulate
    bound = (k + 2) * np.finfo(dtype).eps * (np.abs(wide_x) @ np.abs(wide_y) + np.abs(start))
    error = np.abs(o - (wide_x @ wide_y + start))
    assert (error <= bound).all(), f"{kind} m={m} k={k} n={n}: error {error.max()}"
    if m > 1:
        between = np.lib.stride_tricks.as_strided(o[0, n - 1 :], (m - 1, o_gap + 1), o.strides)[:, 1:]
        assert (between == -77.0).all(), f"{kind} m={m} k={k} n={n} wrote past the end of a row"


@pytest.mark.parametrize("kind", ["outer", "stream", "dot"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_products(products: Library, kind: str, accumulate: bool) -> None:
    for m, k, n in sizes(products):
        check_product(products, kind, m, k, n, accumulate)


@pytest.mark.parametrize("kind", ["outer", "stream"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_with_contiguous_rows(products: Library, kind: str, accumulate: bool) -> None:
    """Of register blocks of every width, which are read in order and fetched ahead, and of others; parts of y end inside."""
    w, kc = products.width, products.panel_rows
    for m in (*range(1, 13), 16, 17, 23, 24, 32, 33):
        for k in (1, 8, 37, kc + 1):
            for n in (w, 2 * w, 3 * w, 4 * w, 5 * w, 7 * w, 8 * w):
                check_product(products, kind, m, k, n, accumulate, gap=0)
    for m, k, n in [(5, 300, 4 * w), (26, 200, 8 * w), (9, 70, 16 * w)]:
        check_product(products, kind, m, k, n, accumulate, gap=0)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("gap", [0, 1])
def test_dot_products_of_groups_of_rows(products: Library, gap: int, accumulate: bool) -> None:
    """Groups of eight and of four rows, as many at once as fit and more; strips of columns end inside."""
    w, steps = products.width, products.dot_steps
    for m in (1, 2, 3, 5, 6, 8, 12, 13, 16, 19, 64, 67, 75):
        for k in (1, w, 64, 67):
            for n in (w, 5 * w + 3):
                check_product(products, "dot", m, k, n, accumulate, gap=gap)
    for m, k, n in [(8, 64, 300), (16, 64, 300), (21, 129, 130), (24, steps, 3 * w), (24, 2 * steps + 1, 3 * w)]:
        check_product(products, "dot", m, k, n, accumulate, gap=gap)


@pytest.mark.parametrize("kind", ["outer", "stream"])
def test_products_of_a_transposed_operand(products: Library, kind: str) -> None:
    for m, k, n in [(1, 1, 1), (3, 17, 5), (8, 40, 33), (25, 129, 50)]:
        check_product(products, kind, m, k, n, accumulate=False, transposed=True)


@pytest.mark.parametrize("kind", ["outer", "stream", "dot"])
def test_no_terms(products: Library, kind: str) -> None:
    """An empty sum overwrites with zero, or adds nothing."""
    i = ctypes.c_ssize_t
    for accumulate, expected in ((0, 0.0), (1, 5.0)):
        o = np.full((3, 7), 5.0, products.dtype)
        x, y = (np.full(100, np.nan, t) for t in (products.dtype, products.y_dtype))
        operands = [address(x), i(1), *([] if kind == "dot" else [i(1)]), address(y), i(7)]
        getattr(products.c, kind)(i(3), i(0), i(7), *operands, address(o), i(7), accumulate)
        assert (o == expected).all()


@pytest.mark.parametrize("kind", ["outer", "stream", "dot"])
def test_nan_stays_in_its_row_and_column(products: Library, kind: str) -> None:
    """Padding lanes and duplicated rows never mix values of other outputs."""
    m, k, n = 5, products.width + 3, products.width + 1
    x, y = np.ones((m, k), products.dtype), np.ones((k, n), products.y_dtype)
    x[3, k - 1] = np.nan
    y[0, n - 1] = np.inf
    o = np.empty((m, n), products.dtype)
    i = ctypes.c_ssize_t
    if kind == "dot":
        across = np.ascontiguousarray(y.T)
        products.c.dot(i(m), i(k), i(n), address(x), i(k), address(across), i(k), address(o), i(n), 0)
    else:
        getattr(products.c, kind)(
            i(m), i(k), i(n), address(x), i(k), i(1), address(y), i(n), address(o), i(n), 0
        )
    np.testing.assert_array_equal(o, x @ y.astype(products.dtype))


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


def points(library: Library, low: float, high: float, count: int) -> Array:
    """Evenly spaced, and random with every magnitude of a number between the limits."""
    rng = np.random.default_rng(1)
    info = np.finfo(library.dtype)
    exponents = rng.uniform(info.minexp, np.log2(max(abs(low), abs(high))), count)
    magnitudes = np.exp2(exponents) * rng.choice([-1.0, 1.0], count)
    all_points = np.concatenate([np.linspace(low, high, count), np.clip(magnitudes, low, high)])
    return all_points.astype(library.dtype)


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
]


@pytest.mark.parametrize(("name", "exact"), [("abs", np.abs), ("floor", np.floor), ("ceil", np.ceil), ("round", np.rint)])
def test_rounding_is_exact(library: Library, name: str, exact: Callable[[Array], Array]) -> None:
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf, -np.inf, np.nan], library.dtype)
    x = np.concatenate([points(library, -1e9, 1e9, 500), halves])
    np.testing.assert_array_equal(library.apply(name, x), exact(x))


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
    x = points(library, *(single if is_single else double), 1000)
    if name in ("log", "sqrt"):
        x = np.abs(x)
    with mpmath.workdps(40):
        exact = [EXACT[name](mpmath.mpf(float(v))) if v else EXACT[name](mpmath.mpf(0)) for v in x]
        got = library.apply(name, x)
        info = np.finfo(library.dtype)
        worst, where = 0.0, 0.0
        for value, g, e in zip(x, got, exact, strict=True):
            if abs(e) > mpmath.mpf(float(info.max)):
                assert g == (np.inf if e > 0 else -np.inf), f"{name}({value}) = {g}, overflow expected"
                continue
            # below the smallest normal number a result may be flushed to zero
            if abs(e) < 2 * float(info.smallest_normal):
                assert abs(mpmath.mpf(float(g)) - e) <= 2 * float(info.smallest_normal)
                continue
            ulp = mpmath.mpf(2) ** (mpmath.floor(mpmath.log(abs(e), 2)) - info.nmant)
            error = float(abs(mpmath.mpf(float(g)) - e) / ulp)
            worst, where = max((worst, where), (error, float(value)))
    assert worst <= (ulps if is_single else double_ulps), f"{name}({where!r}) is {worst} ulp off"


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


def test_functions_with_parameters(library: Library) -> None:
    """As NumPy, NaN included."""
    x = np.array([*SPECIAL, 3.5, -3.5, 0.25, 2.0, -2.0], library.dtype)
    np.testing.assert_array_equal(
        library.apply("maximum", x, 0.25), np.maximum(x, np.array(0.25, library.dtype))
    )
    np.testing.assert_array_equal(library.apply("maximum", x, -np.inf), x)
    np.testing.assert_array_equal(library.apply("clamp", x, -2, 3), np.clip(x, -2, 3))


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4, -1, -2, -3, -4, 5, 0.5, -0.5, 1.5, 2.7, 31])
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
