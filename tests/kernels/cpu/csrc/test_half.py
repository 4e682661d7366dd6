"""The C header of 16-bit elements: every bit pattern of both types against NumPy and ml_dtypes, for every vector width."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mirage.ir.types import DTYPES
from mirage.kernels.cpu.compile import toolchain
from tests.kernels.cpu.csrc.micro import MACHINE_FLAGS, address, at_page_end

SOURCE = """
#define MI_REAL float
#define MI_NARROW %s
#include "mirage_vec.h"
typedef ptrdiff_t I;
typedef const mi_narrow *In;
int width(void) { return MI_W; }
void widen(I n, In x, float *o)
{
    for (I i = 0; i < n; i += MI_W) mi_store(o + i, mi_load_narrow(x + i));
}
void narrow(I n, const float *x, mi_narrow *o)
{
    for (I i = 0; i < n; i += MI_W) mi_store_narrow(o + i, mi_load(x + i));
}
void load_n(int n, In x, float *o) { mi_store(o, mi_load_narrow_n(x, n)); }
void store_n(int n, const float *x, mi_narrow *o) { mi_store_narrow_n(o, mi_load_n(x, n), n); }
void load_strided(I stride, In x, float *o) { mi_store(o, mi_load_narrow_strided(x, stride)); }
void load_strided_n(I stride, int n, In x, float *o) { mi_store(o, mi_load_narrow_strided_n(x, stride, n)); }
void store_strided_n(I stride, int n, const float *x, mi_narrow *o)
{
    mi_store_narrow_strided_n(o, stride, mi_load_n(x, n), n);
}
void transpose(I m, I n, In x, I x_step, float *o, I o_step) { mi_transpose_narrow(m, n, x, x_step, o, o_step); }
void broadcast(In x, float *o) { mi_store(o, mi_broadcast_narrow(x)); }
"""


@dataclass
class Library:
    c: ctypes.CDLL
    dtype: np.dtype
    width: int


@pytest.fixture(
    scope="module",
    # F16C is what a processor without AVX-512 has beside its vectors
    params=[
        (name, flags)
        for name in ("float16", "bfloat16")
        for flags in (*MACHINE_FLAGS, *(f"{f} -mno-f16c" for f in MACHINE_FLAGS[1:]))
    ],
    ids=lambda p: f"{p[0]}{p[1]}",
)
def library(request: pytest.FixtureRequest) -> Library:
    name, flags = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_CFLAGS", f"{flags} -Wall -Wextra -Werror")
        c = toolchain.load(toolchain.compile(SOURCE % name, name="half"))
    return Library(c, DTYPES[name], c.width())


def every(dtype: np.dtype) -> np.ndarray:
    """All 65536 elements of a 16-bit type."""
    return np.arange(1 << 16).astype(np.uint16).view(dtype)


def test_every_element_is_widened_exactly(library: Library) -> None:
    x = every(library.dtype)
    out = np.empty(x.size, np.float32)
    library.c.widen(ctypes.c_ssize_t(x.size), address(x), address(out))
    want = x.astype(np.float32)
    number = ~np.isnan(want)
    # bits, as zeros have signs
    np.testing.assert_array_equal(out[number].view(np.uint32), want[number].view(np.uint32))
    assert np.isnan(out[~number]).all()


def floats(dtype: np.dtype) -> np.ndarray:
    """Every element of a type, what is halfway to the next one, and the floats beside these."""
    exact = every(dtype).astype(np.float32)
    finite = np.sort(np.unique(exact[np.isfinite(exact)]))
    # the step beyond the largest number is the one before it
    steps = [*np.diff(finite.astype(np.float64)), float(finite[-1]) - float(finite[-2])]
    with np.errstate(over="ignore"):
        halfway = (finite + 0.5 * np.array(steps)).astype(np.float32)
    beside = [np.nextafter(a, np.float32(b)) for a in (finite, halfway) for b in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4028235e38], np.float32)
    # signalling NaN, whose upper bits alone would be those of infinity
    low = np.array([0x7F800001, 0xFF800001, 0x7F80FFFF], np.uint32).view(np.float32)
    return np.concatenate([exact, halfway, -halfway, *beside, bits, special, low])


def test_floats_are_rounded_to_nearest(library: Library) -> None:
    x = floats(library.dtype)
    x = np.resize(x, -(-x.size // library.width) * library.width)
    out = np.empty(x.size, library.dtype)
    library.c.narrow(ctypes.c_ssize_t(x.size), address(x), address(out))
    with np.errstate(all="ignore"):
        want = x.astype(library.dtype)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(out.view(np.uint16)[number], want.view(np.uint16)[number])
    assert np.isnan(out[~number].astype(np.float32)).all()
    assert np.isinf(out[number].astype(np.float32)).sum() > 2


def test_parts_of_vectors(library: Library) -> None:
    """Nothing outside of n lanes is touched: the last one ends at the end of a page."""
    w, half = library.width, ctypes.c_ssize_t
    for n in range(1, w + 1):
        x: np.ndarray[Any, Any] = at_page_end(1, n, 0, library.dtype.type, 0.0)[0]
        x[:] = np.arange(1, n + 1)
        lanes = np.full(w, -1, np.float32)
        library.c.load_n(n, address(x), address(lanes))
        np.testing.assert_array_equal(lanes, [*range(1, n + 1), *[0] * (w - n)])
        library.c.store_n(n, address(lanes + 1), address(x))
        np.testing.assert_array_equal(x.astype(np.float32), np.arange(2, n + 2))
        stride = 3
        y = at_page_end(n, 1, stride - 1, library.dtype.type, 0.0)[:, 0]
        y[:] = np.arange(1, n + 1)
        library.c.load_strided_n(half(stride), n, address(y), address(lanes))
        np.testing.assert_array_equal(lanes, [*range(1, n + 1), *[0] * (w - n)])
        library.c.store_strided_n(half(stride), n, address(lanes + 2), address(y))
        np.testing.assert_array_equal(y.astype(np.float32), np.arange(3, n + 3))


def test_transposes(library: Library) -> None:
    size, w = ctypes.c_ssize_t, library.width
    for m, n in [(1, 1), (w, w), (w + 1, 2 * w - 1), (3, 40), (40, 3)]:
        x = at_page_end(m, n, 2, library.dtype.type, float("nan"))
        x[:] = np.arange(m * n).reshape(m, n) % 251
        out = at_page_end(n, m, 3, np.float32, -1.0)
        library.c.transpose(size(m), size(n), address(x), size(n + 2), address(out), size(m + 3))
        np.testing.assert_array_equal(out, x.T.astype(np.float32))
        between = np.lib.stride_tricks.as_strided(out[0, m - 1 :], (n - 1, 4), out.strides)[:, 1:]
        assert (between == -1).all()


def test_strides_and_broadcasts(library: Library) -> None:
    w = library.width
    x = np.arange(3 * w).astype(library.dtype)
    lanes = np.empty(w, np.float32)
    library.c.load_strided(ctypes.c_ssize_t(3), address(x), address(lanes))
    np.testing.assert_array_equal(lanes, 3 * np.arange(w))
    library.c.broadcast(address(x[5:]), address(lanes))
    np.testing.assert_array_equal(lanes, [5] * w)
