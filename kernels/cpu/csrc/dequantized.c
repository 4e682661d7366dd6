/* Products of float32 with weights of int8 or bfloat16, which are made real as they are read: of few rows, in registers, as a quarter
 * or half of the bytes of float32 is read from memory, which is what such products take their time for; of more rows, a part of a
 * panel after the other, in the caches.
 *
 *     out[m,n] = sum over k of x[m,k] * w[k,n] * scale[n] + bias[n]      or with a scale for each group along k
 *
 * and a function of that.
 */
#define MI_REAL float
#include "mirage_activation.h"
#include "mirage_gemm.h"
#include "mirage_pool.h"

#include <float.h>

#define PANEL 48 /* columns of a panel of packed weights */
#define VECTORS (PANEL / MI_W < 3 ? PANEL / MI_W : 3) /* of a row of a block */
#define COLUMNS (VECTORS * MI_W)
#if defined(__AVX512F__) || defined(__aarch64__)
#define ROWS 8 /* sums of a block are in so many rows of registers */
#else
#define ROWS 4
#endif
#define FEW 8     /* rows up to which weights are made real in registers, anew for each block of them */
#define TERMS(m) ((m) > 32 ? 512 : 128) /* of a part of a panel: of few rows, in the first cache, of more in the second */
#define AHEAD 4096 /* bytes from what is read of a panel to what is fetched */
#define BAND 256  /* rows of a cell, where there are more */
#define SHARED_WORK (320 * 1024) /* products, or bytes of weights, from which another thread is worth the wait for it */
#define SHARED_READ (128 * 1024)

typedef signed char mi_bytes __attribute__((vector_size(MI_W), aligned(1), may_alias));
typedef unsigned short mi_halves __attribute__((vector_size(2 * MI_W), aligned(2), may_alias));

typedef struct {
    const float *x; /* [m,k] */
    const char *w; /* [panels, k, PANEL], the last panel filled up */
    const float *scale; /* [groups, n], ones for bfloat16 */
    const float *bias; /* [n], or NULL */
    float *out; /* [m,n] */
    ptrdiff_t m, k, n, group; /* so many terms have one scale */
    int activation;
    int bytes; /* of a weight: 1, or 2 of bfloat16 */
} dequantized;

/* MI_W weights of so many bytes, without their scale; GCC 12 would make the lanes one by one. */
MI_INLINE mi_vec real_of(const int BYTES, const char *p)
{
    mi_ivec r;
#if defined(__AVX512F__) || defined(__AVX2__)
    if (BYTES == 1) __asm__("vpmovsxbd %1, %0" : "=v"(r) : "m"(*(const mi_bytes *)p));
    else __asm__("vpmovzxwd %1, %0" : "=v"(r) : "m"(*(const mi_halves *)p));
#else
    if (BYTES == 1) r = __builtin_convertvector(*(const mi_bytes *)p, mi_ivec);
    else r = __builtin_convertvector(*(const mi_halves *)p, mi_ivec);
#endif
    /* the upper half of a float is its bfloat16 */
    return BYTES == 1 ? __builtin_convertvector(r, mi_vec) : (mi_vec)(r << 16);
}

/* MR rows of so many columns, which MR and VECTORS make a block of registers; w is at the block's first column. */
MI_INLINE void block(
    const int MR, const int BYTES, const dequantized *d, ptrdiff_t row, ptrdiff_t column, const char *w, int count)
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
        MI_NO_UNROLL for (ptrdiff_t t = from; t < from + terms; t++, w += PANEL * BYTES)
        {
            __builtin_prefetch(w + AHEAD);
            MI_UNROLL for (int j = 0; j < VECTORS; j++)
            {
                const mi_vec real = real_of(BYTES, w + j * MI_W * BYTES);
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
            const mi_vec v = mi_activated(total[i * VECTORS + j] + bias, d->activation);
            mi_store_mask(d->out + (row + i) * d->n + at, v, masks[j]);
        }
    }
}

/* Rows by one panel, in registers. */
MI_INLINE void few(
    const int BYTES, const dequantized *d, ptrdiff_t row, ptrdiff_t last, ptrdiff_t column, const char *w, ptrdiff_t width)
{
    for (ptrdiff_t at = 0; at < width; at += COLUMNS, w += COLUMNS * BYTES) {
        const int count = (int)(width - at < COLUMNS ? width - at : COLUMNS);
        ptrdiff_t i = row;
        for (; last - i >= ROWS; i += ROWS) block(ROWS, BYTES, d, i, column + at, w, count);
        for (; last - i >= 4; i += 4) block(4, BYTES, d, i, column + at, w, count);
        for (; last - i >= 2; i += 2) block(2, BYTES, d, i, column + at, w, count);
        if (i < last) block(1, BYTES, d, i, column + at, w, count);
    }
}

/* The same by way of `real`, a part of a panel. */
MI_INLINE void many(
    const int BYTES, const dequantized *d, ptrdiff_t row, ptrdiff_t last, ptrdiff_t column, const char *w, ptrdiff_t width,
    float *real)
{
    float *out = d->out + row * d->n + column;
    const ptrdiff_t most = TERMS(last - row);
    for (ptrdiff_t from = 0; from < d->k; from += most) {
        const ptrdiff_t left = d->k - from, terms = left < most ? left : most;
        for (ptrdiff_t t = 0, end; t < terms; t = end) {
            const ptrdiff_t group = (from + t) / d->group, rest = (group + 1) * d->group - from;
            const float *scale = d->scale + group * d->n + column;
            mi_vec s[PANEL / MI_W];
            MI_UNROLL for (int j = 0; j < PANEL / MI_W; j++)
            {
                const ptrdiff_t own = width - j * MI_W;
                s[j] = own > 0 ? mi_load_n(scale + j * MI_W, own < MI_W ? (int)own : MI_W) : (mi_vec){0};
            }
            end = rest < terms ? rest : terms;
            MI_NO_UNROLL for (ptrdiff_t i = t; i < end; i++, w += PANEL * BYTES)
            {
                __builtin_prefetch(w + AHEAD);
                MI_UNROLL for (int j = 0; j < PANEL / MI_W; j++)
                {
                    const mi_vec v = real_of(BYTES, w + j * MI_W * BYTES);
                    mi_store(real + i * PANEL + j * MI_W, BYTES == 1 ? v * s[j] : v);
                }
            }
        }
        mi_gemm_outer(last - row, terms, width, d->x + row * d->k + from, d->k, 1, real, PANEL, out, d->n, from > 0);
    }
    const float *bias = d->bias ? d->bias + column : NULL;
    if (bias || d->activation) mi_finish(out, d->n, last - row, width, bias, d->activation);
}

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const dequantized *d = args;
    const ptrdiff_t panels = (d->n + PANEL - 1) / PANEL, panel = index % panels, column = panel * PANEL;
    const ptrdiff_t row = index / panels * BAND, last = d->m - row < BAND ? d->m : row + BAND;
    const ptrdiff_t left = d->n - column, width = left < PANEL ? left : PANEL;
    const char *w = d->w + column * d->k * d->bytes;
    const int in_registers = d->m <= FEW || !d->k;
    if (d->bytes == 1) {
        if (in_registers) few(1, d, row, last, column, w, width);
        else many(1, d, row, last, column, w, width, scratch);
    } else {
        if (in_registers) few(2, d, row, last, column, w, width);
        else many(2, d, row, last, column, w, width, scratch);
    }
}

/* The product that `dequantized` says, of sizes that are not 0. By `run`, mi_pool_run; its status. */
int mi_dequantized(const dequantized *d, mi_pool_run_fn *run, int n_threads)
{
    dequantized own = *d;
    const long panels = (d->n + PANEL - 1) / PANEL, bands = (d->m + BAND - 1) / BAND;
    if (d->k * d->n < SHARED_READ && d->m * d->k * d->n < SHARED_WORK) n_threads = 1;
    return run(cell, &own, panels * bands, n_threads, d->m > FEW ? (size_t)(TERMS(d->m) * PANEL) * sizeof(float) : 0);
}

/* Weights of float32 that are made bytes, each a scale apart from the next: w[k,n] is at t * w_row + j, or, if it is `transposed`, at
 * j * w_row + t; byte [t,j] goes to panel j / panel, which has k rows of `panel` columns. Without `scale` they become bfloat16. */
typedef struct {
    const float *w;
    signed char *to;
    float *scale; /* [groups, n], or NULL */
    ptrdiff_t k, n, group, panel, w_row;
    int transposed;
} narrowing;

/* Vectors of one column, or of one row, from element [t,j] on. */
MI_INLINE mi_vec weights_at(const narrowing *p, ptrdiff_t t, ptrdiff_t j, int n)
{
    return mi_load_n(p->w + (p->transposed ? j * p->w_row + t : t * p->w_row + j), n);
}

static void narrow_panel(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const narrowing *p = args;
    const ptrdiff_t column = index * PANEL, left = p->n - column, width = left < PANEL ? left : PANEL;
    signed char *to = p->to + column / p->panel * p->k * p->panel + column % p->panel;
    const ptrdiff_t across = p->transposed ? 1 : MI_W, along = p->transposed ? MI_W : 1;
    ptrdiff_t t0 = 0, end;
    do {
        end = t0 + p->group < p->k ? t0 + p->group : p->k;
        for (ptrdiff_t j = 0; j < width; j += across) {
            const int columns = p->transposed || width - j > MI_W ? MI_W : (int)(width - j);
            mi_vec most = {0}, other = {0}, scale;
            float *own = p->scale + t0 / p->group * p->n + column + j;
            for (ptrdiff_t t = t0; t < end; t += along) {
                const int rows = end - t < MI_W ? (int)(end - t) : MI_W;
                const mi_vec v = weights_at(p, t, column + j, p->transposed ? rows : columns);
                most = mi_max(most, mi_max(v, -v));
                other += v - v; /* what is not finite makes NaN of the scale */
            }
            if (p->transposed) {
                const float widest = (mi_hmax(most) + mi_hsum(other)) / 127;
                *own = widest < FLT_MIN ? FLT_MIN : widest; /* of zeros: it divides */
                scale = mi_broadcast(*own);
            } else {
                scale = (most + other) / 127;
                scale = mi_select(scale < mi_broadcast(FLT_MIN), mi_broadcast(FLT_MIN), scale);
                mi_store_n(own, scale, columns);
            }
            for (ptrdiff_t t = t0; t < end; t += along) {
                const int rows = end - t < MI_W ? (int)(end - t) : MI_W, n = p->transposed ? rows : columns;
                const float whole = 0x1.8p23f; /* floats from here on have no fraction, and the number in their low bits */
                const mi_ivec bits = (mi_ivec)(weights_at(p, t, column + j, n) / scale + whole);
                signed char *at = to + t * p->panel + j;
                for (int i = 0; i < n; i++) at[p->transposed ? i * p->panel : i] = (signed char)bits[i];
            }
        }
        t0 = end;
    } while (end < p->k);
    for (ptrdiff_t t = 0; t < p->k && p->panel == PANEL; t++) {
        for (ptrdiff_t j = width; j < PANEL; j++) to[t * PANEL + j] = 0;
    }
}

/* The same for bfloat16, the nearest, of two that are as near the even one: to panels, without scales. */
static void halve_panel(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const narrowing *p = args;
    const ptrdiff_t column = index * PANEL, left = p->n - column, width = left < PANEL ? left : PANEL;
    unsigned short *to = (unsigned short *)p->to + column * p->k;
    const ptrdiff_t across = p->transposed ? 1 : MI_W, along = p->transposed ? MI_W : 1;
    for (ptrdiff_t t = 0; t < p->k; t += along) {
        const int rows = p->k - t < along ? (int)(p->k - t) : (int)along;
        for (ptrdiff_t j = 0; j < width; j += across) {
            const int n = p->transposed ? rows : width - j < MI_W ? (int)(width - j) : MI_W;
            const mi_vec v = weights_at(p, t, column + j, n);
            const mi_ivec bits = (mi_ivec)v, rounded = bits + 0x7fff + ((bits >> 16) & 1), is_nan = (mi_ivec)(v != v);
            const mi_ivec kept = ((is_nan & (bits | 0x400000)) | (~is_nan & rounded)) >> 16;
            for (int i = 0; i < n; i++) to[p->transposed ? (t + i) * PANEL + j : t * PANEL + j + i] = (unsigned short)kept[i];
        }
        for (ptrdiff_t i = t; i < t + rows; i++) {
            for (ptrdiff_t j = width; j < PANEL; j++) to[i * PANEL + j] = 0;
        }
    }
}

/* By `run`, mi_pool_run; its status. */
int mi_narrow(narrowing *p, mi_pool_run_fn *run, int n_threads)
{
    return run(p->scale ? narrow_panel : halve_panel, p, (p->n + PANEL - 1) / PANEL, n_threads, 0);
}
