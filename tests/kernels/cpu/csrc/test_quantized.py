"""Products of 8-bit numbers under the sanitizers, on tensors that end where memory does, beside loops that say what they mean."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.csrc.amx import TILES
from tests.kernels.cpu.sanitize import BEGIN, BUILDS, ROOMS, as_arm, as_level, check_caught, check_clean

SOURCE = BEGIN + '#include "quantized.c"\n' + ROOMS + r"""
/* Memory for bytes that ends where they do. */
static signed char *bytes_of(ptrdiff_t n)
{
    signed char *p = (signed char *)room((n + 3) / 4) + (n + 3) / 4 * 4 - n;
    for (ptrdiff_t i = 0; i < n; i++) p[i] = (signed char)(rand() % 256 - 128);
    return p;
}

static float number(void) { return (float)(rand() % 2001 - 1000) / 1024.f / 64.f; }

static float rounded(float v) { return __builtin_rintf(v); }

static void check(ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, ptrdiff_t group, int kind, int threads)
{
    const int is_signed = kind & 1, bias = kind >> 1 & 1, relu = kind >> 2 & 1, bytes = kind % 3 == 0 ? 4 : kind % 3;
    const ptrdiff_t groups = (k + group - 1) / group;
    signed char *bytes_of_x = bytes_of(m * k * (ptrdiff_t)sizeof(given)), *w = bytes_of(k * n);
    signed char *packed = bytes_of(mi_quantized_bytes(k, n));
    const given *x = (const given *)(const void *)bytes_of_x;
    int *column = (int *)room(groups * n), *offset = (int *)room(n), *factor = (int *)room(n);
    const int shifts = kind % 5 == 4 && bytes < 4 && groups == 1, whole_bias = groups == 1 && kind & 8;
    float *scale = room(groups * n), *added = room(n);
    signed char *out = bytes_of(m * n * bytes);
    for (ptrdiff_t i = 0; i < groups * n; i++) scale[i] = number();
    for (ptrdiff_t i = 0; i < n; i++) {
        added[i] = number() * 100;
        offset[i] = rand() % 20001 - 10000, factor[i] = rand() % 2001 - 1000;
    }
    mi_quantized_pack(k, n, group, kind & 1, w, packed, column);
    const quantized q = {x, packed, column, scale, bias ? added : NULL, out, m, k, n, group, is_signed, is_signed ? -7 : 131, 0,
        relu, bytes, bytes == 4 ? 0 : 3, bytes == 1 ? -128 : -32768, bytes == 1 ? 127 : 32767, 20,
        whole_bias ? offset : NULL, shifts ? factor : NULL};
    must(!mi_quantized(&q, mi_pool_run, threads), "no memory");
    for (ptrdiff_t i = 0; i < m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) {
            volatile float value = 0; /* every operation is rounded by itself */
            for (ptrdiff_t g = 0; g < groups; g++) {
                long long sum = 0;
                for (ptrdiff_t t = g * group; t < k && t < (g + 1) * group; t++) {
                    const int term = is_signed || sizeof(given) > 1 ? x[i * k + t] : (unsigned char)x[i * k + t];
                    sum += (long long)(term - q.x_zero) * w[kind & 1 ? j * k + t : t * n + j];
                }
                if (whole_bias) sum += offset[j];
                if (shifts) {
                    long long v = ((total)sum * (long long)factor[j] + (1 << 19)) >> 20;
                    if (relu && v < 0) v = 0;
                    value = (float)(v < -40000 ? -40000 : v > 40000 ? 40000 : v);
                    continue;
                }
                volatile float part = (float)(total)sum;
                part = part * scale[g * n + j];
                value = g ? value + part : part;
            }
            if (bias && !shifts) value = value + added[j];
            if (relu && value < 0) value = 0;
            if (bytes == 4) {
                float found;
                memcpy(&found, out + (i * n + j) * 4, 4);
                must(found == value, "a wrong number");
                continue;
            }
            const float whole = rounded(value) + (float)q.zero;
            const int wanted = whole < (float)q.least ? q.least : whole > (float)q.most ? q.most : (int)whole;
            short two;
            memcpy(&two, out + (i * n + j) * 2, bytes == 2 ? 2 : 0);
            must((bytes == 1 ? out[i * n + j] : two) == wanted, "a wrong integer");
        }
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

#ifndef MI_OF_16_BITS
/* Rows of float32 that are made int8 first. */
static void check_dynamic(ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, int threads)
{
    float *x = room(m * k), *scale = room(n), *added = room(n), *out = room(m * n);
    signed char *w = bytes_of(k * n), *packed = bytes_of(mi_quantized_bytes(k, n));
    int *column = (int *)room(n);
    for (ptrdiff_t i = 0; i < m * k; i++) x[i] = number();
    for (ptrdiff_t i = 0; i < n; i++) scale[i] = number(), added[i] = number();
    mi_quantized_pack(k, n, k, 0, w, packed, column);
    const quantized q = {x, packed, column, scale, added, out, m, k, n, k, 1, 0, 1, RELU, 4, 0, 0, 0, 0, NULL, NULL};
    must(!mi_quantized(&q, mi_pool_run, threads), "no memory");
    for (ptrdiff_t i = 0; i < m; i++) {
        float most = 0;
        for (ptrdiff_t t = 0; t < k; t++) most = __builtin_fabsf(x[i * k + t]) > most ? __builtin_fabsf(x[i * k + t]) : most;
        for (ptrdiff_t j = 0; j < n; j++) {
            long long sum = 0;
            for (ptrdiff_t t = 0; t < k; t++) {
                volatile float term = most > 0 ? 127 / most : 0;
                term = term * x[i * k + t];
                sum += (long long)rounded(term) * w[t * n + j];
            }
            const double value = (double)sum * scale[j] * most / 127 + added[j], wanted = value < 0 ? 0 : value;
            must(__builtin_fabs(out[i * n + j] - wanted) < 1e-5 * (1 + __builtin_fabs(value)), "a wrong number");
        }
    }
    while (n_rooms) free(rooms[--n_rooms]);
}
#endif

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1, step = argc > 2 ? atoi(argv[2]) : 1;
    if (!step) { /* a row less than there should be */
        signed char *w = bytes_of(64), *packed = bytes_of(mi_quantized_bytes(16, 4));
        int *column = (int *)room(4);
        mi_quantized_pack(16, 4, 16, 0, w, packed, column);
        signed char *x = bytes_of(28 * (ptrdiff_t)sizeof(given));
        const quantized q = {x, packed, column, room(4), NULL, room(8), 2, 16, 4, 16, 1, 0, 0, 0, 4};
        return mi_quantized(&q, mi_pool_run, 1);
    }
    static const ptrdiff_t cases[][4] = {
        {1, 1, 1, 1}, {1, 3, 5, 3}, {2, 4, 16, 4}, {3, 64, 64, 64}, {5, 65, 70, 65}, {7, 130, 33, 32}, {13, 128, 129, 128},
        {1, 300, 520, 300}, {29, 96, 64, 4}, {31, 257, 200, 128}, {1, 1024, 200, 32}, {70, 33, 300, 33}, {9, 1030, 70, 1030},
        {140, 2052, 5, 2052},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ptrdiff_t *c = cases[i];
        for (int kind = (int)i % step; kind < 24; kind += step) check(c[0], c[1], c[2], c[3], kind, threads);
#ifndef MI_OF_16_BITS
        check_dynamic(c[0], c[1], c[2], threads);
#endif
    }
    return 0;
}
"""
#: processors with and without what multiplies bytes: each has its own micro-kernels
LEVELS = ["x86-64-v3", *(pytest.param(level, marks=pytest.mark.slow) for level in ("x86-64", "x86-64-v4"))]
#: of activations of 16 bits
WIDE = "#define MI_OF_16_BITS\n" + SOURCE
#: of all kinds of products at all sizes, one in so many: other ones at each size
STEPS = ["5", pytest.param("1", marks=pytest.mark.slow)]
SANITIZED = [("native", "2"), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("address", "1"), ("thread", "3")))]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("build", "threads"), SANITIZED)
def test_under_sanitizers(build: str, threads: str, step: str) -> None:
    assert build in BUILDS
    for source in (SOURCE, WIDE):
        check_clean(build, source, threads, step)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("level", LEVELS)
def test_by_other_instructions(level: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_level(level, monkeypatch)
    for source in (SOURCE, WIDE):
        check_clean(level, source, "3", step)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["armv8-a", "armv8.2-a+dotprod"])
def test_on_arm(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_arm(processor, monkeypatch)
    for source in (SOURCE, WIDE):
        check_clean(processor, source, "3")


@pytest.mark.parametrize("build", ["clang"])
def test_by_other_compilers(build: str) -> None:
    check_clean(build, SOURCE, "3")


def test_by_the_tiles_of_amx() -> None:
    """Emulated, beside the vectors of this machine; where it has no bytes of AVX-512, there are no tiles either."""
    tiled = SOURCE.replace(BEGIN, BEGIN + TILES + "static int mi_amx_allowed(void) { return 1; }\n")
    check_clean("native", tiled, "3", "5")


def test_a_tensor_that_ends_too_early_is_found() -> None:
    check_caught("address", SOURCE, "1", "0", text="heap-buffer-overflow")
