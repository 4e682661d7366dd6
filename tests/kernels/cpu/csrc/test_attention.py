"""Attention under the sanitizers, on tensors that end where memory does."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.csrc.amx import TILES
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

CODE = r"""
#define MI_REAL float
#include "mirage_stream.h"
static int past; /* whether results go past the caches, wherever they are */
#define mi_past_caches(to, from, bytes) (past && (uintptr_t)(to) % MI_PIECE == 0)
#include "attention.c"
#include "mirage_gemm_dot.c"
#include "mirage_gemm_outer.c"
"""

SOURCE = BEGIN + CODE + ROOMS + HALVES + r"""
static float at(const void *p, int half, ptrdiff_t i)
{
    return half ? real_half(((const mi_narrow *)p)[i]) : ((const float *)p)[i];
}

/* So many bytes, with what cannot be touched behind them. */
static unsigned char *bytes(ptrdiff_t n)
{
    const ptrdiff_t whole = (n + 3) / 4;
    return (unsigned char *)room(whole) + 4 * whole - n;
}

/* A part of each head of a tensor, from a row on. */
static void *part(const void *tensor, ptrdiff_t heads, ptrdiff_t all, ptrdiff_t from, ptrdiff_t rows, ptrdiff_t row)
{
    unsigned char *found = bytes(heads * rows * row);
    for (ptrdiff_t h = 0; h < heads; h++) {
        memcpy(found + h * rows * row, (const char *)tensor + (h * all + from) * row, (size_t)(rows * row));
    }
    return found;
}

/* The same attention, which writes keys and values itself. */
static void check_appended(attention a, int threads)
{
    const ptrdiff_t heads = 2 * a.heads, size = a.half ? 2 : 4, count = heads * a.rows * a.depth;
    const ptrdiff_t k_row = a.width * size, v_row = a.depth * size;
    const void *const out = a.out, *const k = a.k, *const v = a.v;
    const int before = n_rooms;
    for (int kind = 0; kind < 6; kind++) {
        const ptrdiff_t cached = kind % 3 * a.keys / 2, added = a.keys - cached;
        a.cached = cached;
        a.k_cache = part(k, heads, a.keys, 0, cached, k_row), a.k_new = part(k, heads, a.keys, cached, added, k_row);
        a.v_cache = part(v, heads, a.keys, 0, cached, v_row), a.v_new = part(v, heads, a.keys, cached, added, v_row);
        a.k = bytes(heads * a.keys * k_row), a.v = bytes(heads * a.keys * v_row), a.out = bytes(count * size);
        past = kind / 3;
        must(!mi_attention(&a, mi_pool_run, threads), "no memory");
        past = 0;
        must(!memcmp(a.k, k, (size_t)(heads * a.keys * k_row)), "wrong keys");
        must(!memcmp(a.v, v, (size_t)(heads * a.keys * v_row)), "wrong values");
        for (ptrdiff_t i = 0; i < count; i++) {
            must(__builtin_fabs(at(a.out, a.half, i) - at(out, a.half, i)) <= (a.half ? 4e-2 : 1e-5), "a wrong result");
        }
        while (n_rooms > before) free(rooms[--n_rooms]);
    }
}

/* The result of `a`, of these values. */
REFERENCE static void check_result(attention a, const float *q, const float *k, const float *v, const float *bias)
{
    const ptrdiff_t heads = a.heads, rows = a.rows, keys = a.keys, width = a.width, depth = a.depth;
    const int half = a.half;
    double *shares = malloc((size_t)keys * sizeof *shares);
    for (ptrdiff_t row = 0; row < 2 * heads * rows; row++) {
        const ptrdiff_t b = row / rows / heads, h = row / rows % heads, i = row % rows;
        double most = -1e300, total = 0;
        for (ptrdiff_t j = 0; j < keys; j++) {
            double score = 0;
            for (ptrdiff_t t = 0; t < width; t++) {
                score += (double)q[b * a.q_step[0] + h * a.q_step[1] + i * a.q_step[2] + t]
                    * k[b * a.k_step[0] + h * a.k_step[1] + j * a.k_step[2] + t];
            }
            shares[j] = score / 8 + (a.bias ? bias[h * a.bias_step[1] + i * a.bias_step[2] + j] : 0);
            if (a.mask && a.mask[i * a.mask_step[2] + j] == a.hiding) shares[j] = a.hidden;
            most = shares[j] > most ? shares[j] : most;
        }
        for (ptrdiff_t j = 0; j < keys; j++) total += shares[j] = __builtin_exp(shares[j] - most);
        for (ptrdiff_t t = 0; t < depth; t++) {
            double wanted = 0;
            for (ptrdiff_t j = 0; j < keys; j++) wanted += shares[j] * v[b * a.v_step[0] + h * a.v_step[1] + j * a.v_step[2] + t];
            wanted /= total;
            const double found = at(a.out, half, row * depth + t);
            must(__builtin_fabs(found - wanted) <= (half ? 4e-2 : 1e-5), "a wrong result");
        }
    }
    free(shares);
}

/* Tokens before heads if it is `turned`; a bias or a mask for each row, for keys alone, or none. */
static void check(const ptrdiff_t *sizes, int turned, int kind, int half, int threads)
{
    const ptrdiff_t heads = sizes[0], rows = sizes[1], keys = sizes[2], width = sizes[3], depth = sizes[4];
    float *q, *k, *v, *unused, *bias = NULL;
    attention a = {
        .heads = heads, .batch = 2, .rows = rows, .keys = keys, .width = width, .depth = depth, .inner = rows, .scale = 0.125f,
        .half = half, .hiding = kind > 3, .hidden = -1e9f,
    };
    const ptrdiff_t counts[] = {rows, keys, keys}, widths[] = {width, width, depth};
    ptrdiff_t *const steps[] = {a.q_step, a.k_step, a.v_step};
    a.q = values(2 * heads * rows * width, half, &q);
    a.k = values(2 * heads * keys * width, half, &k);
    a.v = values(2 * heads * keys * depth, half, &v);
    a.out = values(2 * heads * rows * depth, half, &unused);
    for (int i = 0; i < 3; i++) {
        steps[i][0] = heads * counts[i] * widths[i];
        steps[i][1] = turned ? widths[i] : counts[i] * widths[i];
        steps[i][2] = turned ? heads * widths[i] : widths[i];
    }
    if (kind == 1) {
        a.bias = values(heads * rows * keys, half, &bias);
        a.bias_step[1] = rows * keys, a.bias_step[2] = keys, a.bias_step[3] = 1;
    } else if (kind == 2) {
        a.bias = values(keys, half, &bias);
        a.bias_step[3] = 1;
    } else if (kind == 3) { /* causal */
        a.mask = bytes(rows * keys);
        a.mask_step[2] = keys, a.mask_step[3] = 1;
        for (ptrdiff_t i = 0; i < rows * keys; i++) ((unsigned char *)a.mask)[i] = i % keys <= i / keys;
    } else if (kind == 4) { /* the last keys */
        a.mask = bytes(keys);
        a.mask_step[3] = 1;
        for (ptrdiff_t i = 0; i < keys; i++) ((unsigned char *)a.mask)[i] = i > keys / 2;
    }
    must(!mi_attention(&a, mi_pool_run, threads), "no memory");
    if (!turned && kind == 3) check_appended(a, threads);
    if (turned && keys % 4 == 0) { /* the same, from pages of 4 keys that are where they were */
        const ptrdiff_t n = 2 * keys / 4;
        attention paged = a;
        long long table[200];
        for (ptrdiff_t i = 0; i < n; i++) table[i] = i % 3 ? i : i - n;
        paged.pages = table, paged.pool = n, paged.page = 4, paged.table_step = keys / 4;
        paged.k_page = 4 * a.k_step[2], paged.v_page = 4 * a.v_step[2];
        must(!mi_attention(&paged, mi_pool_run, threads), "no memory");
        table[n - 1] = n;
        must(mi_attention(&paged, mi_pool_run, threads) == NO_PAGE && paged.wrong == n, "a page that there is not");
    }
    check_result(a, q, k, v, bias);
    while (n_rooms) free(rooms[--n_rooms]);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (argc > 2) { /* values of a key less than there should be */
        attention a = {
            .q = room(8), .k = room(24), .v = room(16), .out = room(8), .batch = 1, .heads = 1, .rows = 1, .keys = 3, .width = 8,
            .depth = 8, .inner = 1, .scale = 1, .q_step = {8, 8, 8}, .k_step = {24, 24, 8}, .v_step = {24, 24, 8},
        };
        return mi_attention(&a, mi_pool_run, 1);
    }
    static const ptrdiff_t cases[][5] = {
        {1, 1, 1, 1, 1}, {2, 3, 7, 8, 5}, {1, 65, 129, 7, 17}, {3, 1, 300, 16, 16}, {2, 70, 40, 33, 3}, {1, 64, 128, 16, 48},
        {4, 330, 200, 16, 20},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int kind = 0; kind < 5; kind++) {
            for (int half = 0; half < 2; half++) {
                for (int turned = 0; turned < 2; turned++) check(cases[i], turned, kind, half, threads);
            }
        }
    }
    return 0;
}
"""
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
def test_by_the_tiles_of_amx() -> None:
    """Emulated, where this machine has pairs of bfloat16."""
    tiled = SOURCES["bfloat16"].replace(BEGIN, BEGIN + TILES + "static int mi_amx_allowed(void) { return 1; }\n")
    check_clean("native", tiled, "2")


@pytest.mark.slow
def test_values_that_end_too_early_are_found() -> None:
    check_caught("address", SOURCES["bfloat16"], "1", "wrong", text="heap-buffer-overflow")
