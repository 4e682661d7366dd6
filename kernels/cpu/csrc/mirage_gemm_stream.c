/* mi_gemm_stream: see mirage_gemm.h. */
#include "mirage_gemm_block.h"

#define MI_STREAM_ROWS 8 /* rows of y read side by side, each in order: as processors prefetch best */
#define MI_STREAM_BYTES (32 * 1024) /* sums of all rows, in the first-level cache */
#define MI_STREAM_COLUMNS 4096 /* at most so many at once: a few pages of each row */
#define MI_STREAM_AHEAD (16 * 1024) /* bytes from what is read to what is fetched */

/* Where a packed x has its element of row i and term r: P = MI_W / MR terms of a row together, as
 * mi_transpose_groups has them. */
#define MI_STREAM_P(MR) ((MR) >= MI_W ? 1 : MI_W / (MR) < MI_STREAM_ROWS ? MI_W / (MR) : MI_STREAM_ROWS)
#define MI_STREAM_AT(MR, r, i) (((r) / MI_STREAM_P(MR) * (MR) + (i)) * MI_STREAM_P(MR) + (r) % MI_STREAM_P(MR))

/* sums[g][MR][NV] += x[8,MR] y[8,n] for the groups g of NV vectors in n columns. What is at the same place of rows that
 * begin at `next` is fetched into the second-level cache: the processor's own prefetch starts anew in every row. */
MI_INLINE void mi_stream_block(
    const int MR, const int NV, ptrdiff_t n, const mi_real *x, const mi_real *y, ptrdiff_t ys_k, const mi_real *next,
    mi_real *sums)
{
    ptrdiff_t s1 = ys_k * MI_REAL_BYTES, s3 = 3 * s1, s5 = 5 * s1, s7 = 7 * s1;
    MI_NO_UNROLL for (const mi_real *end = y + n; y < end; y += NV * MI_W, next += NV * MI_W)
    {
        /* opaque, so that x stays in memory and few registers make all addresses: there are too few of both kinds */
        __asm__("" : "+r"(s1), "+r"(s3), "+r"(s5), "+r"(s7), "+r"(x));
        const ptrdiff_t offset[MI_STREAM_ROWS] = {0, s1, 2 * s1, s3, 4 * s1, s5, 2 * s3, s7};
        mi_vec sum[16];
        MI_UNROLL for (int i = 0; i < MR * NV; i++) sum[i] = mi_load(sums + i * MI_W);
        MI_UNROLL for (int r = 0; r < MI_STREAM_ROWS; r++)
        {
            mi_vec row[2];
            MI_UNROLL for (int j = 0; j < NV; j++)
            {
                row[j] = mi_load((const mi_real *)((const char *)y + offset[r]) + j * MI_W);
                if (MR > 1) MI_IN_REGISTER(row[j]);
                __builtin_prefetch((const char *)next + offset[r] + j * MI_VEC_BYTES, 0, 2);
            }
            MI_UNROLL for (int i = 0; i < MR; i++)
            {
                const mi_vec xi = mi_broadcast(x[MI_STREAM_AT(MR, r, i)]);
                MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] += xi * row[j];
            }
        }
        MI_UNROLL for (int i = 0; i < MR * NV; i++) mi_store(sums + i * MI_W, sum[i]);
        sums += MR * NV * MI_W;
    }
}

/* to[MR,8] = x[rows,8], as mi_stream_block wants it; rows that do not exist are zeros */
MI_INLINE void mi_stream_pack(
    const int MR, int rows, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, mi_real *to)
{
    if (MI_W >= MI_STREAM_ROWS && MR <= MI_W && xs_k == 1) {
        mi_vec v[MI_BLOCK_ROWS];
        MI_UNROLL for (int i = 0; i < MR; i++) v[i] = i < rows ? mi_load_n(x + i * xs_m, MI_STREAM_ROWS) : (mi_vec){0};
        mi_transpose_groups(MR, v);
        MI_UNROLL for (int i = 0; i * MI_W < MI_STREAM_ROWS * MR; i++) mi_store(to + i * MI_W, v[i]);
        return;
    }
    MI_NO_UNROLL for (int at = 0; at < MI_STREAM_ROWS * MR; at++)
    {
        const int i = at / MI_STREAM_ROWS, r = at % MI_STREAM_ROWS;
        to[MI_STREAM_AT(MR, r, i)] = i < rows ? x[i * xs_m + r * xs_k] : 0;
    }
}

typedef struct {
    int rows, vectors;
    void (*pack)(int rows, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, mi_real *to);
    void (*block)(
        ptrdiff_t n, const mi_real *x, const mi_real *y, ptrdiff_t ys_k, const mi_real *next, mi_real *sums);
} mi_stream;

#define MI_STREAM(MR, NV) \
    MI_NOINLINE void mi_stream_pack_##MR(int rows, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, mi_real *to) \
    { \
        mi_stream_pack(MR, rows, x, xs_m, xs_k, to); \
    } \
    MI_NOINLINE void mi_stream_block_##MR( \
        ptrdiff_t n, const mi_real *x, const mi_real *y, ptrdiff_t ys_k, const mi_real *next, mi_real *sums) \
    { \
        mi_stream_block(MR, NV, n, x, y, ys_k, next, sums); \
    } \
    static const mi_stream mi_stream_##MR __attribute__((unused)) = {MR, NV, mi_stream_pack_##MR, mi_stream_block_##MR};
MI_STREAM(1, 2)
MI_STREAM(2, 1)
MI_STREAM(4, 1)
#if MI_BLOCK_ROWS == 8
MI_STREAM(8, 2)
#endif

/* The first n columns of at most four blocks of rows, and of the first k rows of y; n is a multiple of the vectors of
 * s, k of MI_STREAM_ROWS. */
MI_NOINLINE void mi_stream_rows(
    const mi_stream *s, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k,
    const mi_real *y, ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    /* rows of o at a large power-of-two stride would share a few sets of the cache */
    mi_vec buffer[MI_STREAM_BYTES / MI_VEC_BYTES];
    mi_real xk[4][MI_STREAM_ROWS * MI_BLOCK_ROWS];
    const ptrdiff_t mr = s->rows, group = s->vectors * MI_W, padded = (m + mr - 1) / mr * mr;
    const ptrdiff_t fit = MI_STREAM_BYTES / MI_REAL_BYTES / padded / group * group;
    const ptrdiff_t strip = fit < MI_STREAM_COLUMNS ? fit : MI_STREAM_COLUMNS;
    mi_real *sums = (mi_real *)buffer;
    for (ptrdiff_t n0 = 0; n0 < n; n0 += strip) {
        const ptrdiff_t nc = n - n0 < strip ? n - n0 : strip;
        const ptrdiff_t ahead = (MI_STREAM_AHEAD / MI_REAL_BYTES / nc / MI_STREAM_ROWS + 1) * MI_STREAM_ROWS; /* rows */
        __builtin_memset(sums, 0, (size_t)(padded * nc) * MI_REAL_BYTES);
        for (ptrdiff_t k0 = 0; k0 < k; k0 += MI_STREAM_ROWS) {
            const mi_real *yk = y + k0 * ys_k + n0, *next = k - k0 > ahead ? yk + ahead * ys_k : yk;
            for (ptrdiff_t i = 0; i < m; i += mr) {
                s->pack(m - i < mr ? (int)(m - i) : (int)mr, x + i * xs_m + k0 * xs_k, xs_m, xs_k, xk[i / mr]);
            }
            for (ptrdiff_t i = 0; i < m; i += mr) s->block(nc, xk[i / mr], yk, ys_k, i ? yk : next, sums + i * nc);
        }
        for (ptrdiff_t i = 0; i < m; i++) {
            mi_real *to = o + i * os_m + n0;
            const mi_real *from = sums + i / mr * mr * nc + i % mr * group;
            for (ptrdiff_t j0 = 0; j0 < nc; j0 += group, from += mr * group) {
                for (ptrdiff_t j = 0; j < group; j += MI_W) {
                    const mi_vec v = mi_load(from + j);
                    mi_store(to + j0 + j, accumulate ? v + mi_load(to + j0 + j) : v);
                }
            }
        }
    }
}

void mi_gemm_stream(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    const ptrdiff_t whole_k = k / MI_STREAM_ROWS * MI_STREAM_ROWS, whole_n = n / (2 * MI_W) * (2 * MI_W);
    const int wide = mi_block_wide(m);
    if (ys_k == n && n == wide * MI_W) { /* as below, and with the registers full; of more rows, y is fetched part by part */
        if (m > MI_BLOCK_ROWS) mi_gemm_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
        else mi_gemm_outer_fetching(m, k, n, x, xs_m, xs_k, y, o, os_m, accumulate);
        return;
    }
#if MI_BLOCK_ROWS == 8
    if (m > 2 && ys_k == n && n % MI_WIDE == 0 && n <= 4 * MI_WIDE) {
        mi_gemm_outer_parts(m, k, n, x, xs_m, xs_k, y, o, os_m, accumulate);
        return;
    }
#endif
    if (m <= MI_BLOCK_ROWS / 2 && ys_k == n && mi_block_vectors(n, wide) * MI_W == n) {
        /* a block takes whole rows: all is in order */
        mi_gemm_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate);
        return;
    }
    for (ptrdiff_t m0 = 0; whole_k && m0 < m; m0 += 4 * MI_BLOCK_ROWS) {
        const ptrdiff_t rows = m - m0 < 4 * MI_BLOCK_ROWS ? m - m0 : 4 * MI_BLOCK_ROWS;
        const mi_stream *s = rows == 1 ? &mi_stream_1 : rows == 2 ? &mi_stream_2 : &mi_stream_4;
#if MI_BLOCK_ROWS == 8
        if (rows > 4) s = &mi_stream_8;
#endif
        mi_stream_rows(
            s, rows, whole_k, whole_n, x + m0 * xs_m, xs_m, xs_k, y, ys_k, o + m0 * os_m, os_m, accumulate);
    }
    if (whole_n && (whole_k < k || !k)) {
        mi_gemm_outer(
            m, k - whole_k, whole_n, x + whole_k * xs_k, xs_m, xs_k, y + whole_k * ys_k, ys_k, o, os_m,
            accumulate || whole_k);
    }
    if (whole_n < n) mi_gemm_outer(m, k, n - whole_n, x, xs_m, xs_k, y + whole_n, ys_k, o + whole_n, os_m, accumulate);
}
