"""Products of real numbers with weights of 8 and 16 bits under the sanitizers, on tensors that end where memory does."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.sanitize import (
    BEGIN,
    BUILDS,
    FOREIGN,
    HALVES,
    ROOMS,
    SANITIZED_HALVES,
    check_caught,
    check_clean,
)

SOURCE = BEGIN + '#include "dequantized.c"\n#include "mirage_gemm_outer.c"\n#include <string.h>\n' + ROOMS + HALVES + r"""
/* Where the weight of a term and a column is, in packed weights of so many bytes. */
REFERENCE static ptrdiff_t place(ptrdiff_t t, ptrdiff_t j, ptrdiff_t k, int bytes)
{
    const ptrdiff_t side = SIDE_BY_SIDE(bytes);
    return ((j / PANEL * lanes_of(k, bytes) + t / side) * PANEL + j % PANEL) * side + t % side;
}

/* Rows from `first` on with one weight of several: their results, beside exact ones. */
REFERENCE static void compare(
    const dequantized *d, const float *x, const float *bias, ptrdiff_t first, ptrdiff_t last, ptrdiff_t weight)
{
    const ptrdiff_t panels = (d->n + PANEL - 1) / PANEL, groups = (d->k + d->group - 1) / d->group;
    const char *w = d->w + weight * panels * PANEL * column_bytes(d->k, d->bytes);
    const float *scale = d->scale + weight * groups * d->n;
    for (ptrdiff_t i = first; i < last; i++) {
        for (ptrdiff_t j = 0; j < d->n; j++) {
            double value = d->bias ? bias[j] : 0;
            for (ptrdiff_t t = 0; t < d->k; t++) {
                const ptrdiff_t at = place(t, j, d->k, d->bytes);
                const float one = d->bytes == 1 ? ((const signed char *)w)[at] : real_half(((const mi_narrow *)w)[at]);
                value += (double)x[i * d->k + t] * one * (double)scale[t / d->group * d->n + j];
            }
            if (d->activation && value < 0) value = 0;
            const ptrdiff_t to = i * d->n + j;
            /* of small whole numbers: exact */
            if (d->half) must(((const mi_narrow *)d->out)[to] == half_of((float)value), "a wrong sum of 16 bits");
            else must(((const float *)d->out)[to] == (float)value, "a wrong sum");
        }
    }
}

/* `weights` one behind the other, with as many groups of rows; 0 of them: one, of all rows. */
static void check(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, ptrdiff_t group, int kind, int bytes, int half, ptrdiff_t weights, int threads)
{
    const ptrdiff_t groups = (k + group - 1) / group, panels = (n + PANEL - 1) / PANEL, count = weights ? weights : 1;
    const ptrdiff_t packed = panels * PANEL * column_bytes(k, bytes);
    float *x, *bias, *unused, *scale = room(count * groups * n);
    const void *given = values(m * k, half, &x), *added = values(n, half, &bias);
    void *out = values(m * n, half, &unused);
    const ptrdiff_t rounded = (count * packed + 3) / 4;
    char *w = (char *)room(rounded) + 4 * rounded - count * packed;
    memset(w, 0, (size_t)(count * packed));
    for (ptrdiff_t i = 0; i < count * panels * PANEL; i++) {
        for (ptrdiff_t t = 0; t < k; t++) {
            const ptrdiff_t at = place(t, i % (panels * PANEL), k, bytes);
            char *own = w + i / (panels * PANEL) * packed;
            const signed char value = (signed char)(rand() % 256 - 128);
            if (bytes == 1) ((signed char *)own)[at] = value;
            else ((mi_narrow *)own)[at] = half_of(value);
        }
    }
    for (ptrdiff_t i = 0; i < count * groups * n && bytes == 2; i++) scale[i] = 1;
    const dequantized d = {
        given, w, scale, kind & 1 && !weights ? added : NULL, out, m, k, n, group,
        kind >> 1 && !weights ? RELU : IDENTITY, bytes, half,
    };
    if (weights) {
        int32_t *ends = (int32_t *)room(weights);
        for (ptrdiff_t i = 0, end = 0; i < weights; i++) ends[i] = (int32_t)(end += i % 2 ? (m - end) / 2 : 0);
        const grouped g = {d, ends, weights, 0};
        must(!mi_dequantized_groups(&g, mi_pool_run, threads), "no memory");
        for (ptrdiff_t i = 0; i < weights; i++) compare(&d, x, bias, i ? ends[i - 1] : 0, ends[i], i);
        for (ptrdiff_t i = ends[weights - 1] * n; i < m * n; i++) {
            must(half ? !((mi_narrow *)out)[i] : ((float *)out)[i] == 0, "rows of no group are not 0");
        }
        ends[weights - 1] = (int32_t)m + 1;
        must(mi_dequantized_groups(&g, mi_pool_run, threads) == MI_WRONG_ENDS, "wrong ends");
    } else {
        must(!mi_dequantized(&d, mi_pool_run, threads), "no memory");
        compare(&d, x, bias, 0, m, 0);
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

/* Weights of float32, and of 16 bits if they are `half`, as 16 bits in panels. */
static void check_halves(ptrdiff_t k, ptrdiff_t n, int transposed, int half, int threads)
{
    const ptrdiff_t panels = (n + PANEL - 1) / PANEL, bytes = panels * PANEL * column_bytes(k, 2);
    float *w;
    const void *given = values(k * n, half, &w);
    for (ptrdiff_t i = 0; i < k * n && !half; i++) w[i] = (float)(rand() % 4096 - 2048);
    mi_narrow *to = (mi_narrow *)room(bytes / 4);
    narrowing p = {given, (signed char *)to, NULL, k, n, k, PANEL, transposed ? k : n, transposed, half};
    must(!mi_narrow_weights(&p, mi_pool_run, threads), "no memory");
    for (ptrdiff_t j = 0; j < panels * PANEL; j++) {
        for (ptrdiff_t t = 0; t < lanes_of(k, 2) * TOGETHER; t++) {
            const float own = j < n && t < k ? w[transposed ? j * k + t : t * n + j] : 0;
            must(to[place(t, j, k, 2)] == half_of(own), "not the nearest");
        }
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

/* Weights of float32 as bytes, in panels and as they lie. */
static void check_narrow(ptrdiff_t k, ptrdiff_t n, ptrdiff_t group, int transposed, int in_panels, int half, int threads)
{
    const ptrdiff_t groups = (k + group - 1) / group, panel = in_panels ? PANEL : n, panels = (n + panel - 1) / panel;
    const ptrdiff_t bytes = panels * k * panel, rounded = (bytes + 3) / 4;
    float *w, *scale = room(groups * n);
    const void *given = values(k * n, half, &w);
    signed char *to = (signed char *)room(rounded) + rounded * 4 - bytes;
    narrowing p = {given, to, scale, k, n, group, panel, transposed ? k : n, transposed, half};
    must(!mi_narrow_weights(&p, mi_pool_run, threads), "no memory");
    for (ptrdiff_t j = 0; j < panels * panel; j++) {
        for (ptrdiff_t t = 0; t < k; t++) {
            const signed char found = to[(j / panel * k + t) * panel + j % panel];
            const ptrdiff_t first = t / group * group, last = first + group < k ? first + group : k;
            float most = 0;
            for (ptrdiff_t s = first; j < n && s < last; s++) {
                const float v = __builtin_fabsf(w[transposed ? j * k + s : s * n + j]);
                most = v > most ? v : most;
            }
            const volatile float wanted = most / 127 < FLT_MIN ? FLT_MIN : most / 127;
            const float own = j < n ? w[transposed ? j * k + t : t * n + j] : 0;
            const volatile float share = own / wanted;
            must(j >= n || scale[t / group * n + j] == wanted, "a wrong scale");
            must(found == (signed char)__builtin_rintf(share), "a wrong byte");
        }
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (argc > 2) { /* weights of a term less than there should be */
        const dequantized d = {room(4), (char *)room(36), room(16), NULL, room(16), 1, 4, 16, 4, 0, 1, 0};
        return mi_dequantized(&d, mi_pool_run, 1);
    }
    static const ptrdiff_t cases[][4] = {
        {1, 1, 1, 1}, {1, 7, 64, 7}, {2, 33, 131, 33}, {3, 64, 63, 16}, {4, 5, 16, 5}, {7, 48, 17, 4}, {9, 20, 128, 20},
        {1, 512, 300, 128}, {8, 40, 97, 4}, {12, 300, 49, 60}, {300, 131, 5, 131},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ptrdiff_t *c = cases[i];
        for (int kind = 0; kind < 4; kind++) {
            for (int half = 0; half < 2; half++) {
                check(c[0], c[1], c[2], c[3], kind, 1, half, 0, threads);
                check(c[0], c[1], c[2], c[1], kind, 2, half, 0, threads);
                check_halves(c[1], c[2], kind & 1, half, threads);
                check_narrow(c[1], c[2], c[3], kind & 1, kind >> 1, half, threads);
            }
        }
        for (int half = 0; half < 2; half++) {
            check(c[0], c[1], c[2], c[3], 0, 1, half, 3, threads);
            check(c[0], c[1], c[2], c[1], 0, 2, half, 4, threads);
        }
    }
    return 0;
}
"""
#: the type of 16 bits that it is compiled for
SOURCES = {half: f"#define MI_NARROW {half}\n{SOURCE}" for half in ("bfloat16", "float16")}


@pytest.mark.parametrize(("half", "build", "threads"), SANITIZED_HALVES)
def test_under_sanitizers(half: str, build: str, threads: str) -> None:
    assert build in BUILDS
    check_clean(build, SOURCES[half], threads)


@pytest.mark.slow
@pytest.mark.parametrize("build", FOREIGN)
@pytest.mark.parametrize("half", SOURCES)
def test_by_other_compilers(half: str, build: str) -> None:
    check_clean(build, SOURCES[half], "3")


@pytest.mark.slow
def test_weights_that_end_too_early_are_found() -> None:
    check_caught("address", SOURCE, "1", "wrong", text="heap-buffer-overflow")
