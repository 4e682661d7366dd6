"""The tiles of AMX in plain C, of programs that begin with `BEGIN` of `tests.kernels.cpu.sanitize`: machines may have none."""

from __future__ import annotations

#: tiles as Intel's manual has them: rows of bytes, and what is configured is all that is read and written
TILES = r"""
#include <stddef.h>
#include <string.h>
#define MI_AMX_EMULATED
static __thread struct {
    unsigned char palette, start_row, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
} tmm_of;
static __thread char tmm[8][16][64];
static inline void _tile_loadconfig(const void *p)
{
    memcpy(&tmm_of, p, sizeof tmm_of);
    memset(tmm, 0, sizeof tmm);
    must(sizeof tmm_of == 64 && tmm_of.palette == 1, "no configuration");
    for (int t = 0; t < 8; t++) {
        must(tmm_of.rows[t] && tmm_of.rows[t] <= 16 && tmm_of.bytes[t] && tmm_of.bytes[t] <= 64, "no tile");
    }
}
static inline void _tile_release(void) { memset(&tmm_of, 0, sizeof tmm_of); }
static inline void _tile_zero(int t) { memset(tmm[t], 0, sizeof tmm[t]); }
static inline void _tile_loadd(int t, const void *p, ptrdiff_t step)
{
    _tile_zero(t);
    for (int i = 0; i < tmm_of.rows[t]; i++) memcpy(tmm[t][i], (const char *)p + i * step, tmm_of.bytes[t]);
}
static inline void _tile_stored(int t, void *p, ptrdiff_t step)
{
    for (int i = 0; i < tmm_of.rows[t]; i++) memcpy((char *)p + i * step, tmm[t][i], tmm_of.bytes[t]);
}
static inline float upper(unsigned short half)
{
    const unsigned bits = (unsigned)half << 16;
    float real;
    memcpy(&real, &bits, sizeof real);
    return real;
}
static void tmm_fit(int to, int x, int y)
{
    must(tmm_of.rows[to] == tmm_of.rows[x] && tmm_of.bytes[to] == tmm_of.bytes[y], "tiles");
    must(tmm_of.bytes[x] == 4 * tmm_of.rows[y], "tiles");
}
static inline void _tile_dpbusd(int to, int x, int y)
{
    tmm_fit(to, x, y);
    for (int i = 0; i < tmm_of.rows[x]; i++) {
        for (int j = 0; j < tmm_of.bytes[y] / 4; j++) {
            for (int s = 0; s < tmm_of.bytes[x]; s++) {
                const int a = (unsigned char)tmm[x][i][s], b = (signed char)tmm[y][s / 4][4 * j + s % 4];
                ((unsigned *)tmm[to][i])[j] += (unsigned)(a * b);
            }
        }
    }
}
static inline void _tile_dpbf16ps(int to, int x, int y)
{
    tmm_fit(to, x, y);
    for (int i = 0; i < tmm_of.rows[x]; i++) {
        for (int j = 0; j < tmm_of.bytes[y] / 4; j++) {
            for (int s = 0; s < tmm_of.bytes[x] / 2; s++) {
                const unsigned short *a = (unsigned short *)tmm[x][i], *b = (unsigned short *)tmm[y][s / 2];
                ((float *)tmm[to][i])[j] += upper(a[s]) * upper(b[2 * j + s % 2]);
            }
        }
    }
}
"""
