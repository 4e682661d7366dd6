/* What the matrix products share. Each is compiled by itself, beside the others, as one for all would take as long as all. */
#ifndef MIRAGE_GEMM_BLOCK_H
#define MIRAGE_GEMM_BLOCK_H

#include "mirage_gemm.h"

/* Of an operand that is contiguous, what follows in memory is fetched while it is multiplied: processors find out themselves
 * about few streams that are read in order and for long, not about tiles of keys and values in turns. */
#define MI_AHEAD (16 * 1024) /* bytes from what is read to what is fetched, at least */

/* Fetches so many bytes into the second-level cache. */
MI_INLINE void mi_fetch(const int BYTES, const char *next)
{
    MI_UNROLL for (int i = 0; i < BYTES; i += MI_LINE) __builtin_prefetch(next + i, 0, 2);
}

/* Blocks of sums in registers: MI_BLOCK_ROWS by MI_BLOCK_VECTORS, and wider ones for fewer rows. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define MI_BLOCK_ROWS 8
#define MI_BLOCK_SUMS 24 /* of 32 vector registers; the others hold operands */
#else
#define MI_BLOCK_ROWS 4
#define MI_BLOCK_SUMS 12 /* of 16 */
#endif
#define MI_BLOCK_VECTORS 3

#define MI_WIDE (4 * MI_W) /* columns of a block of 4 rows */

/* Loads v once: compilers would rather read memory in each of several multiply-adds, and data of NumPy straddles cache
 * lines, which then costs twice. */
#if defined(__x86_64__) || defined(__i386__)
#define MI_IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define MI_IN_REGISTER(v) __asm__("" : "+w"(v))
#else
#define MI_IN_REGISTER(v)
#endif

/* The most vectors of blocks for m rows. */
MI_INLINE int mi_block_wide(ptrdiff_t m)
{
#if MI_BLOCK_ROWS == 8
    return m > 4 ? 3 : m > 2 ? 4 : 8;
#else
    return m > 2 ? 3 : m > 1 ? 4 : 8;
#endif
}

/* Vectors of the next block, of at most `wide`, where n columns are to come: no single one after three, and where masks
 * cost much, the last vector on its own if it is not full. */
MI_INLINE int mi_block_vectors(ptrdiff_t n, int wide)
{
    const ptrdiff_t left = MI_CHEAP_MASKS || n < MI_W ? (n + MI_W - 1) / MI_W : n / MI_W;
    if (left >= wide && (wide > 3 || left != 4)) return wide;
    if (left <= 3) return (int)left;
    return wide > 3 && (left == 4 || left == 7) ? 4 : left == 4 ? 2 : 3;
}

/* The product of mi_gemm_outer for y of as many columns as the widest blocks, which follow each other in memory: what comes
 * next is fetched. */
MI_SHARED void mi_gemm_outer_fetching(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    mi_real *o, ptrdiff_t os_m, int accumulate);
/* The product of mi_gemm_outer for y[k, MI_BLOCK_VECTORS * MI_W], which is contiguous, as are those that are multiplied next. */
MI_SHARED void mi_gemm_outer_panel(
    ptrdiff_t m, ptrdiff_t k, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y, mi_real *o, ptrdiff_t os_m,
    int accumulate);
#if MI_BLOCK_ROWS == 8
/* The product of mi_gemm_outer where y is contiguous, with rows of few times MI_WIDE columns: a part of y after the other,
 * while the next one is fetched, by all blocks alike. */
MI_SHARED void mi_gemm_outer_parts(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    mi_real *o, ptrdiff_t os_m, int accumulate);
#endif

#endif
