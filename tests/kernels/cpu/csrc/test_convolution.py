"""Convolutions in C under the sanitizers, on tensors that end where memory does, beside loops that say what they mean."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.sanitize import BEGIN, BUILDS, FOREIGN, ROOMS, check_caught, check_clean

CODE = r"""
#include "convolution.c"
"""

SOURCE = BEGIN + CODE + ROOMS + r"""
static int backwards(mi_cell *each, void *args, long n_cells, int n_threads, size_t scratch_bytes)
{
    (void)n_threads;
    void *scratch;
    must(!posix_memalign(&scratch, 64, scratch_bytes + 1), "no memory");
    for (long i = n_cells - 1; i >= 0; i--) {
        memset(scratch, 0xff, scratch_bytes);
        each(args, i, 0, scratch);
    }
    free(scratch);
    return 0;
}

REFERENCE static double wanted(
    const ptrdiff_t *z, const mi_real *x, const mi_real *w, ptrdiff_t b, ptrdiff_t o, const ptrdiff_t *at)
{
    const ptrdiff_t *n = z + 4, *k = z + 7, *s = z + 13, *d = z + 16, *low = z + 19, group = o / z[3];
    double sum = 0;
    for (ptrdiff_t c = 0; c < z[2]; c++) {
        for (ptrdiff_t t = 0; t < k[0] * k[1] * k[2]; t++) {
            const ptrdiff_t i2 = at[2] * s[2] + t % k[2] * d[2] - low[2], i1 = at[1] * s[1] + t / k[2] % k[1] * d[1] - low[1];
            const ptrdiff_t i0 = at[0] * s[0] + t / (k[1] * k[2]) * d[0] - low[0];
            if (i0 < 0 || i0 >= n[0] || i1 < 0 || i1 >= n[1] || i2 < 0 || i2 >= n[2]) continue;
            const mi_real *from = x + (((b * z[1] + group) * z[2] + c) * n[0] + i0) * n[1] * n[2];
            sum += (double)from[i1 * n[2] + i2] * (double)w[(o * z[2] + c) * k[0] * k[1] * k[2] + t];
        }
    }
    return sum;
}

static int seen[3], direct;

static void check(const ptrdiff_t *z, int threads)
{
    const ptrdiff_t taps = z[7] * z[8] * z[9], places = z[10] * z[11] * z[12], outputs = z[1] * z[3];
    mi_real *x = room(z[0] * z[1] * z[2] * z[4] * z[5] * z[6]), *w = room(outputs * z[2] * taps), *packed = w;
    mi_real *bias = room(outputs), *other = room(z[0] * outputs * places), *out = room(z[0] * outputs * places);
    const int form = mi_convolution_form(z);
    if (form != SINGLE) {
        packed = room(mi_convolution_pack(z[1], z[3], z[2], taps, w, NULL, form));
        mi_convolution_pack(z[1], z[3], z[2], taps, w, packed, form);
    }
    seen[form] = 1;
    const mi_windows windows = mi_windows_of(z);
    const mi_direct_band band = mi_direct_band_of(&windows, threads ? threads : 1);
    direct += form == WINDOWS && mi_is_direct(&band);
    const double bounds[] = {-20, 30};
    mi_pool_run_fn *by = threads ? mi_pool_run : backwards;
    must(!mi_convolution(z, x, packed, bias, other, out, bounds, threads ? threads : 1, by), "no memory");
    for (ptrdiff_t i = 0; i < z[0] * outputs * places; i++) {
        const ptrdiff_t at[] = {i / (z[11] * z[12]) % z[10], i / z[12] % z[11], i % z[12]}, o = i / places % outputs;
        double value = wanted(z, x, w, i / (places * outputs), o, at) + bias[o] + other[i];
        value = value < -20 ? -20 : value > 30 ? 30 : value;
        must(out[i] == (mi_real)value, "a wrong sum"); /* of small whole numbers: exact */
    }
    while (n_rooms) free(rooms[--n_rooms]);
}

/* What a convolution of x gives, with a bias, between -20 and 30. */
static mi_real *of_parts(const ptrdiff_t *z, const mi_real *x, const mi_real *w, const mi_real *bias, const mi_real *other)
{
    const ptrdiff_t places = z[10] * z[11] * z[12], outputs = z[1] * z[3];
    mi_real *out = room(z[0] * outputs * places);
    for (ptrdiff_t i = 0; i < z[0] * outputs * places; i++) {
        const ptrdiff_t at[] = {i / (z[11] * z[12]) % z[10], i / z[12] % z[11], i % z[12]}, o = i / places % outputs;
        const double value = wanted(z, x, w, i / (places * outputs), o, at) + bias[o] + (other ? other[i] : 0);
        out[i] = (mi_real)(value < -20 ? -20 : value > 30 ? 30 : value);
    }
    return out;
}

static mi_real *packed_product(ptrdiff_t outputs, ptrdiff_t channels, const mi_real *w)
{
    mi_real *packed = room(mi_convolution_pack(1, outputs, channels, 1, w, NULL, WINDOWS));
    mi_convolution_pack(1, outputs, channels, 1, w, packed, WINDOWS);
    return packed;
}

/* z: sizes of the convolution between; the channels of x and of the result, or 0 where there is no product. */
static void check_separable(const ptrdiff_t *z, int threads)
{
    const ptrdiff_t wide = z[1], channels = z[22], outputs = z[23];
    const double bounds[] = {-20, 30, -20, 30, -20, 30};
    ptrdiff_t sizes[24], before[22], behind[22];
    sizes_of_product(before, z[0], channels, wide, z + 4), sizes_of_product(behind, z[0], wide, outputs, z + 10);
    memcpy(sizes, z, sizeof sizes);
    if (!channels) sizes[22] = wide;
    if (!outputs) sizes[23] = wide;
    const ptrdiff_t results = z[0] * sizes[23] * z[10] * z[11] * z[12];
    mi_real *x = room(z[0] * sizes[22] * z[4] * z[5] * z[6]), *w = room(wide * z[7] * z[8] * z[9]);
    mi_real *first = room(wide * channels), *second = room(outputs * wide), *other = outputs ? room(results) : NULL;
    mi_real *bias[] = {room(wide), room(wide), room(outputs)}, *out = room(results);
    const separable p = {
        x, channels ? packed_product(wide, channels, first) : NULL, bias[0], w, bias[1],
        outputs ? packed_product(outputs, wide, second) : NULL, bias[2], other, out, sizes, bounds,
    };
    must(!mi_separable_prepared(&p, threads ? mi_pool_run : backwards, threads ? threads : 1), "no memory");
    const mi_real *want = x;
    if (channels) want = of_parts(before, want, first, bias[0], NULL);
    want = of_parts(z, want, w, bias[1], NULL);
    if (outputs) want = of_parts(behind, want, second, bias[2], other);
    for (ptrdiff_t i = 0; i < results; i++) must(out[i] == want[i], "a wrong sum of several convolutions");
    while (n_rooms) free(rooms[--n_rooms]);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 2) return (int)((mi_real *)room(7))[7]; /* a place more than there is memory for */
    /* batch, groups, channels, outputs, and three each: sizes, windows, places, strides, dilations, zeros in front */
    static const ptrdiff_t cases[][22] = {
        {2, 1, 3, 5, 1, 1, 11, 1, 1, 4, 1, 1, 7, 1, 1, 2, 1, 1, 2, 0, 0, 4},
        {1, 2, 3, 4, 1, 9, 12, 1, 3, 2, 1, 6, 11, 1, 2, 1, 1, 1, 3, 0, 3, 1},
        {3, 1, 5, 35, 1, 3, 3, 1, 3, 3, 1, 3, 3, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        {1, 1, 30, 70, 1, 5, 37, 1, 3, 3, 1, 3, 19, 1, 2, 2, 1, 1, 1, 0, 1, 1},
        {5, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0},
        {1, 1, 4, 6, 3, 4, 5, 2, 3, 1, 2, 2, 5, 1, 2, 1, 2, 1, 1, 0, 1, 0},
        {2, 3, 1, 1, 1, 8, 33, 1, 3, 3, 1, 8, 33, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        {1, 2, 1, 3, 1, 50, 95, 1, 3, 5, 1, 25, 32, 1, 2, 3, 1, 1, 2, 0, 1, 5},
        {1, 2, 1, 1, 3, 4, 17, 2, 2, 2, 4, 5, 10, 1, 1, 2, 1, 2, 3, 1, 2, 2},
        {1, 1, 1, 9, 1, 6, 6, 1, 3, 3, 1, 4, 4, 1, 1, 1, 1, 1, 1, 0, 0, 0},
        /* by steps of 4: elements that are laid out together, with and without zeros around, and those that are left */
        {2, 1, 3, 5, 1, 18, 90, 1, 5, 8, 1, 4, 21, 1, 4, 4, 1, 1, 1, 0, 0, 0},
        {1, 2, 40, 6, 1, 9, 38, 1, 3, 11, 1, 3, 9, 1, 3, 4, 1, 1, 1, 0, 2, 4},
        /* by steps of 2, as many, of several images, with a row's last element by itself, and with zeros around */
        {3, 1, 32, 40, 1, 20, 20, 1, 4, 4, 1, 9, 9, 1, 2, 2, 1, 1, 1, 0, 0, 0},
        {2, 1, 24, 33, 1, 9, 70, 1, 3, 5, 1, 5, 35, 1, 2, 2, 1, 1, 1, 0, 1, 2},
        /* tiles, whole and in part, of several images; more channels and outputs than are laid out and summed at a time */
        {2, 1, 17, 18, 1, 9, 13, 1, 3, 3, 1, 9, 13, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        {1, 2, 16, 24, 1, 10, 40, 1, 3, 3, 1, 12, 39, 1, 1, 1, 1, 1, 1, 0, 2, 0},
        {1, 1, 130, 131, 1, 8, 9, 1, 3, 3, 1, 8, 9, 1, 1, 1, 1, 1, 1, 0, 1, 1},
        /* square windows of single channels, and weights that are fetched */
        {1, 2, 1, 1, 1, 12, 40, 1, 5, 5, 1, 12, 40, 1, 1, 1, 1, 1, 1, 0, 2, 2},
        {1, 2, 1, 1, 1, 13, 37, 1, 3, 3, 1, 7, 19, 1, 2, 2, 1, 1, 1, 0, 1, 1},
        {1, 2, 1, 1, 1, 16, 20, 1, 7, 7, 1, 16, 20, 1, 1, 1, 1, 1, 1, 0, 3, 3},
        /* few channels in rows that are laid out once: steps of 2, gaps, three dims, whole and cut vectors, several bands */
        {2, 1, 3, 21, 1, 30, 36, 1, 7, 7, 1, 15, 18, 1, 2, 2, 1, 1, 1, 0, 3, 3},
        {1, 1, 5, 9, 1, 38, 48, 1, 3, 3, 1, 38, 46, 1, 1, 1, 1, 1, 2, 0, 1, 1},
        {2, 2, 4, 3, 5, 9, 19, 2, 3, 3, 3, 4, 16, 1, 2, 1, 2, 1, 1, 0, 0, 0},
        {1, 1, 2, 40, 1, 16, 64, 1, 5, 5, 1, 16, 64, 1, 1, 1, 1, 1, 1, 0, 2, 2},
        /* steps of 3, 4 and 2; narrow rows, whose vectors go on from row to row; zeros that fill a vector; several bands */
        {2, 1, 4, 8, 1, 84, 84, 1, 8, 8, 1, 20, 20, 1, 4, 4, 1, 1, 1, 0, 0, 0},
        {1, 1, 3, 3, 1, 17, 30, 1, 4, 5, 1, 6, 9, 1, 3, 3, 1, 1, 1, 0, 1, 2},
        {3, 1, 8, 16, 1, 20, 20, 1, 4, 4, 1, 9, 9, 1, 2, 2, 1, 1, 1, 0, 0, 0},
        {2, 2, 2, 1, 1, 9, 7, 1, 3, 2, 1, 9, 6, 1, 1, 1, 1, 1, 1, 0, 1, 0},
        {1, 1, 1, 5, 1, 25, 90, 1, 3, 11, 1, 7, 33, 1, 4, 4, 1, 2, 1, 0, 4, 70},
        {2, 1, 2, 1, 3, 6, 8, 2, 3, 3, 2, 4, 3, 1, 1, 2, 1, 1, 1, 0, 0, 0},
        {1, 1, 600, 250, 1, 1, 20, 1, 1, 1, 1, 1, 20, 1, 1, 1, 1, 1, 1, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(cases[i], threads);
    /* the same, and the channels of x and of the result: bands that begin and end within x, beyond it, and more than x is */
    static const ptrdiff_t joined[][24] = {
        {2, 21, 1, 1, 1, 13, 19, 1, 3, 3, 1, 13, 19, 1, 1, 1, 1, 1, 1, 0, 1, 1, 5, 9},
        {1, 40, 1, 1, 1, 30, 35, 1, 5, 5, 1, 15, 18, 1, 2, 2, 1, 1, 1, 0, 2, 2, 3, 17},
        {3, 6, 1, 1, 1, 9, 50, 1, 3, 2, 1, 13, 54, 1, 1, 1, 1, 1, 3, 0, 4, 6, 4, 0},
        {1, 33, 1, 1, 1, 7, 7, 1, 3, 3, 1, 3, 4, 1, 3, 2, 1, 1, 1, 0, 2, 1, 0, 10},
        {2, 3, 1, 1, 1, 2, 5, 1, 2, 3, 1, 12, 5, 1, 1, 1, 1, 2, 1, 0, 7, 1, 6, 2},
        {9, 4, 1, 1, 1, 1, 40, 1, 1, 3, 1, 1, 40, 1, 1, 1, 1, 1, 1, 0, 0, 1, 2, 3},
        {1, 160, 1, 1, 1, 24, 40, 1, 3, 3, 1, 24, 40, 1, 1, 1, 1, 1, 1, 0, 1, 1, 2, 3},
    };
    for (size_t i = 0; i < sizeof joined / sizeof *joined; i++) check_separable(joined[i], threads);
    must(seen[SINGLE] && seen[WINDOWS] && seen[TILES], "a form that no case has");
    must(direct >= 6, "too few cases whose windows are laid out nowhere");
    return 0;
}
"""
CASES = [
    ("float", "native", "0"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("double", "address", "0"), ("float", "thread", "3"))),
]  # fmt: skip


@pytest.mark.parametrize(("real", "build", "threads"), CASES)
def test_under_sanitizers(real: str, build: str, threads: str) -> None:
    assert build in BUILDS
    check_clean(build, f"#define MI_REAL {real}\n{SOURCE}", threads)


@pytest.mark.parametrize("build", FOREIGN)
def test_by_other_compilers(build: str) -> None:
    check_clean(build, SOURCE, "3")


def test_a_wrong_size_is_found() -> None:
    """What reads beyond a tensor ends the program."""
    check_caught("address", f"#define MI_REAL float\n{SOURCE}", "0", "wrong", text="heap-buffer-overflow")
