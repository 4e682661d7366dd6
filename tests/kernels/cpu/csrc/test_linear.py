"""Products of matrices as they lie under the sanitizers, on tensors that end where memory does, beside loops."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.sanitize import BEGIN, BUILDS, FOREIGN, ROOMS, check_caught, check_clean

#: all micro-kernels of products are compiled
pytestmark = pytest.mark.slow

CODE = r"""
#include "linear.c"
#include "mirage_gemm_outer.c"
#include "mirage_gemm_stream.c"
#include "mirage_gemm_dot.c"
"""

SOURCE = BEGIN + CODE + ROOMS + r"""
static products matrices(const float *x, const float *w, float *out, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, int transposed)
{
    return (products){
        .x = x, .w = w, .out = out, .m = m, .k = k, .n = n, .x_row = k, .x_term = 1, .w_row = transposed ? k : n, .out_row = n,
        .transposed = transposed,
    };
}

/* `added`: 0 for nothing, 1 for a row, 2 for a whole tensor */
static void check(ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, int transposed, int added, int again, int threads)
{
    float *x = room(m * k), *w = room(k * n), *bias = room(n), *whole = room(m * n), *out = room(m * n);
    products p = matrices(x, w, out, m, k, n, transposed);
    p.added = added == 2 ? whole : added ? bias : NULL, p.whole = added == 2, p.resident = again;
    must(!mi_products(&p, mi_pool_run, threads), "no memory");
    for (ptrdiff_t i = 0; i < m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) {
            float sum = added == 2 ? whole[i * n + j] : added ? bias[j] : 0;
            for (ptrdiff_t t = 0; t < k; t++) sum += x[i * k + t] * w[transposed ? j * k + t : t * n + j];
            must(out[i * n + j] == sum, "a wrong sum"); /* of small whole numbers: exact */
        }
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

/* a result [a,m,b,n] of x[a,b,m,k] or x[a,b,k,m], and of w[b,n,k] or w[b,k,n], which all of a share */
static void check_batch(
    ptrdiff_t a, ptrdiff_t b, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, int transposed, int resident, int threads)
{
    const ptrdiff_t count = a * b * m * n;
    float *x = room(a * b * m * k), *w = room(b * k * n), *added = room(count), *out = room(count);
    products p = matrices(x, w, out, m, k, n, transposed);
    p.out_row = b * n, p.dims = 2, p.resident = resident, p.activation = RELU, p.added = added, p.whole = 1;
    p.sizes[0] = a, p.x_step[0] = b * m * k, p.out_step[0] = m * b * n;
    p.sizes[1] = b, p.x_step[1] = m * k, p.w_step[1] = k * n, p.out_step[1] = n;
    if (!transposed) p.x_row = 1, p.x_term = m;
    must(!mi_products(&p, mi_pool_run, threads), "no memory");
    for (ptrdiff_t at = 0; at < count; at++) {
        const ptrdiff_t j = at % n, h = at / n % b, i = at / n / b % m, outer = at / n / b / m;
        const float *row = x + (outer * b + h) * m * k, *matrix = w + h * k * n;
        float sum = added[at];
        for (ptrdiff_t t = 0; t < k; t++) {
            sum += row[transposed ? i * k + t : t * m + i] * matrix[transposed ? j * k + t : t * n + j];
        }
        must(out[at] == (sum < 0 ? 0 : sum), "a wrong sum of a batch");
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

/* groups that end at `ends`, of 32 or 64 bits, with a gate or without */
static void check_groups(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const int *ends, int groups, int transposed, int wide, int packed, int gated,
    int threads)
{
    const ptrdiff_t matrix = (n + mi_panel() - 1) / mi_panel() * mi_panel() * k;
    float *x = room(m * k), *w[2] = {room(groups * k * n), room(groups * k * n)}, *read[2] = {w[0], w[1]}, *out = room(m * n);
    int64_t *wide_ends = malloc((size_t)groups * sizeof(int64_t));
    for (int j = 0; j < groups; j++) wide_ends[j] = ends[j];
    for (int i = 0; packed && i < 2; i++) {
        read[i] = room(groups * matrix);
        for (int j = 0; j < groups; j++) {
            packing of = {w[i] + j * k * n, read[i] + j * matrix, k, n, transposed ? k : n, transposed};
            must(!mi_pack(&of, mi_pool_run, threads), "no memory");
        }
    }
    grouped g = {
        x, read[0], gated ? read[1] : NULL, wide ? (const void *)wide_ends : ends, out, m, k, n, groups, transposed, wide, packed,
        gated ? RELU : IDENTITY,
    };
    must(!mi_grouped(&g, mi_pool_run, threads), "no memory");
    for (ptrdiff_t i = 0, j = 0; i < m; i++) {
        while (j < groups && i >= ends[j]) j++;
        for (ptrdiff_t c = 0; c < n; c++) {
            float sums[2] = {0, 0};
            for (ptrdiff_t t = 0; t < k && j < groups; t++) {
                const ptrdiff_t at = j * k * n + (transposed ? c * k + t : t * n + c);
                for (int p = 0; p < 2; p++) sums[p] += x[i * k + t] * w[p][at];
            }
            const float wanted = gated ? (sums[0] < 0 ? 0 : sums[0]) * sums[1] : sums[0];
            must(out[i * n + c] == wanted, "a wrong sum of a group");
        }
    }
    wide_ends[groups - 1] = m + 1;
    g.wide = 1, g.ends = wide_ends;
    must(mi_grouped(&g, mi_pool_run, threads) == MI_WRONG_ENDS, "a group that exceeds the rows");
    free(wide_ends);
    while (n_rooms) free(rooms[--n_rooms]);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (argc > 2) { /* a matrix with a column less than there should be */
        products p = matrices(room(4), room(4 * 15), room(16), 1, 4, 16, 0);
        return mi_products(&p, mi_pool_run, 1);
    }
    static const ptrdiff_t cases[][3] = {
        {1, 7, 28}, {1, 64, 256}, {2, 33, 131}, {3, 1, 1}, {8, 64, 257}, {13, 257, 64}, {32, 16, 48}, {40, 21, 100},
        {1, 300, 520},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ptrdiff_t *c = cases[i];
        for (int kind = 0; kind < 12; kind++) check(c[0], c[1], c[2], kind % 2, kind / 2 % 3, kind / 6, threads);
    }
    for (int kind = 0; kind < 4; kind++) {
        check_batch(3, 5, 9, 17, 21, kind % 2, kind / 2, threads);
        check_batch(2, 1, 70, 33, 130, kind % 2, kind / 2, threads);
    }
    static const int ends[] = {0, 3, 3, 4, 40, 45};
    for (int kind = 0; kind < 16; kind++) {
        check_groups(47, 33, 131, ends, 6, kind % 2, kind / 2 % 2, kind / 4 % 2, kind / 8, threads);
    }
    return 0;
}
"""


@pytest.mark.parametrize(("build", "threads"), [("address", "1"), ("thread", "3"), ("native", "2")])
def test_under_sanitizers(build: str, threads: str) -> None:
    assert build in BUILDS
    check_clean(build, SOURCE, threads)


@pytest.mark.parametrize("build", FOREIGN)
def test_by_other_compilers(build: str) -> None:
    check_clean(build, SOURCE, "3")


def test_a_matrix_that_ends_too_early_is_found() -> None:
    check_caught("address", SOURCE, "1", "wrong", text="heap-buffer-overflow")
