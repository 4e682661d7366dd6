/* The matrix products that mirage_gemm.h declares. */
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
/* A panel of y is this many rows by MI_BLOCK_VECTORS vectors: 24 KiB, resident in the first-level cache. */
#define MI_PANEL_ROWS (24 * 1024 / (MI_BLOCK_VECTORS * MI_VEC_BYTES))

typedef struct {
    ptrdiff_t k;
    const mi_real *x;
    ptrdiff_t xs_m, xs_k;
    const mi_real *y;
    ptrdiff_t ys_k;
    mi_real *o;
    ptrdiff_t os_m;
    int rows; /* that exist, at most MR */
    int tail; /* columns in the last vector, 1 to MI_W */
    int accumulate;
    const char *next; /* what is fetched */
} mi_block_args;

/* Loads v once: compilers would rather read memory in each of several multiply-adds, and data of NumPy straddles cache
 * lines, which then costs twice. */
#if defined(__x86_64__) || defined(__i386__)
#define MI_IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define MI_IN_REGISTER(v) __asm__("" : "+w"(v))
#else
#define MI_IN_REGISTER(v)
#endif

MI_INLINE mi_vec mi_block_load(const int MASKED, const mi_real *p, mi_mask mask)
{
    return MASKED ? mi_load_mask(p, mask) : mi_load(p);
}

/* One term of MR rows by NV vectors of sums. */
MI_INLINE void mi_block_term(
    const int MR, const int NV, const int MASKED, const mi_real *const *x, ptrdiff_t at, const mi_real *y, mi_mask mask,
    mi_vec *sum)
{
    if (NV > MR) {
        mi_vec xi[MI_BLOCK_ROWS];
        MI_UNROLL for (int i = 0; i < MR; i++) xi[i] = mi_broadcast(x[i][at]);
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            mi_vec yj = mi_block_load(MASKED && j == NV - 1, y + j * MI_W, mask);
            if (MR > 1) MI_IN_REGISTER(yj);
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i * NV + j] += xi[i] * yj;
        }
    } else {
        mi_vec yj[MI_BLOCK_ROWS];
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            yj[j] = mi_block_load(MASKED && j == NV - 1, y + j * MI_W, mask);
            MI_IN_REGISTER(yj[j]);
        }
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            const mi_vec xi = mi_broadcast(x[i][at]);
            MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] += xi * yj[j];
        }
    }
}

/* MR rows by NV vectors of o; MR, NV and MASKED are constants, so the sums live in registers. Blocks of few sums have
 * several of each, of every KU-th term, where a sum would wait for its last multiply-add. With each term, FETCH bytes are
 * fetched. */
MI_INLINE void mi_block(const int MR, const int NV, const int MASKED, const int FETCH, const mi_block_args *a)
{
    enum { MOST = 8 };
    const int fit = MI_BLOCK_SUMS / (MR * NV), KU = fit >= MOST ? MOST : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    mi_vec sum[MI_BLOCK_SUMS];
    const mi_real *x[MI_BLOCK_ROWS];
    const mi_real *y = a->y;
    const char *next = a->next;
    ptrdiff_t xs_k = a->xs_k, ys_k = a->ys_k, at = 0;
    mi_real *o = a->o;
    const ptrdiff_t os_m = a->os_m;
    const int rows = a->rows, tail = a->tail, accumulate = a->accumulate;
    if (MASKED && !MI_CHEAP_MASKS && (tail < 1 || tail >= MI_W)) __builtin_unreachable(); /* or GCC warns */
    const mi_mask mask = mi_mask_n(tail);
    ptrdiff_t k = a->k;
    MI_UNROLL for (int i = 0; i < KU * MR * NV; i++) sum[i] = (mi_vec){0};
    MI_UNROLL for (int i = 0; i < MR; i++) x[i] = a->x + (i < rows ? i : rows - 1) * a->xs_m;
    if (KU > 1) {
        MI_NO_UNROLL for (; k >= KU; k -= KU)
        {
            __asm__("" : "+r"(xs_k), "+r"(ys_k)); /* opaque: the compiler would make more loops, for strides of 1 */
            MI_UNROLL for (int u = 0; u < KU; u++)
            {
                mi_fetch(FETCH, next);
                mi_block_term(MR, NV, MASKED, x, at, y, mask, sum + u * MR * NV);
                at += xs_k;
                y += ys_k;
                next += FETCH;
            }
        }
        MI_UNROLL for (int u = 1; u < KU; u++)
        {
            MI_UNROLL for (int i = 0; i < MR * NV; i++) sum[i] += sum[u * MR * NV + i];
        }
    }
    MI_NO_UNROLL for (; k > 0; k--)
    {
        __asm__("" : "+r"(xs_k), "+r"(ys_k));
        mi_fetch(FETCH, next);
        mi_block_term(MR, NV, MASKED, x, at, y, mask, sum);
        at += xs_k;
        y += ys_k;
        next += FETCH;
    }
    if (accumulate) {
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            const mi_real *from = o + (i < rows ? i : rows - 1) * os_m;
            MI_UNROLL for (int j = 0; j < NV; j++)
            {
                sum[i * NV + j] += mi_block_load(MASKED && j == NV - 1, from + j * MI_W, mask);
            }
        }
    }
    /* a row that does not exist has the sums of the one before */
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        mi_real *to = o + (i < rows ? i : rows - 1) * os_m;
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            if (MASKED && j == NV - 1) mi_store_mask(to + j * MI_W, sum[i * NV + j], mask);
            else mi_store(to + j * MI_W, sum[i * NV + j]);
        }
    }
}

#define MI_BLOCK(MR, NV) \
    MI_NOINLINE void mi_block_##MR##x##NV(const mi_block_args *a) \
    { \
        if (MI_CHEAP_MASKS || (NV == 1 && a->tail < MI_W)) mi_block(MR, NV, 1, 0, a); \
        else mi_block(MR, NV, 0, 0, a); \
    }
/* All columns are there, and with each term, so many vectors are fetched. */
#define MI_FETCHING(MR, NV, VECTORS) \
    MI_NOINLINE void mi_block_##MR##x##NV##_fetching_##VECTORS(const mi_block_args *a) \
    { \
        mi_block(MR, NV, 0, VECTORS * MI_VEC_BYTES, a); \
    }
#define MI_BLOCKS(MR) MI_BLOCK(MR, 1) MI_BLOCK(MR, 2) MI_BLOCK(MR, 3)
MI_BLOCKS(1)
MI_BLOCK(1, 4)
MI_BLOCK(1, 8)
MI_BLOCKS(2)
MI_BLOCK(2, 4)
MI_BLOCKS(4)
#if MI_BLOCK_ROWS == 8
MI_BLOCK(2, 8)
MI_BLOCK(4, 4)
MI_BLOCKS(8)
MI_FETCHING(2, 8, 8)
MI_FETCHING(4, 4, 1)
MI_FETCHING(4, 4, 2)
MI_FETCHING(4, 4, 4)
MI_FETCHING(8, 3, 3)
#else
MI_FETCHING(2, 4, 4)
MI_FETCHING(4, 3, 3)
#endif

typedef void mi_block_fn(const mi_block_args *);

#define MI_BLOCKS_OF(MR) mi_block_##MR##x1, mi_block_##MR##x2, mi_block_##MR##x3
/* by the logarithm of the rows, and by 1, 2, 3, 4 or the most vectors */
static mi_block_fn *const mi_blocks[][5] __attribute__((unused)) = {
    {MI_BLOCKS_OF(1), mi_block_1x4, mi_block_1x8},
#if MI_BLOCK_ROWS == 8
    {MI_BLOCKS_OF(2), mi_block_2x4, mi_block_2x8},
    {MI_BLOCKS_OF(4), mi_block_4x4, mi_block_4x4},
    {MI_BLOCKS_OF(8), mi_block_8x3, mi_block_8x3},
#else
    {MI_BLOCKS_OF(2), mi_block_2x4, mi_block_2x4},
    {MI_BLOCKS_OF(4), mi_block_4x3, mi_block_4x3},
#endif
};
/* by the logarithm of the rows: a single one is read as fast as memory allows without */
static mi_block_fn *const mi_panels[] __attribute__((unused)) = {
#if MI_BLOCK_ROWS == 8
    mi_block_1x8, mi_block_2x8_fetching_8, mi_block_4x4_fetching_4, mi_block_8x3_fetching_3
#else
    mi_block_1x8, mi_block_2x4_fetching_4, mi_block_4x3_fetching_3
#endif
};

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

/* All m rows of `nv` vectors of columns; as few blocks as may be: 7 rows are one of 8. The first of them may `fetch`. */
MI_INLINE void mi_block_column(ptrdiff_t m, int nv, int fetch, mi_block_args *a)
{
    const int which = nv > 4 ? 4 : nv - 1;
    while (m > 0) {
        int mr = MI_BLOCK_ROWS, log = MI_BLOCK_ROWS == 8 ? 3 : 2;
        /* one block that waits for memory has time for rows that do not exist */
        while (fetch ? m <= mr / 2 : m < mr - (mr > 2)) mr /= 2, log--;
        a->rows = m < mr ? (int)m : mr;
        a->next = (const char *)a->y + MI_AHEAD;
        (fetch ? mi_panels[log] : mi_blocks[log][which])(a);
        fetch = 0;
        a->x += mr * a->xs_m;
        a->o += mr * a->os_m;
        m -= mr;
    }
}

/* The product of mi_gemm_outer; where `fetch` is not zero, y has rows of as many columns as the widest blocks, which
 * follow each other in memory. */
MI_INLINE void mi_outer(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate, int fetch)
{
    /* Rows of y at a large power-of-two stride would share a few sets of the cache: with enough rows of x to pay for
     * it, each panel is copied to a contiguous buffer first. */
    mi_vec panel[MI_PANEL_ROWS * MI_BLOCK_VECTORS];
    const int pack = m >= 3 * MI_BLOCK_ROWS, wide = mi_block_wide(m);
    /* what a single block reads need not stay in the cache */
    const ptrdiff_t most = m > MI_BLOCK_ROWS ? MI_PANEL_ROWS : k;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < most ? k - k0 : most;
        ptrdiff_t n0 = 0;
        while (n0 < n) {
            const int nv = mi_block_vectors(n - n0, wide);
            const ptrdiff_t end = n0 + nv * MI_W < n ? n0 + nv * MI_W : n;
            const int tail = (int)(end - n0) - (nv - 1) * MI_W;
            const mi_real *yk = y + k0 * ys_k + n0;
            mi_block_args a = {kc, x + k0 * xs_k, xs_m, xs_k, yk, ys_k, o + n0, os_m, 0, tail, accumulate || k0 > 0, 0};
            if (pack) {
                const mi_mask mask = mi_mask_n(tail);
                for (ptrdiff_t i = 0; i < kc; i++) {
                    for (int j = 0; j < nv - 1; j++) panel[i * nv + j] = mi_load(yk + i * ys_k + j * MI_W);
                    panel[i * nv + nv - 1] = mi_load_mask(yk + i * ys_k + (nv - 1) * MI_W, mask);
                }
                a.y = (const mi_real *)panel;
                a.ys_k = nv * MI_W;
            }
            mi_block_column(m, nv, fetch && !pack, &a);
            n0 = end;
        }
        k0 += kc;
    } while (k0 < k);
}

#if MI_BLOCK_ROWS == 8
#define MI_WIDE (4 * MI_W) /* columns of a block of 4 rows */
#define MI_PART_BYTES (16 * 1024) /* of y, in the first-level cache for all of its blocks */

/* The product of mi_gemm_outer where y is contiguous, with rows of few times MI_WIDE columns: a part of y after the other,
 * while the next one is fetched, by all blocks alike. */
MI_NOINLINE void mi_outer_parts(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    const int vectors = m <= 4 ? 4 : m <= 12 ? 2 : 1;
    mi_block_fn *const fetching = vectors == 4   ? mi_block_4x4_fetching_4
                                  : vectors == 2 ? mi_block_4x4_fetching_2
                                                 : mi_block_4x4_fetching_1;
    const ptrdiff_t most = MI_PART_BYTES / MI_REAL_BYTES / n;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < most ? k - k0 : most, part = kc * n * MI_REAL_BYTES;
        const mi_real *yk = y + k0 * n;
        const char *next = (const char *)yk + (part < MI_AHEAD ? MI_AHEAD : part);
        for (ptrdiff_t n0 = 0; n0 < n; n0 += MI_WIDE) {
            mi_block_args a = {kc, x + k0 * xs_k, xs_m, xs_k, yk + n0, n, o + n0, os_m, 4, MI_W, accumulate || k0 > 0, next};
            for (ptrdiff_t i = 0; i < m; i += 4) {
                if (m - i < 4) a.rows = (int)(m - i);
                if (i * vectors < MI_BLOCK_ROWS * 2) {
                    fetching(&a);
                    a.next += kc * vectors * MI_VEC_BYTES;
                } else {
                    mi_block_4x4(&a);
                }
                a.x += 4 * xs_m;
                a.o += 4 * os_m;
            }
            next = a.next;
        }
        k0 += kc;
    } while (k0 < k);
}
#endif

void mi_gemm_outer(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
#if MI_BLOCK_ROWS == 8
    /* parts have blocks of fewer loads where rows are short, and need no copies where there are many */
    if (ys_k == n && ((n == MI_WIDE && m > 4) || (n == 2 * MI_WIDE && m >= 3 * MI_BLOCK_ROWS))) {
        mi_outer_parts(m, k, n, x, xs_m, xs_k, y, o, os_m, accumulate);
        return;
    }
#endif
    mi_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate, 0);
}

/* ---- stream ---- */

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
    if (ys_k == n && n == wide * MI_W) { /* as below, and with the registers full */
        mi_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate, 1);
        return;
    }
#if MI_BLOCK_ROWS == 8
    if (m > 2 && ys_k == n && n % MI_WIDE == 0 && n <= 4 * MI_WIDE) {
        mi_outer_parts(m, k, n, x, xs_m, xs_k, y, o, os_m, accumulate);
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

/* ---- dot ---- */

/* Partial sums over interleaved parts of k, where MI_W sums alone would wait for each other. */
#define MI_DOT_PARTS (MI_W <= 4 ? 2 : 1)

/* o[MR,NC] with MR * NC == MI_W; of the NC columns the first `columns` exist. MR, NC and FETCH are constants; with FETCH, as
 * many bytes of what follows on y are fetched as are read. */
MI_INLINE void mi_dot_tile(
    const int MR, const int NC, const int FETCH, ptrdiff_t k, int columns, const mi_real *x, ptrdiff_t xs_m, const mi_real *y,
    ptrdiff_t ys_n, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec sum[MI_DOT_PARTS][MI_W];
    const mi_real *xr[MI_W], *yr[MI_W];
    MI_UNROLL for (int i = 0; i < MR; i++) xr[i] = x + i * xs_m;
    MI_UNROLL for (int j = 0; j < NC; j++) yr[j] = y + (j < columns ? j : columns - 1) * ys_n;
    MI_UNROLL for (int i = 0; i < MI_DOT_PARTS * MI_W; i++) sum[i / MI_W][i % MI_W] = (mi_vec){0};
    const char *next = (const char *)y + MI_AHEAD;
    ptrdiff_t at = 0;
    MI_NO_UNROLL for (; at + MI_DOT_PARTS * MI_W <= k; at += MI_DOT_PARTS * MI_W)
    {
        MI_UNROLL for (int p = 0; p < MI_DOT_PARTS; p++)
        {
            mi_vec xv[MI_W];
            MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_load(xr[i] + at + p * MI_W);
            MI_UNROLL for (int j = 0; j < NC; j++)
            {
                if (FETCH && j * MI_VEC_BYTES % MI_LINE == 0) mi_fetch(MI_LINE, next + j * MI_VEC_BYTES);
                mi_vec yv = mi_load(yr[j] + at + p * MI_W);
                if (MR > 1) MI_IN_REGISTER(yv);
                MI_UNROLL for (int i = 0; i < MR; i++) sum[p][i * NC + j] += xv[i] * yv;
            }
            next += NC * MI_VEC_BYTES;
        }
    }
    MI_NO_UNROLL for (; at < k; at += MI_W)
    {
        const mi_mask mask = mi_mask_n(k - at < MI_W ? (int)(k - at) : MI_W);
        mi_vec xv[MI_W];
        MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_load_mask(xr[i] + at, mask);
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            mi_vec yv = mi_load_mask(yr[j] + at, mask);
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
#define MI_DOT_ROWS(MR, FETCH, name) \
    MI_NOINLINE void name( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n, mi_real *o, \
        ptrdiff_t os_m, int accumulate) \
    { \
        enum { NC = MI_W / MR }; \
        for (ptrdiff_t j = 0; j < n; j += NC) { \
            const int columns = n - j < NC ? (int)(n - j) : NC; \
            mi_dot_tile(MR, NC, FETCH, k, columns, x, xs_m, y + j * ys_n, ys_n, o + j, os_m, accumulate); \
        } \
    }
MI_DOT_ROWS(1, 0, mi_dot_1)
MI_DOT_ROWS(2, 0, mi_dot_2)
MI_DOT_ROWS(1, 1, mi_dot_1_fetching)
MI_DOT_ROWS(2, 1, mi_dot_2_fetching)

/* The first two rows may `fetch`. */
MI_NOINLINE void mi_dot_few(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate, int fetch)
{
    for (; m > 1; m -= 2, x += 2 * xs_m, o += 2 * os_m, fetch = 0) {
        (fetch ? mi_dot_2_fetching : mi_dot_2)(k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
    }
    if (m) (fetch ? mi_dot_1_fetching : mi_dot_1)(k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
}

/* More rows: lane i * P + p of a vector has x[i,t * P + p], for P = MI_W / MR and some t, and multiplies P elements of
 * a row of y, repeated: few horizontal sums are left, of P lanes. */

typedef long long mi_pair_int __attribute__((aligned(MI_REAL_BYTES), may_alias));
typedef long long mi_pairs __attribute__((vector_size(MI_VEC_BYTES)));
typedef mi_real mi_quad __attribute__((vector_size(16), aligned(MI_REAL_BYTES), may_alias));

#if defined(__has_builtin)
#if MI_VEC_BYTES == 64 && __has_builtin(__builtin_ia32_broadcastf32x4_512)
typedef float mi_four_floats __attribute__((vector_size(16)));
typedef float mi_floats __attribute__((vector_size(64)));
#define MI_REPEAT_16_BYTES(v) (mi_vec) __builtin_ia32_broadcastf32x4_512((mi_four_floats)(v), (mi_floats){0}, -1)
#endif
#endif
#ifndef MI_REPEAT_16_BYTES
#define MI_LANE_OF_16_(l, h) ((l) % (16 / MI_REAL_BYTES))
#define MI_REPEAT_16_BYTES(v) __builtin_shufflevector(v, v, MI_LANES(MI_LANE_OF_16_, 0))
#endif

/* p[P] in all lanes, over and over. */
MI_INLINE mi_vec mi_repeat(const int P, const mi_real *p)
{
    if (P == 1) return mi_broadcast(*p);
    if (P * MI_REAL_BYTES == 8) return (mi_vec)(*(const mi_pair_int *)p - (mi_pairs){0});
    return MI_REPEAT_16_BYTES(*(const mi_quad *)p);
}

#define MI_DOT_STEPS 256 /* of x at once: as many vectors, 16 KiB */
#define MI_DOT_COLUMNS (MI_W >= 8 ? MI_W : 8) /* sums side by side: no multiply-add waits for the last one */

/* o[rows,MI_DOT_COLUMNS] (+)= x y for x of `steps` vectors; what is read is a PART-th of what is fetched, if any. */
MI_INLINE void mi_dot_block(
    const int MR, const int PART, ptrdiff_t steps, const mi_real *x, const mi_real *y, ptrdiff_t ys_n,
    const char *next, mi_real *o, ptrdiff_t os_m, int rows, int accumulate)
{
    const int P = MI_W / MR, FETCH = PART ? MI_DOT_COLUMNS * P * MI_REAL_BYTES / PART : 0;
    mi_vec sum[MI_DOT_COLUMNS];
    const mi_real *four[MI_DOT_COLUMNS / 4]; /* the first of every four rows of y */
    ptrdiff_t s1 = ys_n * MI_REAL_BYTES, s3 = 3 * s1;
    MI_UNROLL for (int q = 0; q < MI_DOT_COLUMNS / 4; q++) four[q] = y + 4 * q * ys_n;
    MI_UNROLL for (int j = 0; j < MI_DOT_COLUMNS; j++) sum[j] = (mi_vec){0};
    MI_NO_UNROLL for (; steps > 0; steps--)
    {
        __asm__("" : "+r"(s1), "+r"(s3)); /* opaque, or the compiler wants a register for each row of y */
        const ptrdiff_t offset[4] = {0, s1, 2 * s1, s3};
        const mi_vec xv = mi_load(x);
        mi_fetch(FETCH, next);
        next += FETCH;
        MI_UNROLL for (int j = 0; j < MI_DOT_COLUMNS; j++)
        {
            sum[j] += xv * mi_repeat(P, (const mi_real *)((const char *)four[j / 4] + offset[j % 4]));
        }
        MI_UNROLL for (int q = 0; q < MI_DOT_COLUMNS / 4; q++) four[q] += P;
        x += MI_W;
    }
    MI_UNROLL for (int g = 0; g < MI_DOT_COLUMNS / MI_W; g++)
    {
        mi_vec *part = sum + g * MI_W, v[MI_W];
#define MI_STEP(h) \
    MI_UNROLL for (int j = 0; h < P && j < MI_W; j++) \
    { \
        if (j % P < h) part[j] = MI_KEEP(part[j], part[j + h], h) + MI_SWAP(part[j], part[j + h], h); \
    }
        MI_BITS(MI_STEP)
#undef MI_STEP
        MI_UNROLL for (int i = 0; i < MR; i++) v[i] = part[i * P];
        mi_transpose_groups(MR, v);
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            mi_real *to = o + i * os_m + g * MI_W;
            if (i < rows) mi_store(to, accumulate ? v[i] + mi_load(to) : v[i]);
        }
    }
}

/* to = x[rows,kc] as mi_dot_block wants it; rows that do not exist are zeros. */
MI_INLINE void mi_dot_pack(const int MR, int rows, ptrdiff_t kc, const mi_real *x, ptrdiff_t xs_m, mi_vec *to)
{
    const int P = MI_W / MR;
    for (ptrdiff_t at = 0; at < kc; at += MI_W) {
        const mi_mask mask = mi_mask_n(kc - at < MI_W ? (int)(kc - at) : MI_W);
        mi_vec v[MI_W];
        MI_UNROLL for (int i = 0; i < MR; i++) v[i] = i < rows ? mi_load_mask(x + i * xs_m + at, mask) : (mi_vec){0};
        mi_transpose_groups(MR, v);
        MI_UNROLL for (int i = 0; i < MR; i++) to[at / P + i] = v[i];
    }
}

typedef struct {
    ptrdiff_t k, n; /* n columns, whole blocks of them */
    const mi_real *x;
    const mi_real *y;
    ptrdiff_t ys_n;
    const char *next;
    mi_real *o;
    ptrdiff_t os_m;
    int rows, accumulate;
} mi_dot_args;

MI_INLINE void mi_dot_columns(const int MR, const int PART, const mi_dot_args *a)
{
    const char *next = a->next;
    for (ptrdiff_t j = 0; j < a->n; j += MI_DOT_COLUMNS) {
        mi_dot_block(
            MR, PART, a->k / (MI_W / MR), a->x, a->y + j * a->ys_n, a->ys_n, next, a->o + j, a->os_m, a->rows,
            a->accumulate);
        if (PART) next += a->k * MI_DOT_COLUMNS * MI_REAL_BYTES / PART;
    }
}

typedef struct {
    int rows;
    void (*pack)(int rows, ptrdiff_t kc, const mi_real *x, ptrdiff_t xs_m, mi_vec *to);
    void (*columns[3])(const mi_dot_args *); /* with nothing, all, or half of what follows fetched */
} mi_dot;

#define MI_DOT(MR) \
    MI_NOINLINE void mi_dot_pack_##MR(int rows, ptrdiff_t kc, const mi_real *x, ptrdiff_t xs_m, mi_vec *to) \
    { \
        mi_dot_pack(MR, rows, kc, x, xs_m, to); \
    } \
    MI_NOINLINE void mi_dot_columns_##MR(const mi_dot_args *a) { mi_dot_columns(MR, 0, a); } \
    MI_NOINLINE void mi_dot_fetching_##MR(const mi_dot_args *a) { mi_dot_columns(MR, 1, a); } \
    MI_NOINLINE void mi_dot_half_fetching_##MR(const mi_dot_args *a) { mi_dot_columns(MR, 2, a); } \
    static const mi_dot mi_dot_by_##MR = { \
        MR, mi_dot_pack_##MR, {mi_dot_columns_##MR, mi_dot_fetching_##MR, mi_dot_half_fetching_##MR}};
#if MI_W >= 4
MI_DOT(4)
#endif
#if MI_W >= 8
MI_DOT(8)
#endif

#define MI_DOT_GROUPS 8 /* of rows, at once */
#define MI_DOT_BYTES (16 * 1024) /* of y, in the first-level cache for all of them */

/* The blocks of m > 2 rows, and how many rows they are together; n columns are whole blocks. */
#if MI_W >= 4
MI_NOINLINE ptrdiff_t mi_dot_groups(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec packed[MI_DOT_STEPS];
    const mi_dot *dots[MI_DOT_GROUPS];
    ptrdiff_t done = 0;
    int groups = 0, P = 1;
    while (m - done > 2 && groups < MI_DOT_GROUPS) {
        const mi_dot *d = &mi_dot_by_4;
#if MI_W >= 8
        /* blocks with few rows that do not exist */
        if (m - done > 5) d = &mi_dot_by_8;
#endif
        const ptrdiff_t steps = (k + MI_W - 1) / MI_W * d->rows;
        if (groups && (groups + 1) * steps > MI_DOT_STEPS) break;
        if (P < MI_W / d->rows) P = MI_W / d->rows;
        dots[groups++] = d;
        done += d->rows;
    }
    if (done > m) done = m;
    const ptrdiff_t whole = k / P * P, most = MI_DOT_STEPS / groups * (MI_W / dots[0]->rows) / MI_W * MI_W;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = whole - k0 < most ? whole - k0 : most, steps = (kc + MI_W - 1) / MI_W * dots[0]->rows;
        const ptrdiff_t fit = kc ? MI_DOT_BYTES / MI_REAL_BYTES / kc / MI_DOT_COLUMNS * MI_DOT_COLUMNS : n;
        const ptrdiff_t strip = groups == 1 ? n : fit < MI_DOT_COLUMNS ? MI_DOT_COLUMNS : fit;
        const int fetch = ys_n == k && kc == k;
        for (int g = 0; g < groups; g++) {
            const ptrdiff_t i = (ptrdiff_t)g * dots[0]->rows, rows = m - i < dots[g]->rows ? m - i : dots[g]->rows;
            dots[g]->pack((int)rows, kc, x + i * xs_m + k0, xs_m, packed + g * steps);
        }
        for (ptrdiff_t j = 0; j < n; j += strip) {
            const ptrdiff_t nc = n - j < strip ? n - j : strip, bytes = nc * k * MI_REAL_BYTES;
            const mi_real *yj = y + j * ys_n + k0;
            const char *next = (const char *)yj + (groups > 1 && bytes > MI_AHEAD ? bytes : MI_AHEAD);
            for (int g = 0; g < groups; g++) {
                const ptrdiff_t i = (ptrdiff_t)g * dots[0]->rows, rows = m - i < dots[g]->rows ? m - i : dots[g]->rows;
                const mi_real *xg = (const mi_real *)(packed + g * steps);
                mi_real *og = o + i * os_m + j;
                const mi_dot_args a = {
                    kc, nc, xg, yj, ys_n, next + g * bytes / 2, og, os_m, (int)rows, accumulate || k0 > 0};
                dots[g]->columns[!fetch || g > 1 ? 0 : groups > 1 ? 2 : 1](&a);
            }
        }
        k0 += kc;
    } while (k0 < whole);
    if (k > whole) mi_dot_few(done, k - whole, n, x + whole, xs_m, y + whole, ys_n, o, os_m, 1, 0);
    return done;
}
#endif

void mi_gemm_dot(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    const int few = m <= 2;
    const ptrdiff_t whole = MI_W >= 4 && !few ? n / MI_DOT_COLUMNS * MI_DOT_COLUMNS : 0;
    if (whole < n) mi_dot_few(m, k, n - whole, x, xs_m, y + whole * ys_n, ys_n, o + whole, os_m, accumulate, few && ys_n == k);
    if (!whole) return;
#if MI_W >= 4
    while (m > 2) {
        const ptrdiff_t done = mi_dot_groups(m, k, whole, x, xs_m, y, ys_n, o, os_m, accumulate);
        x += done * xs_m;
        o += done * os_m;
        m -= done;
    }
#endif
    mi_dot_few(m, k, whole, x, xs_m, y, ys_n, o, os_m, accumulate, 0);
}
