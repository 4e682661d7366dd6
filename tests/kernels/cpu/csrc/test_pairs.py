"""Products of pairs of bfloat16, beside double: by AVX-512 BF16 where this machine has it, and by the tiles of AMX, emulated, as
those of bytes are.
"""

from __future__ import annotations

import pytest

from tests.kernels.cpu.csrc.amx import TILES
from tests.kernels.cpu.sanitize import BEGIN, HALVES, ROOMS, check_caught, check_clean

SOURCE = r"""
#define MI_NARROW bfloat16
#define MI_REAL float
#include "mirage_vec.h"
#include <stdint.h>
#include <string.h>
""" + BEGIN + ROOMS + HALVES + TILES + r"""
static int mi_amx_allowed(void) { return 0; } /* mi_gemm_pairs is that of vectors */
#include "mirage_pairs.h"

typedef void product(
    ptrdiff_t m, ptrdiff_t pairs, ptrdiff_t n, const mi_narrow *x, ptrdiff_t xs_m, const void *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate);
static void by_tiles(
    ptrdiff_t m, ptrdiff_t pairs, ptrdiff_t n, const mi_narrow *x, ptrdiff_t xs_m, const void *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate)
{
    mi_amx_product(0, m, pairs, n, x, 2 * xs_m, y, 4 * ys_p, o, 4 * os_m, accumulate);
}

/* Rows, pairs and vectors of columns, with gaps between rows. */
static void check(product *f, ptrdiff_t m, ptrdiff_t pairs, ptrdiff_t n, ptrdiff_t gap, int accumulate)
{
    const ptrdiff_t xs = 2 * (pairs + gap), ys = n + gap, os = n + 3 * gap;
    float *real_x, *real_y, *out = room((m - 1) * os + n);
    const mi_narrow *x = values((m - 1) * xs + 2 * pairs, 1, &real_x);
    const mi_narrow *y = values(pairs ? 2 * ((pairs - 1) * ys + n) : 2, 1, &real_y);
    for (ptrdiff_t i = 0; i < (m - 1) * os + n; i++) out[i] = (float)(i % 7);
    f(m, pairs, n, x, xs, y, ys, out, os, accumulate);
    for (ptrdiff_t i = 0; i < (m - 1) * os + n; i++) {
        const ptrdiff_t row = i / os, j = i % os;
        double wanted = accumulate || j >= n ? (double)(i % 7) : 0;
        for (ptrdiff_t s = 0; j < n && s < 2 * pairs; s++) {
            wanted += (double)real_x[row * xs + s] * (double)real_y[2 * (s / 2 * ys + j) + s % 2];
        }
        must(__builtin_fabs(out[i] - wanted) < 1e-4 * (1 + __builtin_fabs(wanted)), "a wrong sum");
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 2) { /* a pair less than there should be */
        by_tiles(1, 2, 16, (mi_narrow *)room(1), 4, room(32), 16, room(16), 16, 0);
        return 0;
    }
    static const ptrdiff_t rows[] = {1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 70}, pairs[] = {0, 1, 3, 16, 17, 40};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
            for (int vectors = 1; vectors < 6; vectors++) {
                for (int kind = 0; kind < 4; kind++) {
                    check(by_tiles, rows[i], pairs[p], 16 * vectors, kind & 1 ? 5 : 0, kind >> 1);
#if MI_PAIRS
                    check(mi_gemm_pairs, rows[i], pairs[p], 16 * vectors, kind & 1 ? 5 : 0, kind >> 1);
#endif
                }
            }
        }
    }
    return 0;
}
"""


@pytest.mark.parametrize("build", ["address", "native"])
def test_all_sizes(build: str) -> None:
    check_clean(build, SOURCE, "1")


def test_rows_that_end_too_early_are_found() -> None:
    check_caught("address", SOURCE, "1", "wrong", text="heap-buffer-overflow")
