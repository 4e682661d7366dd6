/* The matrix products that mirage_narrow_gemm.h declares. */
#include "mirage_narrow_gemm.h"

#define MI_NARROW_BYTES (32 * 1024) /* of a panel, as mi_real */
#define MI_NARROW_COLUMNS (4 * MI_W) /* of a panel for mi_gemm_outer */
#define MI_NARROW_DOT_TERMS 256 /* of a panel for mi_gemm_dot */

/* to[m,n] = from[m,n]; rows of `to` are of `to_step` elements, whole vectors of which are written. */
MI_INLINE void mi_narrow_panel(
    ptrdiff_t m, ptrdiff_t n, const mi_narrow *from, ptrdiff_t from_step, mi_real *to, ptrdiff_t to_step)
{
    for (ptrdiff_t i = 0; i < m; i++, from += from_step, to += to_step) {
        ptrdiff_t j = 0;
        for (; j + MI_W <= n; j += MI_W) mi_store(to + j, mi_load_narrow(from + j));
        if (j < n) mi_store(to + j, mi_load_narrow_n(from + j, (int)(n - j)));
    }
}

/* ---- few rows: y is converted as it is read, as copies would be read once or twice only ---- */

#define MI_NARROW_FEW 8 /* rows, at most */
#define MI_NARROW_AHEAD 16 /* rows of y that are fetched */
/* Vectors of columns whose sums are in registers, of which there are 16 or 32. */
#if MI_VEC_BYTES == 32 || (MI_VEC_BYTES == 16 && defined(__x86_64__))
#define MI_NARROW_BESIDE(MR) ((MR) > 4 ? 1 : (MR) > 2 ? 2 : 4)
#else
#define MI_NARROW_BESIDE(MR) ((MR) > 4 ? 3 : 4)
#endif

/* o[MR,NV * MI_W] (+)= x y for constant MR and NV; of the rows of x, `rows` exist, of the last vector of columns `lanes`. */
MI_INLINE void mi_few_outer_block(
    const int MR, const int NV, int rows, int lanes, ptrdiff_t k, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k,
    const mi_narrow *y, ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec sum[MI_NARROW_FEW * 4];
    const mi_real *xr[MI_NARROW_FEW];
    MI_UNROLL for (int i = 0; i < MR; i++) xr[i] = x + (i < rows ? i : rows - 1) * xs_m;
    MI_UNROLL for (int i = 0; i < MR * NV; i++) sum[i] = (mi_vec){0};
    for (ptrdiff_t t = 0; t < k; t++, y += ys_k) {
        /* the processor's own prefetch knows no rows that are far apart */
        __builtin_prefetch(y + MI_NARROW_AHEAD * ys_k, 0, 3);
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const mi_vec v = lanes == MI_W ? mi_load_narrow(y + j * MI_W) : mi_load_narrow_n(y, lanes);
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i * NV + j] += xr[i][t * xs_k] * v;
        }
    }
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        if (i >= rows) break;
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            mi_real *const to = o + i * os_m + j * MI_W;
            const mi_vec v = sum[i * NV + j];
            if (lanes == MI_W) mi_store(to, accumulate ? v + mi_load(to) : v);
            else mi_store_n(to, accumulate ? v + mi_load_n(to, lanes) : v, lanes);
        }
    }
}

#define MI_FEW_OUTER(MR) \
    MI_NOINLINE void mi_few_outer_##MR( \
        int rows, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_narrow *y, ptrdiff_t ys_k, \
        mi_real *o, ptrdiff_t os_m, int accumulate) \
    { \
        enum { NV = MI_NARROW_BESIDE(MR) }; \
        ptrdiff_t j = 0; \
        for (; j + NV * MI_W <= n; j += NV * MI_W) \
            mi_few_outer_block(MR, NV, rows, MI_W, k, x, xs_m, xs_k, y + j, ys_k, o + j, os_m, accumulate); \
        for (; j < n; j += MI_W) { \
            const int lanes = n - j < MI_W ? (int)(n - j) : MI_W; \
            mi_few_outer_block(MR, 1, rows, lanes, k, x, xs_m, xs_k, y + j, ys_k, o + j, os_m, accumulate); \
        } \
    }
MI_FEW_OUTER(1)
MI_FEW_OUTER(2)
MI_FEW_OUTER(4)
MI_FEW_OUTER(8)

static void mi_few_outer(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_narrow *y, ptrdiff_t ys_k,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    if (m <= 0) return;
    (m == 1 ? mi_few_outer_1 : m == 2 ? mi_few_outer_2 : m <= 4 ? mi_few_outer_4 : mi_few_outer_8)(
        (int)m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
}

/* o[MR,NC] (+)= x y^T with MR * NC == MI_W, both constants; of the columns `columns` exist. */
MI_INLINE void mi_few_dot_block(
    const int MR, const int NC, int columns, ptrdiff_t k, const mi_real *x, ptrdiff_t xs_m, const mi_narrow *y,
    ptrdiff_t ys_n, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec sum[MI_W];
    const mi_real *xr[MI_NARROW_FEW];
    const mi_narrow *yr[MI_W];
    MI_UNROLL for (int i = 0; i < MR; i++) xr[i] = x + i * xs_m;
    MI_UNROLL for (int j = 0; j < NC; j++) yr[j] = y + (j < columns ? j : columns - 1) * ys_n;
    MI_UNROLL for (int i = 0; i < MI_W; i++) sum[i] = (mi_vec){0};
    for (ptrdiff_t at = 0; at < k; at += MI_W) {
        const int lanes = k - at < MI_W ? (int)(k - at) : MI_W;
        mi_vec xv[MI_NARROW_FEW];
        MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = lanes == MI_W ? mi_load(xr[i] + at) : mi_load_n(xr[i] + at, lanes);
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            const mi_vec v = lanes == MI_W ? mi_load_narrow(yr[j] + at) : mi_load_narrow_n(yr[j] + at, lanes);
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i * NC + j] += xv[i] * v;
        }
    }
    mi_vec total = mi_hsum_each(sum);
    if (MR == 1) {
        if (accumulate) total += mi_load_n(o, columns);
        mi_store_n(o, total, columns);
        return;
    }
    mi_real lanes[MI_W];
    mi_store(lanes, total);
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        for (int j = 0; j < columns; j++)
            o[i * os_m + j] = accumulate ? o[i * os_m + j] + lanes[i * NC + j] : lanes[i * NC + j];
    }
}

#define MI_FEW_DOT(MR) \
    MI_NOINLINE void mi_few_dot_##MR( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o, \
        ptrdiff_t os_m, int accumulate) \
    { \
        enum { NC = MI_W / MR }; \
        for (ptrdiff_t j = 0; j < n; j += NC) { \
            const int columns = n - j < NC ? (int)(n - j) : NC; \
            mi_few_dot_block(MR, NC, columns, k, x, xs_m, y + j * ys_n, ys_n, o + j, os_m, accumulate); \
        } \
    }
MI_FEW_DOT(1)
MI_FEW_DOT(2)

void mi_gemm_outer_narrow(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_narrow *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    if (m <= MI_NARROW_FEW) {
        mi_few_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
        return;
    }
    enum { ROWS = MI_NARROW_BYTES / MI_REAL_BYTES / MI_NARROW_COLUMNS };
    mi_vec panel[MI_NARROW_BYTES / MI_VEC_BYTES];
    mi_real *to = (mi_real *)panel;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < ROWS ? k - k0 : ROWS;
        for (ptrdiff_t n0 = 0; n0 < n; n0 += MI_NARROW_COLUMNS) {
            const ptrdiff_t nc = n - n0 < MI_NARROW_COLUMNS ? n - n0 : MI_NARROW_COLUMNS;
            mi_narrow_panel(kc, nc, y + k0 * ys_k + n0, ys_k, to, MI_NARROW_COLUMNS);
            mi_gemm_outer(
                m, kc, nc, x + k0 * xs_k, xs_m, xs_k, to, MI_NARROW_COLUMNS, o + n0, os_m, accumulate || k0 > 0);
        }
        k0 += kc;
    } while (k0 < k);
}

/* x y^T for columns of y, a part of k at a time; y is read in order where k is short. */
void mi_gemm_dot_narrow(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    if (m <= 2) {
        if (m > 0) (m == 1 ? mi_few_dot_1 : mi_few_dot_2)(k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
        return;
    }
    mi_vec panel[MI_NARROW_BYTES / MI_VEC_BYTES];
    mi_real *to = (mi_real *)panel;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < MI_NARROW_DOT_TERMS ? k - k0 : MI_NARROW_DOT_TERMS;
        const ptrdiff_t step = kc ? (kc + MI_W - 1) / MI_W * MI_W : MI_W;
        const ptrdiff_t fit = MI_NARROW_BYTES / MI_REAL_BYTES / step;
        for (ptrdiff_t n0 = 0; n0 < n; n0 += fit) {
            const ptrdiff_t nc = n - n0 < fit ? n - n0 : fit;
            mi_narrow_panel(nc, kc, y + n0 * ys_n + k0, ys_n, to, step);
            mi_gemm_dot(m, kc, nc, x + k0, xs_m, to, step, o + n0, os_m, accumulate || k0 > 0);
        }
        k0 += kc;
    } while (k0 < k);
}

/* ---- stream ---- */

#define MI_NARROW_STREAM_ROWS 8 /* rows of y read side by side */
#define MI_NARROW_STREAM_BYTES (32 * 1024) /* sums of all rows, in the first-level cache */
#define MI_NARROW_STREAM_COLUMNS 4096 /* at most so many at once: a page or two of each row */

/* sums[MR,n] += x[KR,MR] y[KR,n] for constant MR and KR; rows of sums are `stride` apart and of whole vectors. The rows
 * of y at distance `next` are fetched into the second-level cache: the processor's own prefetch starts anew in every
 * row. */
MI_INLINE void mi_narrow_stream_block(
    const int MR, const int KR, ptrdiff_t n, const mi_real *x, const mi_narrow *y, ptrdiff_t ys_k, ptrdiff_t next,
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
            const mi_narrow *p = y + r * ys_k + j;
            __builtin_prefetch(p + next, 0, 2);
            const mi_vec v = whole ? mi_load_narrow(p) : mi_load_narrow_n(p, (int)(n - j));
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i] += x[r * MR + i] * v;
        }
        MI_UNROLL for (int i = 0; i < MR; i++) mi_store(sums + i * stride + j, sum[i]);
    }
}

#define MI_NARROW_STREAM(MR) \
    MI_NOINLINE void mi_narrow_stream_##MR( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, const mi_narrow *y, ptrdiff_t ys_k, ptrdiff_t next, mi_real *sums, \
        ptrdiff_t stride) \
    { \
        if (k == MI_NARROW_STREAM_ROWS) { \
            mi_narrow_stream_block(MR, MI_NARROW_STREAM_ROWS, n, x, y, ys_k, next, sums, stride); \
        } else { \
            for (ptrdiff_t r = 0; r < k; r++) \
                mi_narrow_stream_block(MR, 1, n, x + r * MR, y + r * ys_k, ys_k, 0, sums, stride); \
        } \
    }
MI_NARROW_STREAM(1)
MI_NARROW_STREAM(2)
MI_NARROW_STREAM(4)
MI_NARROW_STREAM(8)

void mi_gemm_stream_narrow(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_narrow *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    if (m <= MI_NARROW_FEW && (m > 2 || n <= MI_NARROW_BESIDE(m) * MI_W)) {
        /* bound by arithmetic, or rows of y are as long as what is read at once */
        mi_few_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
        return;
    }
    enum { R = MI_NARROW_STREAM_ROWS, MOST = 32 }; /* rows of x at once */
    /* a contiguous buffer, as rows of o at a large power-of-two stride would share a few sets of the cache */
    mi_vec buffer[MI_NARROW_STREAM_BYTES / MI_VEC_BYTES];
    mi_real *sums = (mi_real *)buffer;
    mi_real xk[MOST * R];
    for (ptrdiff_t m0 = 0; m0 < m; m0 += MOST) {
        const int rows = m - m0 < MOST ? (int)(m - m0) : MOST;
        /* rows beyond m are zeros */
        const int mr = rows > 4 ? 8 : rows > 2 ? 4 : rows, all = (rows + mr - 1) / mr * mr;
        const ptrdiff_t fit = MI_NARROW_STREAM_BYTES / MI_REAL_BYTES / all / MI_W * MI_W;
        const ptrdiff_t stride = fit < MI_NARROW_STREAM_COLUMNS ? fit : MI_NARROW_STREAM_COLUMNS;
        __builtin_memset(xk, 0, sizeof xk);
        for (ptrdiff_t n0 = 0; n0 < n; n0 += stride) {
            const ptrdiff_t nc = n - n0 < stride ? n - n0 : stride;
            __builtin_memset(sums, 0, (size_t)(all * stride) * MI_REAL_BYTES);
            for (ptrdiff_t k0 = 0; k0 < k; k0 += R) {
                const ptrdiff_t kc = k - k0 < R ? k - k0 : R;
                const mi_narrow *yk = y + k0 * ys_k + n0;
                for (int i = 0; i < rows; i++) {
                    for (ptrdiff_t r = 0; r < kc; r++)
                        xk[i / mr * (R * mr) + r * mr + i % mr] = x[(m0 + i) * xs_m + (k0 + r) * xs_k];
                }
                for (int i = 0; i < rows; i += mr) {
                    const ptrdiff_t next = i == 0 && k - k0 >= 2 * R ? R * ys_k : 0;
                    if (mr == 8) mi_narrow_stream_8(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                    else if (mr == 4) mi_narrow_stream_4(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                    else if (mr == 2) mi_narrow_stream_2(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
                    else mi_narrow_stream_1(kc, nc, xk + i * R, yk, ys_k, next, sums + i * stride, stride);
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
