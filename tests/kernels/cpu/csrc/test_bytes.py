"""The C headers for tensors that are stored in bytes: what is loaded, and products of bytes, for every vector width."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.emit.matmul import product_parts, type_macros
from tests.kernels.cpu.csrc.micro import MACHINE_FLAGS, address, at_page_end, load
from tests.kernels.kernels import drawn

SOURCE = """
#include "mirage_narrow_gemm.h"
typedef ptrdiff_t I;
typedef const mi_narrow *In;
int width(void) { return MI_W; }
void widen(I n, In x, float *o)
{
    for (I i = 0; i < n; i += MI_W) mi_store(o + i, mi_load_narrow(x + i));
}
void load_n(int n, In x, float *o) { mi_store(o, mi_load_narrow_n(x, n)); }
void load_strided(I stride, In x, float *o) { mi_store(o, mi_load_narrow_strided(x, stride)); }
void load_strided_n(I stride, int n, In x, float *o) { mi_store(o, mi_load_narrow_strided_n(x, stride, n)); }
void transpose(I m, I n, In x, I x_step, float *o, I o_step) { mi_transpose_narrow(m, n, x, x_step, o, o_step); }
void broadcast(In x, float *o) { mi_store(o, mi_broadcast_narrow(x)); }
void product_int8(I m, I k, I n, const signed char *x, I xs_m, In y, I ys_n, float *o, I os_m, int accumulate)
{
    MI_GEMM_DOT_BYTES(int8)(m, k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
}
void product_uint8(I m, I k, I n, const unsigned char *x, I xs_m, In y, I ys_n, float *o, I os_m, int accumulate)
{
    MI_GEMM_DOT_BYTES(uint8)(m, k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
}
"""
SIZE = ctypes.c_ssize_t


@dataclass
class Library:
    c: ctypes.CDLL
    dtype: np.dtype[Any]
    width: int


@pytest.fixture(
    scope="module",
    params=[(name, flags) for name in ("int8", "uint8") for flags in (*MACHINE_FLAGS, "-mno-avx512vnni -mno-avxvnni")],
    ids=lambda p: f"{p[0]}{p[1]}",
)
def library(request: pytest.FixtureRequest) -> Library:
    name, flags = request.param
    if "vnni" in flags and len(MACHINE_FLAGS) == 1:
        pytest.skip("products of bytes of x86")
    c = load("\n".join(type_macros([name])) + SOURCE, flags, product_parts(["int8", "uint8"]))
    return Library(c, ELEMENTS[name], c.width())


def numbers(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray:
    return drawn(np.random.default_rng(seed), shape, dtype)


def test_every_byte_is_widened(library: Library) -> None:
    x = np.arange(256).astype(np.uint8).view(library.dtype)
    out = np.empty(256, np.float32)
    library.c.widen(SIZE(256), address(x), address(out))
    np.testing.assert_array_equal(out, x.astype(np.float32))
    lanes = np.empty(library.width, np.float32)
    for k in (0, 127, 128, 255):
        library.c.broadcast(address(x[k:]), address(lanes))
        assert (lanes == np.float32(x[k])).all()


def test_parts_of_vectors_and_strides(library: Library) -> None:
    """Nothing outside of n lanes is touched: the last one ends at the end of a page."""
    w, stride = library.width, 3
    for n in range(1, w + 1):
        x = at_page_end(1, n, 0, library.dtype.type, 0)[0]
        x[:] = numbers(library.dtype, (n,), n)
        want = [*x.astype(np.float32), *[0] * (w - n)]
        lanes = np.full(w, -1, np.float32)
        library.c.load_n(n, address(x), address(lanes))
        np.testing.assert_array_equal(lanes, want)
        y = at_page_end(n, 1, stride - 1, library.dtype.type, 0)[:, 0]
        y[:] = x
        library.c.load_strided_n(SIZE(stride), n, address(y), address(lanes))
        np.testing.assert_array_equal(lanes, want)
    library.c.load_strided(SIZE(stride), address(y), address(lanes))
    np.testing.assert_array_equal(lanes, want)


def test_transposes(library: Library) -> None:
    w = library.width
    for m, n in [(1, 1), (w, w), (w + 1, 2 * w - 1), (3, 40), (40, 3)]:
        x = at_page_end(m, n, 2, library.dtype.type, 77)
        x[:] = numbers(library.dtype, (m, n), m)
        out = np.full((n, m + 3), -1, np.float32)
        library.c.transpose(SIZE(m), SIZE(n), address(x), SIZE(n + 2), address(out), SIZE(m + 3))
        np.testing.assert_array_equal(out[:, :m], x.T.astype(np.float32))
        assert (out[:, m:] == -1).all()


@pytest.mark.parametrize("rows", ["int8", "uint8"])
@pytest.mark.parametrize("k", [0, 1, 31, 63, 64, 65, 130, 1024])
def test_products_are_exact(library: Library, k: int, rows: str) -> None:
    """Sums below 2^24 are those of integers; nothing beyond the ends of rows is read or written."""
    for m in (1, 2, 3, 4, 5, 7, 9):
        for n in (1, 3, 4, 15, 16, 17, 33):
            # a page cannot end behind nothing
            of_rows = ELEMENTS[rows]
            x, y = (at_page_end(count, max(k, 1), 5, t.type, 77) for count, t in ((m, of_rows), (n, library.dtype)))
            x[:], y[:] = numbers(of_rows, x.shape, m), numbers(library.dtype, y.shape, n)
            if k > 256:
                x //= 4
            want = x[:, :k].astype(np.int64) @ y[:, :k].astype(np.int64).T
            o = np.full((m, n + 2), -5, np.float32)
            for times in (1, 2):
                strides = SIZE(x.strides[0]), SIZE(y.strides[0])
                library.c[f"product_{rows}"](
                    SIZE(m), SIZE(k), SIZE(n), address(x), strides[0], address(y), strides[1], address(o), SIZE(n + 2), times - 1
                )
                np.testing.assert_array_equal(o[:, :n], times * want)
                assert (o[:, n:] == -5).all()


@pytest.mark.parametrize("rows", ["int8", "uint8"])
def test_long_sums_are_not_cut_off(library: Library, rows: str) -> None:
    """More terms than 32 bits hold products of, all of them the largest."""
    of_rows, limits = np.iinfo(ELEMENTS[rows]), np.iinfo(library.dtype)
    for a, b in ((of_rows.min, limits.min), (of_rows.max, limits.max), (of_rows.min, limits.max), (of_rows.max, limits.min)):
        x, y = np.full((2, 150_000), a, of_rows.dtype), np.full((3, 150_000), b, library.dtype)
        o = np.empty((2, 3), np.float32)
        k = x.shape[1]
        library.c[f"product_{rows}"](SIZE(2), SIZE(k), SIZE(3), address(x), SIZE(k), address(y), SIZE(k), address(o), SIZE(3), 0)
        np.testing.assert_allclose(o, float(a) * float(b) * k, rtol=3e-5)
