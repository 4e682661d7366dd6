/* Products of pairs of bfloat16, whose sums are in float32, where processors have them: AVX-512 BF16, and AMX for more rows.
 *
 *     o[m,n] (+)= sum over p and s < 2 of x[m, 2 * p + s] * y[p, n, s]
 *
 * Included by files in which MI_NARROW may be bfloat16; MI_PAIRS says whether there is mi_gemm_pairs.
 */
#ifndef MIRAGE_PAIRS_H
#define MIRAGE_PAIRS_H

#include "mirage_amx.h"

#if MI_IS_BFLOAT && defined(__AVX512BF16__) && MI_VEC_BYTES == 64
#define MI_PAIRS 1
#else
#define MI_PAIRS 0
#endif

#if MI_PAIRS
#define MI_PAIRS_ROWS 8
#define MI_PAIRS_VECTORS 3
#define MI_PAIRS_AHEAD 4096 /* bytes from what is read of y to what is fetched, where rows are few */
typedef mi_uvec mi_pairs_unaligned __attribute__((aligned(4), may_alias));

/* Stores numbers as bfloat16, 0 for those that are subnormal. */
MI_INLINE void mi_store_pairs(mi_narrow *p, mi_vec v)
{
    mi_narrow_vec narrow;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(v));
    *(mi_narrow_unaligned *)p = (mi_narrow_unaligned)narrow;
}

/* MR rows, of which so many exist, by NV vectors. */
MI_INLINE void mi_pairs_block(
    const int MR, const int NV, int rows, ptrdiff_t pairs, const mi_narrow *x, ptrdiff_t xs_m, const char *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate)
{
    mi_vec sum[MI_PAIRS_ROWS * MI_PAIRS_VECTORS];
    const mi_narrow *from[MI_PAIRS_ROWS];
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        const ptrdiff_t row = i < rows ? i : rows - 1;
        from[i] = x + row * xs_m;
        MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] = accumulate ? mi_load(o + row * os_m + j * MI_W) : (mi_vec){0};
    }
    MI_NO_UNROLL for (ptrdiff_t p = 0; p < pairs; p++, y += 4 * ys_p)
    {
        mi_uvec yj[MI_PAIRS_VECTORS];
        if (MR <= 2) {
            MI_UNROLL for (int j = 0; j < NV; j++) __builtin_prefetch(y + MI_PAIRS_AHEAD + j * MI_VEC_BYTES);
        }
        MI_UNROLL for (int j = 0; j < NV; j++) yj[j] = *(const mi_pairs_unaligned *)(y + j * MI_VEC_BYTES);
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            unsigned pair;
            __builtin_memcpy(&pair, from[i] + 2 * p, sizeof pair);
            const mi_uvec both = pair - (mi_uvec){0};
            MI_UNROLL for (int j = 0; j < NV; j++)
            {
                /* as assembler: compilers disagree about the types that their builtins for it take */
                __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum[i * NV + j]) : "v"(both), "v"(yj[j]));
            }
        }
    }
    /* a row that does not exist has the sums of the one before */
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        float *to = o + (i < rows ? i : rows - 1) * os_m;
        MI_UNROLL for (int j = 0; j < NV; j++) mi_store(to + j * MI_W, sum[i * NV + j]);
    }
}

typedef void mi_pairs_fn(
    int rows, ptrdiff_t pairs, const mi_narrow *x, ptrdiff_t xs_m, const char *y, ptrdiff_t ys_p, float *o, ptrdiff_t os_m,
    int accumulate);
#define MI_PAIRS_BLOCK(MR, NV) \
    MI_NOINLINE void mi_pairs_##MR##x##NV( \
        int rows, ptrdiff_t pairs, const mi_narrow *x, ptrdiff_t xs_m, const char *y, ptrdiff_t ys_p, float *o, ptrdiff_t os_m, \
        int accumulate) \
    { \
        mi_pairs_block(MR, NV, rows, pairs, x, xs_m, y, ys_p, o, os_m, accumulate); \
    }
#define MI_PAIRS_BLOCKS(MR) MI_PAIRS_BLOCK(MR, 1) MI_PAIRS_BLOCK(MR, 2) MI_PAIRS_BLOCK(MR, 3)
MI_PAIRS_BLOCKS(1) MI_PAIRS_BLOCKS(2) MI_PAIRS_BLOCKS(4) MI_PAIRS_BLOCKS(8)

/* n is of whole vectors; rows of x and o are so many elements apart, those of y so many pairs. */
static void mi_gemm_pairs(
    ptrdiff_t m, ptrdiff_t pairs, ptrdiff_t n, const mi_narrow *x, ptrdiff_t xs_m, const void *y, ptrdiff_t ys_p, float *o,
    ptrdiff_t os_m, int accumulate)
{
    static mi_pairs_fn *const blocks[4][MI_PAIRS_VECTORS] = {
        {mi_pairs_1x1, mi_pairs_1x2, mi_pairs_1x3}, {mi_pairs_2x1, mi_pairs_2x2, mi_pairs_2x3},
        {mi_pairs_4x1, mi_pairs_4x2, mi_pairs_4x3}, {mi_pairs_8x1, mi_pairs_8x2, mi_pairs_8x3},
    };
#if MI_AMX
    if (m > MI_PAIRS_ROWS && mi_amx_allowed()) {
        mi_amx_product(0, m, pairs, n, x, 2 * xs_m, y, 4 * ys_p, o, 4 * os_m, accumulate);
        return;
    }
#endif
    for (ptrdiff_t j = 0; j < n;) {
        /* no single vector after three */
        const ptrdiff_t left = (n - j) / MI_W, vectors = left == 4 ? 2 : left < MI_PAIRS_VECTORS ? left : MI_PAIRS_VECTORS;
        for (ptrdiff_t i = 0; i < m; i += MI_PAIRS_ROWS) {
            const int rows = m - i < MI_PAIRS_ROWS ? (int)(m - i) : MI_PAIRS_ROWS, size = rows > 4 ? 3 : rows > 2 ? 2 : rows - 1;
            blocks[size][vectors - 1](
                rows, pairs, x + i * xs_m, xs_m, (const char *)y + 4 * j, ys_p, o + i * os_m + j, os_m, accumulate);
        }
        j += vectors * MI_W;
    }
}
#endif

#endif
