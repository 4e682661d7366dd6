/* The matrix products that mirage_half_gemm.h declares. */
#include "mirage_half_gemm.h"

#define MI_HALF_BYTES (32 * 1024) /* of a panel, as mi_real */
#define MI_HALF_COLUMNS (4 * MI_W) /* of a panel for mi_gemm_outer */
#define MI_HALF_DOT_TERMS 256 /* of a panel for mi_gemm_dot */

/* to[m,n] = from[m,n]; rows of `to` are of `to_step` elements, whole vectors of which are written. */
MI_INLINE void mi_half_panel(
    ptrdiff_t m, ptrdiff_t n, const mi_half *from, ptrdiff_t from_step, mi_real *to, ptrdiff_t to_step)
{
    for (ptrdiff_t i = 0; i < m; i++, from += from_step, to += to_step) {
        ptrdiff_t j = 0;
        for (; j + MI_W <= n; j += MI_W) mi_store(to + j, mi_load_half(from + j));
        if (j < n) mi_store(to + j, mi_load_half_n(from + j, (int)(n - j)));
    }
}

void mi_gemm_outer_half(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_half *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    enum { ROWS = MI_HALF_BYTES / MI_REAL_BYTES / MI_HALF_COLUMNS };
    mi_vec panel[MI_HALF_BYTES / MI_VEC_BYTES];
    mi_real *to = (mi_real *)panel;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < ROWS ? k - k0 : ROWS;
        for (ptrdiff_t n0 = 0; n0 < n; n0 += MI_HALF_COLUMNS) {
            const ptrdiff_t nc = n - n0 < MI_HALF_COLUMNS ? n - n0 : MI_HALF_COLUMNS;
            mi_half_panel(kc, nc, y + k0 * ys_k + n0, ys_k, to, MI_HALF_COLUMNS);
            mi_gemm_outer(
                m, kc, nc, x + k0 * xs_k, xs_m, xs_k, to, MI_HALF_COLUMNS, o + n0, os_m, accumulate || k0 > 0);
        }
        k0 += kc;
    } while (k0 < k);
}

/* x y^T for columns of y, a part of k at a time; y is read in order where k is short. */
void mi_gemm_dot_half(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_half *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec panel[MI_HALF_BYTES / MI_VEC_BYTES];
    mi_real *to = (mi_real *)panel;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < MI_HALF_DOT_TERMS ? k - k0 : MI_HALF_DOT_TERMS;
        const ptrdiff_t step = kc ? (kc + MI_W - 1) / MI_W * MI_W : MI_W;
        const ptrdiff_t fit = MI_HALF_BYTES / MI_REAL_BYTES / step;
        for (ptrdiff_t n0 = 0; n0 < n; n0 += fit) {
            const ptrdiff_t nc = n - n0 < fit ? n - n0 : fit;
            mi_half_panel(nc, kc, y + n0 * ys_n + k0, ys_n, to, step);
            mi_gemm_dot(m, kc, nc, x + k0, xs_m, to, step, o + n0, os_m, accumulate || k0 > 0);
        }
        k0 += kc;
    } while (k0 < k);
}

/* ---- stream ---- */

#define MI_HALF_STREAM_ROWS 8 /* rows of y read side by side */
#define MI_HALF_STREAM_BYTES (32 * 1024) /* sums of all rows, in the first-level cache */
#define MI_HALF_STREAM_COLUMNS 4096 /* at most so many at once: a page or two of each row */

/* sums[MR,n] += x[KR,MR] y[KR,n] for constant MR and KR; rows of sums are `stride` apart and of whole vectors. The rows
 * of y at distance `next` are fetched into the second-level cache: the processor's own prefetch starts anew in every
 * row. */
MI_INLINE void mi_half_stream_block(
    const int MR, const int KR, ptrdiff_t n, const mi_real *x, const mi_half *y, ptrdiff_t ys_k, ptrdiff_t next,
    mi_real *sums, ptrdiff_t stride)
{
    for (ptrdiff_t j = 0; j < n; j += MI_W) {
        const int whole = n - j >= MI_W;
        mi_vec sum[8];
        /* x that exceeds the registers is read again as scalars: spilled vectors would fill the cache */
        if (MR * KR > 24) __asm__ volatile("" : : "r"(x) : "memory");
        MI_UNROLL for (int i = 0; i < MR; i++) sum[i] = mi_load(sums + i * stride + j);
        MI_UNROLL for (int r = 0; r < KR; r++)
        {
            const mi_half *p = y + r * ys_k + j;
            __builtin_prefetch(p + next, 0, 2);
            const mi_vec v = whole ? mi_load_half(p) : mi_load_half_n(p, (int)(n - j));
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i] += x[r * MR + i] * v;
        }
        MI_UNROLL for (int i = 0; i < MR; i++) mi_store(sums + i * stride + j, sum[i]);
    }
}

#define MI_HALF_STREAM(MR) \
    MI_NOINLINE void mi_half_stream_##MR( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, const mi_half *y, ptrdiff_t ys_k, ptrdiff_t next, mi_real *sums, \
        ptrdiff_t stride) \
    { \
        if (k == MI_HALF_STREAM_ROWS) { \
            mi_half_stream_block(MR, MI_HALF_STREAM_ROWS, n, x, y, ys_k, next, sums, stride); \
        } else { \
            for (ptrdiff_t r = 0; r < k; r++) \
                mi_half_stream_block(MR, 1, n, x + r * MR, y + r * ys_k, ys_k, 0, sums, stride); \
        } \
    }
MI_HALF_STREAM(1)
MI_HALF_STREAM(2)
MI_HALF_STREAM(4)
MI_HALF_STREAM(8)

void mi_gemm_stream_half(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_half *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    enum { R = MI_HALF_STREAM_ROWS, MOST = 32 }; /* rows of x at once */
    /* a contiguous buffer, as rows of o at a large power-of-two stride would share a few sets of the cache */
    mi_vec buffer[MI_HALF_STREAM_BYTES / MI_VEC_BYTES];
    mi_real *sums = (mi_real *)buffer;
    mi_real xk[MOST * R];
    for (ptrdiff_t m0 = 0; m0 < m; m0 += MOST) {
        const int rows = m - m0 < MOST ? (int)(m - m0) : MOST;
        /* rows beyond m are zeros */
        const int mr = rows > 4 ? 8 : rows > 2 ? 4 : rows, all = (rows + mr - 1) / mr * mr;
        const ptrdiff_t fit = MI_HALF_STREAM_BYTES / MI_REAL_BYTES / all / MI_W * MI_W;
        const ptrdiff_t stride = fit < MI_HALF_STREAM_COLUMNS ? fit : MI_HALF_STREAM_COLUMNS;
        __builtin_memset(xk, 0, sizeof xk);
        for (ptrdiff_t n0 = 0; n0 < n; n0 += stride) {
            const ptrdiff_t nc = n - n0 < stride ? n - n0 : stride;
            __builtin_memset(sums, 0, (size_t)(all * stride) * MI_REAL_BYTES);
            for (ptrdiff_t k0 = 0; k0 < k; k0 += R) {
                const ptrdiff_t kc = k - k0 < R ? k - k0 : R;
                const mi_half *yk = y + k0 * ys_k + n0;
                for (int i = 0; i < rows; i++) {
                    for (ptrdiff_t r = 0; r < kc; r++)
                        xk[i / mr * (R * mr) + r * mr + i % mr] = x[(m0 + i) * xs_m + (k0 + r) * xs_k];
                }
                for (int i = 0; i < rows; i += mr) {
                    const ptrdiff_t next = i == 0 && k - k0 >= 2 * R ? R * ys_k : 0;
                    if (mr == 8) mi_half_stream_8(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                    else if (mr == 4) mi_half_stream_4(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                    else if (mr == 2) mi_half_stream_2(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                    else mi_half_stream_1(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                }
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
