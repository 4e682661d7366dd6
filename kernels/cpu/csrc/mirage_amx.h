/* Products by the tiles of AMX (Intel, "Intel Architecture Instruction Set Extensions Programming Reference", chapter 3), of which the
 * system has to be asked for: 16 rows of 64 bytes each.
 *
 *     o[m,n] (+)= sum over the lanes l of x[m,l] * y[l,n]
 *
 * where a lane is a pair of bfloat16, whose products are summed as floats, or four bytes, unsigned ones of x and signed ones of y,
 * whose products are summed in 32 bits.
 */
#ifndef MIRAGE_AMX_H
#define MIRAGE_AMX_H

#include "mirage_vec.h"

#if defined(MI_AMX_EMULATED) || (defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__))
#define MI_AMX 1
#else
#define MI_AMX 0
#endif

#if MI_AMX
#ifndef MI_AMX_EMULATED
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MI_ARCH_REQ_XCOMP_PERM 0x1023 /* of arch_prctl */
#define MI_XTILEDATA 18

/* Whether Linux lets this process use tiles: it makes room for them where it switches tasks. */
MI_INLINE int mi_amx_allowed(void)
{
    static int known; /* 0, or 1 more than the answer; threads that find it out at the same time write the same */
    if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) {
        const int allowed = !syscall(SYS_arch_prctl, MI_ARCH_REQ_XCOMP_PERM, MI_XTILEDATA);
        __atomic_store_n(&known, 1 + allowed, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED) == 2;
}
#endif

#define MI_TILE 16 /* rows of a tile, and lanes in each */

typedef struct {
    unsigned char palette, start_row, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
} mi_tile_config;

/* Tiles 0 to 3 are sums of two times two tiles, 4 and 5 rows of x, 6 and 7 columns of y, of so many rows and lanes. */
MI_INLINE void mi_amx_configure(int first, int second, int lanes)
{
    mi_tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const int is_x = t == 4 || t == 5, is_y = t > 5;
        c.bytes[t] = is_x ? 4 * lanes : 64;
        c.rows[t] = is_y ? lanes : t == 2 || t == 3 || t == 5 ? second : first;
    }
    _tile_loadconfig(&c);
}

/* Of literal numbers: tiles are a part of the instruction. */
#define MI_AMX_MULTIPLY(BYTES, to, x, y) \
    do { \
        if (BYTES) _tile_dpbusd(to, x, y); \
        else _tile_dpbf16ps(to, x, y); \
    } while (0)

/* At most two tiles of rows by one or two of columns, of `chunks` times as many lanes as the tiles are configured for. Rows of x, y
 * and o are so many bytes apart. */
MI_INLINE void mi_amx_block(
    const int BYTES, int second, int columns, ptrdiff_t chunks, int lanes, const char *x, ptrdiff_t xs, const char *y, ptrdiff_t ys,
    char *o, ptrdiff_t os, int accumulate)
{
    const char *const x1 = x + MI_TILE * xs;
    char *const o1 = o + MI_TILE * os;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (accumulate) {
        _tile_loadd(0, o, os);
        if (columns > 1) _tile_loadd(1, o + 4 * MI_TILE, os);
        if (second) _tile_loadd(2, o1, os);
        if (second && columns > 1) _tile_loadd(3, o1 + 4 * MI_TILE, os);
    }
    for (ptrdiff_t c = 0; c < chunks; c++, x += 4 * lanes, y += lanes * ys) {
        _tile_loadd(4, x, xs);
        _tile_loadd(6, y, ys);
        MI_AMX_MULTIPLY(BYTES, 0, 4, 6);
        if (columns > 1) {
            _tile_loadd(7, y + 4 * MI_TILE, ys);
            MI_AMX_MULTIPLY(BYTES, 1, 4, 7);
        }
        if (second) {
            _tile_loadd(5, x1 + 4 * c * lanes, xs);
            MI_AMX_MULTIPLY(BYTES, 2, 5, 6);
            if (columns > 1) MI_AMX_MULTIPLY(BYTES, 3, 5, 7);
        }
    }
    _tile_stored(0, o, os);
    if (columns > 1) _tile_stored(1, o + 4 * MI_TILE, os);
    if (second) _tile_stored(2, o1, os);
    if (second && columns > 1) _tile_stored(3, o1 + 4 * MI_TILE, os);
}

/* All rows and columns, of chunks of so many lanes. */
MI_INLINE void mi_amx_part(
    const int BYTES, ptrdiff_t m, ptrdiff_t chunks, int lanes, ptrdiff_t n, const char *x, ptrdiff_t xs, const char *y, ptrdiff_t ys,
    char *o, ptrdiff_t os, int accumulate)
{
    for (ptrdiff_t i = 0; i < m; i += 2 * MI_TILE) {
        const int rows = m - i < 2 * MI_TILE ? (int)(m - i) : 2 * MI_TILE, first = rows < MI_TILE ? rows : MI_TILE;
        /* a tile has at least one row, whether it is used or not */
        if (!i || rows < 2 * MI_TILE) mi_amx_configure(first, rows > first ? rows - first : 1, lanes);
        for (ptrdiff_t j = 0; j < n; j += 2 * MI_TILE) {
            mi_amx_block(
                BYTES, rows - first, n - j > MI_TILE ? 2 : 1, chunks, lanes, x + i * xs, xs, y + 4 * j, ys, o + i * os + 4 * j, os,
                accumulate);
        }
    }
}

/* n is of whole tiles; BYTES is a constant. */
MI_INLINE void mi_amx_product(
    const int BYTES, ptrdiff_t m, ptrdiff_t lanes, ptrdiff_t n, const void *x, ptrdiff_t xs, const void *y, ptrdiff_t ys, void *o,
    ptrdiff_t os, int accumulate)
{
    const ptrdiff_t chunks = lanes / MI_TILE, whole = chunks * MI_TILE;
    const int rest = (int)(lanes - whole), more = accumulate || chunks;
    const char *const last_x = (const char *)x + 4 * whole, *const last_y = (const char *)y + whole * ys;
    if (chunks || !rest) mi_amx_part(BYTES, m, chunks, MI_TILE, n, x, xs, y, ys, o, os, accumulate);
    if (rest) mi_amx_part(BYTES, m, 1, rest, n, last_x, xs, last_y, ys, o, os, more);
    _tile_release();
}
#endif

#endif
