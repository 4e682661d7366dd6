/* mi_gemm_pairs by the tiles of AMX (Intel, "Intel Architecture Instruction Set Extensions Programming Reference", chapter 3): 16 rows of
 * 64 bytes each, of which the system has to be asked for.
 */
#ifndef MIRAGE_AMX_H
#define MIRAGE_AMX_H

#ifndef MI_AMX_EMULATED
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MI_ARCH_REQ_XCOMP_PERM 0x1023 /* of arch_prctl */
#define MI_XTILEDATA 18

/* Whether Linux lets this process use tiles: it makes room for them where it switches tasks. */
static int mi_amx_allowed(void)
{
    static int known; /* 0, or 1 more than the answer; threads that find it out at the same time write the same */
    if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) {
        const int allowed = !syscall(SYS_arch_prctl, MI_ARCH_REQ_XCOMP_PERM, MI_XTILEDATA);
        __atomic_store_n(&known, 1 + allowed, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED) == 2;
}
#endif

#define MI_TILE 16 /* rows of a tile, and pairs or floats in each */

typedef struct {
    unsigned char palette, start_row, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
} mi_tile_config;

/* Tiles 0 to 3 are sums of two times two tiles, 4 and 5 rows of x, 6 and 7 columns of y, of so many rows and pairs. */
static void mi_amx_configure(int first, int second, int pairs)
{
    mi_tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const int is_x = t == 4 || t == 5, is_y = t > 5;
        c.bytes[t] = is_x ? 4 * pairs : 64;
        c.rows[t] = is_y ? pairs : t == 2 || t == 3 || t == 5 ? second : first;
    }
    _tile_loadconfig(&c);
}

/* At most two tiles of rows by one or two of columns, of `chunks` times as many pairs as the tiles are configured for. */
static void mi_amx_block(
    int second, int columns, ptrdiff_t chunks, int pairs, const mi_half *x, ptrdiff_t xs_m, const char *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate)
{
    const ptrdiff_t xb = 2 * xs_m, yb = 4 * ys_p, ob = 4 * os_m;
    const mi_half *const x1 = x + MI_TILE * xs_m;
    float *const o1 = o + MI_TILE * os_m;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (accumulate) {
        _tile_loadd(0, o, ob);
        if (columns > 1) _tile_loadd(1, o + MI_TILE, ob);
        if (second) _tile_loadd(2, o1, ob);
        if (second && columns > 1) _tile_loadd(3, o1 + MI_TILE, ob);
    }
    for (ptrdiff_t c = 0; c < chunks; c++) {
        const char *const from = y + c * pairs * yb;
        _tile_loadd(4, x + 2 * c * pairs, xb);
        _tile_loadd(6, from, yb);
        _tile_dpbf16ps(0, 4, 6);
        if (columns > 1) {
            _tile_loadd(7, from + 4 * MI_TILE, yb);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (second) {
            _tile_loadd(5, x1 + 2 * c * pairs, xb);
            _tile_dpbf16ps(2, 5, 6);
            if (columns > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, o, ob);
    if (columns > 1) _tile_stored(1, o + MI_TILE, ob);
    if (second) _tile_stored(2, o1, ob);
    if (second && columns > 1) _tile_stored(3, o1 + MI_TILE, ob);
}

/* All rows and columns, of chunks of so many pairs. */
static void mi_amx_part(
    ptrdiff_t m, ptrdiff_t chunks, int pairs, ptrdiff_t n, const mi_half *x, ptrdiff_t xs_m, const char *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate)
{
    for (ptrdiff_t i = 0; i < m; i += 2 * MI_TILE) {
        const int rows = m - i < 2 * MI_TILE ? (int)(m - i) : 2 * MI_TILE, first = rows < MI_TILE ? rows : MI_TILE;
        /* a tile has at least one row, whether it is used or not */
        if (!i || rows < 2 * MI_TILE) mi_amx_configure(first, rows > first ? rows - first : 1, pairs);
        for (ptrdiff_t j = 0; j < n; j += 2 * MI_TILE) {
            mi_amx_block(
                rows - first, n - j > MI_TILE ? 2 : 1, chunks, pairs, x + i * xs_m, xs_m, y + 4 * j, ys_p, o + i * os_m + j, os_m,
                accumulate);
        }
    }
}

static void mi_amx_pairs(
    ptrdiff_t m, ptrdiff_t pairs, ptrdiff_t n, const mi_half *x, ptrdiff_t xs_m, const char *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate)
{
    const ptrdiff_t chunks = pairs / MI_TILE, whole = chunks * MI_TILE;
    const int rest = (int)(pairs - whole);
    if (chunks || !rest) mi_amx_part(m, chunks, MI_TILE, n, x, xs_m, y, ys_p, o, os_m, accumulate);
    if (rest) mi_amx_part(m, 1, rest, n, x + 2 * whole, xs_m, y + whole * 4 * ys_p, ys_p, o, os_m, accumulate || chunks);
    _tile_release();
}

#endif
