/* mi_gemm_outer: see mirage_gemm.h. */
#include "mirage_gemm_block.h"

/* What is read of y for one block of rows after the other stays in the first-level cache: of a panel, this many rows by
 * MI_BLOCK_VECTORS vectors. */
#define MI_PART_BYTES (24 * 1024)
#define MI_PANEL_ROWS (MI_PART_BYTES / (MI_BLOCK_VECTORS * MI_VEC_BYTES))

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
MI_FETCHING(1, 3, 3)
MI_FETCHING(2, 3, 3)
#if MI_BLOCK_ROWS == 8
MI_BLOCK(2, 8)
MI_BLOCK(4, 4)
MI_BLOCKS(8)
MI_FETCHING(2, 8, 8)
MI_FETCHING(4, 4, 1)
MI_FETCHING(4, 4, 2)
MI_FETCHING(4, 4, 4)
MI_FETCHING(4, 3, 3)
MI_FETCHING(8, 3, 1)
MI_FETCHING(8, 3, 2)
MI_FETCHING(8, 3, 3)
#else
MI_FETCHING(2, 4, 4)
MI_FETCHING(4, 3, 1)
MI_FETCHING(4, 3, 2)
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

/* The largest blocks, by the vectors that they fetch. */
static mi_block_fn *const mi_fetching_panel[] = {
#if MI_BLOCK_ROWS == 8
    mi_block_8x3_fetching_1, mi_block_8x3_fetching_2, mi_block_8x3_fetching_3
#else
    mi_block_4x3_fetching_1, mi_block_4x3_fetching_2, mi_block_4x3_fetching_3
#endif
};

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
void mi_gemm_outer_parts(
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

/* While the first blocks of rows are multiplied, those rows of y that come next are fetched, evenly, so that nothing waits for memory.
 * y is read in order, and comes from the second-level cache in time, so that sums stay in registers for more of its rows than the first
 * one holds. */
#define MI_PANEL_DEPTH 1024
void mi_gemm_outer_panel(
    ptrdiff_t m, ptrdiff_t k, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y, mi_real *o, ptrdiff_t os_m,
    int accumulate)
{
    const ptrdiff_t n = MI_BLOCK_VECTORS * MI_W, blocks = (m + MI_BLOCK_ROWS - 1) / MI_BLOCK_ROWS;
    /* what a single block reads need not stay in a cache */
    const ptrdiff_t most = blocks == 1 ? k : blocks < MI_BLOCK_VECTORS ? MI_PANEL_ROWS : MI_PANEL_DEPTH;
    mi_block_fn *const few = m == 1 ? mi_block_1x3_fetching_3 : m == 2 ? mi_block_2x3_fetching_3 : mi_block_4x3_fetching_3;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < most ? k - k0 : most, part = kc * n * MI_REAL_BYTES;
        const char *next = (const char *)(y + k0 * n) + (blocks == 1 ? MI_AHEAD : part);
        mi_block_args a = {
            kc, x + k0 * xs_k, xs_m, xs_k, y + k0 * n, n, o, os_m, MI_BLOCK_ROWS, MI_W, accumulate || k0 > 0, next};
        for (int i = 0, left = MI_BLOCK_VECTORS; i < blocks && left; i++) {
            const ptrdiff_t rows = m - i * MI_BLOCK_ROWS;
            if (rows < MI_BLOCK_ROWS) a.rows = (int)rows;
            const int vectors = i == 0 && blocks < MI_BLOCK_VECTORS ? MI_BLOCK_VECTORS + 1 - (int)blocks : 1;
            (m > 4 ? mi_fetching_panel[vectors - 1] : few)(&a);
            left -= vectors;
            a.next += kc * vectors * MI_VEC_BYTES;
            a.x += MI_BLOCK_ROWS * xs_m;
            a.o += MI_BLOCK_ROWS * os_m;
        }
        if (blocks > MI_BLOCK_VECTORS) mi_block_column(m - MI_BLOCK_VECTORS * MI_BLOCK_ROWS, MI_BLOCK_VECTORS, 0, &a);
        k0 += kc;
    } while (k0 < k);
}

void mi_gemm_outer(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate)
{
#if MI_BLOCK_ROWS == 8
    /* parts have blocks of fewer loads where rows are short, and need no copies where there are many */
    if (ys_k == n && ((n == MI_WIDE && m > 4) || (n == 2 * MI_WIDE && m >= 3 * MI_BLOCK_ROWS))) {
        mi_gemm_outer_parts(m, k, n, x, xs_m, xs_k, y, o, os_m, accumulate);
        return;
    }
#endif
    if (ys_k == n && n == MI_BLOCK_VECTORS * MI_W && m > MI_BLOCK_ROWS) {
        mi_gemm_outer_panel(m, k, x, xs_m, xs_k, y, o, os_m, accumulate);
        return;
    }
    mi_outer(m, k, n, x, xs_m, xs_k, y, ys_k, o, os_m, accumulate, 0);
}

void mi_gemm_outer_fetching(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_outer(m, k, n, x, xs_m, xs_k, y, n, o, os_m, accumulate, 1);
}
