/* Register-blocked matrix products on strided tiles; m, k and n are run-time values, tails are masked.
 *
 *     mi_gemm_outer   o[m,n] (+)= sum_k x[m,k] y[k,n]     operands in cache, or a y that many rows of x reuse
 *     mi_gemm_stream  the same product                    few rows of x, y read once from memory
 *     mi_gemm_dot     o[m,n] (+)= sum_k x[m,k] y[n,k]     both contiguous along k
 *
 * With MI_HALF, each has a form `_half` whose y is of 16-bit elements, converted as they are read.
 *
 * Strides count elements. Rows of o are contiguous along n, and so are those of y in the first two. Nothing is read
 * past the last element of a row, nothing is written past n. With `accumulate` zero, o is overwritten (with zeros where
 * k is 0); o must not overlap x or y.
 */
#ifndef MIRAGE_GEMM_H
#define MIRAGE_GEMM_H

#include "mirage_vec.h"

/* y is of mi_half where the constant HALF is true, else of mi_real. MI_OF_Y calls the function for its elements. */
#ifdef MI_HALF
#define MI_OF_Y(HALF, f, ...) ((HALF) ? f##_half(__VA_ARGS__) : f(__VA_ARGS__))
#else
#define MI_OF_Y(HALF, f, ...) f(__VA_ARGS__)
#endif

/* The element of y at a distance. */
MI_INLINE const void *mi_y_at(const int HALF, const void *y, ptrdiff_t at)
{
    return (const char *)y + at * (HALF ? 2 : MI_REAL_BYTES);
}

MI_INLINE mi_vec mi_y_load(const int HALF, const void *y, ptrdiff_t at)
{
    (void)HALF;
    return MI_OF_Y(HALF, mi_load, mi_y_at(HALF, y, at));
}

/* The first n lanes, which `mask` selects. */
MI_INLINE mi_vec mi_y_load_n(const int HALF, const void *y, ptrdiff_t at, int n, mi_mask mask)
{
    const void *p = mi_y_at(HALF, y, at);
    (void)n;
#ifdef MI_HALF
    if (HALF) return mi_load_half_n(p, n);
#endif
    return mi_load_mask(p, mask);
}

/* Register block of mi_gemm_outer: MI_OUTER_MR rows by MI_OUTER_NV vectors of sums, beside one row of y vectors. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define MI_OUTER_MR 8 /* 32 vector registers: 24 sums, 3 of y */
#else
#define MI_OUTER_MR 4 /* 16: 12 sums, 3 of y, 1 broadcast */
#endif
#define MI_OUTER_NV 3
/* A panel of y is this many rows by MI_OUTER_NV vectors: 24 KiB, resident in the first-level cache. */
#define MI_OUTER_KC (24 * 1024 / (MI_OUTER_NV * MI_VEC_BYTES))

typedef struct {
    ptrdiff_t k;
    const mi_real *x;
    ptrdiff_t xs_m, xs_k;
    const void *y;
    ptrdiff_t ys_k;
    mi_real *o;
    ptrdiff_t os_m;
    int tail; /* columns in the last vector, 1 to MI_W */
    int accumulate;
} mi_outer_args;

/* MR rows by NV vectors of o; HALF, MR, NV and MASKED are constants, so the sums live in registers. */
MI_INLINE void mi_outer_tile(const int HALF, const int MR, const int NV, const int MASKED, const mi_outer_args *a)
{
    mi_vec sum[MI_OUTER_MR * MI_OUTER_NV];
    const mi_real *x[MI_OUTER_MR];
    const void *y = a->y;
    const ptrdiff_t xs_k = a->xs_k, ys_k = a->ys_k;
    mi_real *o = a->o;
    const ptrdiff_t os_m = a->os_m;
    const int tail = a->tail, accumulate = a->accumulate;
    const mi_mask mask = mi_mask_n(tail);
    MI_UNROLL for (int i = 0; i < MR * NV; i++) sum[i] = (mi_vec){0};
    MI_UNROLL for (int i = 0; i < MR; i++) x[i] = a->x + i * a->xs_m;
    MI_NO_UNROLL for (ptrdiff_t k = a->k; k > 0; k--)
    {
        mi_vec row[MI_OUTER_NV];
        MI_UNROLL for (int j = 0; j < NV - 1; j++) row[j] = mi_y_load(HALF, y, j * MI_W);
        row[NV - 1] = MASKED ? mi_y_load_n(HALF, y, (NV - 1) * MI_W, tail, mask) : mi_y_load(HALF, y, (NV - 1) * MI_W);
        y = mi_y_at(HALF, y, ys_k);
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            mi_real xi = *x[i];
            x[i] += xs_k;
            MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] += xi * row[j];
        }
    }
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            mi_real *to = o + i * os_m + j * MI_W;
            if (j == NV - 1 && tail < MI_W) {
                if (accumulate) sum[i * NV + j] += mi_load_mask(to, mask);
                mi_store_mask(to, sum[i * NV + j], mask);
            } else {
                if (accumulate) sum[i * NV + j] += mi_load(to);
                mi_store(to, sum[i * NV + j]);
            }
        }
    }
}

#define MI_OUTER_TILE(HALF, MR, NV, suffix) \
    MI_NOINLINE void mi_outer_##MR##x##NV##suffix(const mi_outer_args *a) \
    { \
        if ((MI_CHEAP_MASKS && !HALF) || a->tail < MI_W) mi_outer_tile(HALF, MR, NV, 1, a); \
        else mi_outer_tile(HALF, MR, NV, 0, a); \
    }
#define MI_OUTER_TILES(HALF, MR, suffix) \
    MI_OUTER_TILE(HALF, MR, 1, suffix) \
    MI_OUTER_TILE(HALF, MR, 2, suffix) \
    MI_OUTER_TILE(HALF, MR, 3, suffix) \
    MI_NOINLINE void mi_outer_##MR##suffix(int nv, const mi_outer_args *a) \
    { \
        if (nv == 3) mi_outer_##MR##x3##suffix(a); \
        else if (nv == 2) mi_outer_##MR##x2##suffix(a); \
        else mi_outer_##MR##x1##suffix(a); \
    }
#ifdef MI_HALF
#define MI_OUTER_ROWS(MR) MI_OUTER_TILES(0, MR, ) MI_OUTER_TILES(1, MR, _half)
#else
#define MI_OUTER_ROWS(MR) MI_OUTER_TILES(0, MR, )
#endif
MI_OUTER_ROWS(1)
MI_OUTER_ROWS(2)
MI_OUTER_ROWS(4)
#if MI_OUTER_MR == 8
MI_OUTER_ROWS(8)
#endif

MI_INLINE void mi_outer(
    const int HALF, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k,
    const void *y, ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    /* Rows of y at a large power-of-two stride would share a few sets of the cache: with enough rows of x to pay for
     * it, each panel is copied to a contiguous buffer first. */
    mi_vec panel[MI_OUTER_KC * MI_OUTER_NV];
    const int pack = m >= 3 * MI_OUTER_MR;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < MI_OUTER_KC ? k - k0 : MI_OUTER_KC;
        ptrdiff_t n0 = 0;
        while (n0 < n) {
            /* three vectors at a time, but never leave a single one: four are two and two */
            const ptrdiff_t left = (n - n0 + MI_W - 1) / MI_W;
            const int nv = left > 4 ? 3 : left == 4 ? 2 : (int)left;
            const ptrdiff_t end = n0 + nv * MI_W < n ? n0 + nv * MI_W : n;
            const int tail = (int)(end - n0) - (nv - 1) * MI_W;
            const void *yk = mi_y_at(HALF, y, k0 * ys_k + n0);
            mi_outer_args a = {kc, x + k0 * xs_k, xs_m, xs_k, yk, ys_k, o + n0, os_m, tail, accumulate || k0 > 0};
            if (pack) {
                const mi_mask mask = mi_mask_n(tail);
                for (ptrdiff_t i = 0; i < kc; i++) {
                    for (int j = 0; j < nv - 1; j++) panel[i * nv + j] = mi_y_load(HALF, yk, i * ys_k + j * MI_W);
                    panel[i * nv + nv - 1] = mi_y_load_n(HALF, yk, i * ys_k + (nv - 1) * MI_W, tail, mask);
                }
                a.y = panel;
                a.ys_k = nv * MI_W;
            }
            ptrdiff_t rows = m;
            while (rows > 0) {
                int mr = 1;
#if MI_OUTER_MR == 8
                if (rows >= 8) MI_OF_Y(HALF && !pack, mi_outer_8, nv, &a), mr = 8;
                else
#endif
                if (rows >= 4) MI_OF_Y(HALF && !pack, mi_outer_4, nv, &a), mr = 4;
                else if (rows >= 2) MI_OF_Y(HALF && !pack, mi_outer_2, nv, &a), mr = 2;
                else MI_OF_Y(HALF && !pack, mi_outer_1, nv, &a);
                a.x += mr * xs_m;
                a.o += mr * os_m;
                rows -= mr;
            }
            n0 = end;
        }
        k0 += kc;
    } while (k0 < k);
}

#define MI_GEMM_OUTER(HALF, Y, suffix) \
    MI_NOINLINE void mi_gemm_outer##suffix( \
        ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const Y *y, \
        ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate) \
    { \
        mi_outer(HALF, m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate); \
    }
MI_GEMM_OUTER(0, mi_real, )
#ifdef MI_HALF
MI_GEMM_OUTER(1, mi_half, _half)
#endif

/* ---- stream ---- */

#define MI_STREAM_K 8 /* rows of y read side by side */
#define MI_STREAM_COLUMNS 4096 /* at most so many at once: a few pages of each row */
#define MI_STREAM_BYTES (64 * 1024) /* sums of all rows: in the second-level cache, most in the first */

/* sums[MR,n] += x[KR,MR] y[KR,n] for constant HALF, MR and KR; rows of sums are `stride` apart and padded to whole vectors.
 * The rows of y that follow at distance `next` are fetched into the second-level cache on the way: the processor's own
 * prefetch starts anew in every row. */
MI_INLINE void mi_stream_block(
    const int HALF, const int MR, const int KR, ptrdiff_t n, const mi_real *x, const void *y, ptrdiff_t ys_k,
    ptrdiff_t next, mi_real *sums, ptrdiff_t stride)
{
    for (ptrdiff_t j = 0; j < n; j += MI_W) {
        mi_vec a[8];
        /* x that exceeds the registers is read again as scalars: spilled vectors would fill the cache */
        if (MR * KR > 24) __asm__ volatile("" : : "r"(x) : "memory");
        MI_UNROLL for (int i = 0; i < MR; i++) a[i] = mi_load(sums + i * stride + j);
        const int whole = n - j >= MI_W;
        const mi_mask mask = mi_mask_n(whole ? MI_W : (int)(n - j));
        MI_UNROLL for (int r = 0; r < KR; r++)
        {
            const ptrdiff_t at = r * ys_k + j;
            __builtin_prefetch(mi_y_at(HALF, y, at + next), 0, 2);
            const int masked = (MI_CHEAP_MASKS && !HALF) || !whole;
            mi_vec v = masked ? mi_y_load_n(HALF, y, at, (int)(n - j), mask) : mi_y_load(HALF, y, at);
            MI_UNROLL for (int i = 0; i < MR; i++) a[i] += x[r * MR + i] * v;
        }
        MI_UNROLL for (int i = 0; i < MR; i++) mi_store(sums + i * stride + j, a[i]);
    }
}

#define MI_STREAM(HALF, MR, suffix) \
    MI_NOINLINE void mi_stream_##MR##suffix( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, const void *y, ptrdiff_t ys_k, ptrdiff_t next, mi_real *sums, \
        ptrdiff_t stride) \
    { \
        if (k == MI_STREAM_K) mi_stream_block(HALF, MR, MI_STREAM_K, n, x, y, ys_k, next, sums, stride); \
        else \
            for (ptrdiff_t r = 0; r < k; r++) \
                mi_stream_block(HALF, MR, 1, n, x + r * MR, mi_y_at(HALF, y, r * ys_k), ys_k, 0, sums, stride); \
    }
#ifdef MI_HALF
#define MI_STREAM_ROWS(MR) MI_STREAM(0, MR, ) MI_STREAM(1, MR, _half)
#else
#define MI_STREAM_ROWS(MR) MI_STREAM(0, MR, )
#endif
MI_STREAM_ROWS(1)
MI_STREAM_ROWS(2)
MI_STREAM_ROWS(4)
MI_STREAM_ROWS(8)

MI_INLINE void mi_stream(
    const int HALF, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k,
    const void *y, ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    /* a contiguous buffer, as rows of o at a large power-of-two stride would share one set of the cache */
    mi_vec buffer[MI_STREAM_BYTES / MI_VEC_BYTES];
    mi_real *sums = (mi_real *)buffer;
    for (ptrdiff_t m0 = 0; m0 < m; m0 += 8) {
        const int rows = m - m0 < 8 ? (int)(m - m0) : 8;
        const int mr = rows > 4 ? 8 : rows > 2 ? 4 : rows; /* rows beyond m are zeros, and dropped */
        const ptrdiff_t fit = MI_STREAM_BYTES / MI_REAL_BYTES / mr;
        const ptrdiff_t stride = fit < MI_STREAM_COLUMNS ? fit : MI_STREAM_COLUMNS;
        for (ptrdiff_t n0 = 0; n0 < n; n0 += stride) {
            const ptrdiff_t nc = n - n0 < stride ? n - n0 : stride;
            const size_t used = (size_t)((nc + MI_W - 1) / MI_W) * MI_VEC_BYTES;
            for (int i = 0; i < mr; i++) __builtin_memset(sums + i * stride, 0, used);
            for (ptrdiff_t k0 = 0; k0 < k; k0 += MI_STREAM_K) {
                const ptrdiff_t kc = k - k0 < MI_STREAM_K ? k - k0 : MI_STREAM_K;
                const ptrdiff_t next = k - k0 >= 2 * MI_STREAM_K ? MI_STREAM_K * ys_k : 0;
                const void *yk = mi_y_at(HALF, y, k0 * ys_k + n0);
                mi_real xk[MI_STREAM_K * 8] = {0};
                for (ptrdiff_t r = 0; r < kc; r++) {
                    for (int i = 0; i < rows; i++) xk[r * mr + i] = x[(m0 + i) * xs_m + (k0 + r) * xs_k];
                }
                if (mr == 8) MI_OF_Y(HALF, mi_stream_8, kc, nc, xk, yk, ys_k, next, sums, stride);
                else if (mr == 4) MI_OF_Y(HALF, mi_stream_4, kc, nc, xk, yk, ys_k, next, sums, stride);
                else if (mr == 2) MI_OF_Y(HALF, mi_stream_2, kc, nc, xk, yk, ys_k, next, sums, stride);
                else MI_OF_Y(HALF, mi_stream_1, kc, nc, xk, yk, ys_k, next, sums, stride);
            }
            for (int i = 0; i < rows; i++) {
                mi_real *to = o + (m0 + i) * os_m + n0;
                for (ptrdiff_t j = 0; j < nc; j += MI_W) {
                    const mi_mask mask = mi_mask_n(nc - j < MI_W ? (int)(nc - j) : MI_W);
                    mi_vec v = mi_load(sums + i * stride + j);
                    if (accumulate) v += mi_load_mask(to + j, mask);
                    mi_store_mask(to + j, v, mask);
                }
            }
        }
    }
}

#define MI_GEMM_STREAM(HALF, Y, suffix) \
    MI_NOINLINE void mi_gemm_stream##suffix( \
        ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const Y *y, \
        ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate) \
    { \
        mi_stream(HALF, m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate); \
    }
MI_GEMM_STREAM(0, mi_real, )
#ifdef MI_HALF
MI_GEMM_STREAM(1, mi_half, _half)
#endif

/* ---- dot ---- */

/* Partial sums over interleaved parts of k, where MI_W sums alone would wait for each other. */
#define MI_DOT_PARTS (MI_W <= 4 ? 2 : 1)

/* o[MR,NC] with MR * NC == MI_W; of the NC columns the first `columns` exist. HALF, MR and NC are constants. */
MI_INLINE void mi_dot_tile(
    const int HALF, const int MR, const int NC, ptrdiff_t k, int columns, const mi_real *x, ptrdiff_t xs_m,
    const void *y, ptrdiff_t ys_n, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec sum[MI_DOT_PARTS][MI_W];
    const mi_real *xr[MI_W];
    const void *yr[MI_W];
    MI_UNROLL for (int i = 0; i < MR; i++) xr[i] = x + i * xs_m;
    MI_UNROLL for (int j = 0; j < NC; j++) yr[j] = mi_y_at(HALF, y, (j < columns ? j : columns - 1) * ys_n);
    MI_UNROLL for (int i = 0; i < MI_DOT_PARTS * MI_W; i++) sum[i / MI_W][i % MI_W] = (mi_vec){0};
    ptrdiff_t at = 0;
    MI_NO_UNROLL for (; at + MI_DOT_PARTS * MI_W <= k; at += MI_DOT_PARTS * MI_W)
    {
        MI_UNROLL for (int p = 0; p < MI_DOT_PARTS; p++)
        {
            mi_vec xv[MI_W];
            MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_load(xr[i] + at + p * MI_W);
            MI_UNROLL for (int j = 0; j < NC; j++)
            {
                mi_vec yv = mi_y_load(HALF, yr[j], at + p * MI_W);
                MI_UNROLL for (int i = 0; i < MR; i++) sum[p][i * NC + j] += xv[i] * yv;
            }
        }
    }
    MI_NO_UNROLL for (; at < k; at += MI_W)
    {
        const int lanes = k - at < MI_W ? (int)(k - at) : MI_W;
        const mi_mask mask = mi_mask_n(lanes);
        mi_vec xv[MI_W];
        MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_load_mask(xr[i] + at, mask);
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            mi_vec yv = mi_y_load_n(HALF, yr[j], at, lanes, mask);
            MI_UNROLL for (int i = 0; i < MR; i++) sum[0][i * NC + j] += xv[i] * yv;
        }
    }
    MI_UNROLL for (int p = 1; p < MI_DOT_PARTS; p++)
    {
        MI_UNROLL for (int i = 0; i < MI_W; i++) sum[0][i] += sum[p][i];
    }
    mi_vec total = mi_hsum_each(sum[0]);
    if (MR == 1) {
        if (accumulate) total += mi_load_n(o, columns);
        mi_store_n(o, total, columns);
        return;
    }
    mi_real lanes[MI_W];
    mi_store(lanes, total);
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            if (j < columns) o[i * os_m + j] = accumulate ? o[i * os_m + j] + lanes[i * NC + j] : lanes[i * NC + j];
        }
    }
}

/* All n columns of MR rows. */
#define MI_DOT(HALF, MR, suffix) \
    MI_NOINLINE void mi_dot_##MR##suffix( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const void *y, ptrdiff_t ys_n, mi_real *o, \
        ptrdiff_t os_m, int accumulate) \
    { \
        enum { NC = MI_W / MR }; \
        for (ptrdiff_t j = 0; j < n; j += NC) { \
            const int columns = n - j < NC ? (int)(n - j) : NC; \
            const void *yj = mi_y_at(HALF, y, j * ys_n); \
            mi_dot_tile(HALF, MR, NC, k, columns, x, xs_m, yj, ys_n, o + j, os_m, accumulate); \
        } \
    }
#ifdef MI_HALF
#define MI_DOT_ROWS(MR) MI_DOT(0, MR, ) MI_DOT(1, MR, _half)
#else
#define MI_DOT_ROWS(MR) MI_DOT(0, MR, )
#endif
MI_DOT_ROWS(1)
MI_DOT_ROWS(2)
#if MI_W >= 4
MI_DOT_ROWS(4)
#endif
#if MI_W >= 8
MI_DOT_ROWS(8)
#endif

MI_INLINE void mi_dot(
    const int HALF, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const void *y,
    ptrdiff_t ys_n, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    (void)HALF;
    while (m > 0) {
        int mr = 1;
#if MI_W >= 8
        if (m >= 8) MI_OF_Y(HALF, mi_dot_8, k, n, x, xs_m, y, ys_n, o, os_m, accumulate), mr = 8;
        else
#endif
#if MI_W >= 4
        if (m >= 4) MI_OF_Y(HALF, mi_dot_4, k, n, x, xs_m, y, ys_n, o, os_m, accumulate), mr = 4;
        else
#endif
        if (m >= 2) MI_OF_Y(HALF, mi_dot_2, k, n, x, xs_m, y, ys_n, o, os_m, accumulate), mr = 2;
        else MI_OF_Y(HALF, mi_dot_1, k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
        x += mr * xs_m;
        o += mr * os_m;
        m -= mr;
    }
}

#define MI_GEMM_DOT(HALF, Y, suffix) \
    MI_NOINLINE void mi_gemm_dot##suffix( \
        ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const Y *y, ptrdiff_t ys_n, mi_real *o, \
        ptrdiff_t os_m, int accumulate) \
    { \
        mi_dot(HALF, m, k, n, x, xs_m, y, ys_n, o, os_m, accumulate); \
    }
MI_GEMM_DOT(0, mi_real, )
#ifdef MI_HALF
MI_GEMM_DOT(1, mi_half, _half)
#endif

#endif
