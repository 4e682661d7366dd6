"""Products of real numbers with weights of int8 and bfloat16 under the sanitizers, on tensors that end where memory does."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.sanitize import BEGIN, BUILDS, FOREIGN, ROOMS, program, run

SOURCE = BEGIN + '#include "dequantized.c"\n#include "mirage_gemm_outer.c"\n#include <string.h>\n' + ROOMS + r"""
/* the upper half of a float that has no more */
static unsigned short half_of(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    must(!(bits & 0xffff), "no bfloat16");
    return (unsigned short)(bits >> 16);
}

static void check(ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, ptrdiff_t group, int kind, int bytes, int threads)
{
    const ptrdiff_t groups = (k + group - 1) / group, panels = (n + PANEL - 1) / PANEL;
    float *x = room(m * k), *scale = room(groups * n), *bias = room(n), *out = room(m * n);
    char *w = (char *)room(panels * k * PANEL * bytes / 4);
    signed char *real = malloc((size_t)(panels * k * PANEL));
    for (ptrdiff_t i = 0; i < panels * k * PANEL; i++) {
        real[i] = (signed char)(rand() % 256 - 128);
        if (bytes == 1) ((signed char *)w)[i] = real[i];
        else ((unsigned short *)w)[i] = half_of(real[i]);
    }
    for (ptrdiff_t i = 0; i < groups * n && bytes == 2; i++) scale[i] = 1;
    const dequantized d = {x, w, scale, kind & 1 ? bias : NULL, out, m, k, n, group, kind >> 1 ? RELU : IDENTITY, bytes};
    must(!mi_dequantized(&d, mi_pool_run, threads), "no memory");
    for (ptrdiff_t i = 0; i < m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) {
            double value = kind & 1 ? bias[j] : 0;
            for (ptrdiff_t t = 0; t < k; t++) {
                const signed char one = real[(j / PANEL * k + t) * PANEL + j % PANEL];
                value += (double)x[i * k + t] * one * (double)scale[t / group * n + j];
            }
            if (kind >> 1 && value < 0) value = 0;
            must(out[i * n + j] == (float)value, "a wrong sum"); /* of small whole numbers: exact */
        }
    }
    free(real);
    while (n_rooms) free(rooms[--n_rooms]);
}

/* Weights of float32 as bfloat16, in panels: those of an integer, whose last bits are lost, and of what is exact. */
static void check_halves(ptrdiff_t k, ptrdiff_t n, int transposed, int threads)
{
    const ptrdiff_t panels = (n + PANEL - 1) / PANEL;
    float *w = room(k * n);
    for (ptrdiff_t i = 0; i < k * n; i++) w[i] = (float)(rand() % 4096 - 2048);
    unsigned short *to = (unsigned short *)room(panels * k * PANEL / 2);
    narrowing p = {w, (signed char *)to, NULL, k, n, k, PANEL, transposed ? k : n, transposed};
    must(!mi_narrow(&p, mi_pool_run, threads), "no memory");
    for (ptrdiff_t j = 0; j < panels * PANEL; j++) {
        for (ptrdiff_t t = 0; t < k; t++) {
            const float own = j < n ? w[transposed ? j * k + t : t * n + j] : 0, size = __builtin_fabsf(own);
            const float step = size < 256 ? 1 : size < 512 ? 2 : size < 1024 ? 4 : 8;
            const unsigned short found = to[(j / PANEL * k + t) * PANEL + j % PANEL];
            must(found == half_of(__builtin_rintf(own / step) * step), "not the nearest");
        }
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

/* Weights of float32 as bytes, in panels and as they lie. */
static void check_narrow(ptrdiff_t k, ptrdiff_t n, ptrdiff_t group, int transposed, int in_panels, int threads)
{
    const ptrdiff_t groups = (k + group - 1) / group, panel = in_panels ? PANEL : n, panels = (n + panel - 1) / panel;
    const ptrdiff_t bytes = panels * k * panel, rounded = (bytes + 3) / 4;
    float *w = room(k * n), *scale = room(groups * n);
    signed char *to = (signed char *)room(rounded) + rounded * 4 - bytes;
    narrowing p = {w, to, scale, k, n, group, panel, transposed ? k : n, transposed};
    must(!mi_narrow(&p, mi_pool_run, threads), "no memory");
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
        const dequantized d = {room(4), (char *)room(36), room(16), NULL, room(16), 1, 4, 16, 4, 0, 1};
        return mi_dequantized(&d, mi_pool_run, 1);
    }
    static const ptrdiff_t cases[][4] = {
        {1, 1, 1, 1}, {1, 7, 64, 7}, {2, 33, 131, 33}, {3, 64, 63, 16}, {4, 5, 16, 5}, {7, 48, 17, 4}, {9, 20, 128, 20},
        {1, 512, 300, 128}, {8, 40, 97, 4}, {12, 300, 49, 60}, {300, 131, 5, 131},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ptrdiff_t *c = cases[i];
        for (int kind = 0; kind < 4; kind++) {
            check(c[0], c[1], c[2], c[3], kind, 1, threads);
            check(c[0], c[1], c[2], c[3], kind, 2, threads);
            check_halves(c[1], c[2], kind & 1, threads);
            check_narrow(c[1], c[2], c[3], kind & 1, kind >> 1, threads);
        }
    }
    return 0;
}
"""
SANITIZED = [("address", "1"), pytest.param("thread", "3", marks=pytest.mark.slow), ("native", "2")]


@pytest.mark.parametrize(("build", "threads"), SANITIZED)
def test_under_sanitizers(build: str, threads: str) -> None:
    assert build in BUILDS
    done = run(program(build, SOURCE), threads)
    assert done.status == 0 and not done.text, done.text


@pytest.mark.slow
@pytest.mark.parametrize("build", FOREIGN)
def test_by_other_compilers(build: str) -> None:
    done = run(program(build, SOURCE), "3", runner=FOREIGN[build].runner)
    assert done.status == 0 and not done.text, done.text


def test_weights_that_end_too_early_are_found() -> None:
    done = run(program("address", SOURCE), "1", "wrong")
    assert done.status != 0 and "heap-buffer-overflow" in done.text
