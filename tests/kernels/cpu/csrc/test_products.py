"""The C micro-kernels of matrix products, for all element types and every vector width."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mirage.ir.types import DTYPES, ELEMENTS
from mirage.kernels.cpu.emit.matmul import product_parts, type_macros
from tests.kernels.cpu.csrc.micro import MACHINE_FLAGS, address, at_page_end, load
from tests.kernels.kernels import drawn

SOURCE = """
#ifdef MI_NARROW
#include "mirage_narrow_gemm.h"
typedef const mi_narrow *InY;
#define OF_Y(f) f##_narrow
#else
#include "mirage_gemm.h"
typedef const mi_real *InY;
#define OF_Y(f) f
#endif
typedef ptrdiff_t I;
typedef const mi_real *In;
int width(void) { return MI_W; }
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
"""
KINDS = ("outer", "stream", "dot")
#: of the sizes, always one in five: as many of each m, k and n; and all of them
PARTS = [pytest.param(slice(None, None, 5), id="some"), pytest.param(slice(None), id="all", marks=pytest.mark.slow)]


@dataclass
class Library:
    c: ctypes.CDLL
    #: of sums, of the first operand and of the result
    dtype: type[np.floating[Any]]
    #: of the second operand
    y_dtype: np.dtype[Any]
    #: of what lies between the rows of the second operand
    gap: float
    width: int
    panel_rows: int
    dot_steps: int


@pytest.fixture(
    scope="module",
    params=[(dtype, flags) for dtype in (*DTYPES, "int8", "uint8") for flags in MACHINE_FLAGS],
    ids=lambda p: f"{p[0]}{p[1]}",
)
def library(request: pytest.FixtureRequest) -> Library:
    dtype, flags = request.param
    outer, stream, dot, *half = product_parts([dtype])
    # what two of them keep to themselves
    outer += "int panel_rows(void) { return MI_PANEL_ROWS; }\n"
    dot += "int dot_steps(void) { return MI_DOT_STEPS; }\n"
    c = load("\n".join(type_macros([dtype])) + SOURCE, flags, (outer, stream, dot, *half))
    stored = ELEMENTS[dtype]
    computed, gap = np.float64 if dtype == "float64" else np.float32, float("nan") if dtype in DTYPES else 77
    return Library(c, computed, stored, gap, c.width(), c.panel_rows(), c.dot_steps())


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


def check_products(
    library: Library, m: int, k: int, n: int, kinds: Sequence[str] = KINDS, transposed: bool = False, gap: int = 5
) -> None:
    """The products of one pair of operands by micro-kernels of these kinds, which overwrite and which accumulate.

    `transposed` is x, and `gap` elements lie between rows of y.
    """
    rng = np.random.default_rng([m, k, n])
    dtype, nan = library.dtype, float("nan")
    x = at_page_end(k, m, 2, dtype, nan).T if transposed else at_page_end(m, k, 3, dtype, nan)
    x[:] = rng.standard_normal((m, k))
    values = drawn(rng, (k, n), library.y_dtype)
    before = rng.standard_normal((m, n)).astype(dtype)
    wide_x, wide_y = x.astype(np.float64), values.astype(np.float64)
    product, magnitude = wide_x @ wide_y, np.abs(wide_x) @ np.abs(wide_y)
    o_gap = 2
    o = at_page_end(m, n, o_gap, dtype, -77.0)
    between = np.lib.stride_tricks.as_strided(o[0, n - 1 :], (m - 1, o_gap + 1), o.strides)[:, 1:]
    y_type = library.y_dtype.type
    rows = at_page_end(k, n, gap, y_type, library.gap) if {"outer", "stream"} & {*kinds} else values
    rows[:] = values
    columns = at_page_end(n, k, gap, y_type, library.gap).T if "dot" in kinds else values
    columns[:] = values
    i = ctypes.c_ssize_t
    xs_m, xs_k = (i(s // x.itemsize) for s in x.strides)
    for kind in kinds:
        if kind == "dot":
            operands = [address(x), xs_m, address(columns), i(columns.strides[1] // columns.itemsize)]
        else:
            operands = [address(x), xs_m, xs_k, address(rows), i(rows.strides[0] // rows.itemsize)]
        run = getattr(library.c, kind)
        for accumulate in (False, True):
            o[:] = before if accumulate else nan
            run(i(m), i(k), i(n), *operands, address(o), i(n + o_gap), int(accumulate))
            start = before.astype(np.float64) * accumulate
            bound = (k + 2) * np.finfo(dtype).eps * (magnitude + np.abs(start))
            error = np.abs(o - (product + start))
            what = f"{kind} m={m} k={k} n={n} accumulate={accumulate}"
            assert (error <= bound).all(), f"{what}: error {error.max()}"
            assert (between == -77.0).all(), f"{what} wrote past the end of a row"


@pytest.mark.parametrize("part", PARTS)
def test_products(library: Library, part: slice) -> None:
    for m, k, n in sizes(library)[part]:
        check_products(library, m, k, n)


@pytest.mark.parametrize("part", PARTS)
def test_products_with_contiguous_rows(library: Library, part: slice) -> None:
    """Of register blocks of every width, which are read in order and fetched ahead, and of others; parts of y end inside."""
    w, kc = library.width, library.panel_rows
    every_m, every_k = (*range(1, 13), 16, 17, 23, 24, 32, 33), (1, 8, 37, kc + 1)
    cases = [(m, k, n * w) for m in every_m for k in every_k for n in (1, 2, 3, 4, 5, 7, 8)]
    for m, k, n in [*cases[part], (5, 300, 4 * w), (26, 200, 8 * w), (9, 70, 16 * w)]:
        check_products(library, m, k, n, ["outer", "stream"], gap=0)


@pytest.mark.parametrize("gap", [0, 1])
def test_dot_products_of_groups_of_rows(library: Library, gap: int) -> None:
    """Groups of eight and of four rows, as many at once as fit and more; strips of columns end inside."""
    w, steps = library.width, library.dot_steps
    for m in (1, 2, 3, 5, 6, 8, 12, 13, 16, 19, 64, 67, 75):
        for k in (1, w, 64, 67):
            for n in (w, 5 * w + 3):
                check_products(library, m, k, n, ["dot"], gap=gap)
    for m, k, n in [(8, 64, 300), (16, 64, 300), (21, 129, 130), (24, steps, 3 * w), (24, 2 * steps + 1, 3 * w)]:
        check_products(library, m, k, n, ["dot"], gap=gap)


def test_products_of_a_transposed_operand(library: Library) -> None:
    for m, k, n in [(1, 1, 1), (3, 17, 5), (8, 40, 33), (25, 129, 50)]:
        check_products(library, m, k, n, ["outer", "stream"], transposed=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_terms(library: Library, kind: str) -> None:
    """An empty sum overwrites with zero, or adds nothing."""
    i = ctypes.c_ssize_t
    for accumulate, expected in ((0, 0.0), (1, 5.0)):
        o = np.full((3, 7), 5.0, library.dtype)
        x, y = np.full(100, np.nan, library.dtype), np.full(100, library.gap, library.y_dtype)
        operands = [address(x), i(1), *([] if kind == "dot" else [i(1)]), address(y), i(7)]
        getattr(library.c, kind)(i(3), i(0), i(7), *operands, address(o), i(7), accumulate)
        assert (o == expected).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_row_and_column(library: Library, kind: str) -> None:
    """Padding lanes and duplicated rows never mix values of other outputs."""
    m, k, n = 5, library.width + 3, library.width + 1
    x, y = np.ones((m, k), library.dtype), np.ones((k, n), library.y_dtype)
    x[3, k - 1] = np.nan
    if library.y_dtype.name in DTYPES:
        y[0, n - 1] = np.inf
    o = np.empty((m, n), library.dtype)
    i = ctypes.c_ssize_t
    if kind == "dot":
        across = np.ascontiguousarray(y.T)
        library.c.dot(i(m), i(k), i(n), address(x), i(k), address(across), i(k), address(o), i(n), 0)
    else:
        getattr(library.c, kind)(
            i(m), i(k), i(n), address(x), i(k), i(1), address(y), i(n), address(o), i(n), 0
        )
    np.testing.assert_array_equal(o, x @ y.astype(library.dtype))
