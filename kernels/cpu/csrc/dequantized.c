/* Products of few rows of float32 with weights of 8 bits, which are made real in registers: a quarter of the bytes of float32 is
 * read from memory, which is what such products take their time for.
 *
 *     out[m,n] = sum over k of x[m,k] * w[k,n] * scale[n] + bias[n]      or with a scale for each group along k
 */
#define MI_REAL float
#include "mirage_vec.h"
#include "mirage_pool.h"

#define PANEL 64 /* columns of a panel of packed weights: a cache line */
#define VECTORS (PANEL / MI_W < 4 ? PANEL / MI_W : 4) /* of a row of a block */
#define COLUMNS (VECTORS * MI_W)
#define ROWS 4
#define SHARED_READ (128 * 1024) /* bytes of weights from which another thread is worth the wait for it */

typedef signed char mi_bytes __attribute__((vector_size(MI_W), aligned(1), may_alias));

typedef struct {
    const float *x; /* [m,k] */
    const signed char *w; /* [panels, k, PANEL], the last panel filled up */
    const float *scale; /* [groups, n] */
    const float *bias; /* [n], or NULL */
    float *out; /* [m,n] */
    ptrdiff_t m, k, n, group; /* so many terms have one scale */
    int relu;
} dequantized;

/* MI_W bytes, each in a lane of its own; GCC 12 would go through memory, byte by byte. */
MI_INLINE mi_ivec widened(const signed char *p)
{
#if defined(__AVX512F__) || defined(__AVX2__)
    mi_ivec r;
    __asm__("vpmovsxbd %1, %0" : "=v"(r) : "m"(*(const mi_bytes *)p));
    return r;
#else
    return __builtin_convertvector(*(const mi_bytes *)p, mi_ivec);
#endif
}

/* MR rows of so many columns, which MR and VECTORS make a block of registers; w is at the block's first column. */
MI_INLINE void block(const int MR, const dequantized *d, ptrdiff_t row, ptrdiff_t column, const signed char *w, int count)
{
    mi_vec total[ROWS * VECTORS], sum[ROWS * VECTORS];
    const float *x = d->x + row * d->k, *scale = d->scale + column;
    mi_mask masks[VECTORS];
    MI_UNROLL for (int j = 0; j < VECTORS; j++)
    {
        const int left = count - j * MI_W;
        masks[j] = mi_mask_n(left < 0 ? 0 : left < MI_W ? left : MI_W);
    }
    MI_UNROLL for (int i = 0; i < MR * VECTORS; i++) total[i] = (mi_vec){0};
    for (ptrdiff_t from = 0; from < d->k; from += d->group, scale += d->n) {
        const ptrdiff_t left = d->k - from, terms = left < d->group ? left : d->group;
        MI_UNROLL for (int i = 0; i < MR * VECTORS; i++) sum[i] = (mi_vec){0};
        MI_NO_UNROLL for (ptrdiff_t t = from; t < from + terms; t++, w += PANEL)
        {
            MI_UNROLL for (int j = 0; j < VECTORS; j++)
            {
                const mi_vec real = __builtin_convertvector(widened(w + j * MI_W), mi_vec);
                MI_UNROLL for (int i = 0; i < MR; i++) sum[i * VECTORS + j] += x[i * d->k + t] * real;
            }
        }
        MI_UNROLL for (int j = 0; j < VECTORS; j++)
        {
            const mi_vec s = mi_load_mask(scale + (count > j * MI_W ? j * MI_W : 0), masks[j]);
            MI_UNROLL for (int i = 0; i < MR; i++) total[i * VECTORS + j] += sum[i * VECTORS + j] * s;
        }
    }
    MI_UNROLL for (int j = 0; j < VECTORS; j++)
    {
        if (count <= j * MI_W) break;
        const ptrdiff_t at = column + j * MI_W;
        const mi_vec bias = d->bias ? mi_load_mask(d->bias + at, masks[j]) : (mi_vec){0};
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            mi_vec v = total[i * VECTORS + j] + bias;
            if (d->relu) v = mi_max(v, mi_broadcast(0));
            mi_store_mask(d->out + (row + i) * d->n + at, v, masks[j]);
        }
    }
}

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const dequantized *d = args;
    const ptrdiff_t first = index * PANEL, left = d->n - first, width = left < PANEL ? left : PANEL;
    for (ptrdiff_t at = 0; at < width; at += COLUMNS) {
        const signed char *w = d->w + index * d->k * PANEL + at;
        const int count = (int)(width - at < COLUMNS ? width - at : COLUMNS);
        ptrdiff_t row = 0;
        for (; row + ROWS <= d->m; row += ROWS) block(ROWS, d, row, first + at, w, count);
        if (d->m - row >= 2) {
            block(2, d, row, first + at, w, count);
            row += 2;
        }
        if (row < d->m) block(1, d, row, first + at, w, count);
    }
}

/* The product that `dequantized` says, of sizes that are not 0. By `run`, mi_pool_run; its status. */
int mi_dequantized(const dequantized *d, int n_threads, mi_pool_run_fn *run)
{
    dequantized own = *d;
    if (d->k * d->n < SHARED_READ) n_threads = 1;
    return run(cell, &own, (d->n + PANEL - 1) / PANEL, n_threads, 0);
}
