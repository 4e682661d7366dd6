"""Convolutions of 8-bit numbers under the sanitizers, on tensors that end where memory does, beside loops for what they mean."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.csrc.test_quantized import LEVELS, SANITIZED, STEPS
from tests.kernels.cpu.sanitize import BEGIN, BUILDS, ROOMS, as_arm, as_level, check_caught, check_clean

SOURCE = BEGIN + '#include "quantized_convolution.c"\n' + ROOMS + r"""
/* Memory for bytes that ends where they do. */
static signed char *bytes_of(ptrdiff_t n)
{
    signed char *p = (signed char *)room((n + 3) / 4) + (n + 3) / 4 * 4 - n;
    for (ptrdiff_t i = 0; i < n; i++) p[i] = (signed char)(rand() % 256 - 128);
    return p;
}

static int byte_of(const void *p, ptrdiff_t i, int is_signed)
{
    return is_signed ? ((const signed char *)p)[i] : ((const unsigned char *)p)[i];
}

static void check(const ptrdiff_t *s, int kind, int threads)
{
    const int is_signed = kind & 1, zero = is_signed ? -7 : 131;
    const int bytes = kind % 4 == 0 ? 4 : kind % 4 == 1 ? 2 : 1, other = kind % 3, shifts = kind % 5 == 4 && bytes < 4;
    const ptrdiff_t outputs = s[1] * s[3], *n = s + 4, *k = s + 7, *p = s + 10, *step = s + 13, *gap = s + 16, *low = s + 19;
    const ptrdiff_t plane = n[0] * n[1] * n[2], taps = k[0] * k[1] * k[2], places = p[0] * p[1] * p[2], depth = s[2] * taps;
    const ptrdiff_t size = s[0] * outputs * places;
    signed char *x = bytes_of(s[0] * s[1] * s[2] * plane), *w = bytes_of(outputs * depth), *out = bytes_of(size * bytes);
    int *column = (int *)room(outputs), *offset = (int *)room(outputs), *factor = (int *)room(outputs);
    float *scale = room(outputs), *bias = room(outputs);
    void *packed = room(mi_quantized_windows_pack(s[1], s[3], s[2], taps, k[2], w, NULL, NULL) / 4);
    for (ptrdiff_t i = 0; i < outputs; i++) {
        scale[i] = (float)(rand() % 2001 - 1000) / 1048576.f, bias[i] = (float)(rand() % 2001 - 1000) / 8.f;
        offset[i] = rand() % 2001 - 1000, factor[i] = rand() % 2001 - 1000;
    }
    mi_quantized_windows_pack(s[1], s[3], s[2], taps, k[2], w, packed, column);
    signed char *added = other == 2 ? bytes_of(size * 4) : bytes_of(size);
    for (ptrdiff_t i = 0; other == 2 && i < size; i++) ((float *)(void *)added)[i] = (float)(rand() % 99);
    const int narrow = bytes == 1, least = bytes == 4 ? 0 : (narrow ? -128 : -32768) - 3, most = narrow ? 124 : 32764;
    const quantized_windows q = {x, packed, s, is_signed, zero, {
        .sums = column, .offset = kind & 2 ? offset : NULL, .scale = scale, .multiplier = shifts ? factor : NULL,
        .bias = kind & 4 ? bias : NULL, .other = other ? added : NULL, .out = out, .other_scale = 0.25f, .other_zero = 5,
        .lower = bytes == 4 ? -100.f : (float)least, .upper = bytes == 4 ? 100.f : (float)most, .other_bytes = other == 2 ? 4 : 1,
        .other_is_signed = is_signed, .bytes = bytes, .zero = bytes == 4 ? 0 : 3, .shift = 20, .least = least, .most = most}};
    must(!mi_quantized_windows(&q, mi_pool_run, threads), "no memory");
    for (ptrdiff_t i = 0; i < size; i++) {
        const ptrdiff_t image = i / places / outputs, o = i / places % outputs, at = i % places;
        const ptrdiff_t i0 = at / (p[1] * p[2]), i1 = at / p[2] % p[1], i2 = at % p[2];
        long long sum = kind & 2 ? offset[o] : 0;
        for (ptrdiff_t d = 0; d < depth; d++) {
            const ptrdiff_t t = d % taps, c = d / taps, a0 = i0 * step[0] + t / (k[1] * k[2]) * gap[0] - low[0];
            const ptrdiff_t a1 = i1 * step[1] + t / k[2] % k[1] * gap[1] - low[1], a2 = i2 * step[2] + t % k[2] * gap[2] - low[2];
            if (a0 < 0 || a0 >= n[0] || a1 < 0 || a1 >= n[1] || a2 < 0 || a2 >= n[2]) continue;
            const ptrdiff_t from = ((image * s[1] + o / s[3]) * s[2] + c) * plane + (a0 * n[1] + a1) * n[2] + a2;
            sum += (byte_of(x, from, is_signed) - zero) * w[o * depth + d];
        }
        if (shifts) {
            long long v = ((int)sum * (long long)factor[o] + (1 << 19)) >> 20;
            sum = (v < least ? least : v > most ? most : v) + 3;
        } else {
            volatile float v = (float)(int)sum; /* every operation is rounded by itself */
            v = v * scale[o];
            if (kind & 4) v = v + bias[o];
            if (other == 2) v = v + ((float *)(void *)added)[i];
            else if (other) v = v + (float)(byte_of(added, i, is_signed) - 5) * 0.25f;
            v = v < q.finish.lower ? q.finish.lower : v > q.finish.upper ? q.finish.upper : v;
            if (bytes == 4) {
                float found;
                memcpy(&found, out + i * 4, 4);
                must(found == v, "a wrong number");
                continue;
            }
            sum = (long long)__builtin_rintf(v) + 3;
        }
        short two;
        memcpy(&two, out + i * 2, bytes == 2 ? 2 : 0);
        must((bytes == 1 ? out[i] : two) == sum, "a wrong integer");
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1, step = argc > 2 ? atoi(argv[2]) : 1;
    if (!step) { /* a row less than there should be */
        const ptrdiff_t s[] = {1, 1, 4, 4, 1, 8, 8, 1, 1, 1, 1, 8, 8, 1, 1, 1, 1, 1, 1, 0, 0, 0};
        const quantized_windows q = {bytes_of(4 * 64 - 8), bytes_of(64), s, 1, 0, {
            .sums = (int *)room(4), .scale = room(4), .out = room(256), .bytes = 4}};
        return mi_quantized_windows(&q, mi_pool_run, 1);
    }
    /* batch, groups, channels, outputs; in, kernel, places, strides, gaps, low */
    static const ptrdiff_t cases[][22] = {
        {1, 1, 3, 5, 1, 7, 9, 1, 3, 3, 1, 7, 9, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        {2, 1, 7, 17, 1, 5, 11, 1, 1, 1, 1, 5, 11, 1, 1, 1, 1, 1, 1, 0, 0, 0},
        {2, 3, 5, 9, 1, 9, 20, 1, 3, 2, 1, 5, 10, 1, 2, 2, 1, 1, 2, 0, 1, 1},
        {1, 1, 130, 12, 1, 5, 5, 1, 3, 3, 1, 5, 5, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        {2, 6, 1, 1, 1, 13, 21, 1, 3, 3, 1, 13, 21, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        {1, 3, 1, 2, 2, 18, 40, 2, 5, 5, 2, 9, 20, 1, 2, 2, 1, 1, 1, 1, 2, 2},
        {1, 2, 1, 1, 1, 1, 600, 1, 1, 550, 1, 1, 51, 1, 1, 1, 1, 1, 1, 0, 0, 0},
        {1, 3, 1, 1, 1, 9, 70, 1, 3, 5, 1, 4, 21, 1, 2, 3, 1, 1, 2, 0, 0, 1},
        {2, 2, 1, 3, 1, 6, 90, 1, 2, 7, 1, 5, 17, 1, 1, 5, 1, 1, 1, 0, 0, 2},
        {1, 2, 1, 1, 1, 5, 30, 1, 5, 4, 1, 3, 4, 1, 2, 9, 1, 1, 1, 0, 2, 3},
        {1, 2, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 90, 1, 1, 1, 0, 0, 85},
        {3, 1, 1, 70, 3, 4, 5, 2, 2, 2, 2, 3, 4, 1, 1, 1, 1, 1, 1, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int kind = (int)i % step; kind < 20; kind += step) check(cases[i], kind, threads);
    }
    return 0;
}
"""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("build", "threads"), SANITIZED)
def test_under_sanitizers(build: str, threads: str, step: str) -> None:
    assert build in BUILDS
    check_clean(build, SOURCE, threads, step)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("level", LEVELS)
def test_by_other_instructions(level: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_level(level, monkeypatch)
    check_clean(level, SOURCE, "3", step)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["armv8-a", "armv8.2-a+dotprod"])
def test_on_arm(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_arm(processor, monkeypatch)
    check_clean(processor, SOURCE, "3")


@pytest.mark.slow
def test_by_other_compilers() -> None:
    check_clean("clang", SOURCE, "3")


def test_a_tensor_that_ends_too_early_is_found() -> None:
    check_caught("address", SOURCE, "1", "0", text="heap-buffer-overflow")
