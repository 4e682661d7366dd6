/* Products of real numbers with weights of 8 or 16 bits, which are made float32 as they are read: of few rows, in registers, as a
 * quarter or half of the bytes of float32 is read from memory, which is what such products take their time for; of more rows, a part
 * of a panel after the other, in the caches.
 *
 *     out[m,n] = sum over k of x[m,k] * w[k,n] * scale[n] + bias[n]      or with a scale for each group along k
 *
 * and a function of that, for x, bias and out of float32, or of the type of 16 bits that MI_NARROW names. Where processors have sums of
 * products of pairs of bfloat16, these are used for x and w of it; all sums are in float32.
 */
#define MI_REAL float
#ifndef MI_NARROW
#define MI_NARROW bfloat16
#endif
#include "mirage_activation.h"
#include "mirage_gemm.h"
#include "mirage_groups.h"
#include "mirage_pairs.h"
#include "mirage_pool.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define PANEL 48 /* columns of a panel of packed weights */
#define VECTORS (PANEL / MI_W < 3 ? PANEL / MI_W : 3) /* of a row of a block */
#define COLUMNS (VECTORS * MI_W)
#if defined(__AVX512F__) || defined(__aarch64__)
#define ROWS 8 /* sums of a block are in so many rows of registers */
#else
#define ROWS 4
#endif
#if MI_IS_BFLOAT
#define TOGETHER 2 /* terms of a column of 16-bit weights that lie side by side */
#else
#define TOGETHER 1
#endif
#define FEW 8     /* rows up to which weights are made real in registers, anew for each block of them */
#define TERMS(m) ((m) > 32 ? 512 : 128) /* of a part of a panel: of few rows, in the first cache, of more in the second */
#define PAIRS 256 /* of a part of a panel whose pairs are multiplied: in the caches, for all rows of a cell */
#define AHEAD 4096 /* bytes from what is read of a panel to what is fetched */
#define BAND 256  /* rows of a cell, where there are more */
#define SHARED_WORK (320 * 1024) /* products, or bytes of weights, from which another thread is worth the wait for it */
#define SHARED_READ (128 * 1024)

typedef signed char mi_bytes __attribute__((vector_size(MI_W), aligned(1), may_alias));
typedef mi_uvec mi_lanes __attribute__((aligned(4), may_alias));

typedef struct {
    const void *x; /* [m,k] */
    const char *w; /* [panels, k / together, PANEL, together], the last panel and pair filled up: TOGETHER, but 1 of bytes */
    const float *scale; /* [groups, n], ones for 16 bits */
    const void *bias; /* [n], or NULL */
    void *out; /* [m,n] */
    ptrdiff_t m, k, n, group; /* so many terms have one scale */
    int activation;
    int bytes; /* of a weight: 1, or 2 of MI_NARROW */
    int half; /* x, bias and out are of MI_NARROW, not float32 */
} dequantized;

/* The rows that are multiplied: of float32, or pairs of bfloat16, so many numbers apart. */
typedef struct {
    const dequantized *d;
    const float *x;
    const mi_narrow *pairs;
    ptrdiff_t apart;
} rows_of;

/* Terms of the weights of a column that lie side by side. */
#define SIDE_BY_SIDE(BYTES) ((BYTES) == 1 ? 1 : TOGETHER)

static ptrdiff_t lanes_of(ptrdiff_t k, int bytes) { return (k + SIDE_BY_SIDE(bytes) - 1) / SIDE_BY_SIDE(bytes); }
/* Bytes of a column of a panel. */
static ptrdiff_t column_bytes(ptrdiff_t k, int bytes) { return lanes_of(k, bytes) * SIDE_BY_SIDE(bytes) * bytes; }

/* The next MI_W columns of weights of so many bytes, without their scale: each of the terms that lie side by side. */
MI_INLINE void real_of(const int BYTES, const char *p, mi_vec *term)
{
    if (BYTES == 1) {
        mi_ivec r;
#if defined(__AVX512F__) || defined(__AVX2__)
        /* GCC 12 would make the lanes one by one */
        __asm__("vpmovsxbd %1, %0" : "=v"(r) : "m"(*(const mi_bytes *)p));
#else
        r = __builtin_convertvector(*(const mi_bytes *)p, mi_ivec);
#endif
        term[0] = __builtin_convertvector(r, mi_vec);
    } else if (TOGETHER == 2) {
        const mi_uvec both = *(const mi_lanes *)p; /* the upper half of a float is its bfloat16 */
        term[0] = (mi_vec)(both << 16), term[TOGETHER - 1] = (mi_vec)(both & 0xffff0000);
    } else term[0] = mi_load_narrow((const mi_narrow *)p);
}

/* The first lanes of a row that is stored as x is. */
MI_INLINE mi_vec given(const dequantized *d, const void *row, ptrdiff_t at, int n)
{
    return d->half ? mi_load_narrow_n((const mi_narrow *)row + at, n) : mi_load_n((const float *)row + at, n);
}

/* Stores the function of sums, and what is added to them, of one row, from column `at` on. */
MI_INLINE void store(const dequantized *d, mi_vec sum, ptrdiff_t row, ptrdiff_t at, int n)
{
    const mi_vec v = mi_activated(d->bias ? sum + given(d, d->bias, at, n) : sum, d->activation);
    if (d->half) mi_store_narrow_n((mi_narrow *)d->out + row * d->n + at, v, n);
    else mi_store_n((float *)d->out + row * d->n + at, v, n);
}

/* One lane of terms of MR rows, of which COUNT are multiplied; x is at the first of them. */
MI_INLINE void add_terms(
    const int MR, const int BYTES, const int COUNT, const float *x, ptrdiff_t k, const char *w, mi_vec *sum)
{
    MI_UNROLL for (int j = 0; j < VECTORS; j++)
    {
        mi_vec real[TOGETHER];
        real_of(BYTES, w + j * MI_W * BYTES * SIDE_BY_SIDE(BYTES), real);
        MI_UNROLL for (int s = 0; s < COUNT; s++)
        {
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i * VECTORS + j] += x[i * k + s] * real[s];
        }
    }
}

/* MR rows of so many columns, which MR and VECTORS make a block of registers; w is at the block's first column. */
MI_INLINE void block(
    const int MR, const int BYTES, const rows_of *r, ptrdiff_t row, ptrdiff_t column, const char *w, int count)
{
    const dequantized *d = r->d;
    const int STEP = SIDE_BY_SIDE(BYTES);
    mi_vec total[ROWS * VECTORS], sum[ROWS * VECTORS];
    const float *x = r->x + row * d->k, *scale = d->scale + column;
    MI_UNROLL for (int i = 0; i < MR * VECTORS; i++) total[i] = (mi_vec){0};
    for (ptrdiff_t from = 0; from < d->k; from += d->group, scale += d->n) {
        const ptrdiff_t left = d->k - from, terms = left < d->group ? left : d->group, end = from + terms;
        ptrdiff_t t = from;
        MI_UNROLL for (int i = 0; i < MR * VECTORS; i++) sum[i] = (mi_vec){0};
        MI_NO_UNROLL for (; t + STEP <= end; t += STEP, w += PANEL * BYTES * STEP)
        {
            MI_UNROLL for (int i = 0; i < PANEL * BYTES * STEP; i += MI_LINE) __builtin_prefetch(w + AHEAD + i);
            add_terms(MR, BYTES, STEP, x + t, d->k, w, sum);
        }
        if (STEP > 1 && t < end) add_terms(MR, BYTES, 1, x + t, d->k, w, sum); /* all terms are one group */
        MI_UNROLL for (int j = 0; j < VECTORS; j++)
        {
            const int own = count - j * MI_W;
            const mi_vec s = own > 0 ? mi_load_n(scale + j * MI_W, own < MI_W ? own : MI_W) : (mi_vec){0};
            MI_UNROLL for (int i = 0; i < MR; i++) total[i * VECTORS + j] += sum[i * VECTORS + j] * s;
        }
    }
    MI_UNROLL for (int j = 0; j < VECTORS; j++)
    {
        const int own = count - j * MI_W;
        if (own <= 0) break;
        MI_UNROLL for (int i = 0; i < MR; i++) store(d, total[i * VECTORS + j], row + i, column + j * MI_W, own < MI_W ? own : MI_W);
    }
}

/* Rows by one panel, in registers. */
MI_INLINE void few(
    const int BYTES, const rows_of *r, ptrdiff_t row, ptrdiff_t last, ptrdiff_t column, const char *w, ptrdiff_t width)
{
    for (ptrdiff_t at = 0; at < width; at += COLUMNS, w += COLUMNS * BYTES * SIDE_BY_SIDE(BYTES)) {
        const int count = (int)(width - at < COLUMNS ? width - at : COLUMNS);
        ptrdiff_t i = row;
        for (; last - i >= ROWS; i += ROWS) block(ROWS, BYTES, r, i, column + at, w, count);
        for (; last - i >= 4; i += 4) block(4, BYTES, r, i, column + at, w, count);
        for (; last - i >= 2; i += 2) block(2, BYTES, r, i, column + at, w, count);
        if (i < last) block(1, BYTES, r, i, column + at, w, count);
    }
}

/* Stores the sums of rows of a panel, which are so many numbers apart. */
static void finish(
    const dequantized *d, const float *sums, ptrdiff_t apart, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t column, ptrdiff_t width)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t j = 0; j < width; j += MI_W) {
            store(d, mi_load(sums + i * apart + j), row + i, column + j, width - j < MI_W ? (int)(width - j) : MI_W);
        }
    }
}

/* The same by way of `real`, a part of a panel, with sums behind it where results have 16 bits. */
MI_INLINE void many(
    const int BYTES, const rows_of *r, ptrdiff_t row, ptrdiff_t last, ptrdiff_t column, const char *w, ptrdiff_t width,
    float *real)
{
    const dequantized *d = r->d;
    const int STEP = SIDE_BY_SIDE(BYTES);
    const ptrdiff_t most = TERMS(last - row), apart = d->half ? PANEL : d->n;
    float *out = d->half ? real + TERMS(d->m) * PANEL : (float *)d->out + row * d->n + column;
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
            /* there is room for what fills up the last pair */
            MI_NO_UNROLL for (ptrdiff_t i = t; i < end; i += STEP, w += PANEL * BYTES * STEP)
            {
                MI_UNROLL for (int j = 0; j < PANEL * BYTES * STEP; j += MI_LINE) __builtin_prefetch(w + AHEAD + j);
                MI_UNROLL for (int j = 0; j < PANEL / MI_W; j++)
                {
                    mi_vec v[TOGETHER];
                    real_of(BYTES, w + j * MI_W * BYTES * STEP, v);
                    MI_UNROLL for (int l = 0; l < STEP; l++)
                    {
                        mi_store(real + (i + l) * PANEL + j * MI_W, BYTES == 1 ? v[l] * s[j] : v[l]);
                    }
                }
            }
        }
        mi_gemm_outer(last - row, terms, width, r->x + row * d->k + from, d->k, 1, real, PANEL, out, apart, from > 0);
    }
    if (d->half) finish(d, out, apart, row, last - row, column, width);
    else if (d->bias || d->activation) {
        mi_finish(out, apart, last - row, width, d->bias ? (const float *)d->bias + column : NULL, d->activation);
    }
}

#if MI_PAIRS
/* Rows by one panel, as sums of products of pairs; `sums` has room for all rows. */
static void paired(
    const rows_of *r, ptrdiff_t row, ptrdiff_t last, ptrdiff_t column, const char *w, ptrdiff_t width, float *sums)
{
    const ptrdiff_t lanes = lanes_of(r->d->k, 2);
    for (ptrdiff_t from = 0; from < lanes; from += PAIRS) {
        const ptrdiff_t left = lanes - from, pairs = left < PAIRS ? left : PAIRS;
        mi_gemm_pairs(
            last - row, pairs, PANEL, r->pairs + row * r->apart + 2 * from, r->apart, w + 4 * from * PANEL, PANEL, sums, PANEL,
            from > 0);
    }
    finish(r->d, sums, PANEL, row, last - row, column, width);
}
#endif

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const rows_of *r = args;
    const dequantized *d = r->d;
    const ptrdiff_t panels = (d->n + PANEL - 1) / PANEL, panel = index % panels, column = panel * PANEL;
    const ptrdiff_t row = index / panels * BAND, last = d->m - row < BAND ? d->m : row + BAND;
    const ptrdiff_t left = d->n - column, width = left < PANEL ? left : PANEL;
    const char *w = d->w + column * column_bytes(d->k, d->bytes);
    const int in_registers = d->m <= FEW || !d->k;
#if MI_PAIRS
    if (r->pairs) {
        paired(r, row, last, column, w, width, scratch);
        return;
    }
#endif
    if (d->bytes == 1) {
        if (in_registers) few(1, r, row, last, column, w, width);
        else many(1, r, row, last, column, w, width, scratch);
    } else {
        if (in_registers) few(2, r, row, last, column, w, width);
        else many(2, r, row, last, column, w, width, scratch);
    }
}

/* A row of 16 bits, as float32, or with a zero that fills up the last pair. */
static void lay_out(void *args, long row, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const rows_of *r = args;
    const ptrdiff_t k = r->d->k;
    const mi_narrow *from = (const mi_narrow *)r->d->x + row * k;
    if (r->pairs) {
        mi_narrow *to = (mi_narrow *)r->pairs + row * r->apart;
        memcpy(to, from, (size_t)k * sizeof *to);
        to[k] = 0;
        return;
    }
    float *to = (float *)r->x + row * k;
    for (ptrdiff_t t = 0; t < k; t += MI_W) {
        const int n = k - t < MI_W ? (int)(k - t) : MI_W;
        mi_store_n(to + t, mi_load_narrow_n(from + t, n), n);
    }
}

/* The product that `dequantized` says, of sizes that are not 0. By `run`, mi_pool_run; its status, or -1 without memory. */
int mi_dequantized(const dequantized *d, mi_pool_run_fn *run, int n_threads)
{
    rows_of r = {.d = d, .x = d->x, .apart = d->k};
    const int dots = MI_PAIRS && d->half && d->bytes == 2 && d->k;
    const long panels = (d->n + PANEL - 1) / PANEL, bands = (d->m + BAND - 1) / BAND;
    const ptrdiff_t band = d->m < BAND ? d->m : BAND;
    size_t floats = d->m > FEW ? (size_t)(TERMS(d->m) * PANEL + (d->half ? band * PANEL : 0)) : 0;
    if (d->k * d->n < SHARED_READ && d->m * d->k * d->n < SHARED_WORK) n_threads = 1;
    void *made = NULL;
    if (dots) {
        r.x = NULL, r.pairs = d->x, floats = (size_t)(band * PANEL);
    }
    if (d->half && d->k && (!dots || d->k % 2)) {
        r.apart += dots;
        made = malloc((size_t)(d->m * r.apart) * (dots ? sizeof(mi_narrow) : sizeof(float)));
        if (!made) return -1;
        if (dots) r.pairs = made;
        else r.x = made;
    }
    int status = made ? run(lay_out, &r, d->m, d->m * d->k < SHARED_READ ? 1 : n_threads, 0) : 0;
    if (!status) status = run(cell, &r, panels * bands, n_threads, floats * sizeof(float));
    free(made);
    return status;
}

/* Products of rows in groups, each with weights of its own, behind those of the group before it. */
typedef struct {
    dequantized of; /* of all rows, with the weights and scales of the first group */
    const void *ends;
    ptrdiff_t groups;
    int wide; /* ends are of 64 bits */
} grouped;

/* The rows from ends[j - 1] to ends[j] with the weights of group j, and 0 from the last end on. MI_WRONG_ENDS, and nothing written,
 * where ends decrease or exceed m, else as mi_dequantized. */
int mi_dequantized_groups(const grouped *g, mi_pool_run_fn *run, int n_threads)
{
    const dequantized *all = &g->of;
    const ptrdiff_t last = mi_last_end(g->ends, g->wide, g->groups, all->m), element = all->half ? sizeof(mi_narrow) : sizeof(float);
    const ptrdiff_t weights = (all->n + PANEL - 1) / PANEL * PANEL * column_bytes(all->k, all->bytes);
    const ptrdiff_t scales = (all->k + all->group - 1) / all->group * all->n;
    if (last < 0) return MI_WRONG_ENDS;
    memset((char *)all->out + last * all->n * element, 0, (size_t)((all->m - last) * all->n * element));
    ptrdiff_t from = 0;
    for (ptrdiff_t j = 0; j < g->groups; j++) {
        dequantized one = *all;
        one.m = mi_end_of(g->ends, g->wide, j) - from;
        one.x = (const char *)all->x + from * all->k * element;
        one.out = (char *)all->out + from * all->n * element;
        one.w = all->w + j * weights, one.scale = all->scale + j * scales;
        from += one.m;
        const int status = one.m ? mi_dequantized(&one, run, n_threads) : 0;
        if (status) return status;
    }
    return 0;
}

/* Weights that are made bytes, each a scale apart from the next: w[k,n] is at t * w_row + j, or, if it is `transposed`, at
 * j * w_row + t; byte [t,j] goes to panel j / panel, which has k rows of `panel` columns. Without `scale` they become panels of
 * MI_NARROW. */
typedef struct {
    const void *w; /* of float32, or of MI_NARROW if it is `half` */
    signed char *to;
    float *scale; /* [groups, n], or NULL */
    ptrdiff_t k, n, group, panel, w_row;
    int transposed, half;
} narrowing;

/* Vectors of one column, or of one row, from element [t,j] on. */
MI_INLINE mi_vec weights_at(const narrowing *p, ptrdiff_t t, ptrdiff_t j, int n)
{
    const ptrdiff_t at = p->transposed ? j * p->w_row + t : t * p->w_row + j;
    return p->half ? mi_load_narrow_n((const mi_narrow *)p->w + at, n) : mi_load_n((const float *)p->w + at, n);
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

/* The same for MI_NARROW, the nearest, of two that are as near the even one: to panels, without scales. */
static void halve_panel(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const narrowing *p = args;
    const ptrdiff_t column = index * PANEL, left = p->n - column, width = left < PANEL ? left : PANEL;
    mi_narrow *to = (mi_narrow *)p->to + column * column_bytes(p->k, 2) / 2;
    const ptrdiff_t across = p->transposed ? 1 : MI_W, along = p->transposed ? MI_W : 1;
    memset(to, 0, (size_t)(PANEL * column_bytes(p->k, 2)));
    for (ptrdiff_t t = 0; t < p->k; t += along) {
        const int rows = p->k - t < along ? (int)(p->k - t) : (int)along;
        for (ptrdiff_t j = 0; j < width; j += across) {
            const int n = p->transposed ? rows : width - j < MI_W ? (int)(width - j) : MI_W;
            const mi_narrow_vec kept = mi_to_narrow(weights_at(p, t, column + j, n));
            for (int i = 0; i < n; i++) {
                const ptrdiff_t term = p->transposed ? t + i : t, own = p->transposed ? j : j + i;
                to[(term / TOGETHER * PANEL + own) * TOGETHER + term % TOGETHER] = kept[i];
            }
        }
    }
}

/* By `run`, mi_pool_run; its status. */
int mi_narrow_weights(narrowing *p, mi_pool_run_fn *run, int n_threads)
{
    return run(p->scale ? narrow_panel : halve_panel, p, (p->n + PANEL - 1) / PANEL, n_threads, 0);
}

/* Terms of the weights of a column that lie side by side, of MI_NARROW. */
long mi_together(void) { return TOGETHER; }
