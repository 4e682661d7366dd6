/* Products of quantized activations with weights of 8 bits: sums in 32 bits, scaled to float32, and quantized again where they are
 * stored if that is asked for. With MI_OF_16_BITS, activations are of 16 bits, and sums in 64. Activations of float32 (`dynamic`) are
 * quantized first, each row with a scale of its own, so that its largest magnitude is 127.
 *
 * Each element is what this says, operation by operation, so that it is the same on every processor:
 *
 *     sum    = sum over k of (x[m,k] - x_zero) * w[k,n]          modulo 2^32, or 2^64, plus offset[n]
 *     value  = float(sum) * scale[n] + bias[n]                   or, of groups along k, the sum of float(sum) * scale[group,n]
 *     value  = value * scale of the row + bias[n]                if it is `dynamic`
 *     result = activation(value), max(value, 0) if that is relu
 *     result = clip(round(value), least - zero, most - zero) + zero, half to even, where it is stored as an integer
 *
 * With multipliers in place of scales it is ((sum * multiplier[n] + 2^(shift - 1)) >> shift) in 64 bits, the larger of 0 and that
 * for relu, clipped.
 */
#include "mirage_amx.h"
#include "mirage_dot.h"
#include "mirage_activation.h"
#include "mirage_pool.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define ROWS 6 /* sums of a block are in so many rows of registers */
#define VECTORS 4
#elif defined(__aarch64__)
#define ROWS 4
#define VECTORS 4
#else
#define ROWS 4
#define VECTORS 2
#endif
#define COLUMNS (VECTORS * MI_W) /* of a panel of packed weights */
#define BAND_BYTES (256 * 1024)  /* of the activations of a cell, in the second-level cache */
#define DEPTH 128                /* lanes of a panel that are multiplied at a time, with all rows of a cell: in the caches */
#define SHARED_WORK (1024 * 1024) /* from so many products, or bytes of weights, another thread is worth the wait for it */
#define SHARED_READ (128 * 1024)
#define LAID_OUT (16 * 1024) /* terms of a cell that lays rows out, at least */

typedef struct {
    const void *x; /* [m,k]; of float32 if it is `dynamic` */
    const signed char *w; /* as `mi_quantized_pack` lays it out */
    const int *sums; /* [groups, n]: of the weights of a column */
    const float *scale; /* [groups, n] */
    const float *bias; /* [n], or NULL */
    void *out; /* [m,n] */
    ptrdiff_t m, k, n, group; /* `group` terms have one scale: a multiple of 4, or k */
    int is_signed, x_zero, dynamic; /* x: int8 or uint8 */
    int activation, bytes, zero, least, most; /* `bytes` of an element of the result: 4 of float32, 2 or 1 of an integer */
    int shift;
    const int *offset;     /* [n], added to the sums, or NULL */
    const int *multiplier; /* [n], in place of the scale, or NULL */
} quantized;

#ifdef MI_OF_16_BITS
typedef short given;
typedef long long total;
typedef unsigned long long any_total; /* of which sums wrap around */
#else
typedef signed char given;
typedef int total;
typedef unsigned any_total;
#endif
#define CHUNK 256 /* terms whose sums are in 32 bits, where totals have 64 */

typedef struct {
    const quantized *q;
    ptrdiff_t steps, band, bands, panels, part, parts; /* lanes of a row; rows, and panels, of a cell */
    const mi_term *x;    /* rows of so many lanes */
    const float *scales; /* of the rows, or NULL */
} cells;

typedef struct {
    const quantized *q;
    mi_term *x;
    float *scales;
    ptrdiff_t steps, rows; /* lanes of a row; rows of a cell */
} layout;

static ptrdiff_t steps_of(ptrdiff_t k) { return (k + MI_STEP - 1) / MI_STEP; }
static ptrdiff_t panels_of(ptrdiff_t n) { return (n + COLUMNS - 1) / COLUMNS; }
static ptrdiff_t least_of(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static int vectors_of(ptrdiff_t columns) { return columns >= COLUMNS ? VECTORS : (int)((columns + MI_W - 1) / MI_W); }

/* Bytes of packed weights w[k,n]. */
ptrdiff_t mi_quantized_bytes(ptrdiff_t k, ptrdiff_t n)
{
    const ptrdiff_t whole = n / COLUMNS * VECTORS, rest = n % COLUMNS;
    return (whole + (rest ? vectors_of(rest) : 0)) * MI_W * MI_STEP * steps_of(k);
}

/* w[k,n], or w[n,k] if it is `transposed`, packed to `to`, and the sums of each column's groups to sums[groups,n]. */
void mi_quantized_pack(
    ptrdiff_t k, ptrdiff_t n, ptrdiff_t group, int transposed, const signed char *w, signed char *to, int *sums)
{
    const ptrdiff_t steps = steps_of(k), rows = transposed ? 1 : n, columns = transposed ? k : 1;
    memset(to, 0, (size_t)mi_quantized_bytes(k, n));
    memset(sums, 0, (size_t)((k + group - 1) / group * n) * sizeof *sums);
    for (ptrdiff_t j0 = 0; j0 < n; j0 += COLUMNS) {
        const ptrdiff_t count = least_of(n - j0, COLUMNS), wide = vectors_of(count) * MI_W;
        for (ptrdiff_t i = 0; i < k; i++) {
            for (ptrdiff_t j = 0; j < count; j++) {
                const signed char value = w[i * rows + (j0 + j) * columns];
                to[(i / MI_STEP * wide + j) * MI_STEP + i % MI_STEP] = value;
                sums[i / group * n + j0 + j] += value;
            }
        }
        to += wide * MI_STEP * steps;
    }
}

/* Makes terms of a row of float32; the scale with which they stand for it. It is NaN or infinite where a number is. */
static float narrow(const float *x, ptrdiff_t k, mi_term *to)
{
    mi_vec most = {0}, other = {0};
    for (ptrdiff_t i = 0; i < k; i += MI_W) {
        const mi_vec v = mi_load_n(x + i, k - i < MI_W ? (int)(k - i) : MI_W);
        most = mi_max(most, mi_max(v, -v));
        other += v - v; /* what is not finite */
    }
    const float widest = mi_hmax(most) + mi_hsum(other);
    const float inverse = widest >= 127 * FLT_MIN && widest <= FLT_MAX ? 127 / widest : 0;
    for (ptrdiff_t i = 0; i < k; i += MI_W) {
        const int n = k - i < MI_W ? (int)(k - i) : MI_W;
        const float whole = 0x1.8p23f; /* floats from here on have no fraction, and the number in their low bits */
        const mi_sum bits = (mi_sum)(mi_product(mi_load_n(x + i, n), mi_broadcast(inverse)) + whole) - 0x4b400000u + MI_SHIFT(1);
#if MI_STEP == 4
        mi_store_bytes_n((unsigned char *)to + i, bits, n);
#else
        int found[MI_W];
        mi_store_lanes(found, bits);
        for (int j = 0; j < n; j++) to[i + j] = (mi_term)found[j];
#endif
    }
    return widest / 127;
}

/* Rows of x as terms, filled up with zeros to whole lanes. */
static void lay_out(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const layout *l = args;
    const quantized *q = l->q;
    const int shift = MI_SHIFT(q->is_signed), is_signed = q->is_signed || sizeof(given) > 1;
    const ptrdiff_t k = q->k; /* bytes that are stored could be anything's: compilers would read it anew for each */
    const ptrdiff_t first = index * l->rows, last = least_of(first + l->rows, q->m);
    for (ptrdiff_t row = first; row < last; row++) {
        const given *restrict from = (const given *)q->x + row * k;
        mi_term *restrict to = l->x + row * l->steps * MI_STEP;
        if (q->dynamic) {
            l->scales[row] = narrow((const float *)q->x + row * k, k, to);
        } else if (is_signed) {
            for (ptrdiff_t i = 0; i < k; i++) to[i] = (mi_term)(from[i] + shift);
        } else {
            for (ptrdiff_t i = 0; i < k; i++) to[i] = (mi_term)((unsigned char)from[i] + shift);
        }
        for (ptrdiff_t i = k; i < l->steps * MI_STEP; i++) to[i] = 0;
    }
}

/* Sums of MR rows by NV vectors over so many lanes, added to those in `to` if it is `more`; MR and NV are constants, so the sums
 * live in registers. Rows of x are `row` terms apart, those of `to` a panel. What lies at `next` is fetched into the second-level
 * cache, a line with each lane, or all that few rows need. */
MI_INLINE void sums(
    const int MR, const int NV, ptrdiff_t steps, const mi_term *x, ptrdiff_t row, const signed char *w, unsigned *to, int more,
    const signed char *next)
{
    mi_sum sum[ROWS * VECTORS];
    MI_UNROLL for (int i = 0; i < MR * NV; i++) sum[i] = (mi_sum){0};
    const int LINES = MR > 2 ? 1 : NV;
    MI_NO_UNROLL for (; steps > 0; steps--, x += MI_STEP, w += NV * MI_W * MI_STEP, next += LINES * MI_LINE)
    {
        mi_sum wj[VECTORS];
        MI_UNROLL for (int i = 0; i < LINES; i++) __builtin_prefetch(next + i * MI_LINE, 0, 2);
        MI_UNROLL for (int j = 0; j < NV; j++) wj[j] = mi_dot_weights(w + j * MI_W * MI_STEP);
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            unsigned lane;
            memcpy(&lane, x + i * row, sizeof lane);
            const mi_sum terms = lane - (mi_sum){0};
            MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] = mi_dot(sum[i * NV + j], terms, wj[j]);
        }
    }
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            unsigned *own = to + i * COLUMNS + j * MI_W;
            mi_store_lanes(own, more ? sum[i * NV + j] + mi_load_lanes(own) : sum[i * NV + j]);
        }
    }
}

typedef void sums_fn(ptrdiff_t steps, const mi_term *x, ptrdiff_t row, const signed char *w, unsigned *to, int more, const signed char *next);
#define SUMS(NAME, MR, NV) \
    static void NAME##NV( \
        ptrdiff_t steps, const mi_term *x, ptrdiff_t row, const signed char *w, unsigned *to, int more, const signed char *next) \
    { \
        sums(MR, NV, steps, x, row, w, to, more, next); \
    }
#if VECTORS == 4
#define SUMS_OF(NAME, MR) SUMS(NAME, MR, 1) SUMS(NAME, MR, 2) SUMS(NAME, MR, 3) SUMS(NAME, MR, 4)
#define NAMES_OF(NAME) {NAME##1, NAME##2, NAME##3, NAME##4}
#else
#define SUMS_OF(NAME, MR) SUMS(NAME, MR, 1) SUMS(NAME, MR, 2)
#define NAMES_OF(NAME) {NAME##1, NAME##2}
#endif
SUMS_OF(one, 1)
SUMS_OF(two, 2)
SUMS_OF(four, 4)
#if ROWS == 4
#define KINDS 3
static const int rows_of[KINDS] = {4, 2, 1};
static sums_fn *const blocks[KINDS][VECTORS] = {NAMES_OF(four), NAMES_OF(two), NAMES_OF(one)};
#else
#define KINDS 4
SUMS_OF(most, ROWS)
static const int rows_of[KINDS] = {ROWS, 4, 2, 1};
static sums_fn *const blocks[KINDS][VECTORS] = {NAMES_OF(most), NAMES_OF(four), NAMES_OF(two), NAMES_OF(one)};
#endif

/* Totals of `rows` rows by so many vectors over the lanes from `first` to `last`, added to those in `to` if it is `more`. */
MI_INLINE void add_up(
    sums_fn *multiply, ptrdiff_t first, ptrdiff_t last, const mi_term *x, ptrdiff_t apart, const signed char *w, int rows,
    int vectors, total *to, int more, const signed char *next)
{
    const ptrdiff_t lane = vectors * MI_W * MI_STEP;
#ifdef MI_OF_16_BITS
    unsigned sum[ROWS * COLUMNS];
    for (ptrdiff_t step = first; step < last; step += CHUNK / MI_STEP) {
        multiply(least_of(last - step, CHUNK / MI_STEP), x + step * MI_STEP, apart, w + step * lane, sum, 0, next);
        for (int i = 0; i < rows; i++) {
            for (int j = i * COLUMNS; j < i * COLUMNS + vectors * MI_W; j++) {
                to[j] = (more || step > first ? to[j] : 0) + (int)sum[j];
            }
        }
    }
#else
    (void)rows;
    multiply(last - first, x + first * MI_STEP, apart, w + first * lane, (unsigned *)to, more, next);
#endif
}

/* What all rows of n lanes of a group have in common. */
typedef struct {
    mi_sum less; /* of the sums: what the zero of x adds to them, without the offset */
    mi_vec scale, bias, low, high;
} lanes;

MI_INLINE lanes lanes_of(const quantized *q, ptrdiff_t group, ptrdiff_t column, int n)
{
    const ptrdiff_t at = group * q->n + column;
    const int low = q->least - q->zero;
    const mi_vec none = mi_broadcast(0);
    lanes l = {{0}, none, q->bias ? mi_load_n(q->bias + column, n) : none, mi_broadcast((float)(q->activation == RELU && low < 0 ? 0 : low)),
               mi_broadcast((float)(q->most - q->zero))};
    if (q->scale) l.scale = mi_load_n(q->scale + at, n);
#ifndef MI_OF_16_BITS
    l.less = (unsigned)(q->x_zero + MI_SHIFT(q->is_signed)) * (mi_sum)mi_load_n((const float *)(const void *)(q->sums + at), n);
    if (q->offset) l.less -= (mi_sum)mi_load_n((const float *)(const void *)(q->offset + at), n);
#endif
    return l;
}

/* The totals of n lanes from element `at` of the sums on, without the zero of x. */
MI_INLINE void without_zero(const quantized *q, const lanes *l, total *sum, ptrdiff_t at, int n)
{
#ifdef MI_OF_16_BITS
    const any_total zero = (any_total)q->x_zero;
    (void)l;
    for (int i = 0; i < n; i++) sum[i] = (total)((any_total)sum[i] - zero * (any_total)q->sums[at + i]);
    for (int i = 0; q->offset && i < n; i++) sum[i] = (total)((any_total)sum[i] + (any_total)q->offset[at + i]);
#else
    (void)q, (void)at, (void)n;
    mi_store_lanes(sum, mi_load_lanes(sum) - l->less);
#endif
}

/* n totals, scaled. */
MI_INLINE mi_vec scaled(const lanes *l, const total *sum, int n)
{
#ifdef MI_OF_16_BITS
    float real[MI_W] = {0};
    for (int i = 0; i < n; i++) real[i] = (float)sum[i];
    return mi_product(mi_load(real), l->scale);
#else
    (void)n;
    return mi_product(__builtin_convertvector((mi_ivec)mi_load_lanes(sum), mi_vec), l->scale);
#endif
}

MI_INLINE void store_whole(const quantized *q, const int *lanes, ptrdiff_t to, int n)
{
    if (q->bytes == 1) {
        mi_store_bytes_n((unsigned char *)q->out + to, mi_load_lanes(lanes), n);
    } else {
        unsigned short part[MI_W];
        for (int i = 0; i < MI_W; i++) part[i] = (unsigned short)lanes[i];
        memcpy((unsigned short *)q->out + to, part, (size_t)n * sizeof *part);
    }
}

/* Stores n totals, multiplied and shifted, of one row, from column `at` on. */
MI_INLINE void store_shifted(const quantized *q, const total *sum, ptrdiff_t row, ptrdiff_t at, int n)
{
    int lanes[MI_W] = {0};
    const unsigned long long half = q->shift ? 1ULL << (q->shift - 1) : 0;
    const long long low = q->least - q->zero, least = q->activation == RELU && low < 0 ? 0 : low, most = q->most - q->zero;
    for (int i = 0; i < n; i++) {
        const unsigned long long product = (unsigned long long)sum[i] * (unsigned long long)(long long)q->multiplier[at + i];
        const long long v = (long long)(product + half) >> q->shift, above = v < least ? least : v;
        lanes[i] = (int)(above > most ? most : above) + q->zero;
    }
    store_whole(q, lanes, row * q->n + at, n);
}

/* Stores the first n lanes of the results, of one row, from column `at` on. */
MI_INLINE void store(const quantized *q, const lanes *l, mi_vec v, ptrdiff_t row, ptrdiff_t at, int n)
{
    const ptrdiff_t to = row * q->n + at;
    if (q->bias) v += l->bias;
    if (q->bytes == 4) {
        mi_store_n((float *)q->out + to, mi_activated(v, q->activation), n);
        return;
    }
    const float whole = 0x1.8p23f; /* floats from here on have no fraction, and the number in their low bits */
    v = mi_min(mi_max(v, l->low), l->high);
    int found[MI_W];
    mi_store_lanes(found, (mi_sum)(v + whole) - 0x4b400000u + (unsigned)q->zero);
    store_whole(q, found, to, n);
}

/* What is left to do with so many rows of a panel when the totals of the group from term `from` on are known; `value` are the sums of
 * the groups before. */
static void finish(
    const cells *c, ptrdiff_t from, total *sum, float *value, ptrdiff_t row, int rows, ptrdiff_t column, ptrdiff_t count)
{
    const quantized *q = c->q;
    const ptrdiff_t group = from / q->group;
    for (ptrdiff_t j = 0; j < count; j += MI_W) {
        const int n = count - j < MI_W ? (int)(count - j) : MI_W;
        const lanes l = lanes_of(q, group, column + j, n);
        for (int i = 0; i < rows; i++) {
            total *own = sum + i * COLUMNS + j;
            without_zero(q, &l, own, group * q->n + column + j, n);
            if (q->multiplier) {
                store_shifted(q, own, row + i, column + j, n);
                continue;
            }
            mi_vec v = scaled(&l, own, n);
            if (from) v += mi_load(value + i * COLUMNS + j);
            if (from + q->group < q->k) mi_store(value + i * COLUMNS + j, v);
            else store(q, &l, c->scales ? v * c->scales[row + i] : v, row + i, column + j, n);
        }
    }
}

/* Rows of one panel, by blocks, over a part of the terms after the other. */
static void panel(
    const cells *c, const mi_term *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t column, const signed char *w, total *sum, float *value)
{
    const quantized *q = c->q;
    const ptrdiff_t count = least_of(q->n - column, COLUMNS), apart = c->steps * MI_STEP;
    const int vectors = vectors_of(count), lane = vectors * MI_W * MI_STEP;
    for (ptrdiff_t from = 0; from < q->k; from += q->group) {
        const ptrdiff_t first = from / MI_STEP, last = steps_of(least_of(from + q->group, q->k));
        for (ptrdiff_t at = first; at < last; at += DEPTH) {
            const ptrdiff_t end = least_of(at + DEPTH, last);
            int kind = 0, block;
#if MI_AMX && MI_UNSIGNED
            if (rows > ROWS && mi_amx_allowed()) {
                mi_amx_product(
                    1, rows, end - at, vectors * MI_W, x + at * MI_STEP, apart, w + at * lane, lane, sum, COLUMNS * (ptrdiff_t)sizeof *sum,
                    at > first);
                if (end == last) finish(c, from, sum, value, row, (int)rows, column, count);
                continue;
            }
#endif
            for (ptrdiff_t i = 0; i < rows; i += block) {
                while (rows_of[kind] > rows - i) kind++;
                block = rows_of[kind];
                /* each of the first blocks fetches a part of what comes next */
                const signed char *next = w + (at + DEPTH) * lane + i / ROWS * DEPTH * MI_LINE % (DEPTH * lane);
                add_up(
                    blocks[kind][vectors - 1], at, end, x + i * apart, apart, w, block, vectors, sum + i * COLUMNS, at > first, next);
                if (end == last) finish(c, from, sum + i * COLUMNS, value + i * COLUMNS, row + i, block, column, count);
            }
        }
    }
}

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const cells *c = args;
    const quantized *q = c->q;
    const ptrdiff_t first = index % c->parts * c->part, last = least_of(first + c->part, c->panels);
    const ptrdiff_t row = index / c->parts * c->band, rows = least_of(q->m - row, c->band);
    total *sum = scratch;
    float *value = (float *)(sum + c->band * COLUMNS);
    const mi_term *x = c->x + row * c->steps * MI_STEP;
    for (ptrdiff_t p = first; p < last; p++) {
        panel(c, x, row, rows, p * COLUMNS, q->w + p * COLUMNS * MI_STEP * c->steps, sum, value);
    }
}

/* The product that `quantized` says, of sizes that are not 0. By `run`, mi_pool_run; its status. */
int mi_quantized(const quantized *q, mi_pool_run_fn *run, int n_threads)
{
    cells c = {.q = q, .steps = steps_of(q->k), .panels = panels_of(q->n)};
    if (q->m * q->k * q->n < SHARED_WORK && q->k * q->n < SHARED_READ) n_threads = 1;
    const ptrdiff_t bytes = c.steps * MI_STEP * (ptrdiff_t)sizeof(mi_term);
    c.bands = (q->m * bytes + BAND_BYTES - 1) / BAND_BYTES;
    c.band = ((q->m + c.bands - 1) / c.bands + ROWS - 1) / ROWS * ROWS;
    c.bands = (q->m + c.band - 1) / c.band;
    /* several cells for each thread, so that they end together */
    c.parts = n_threads == 1 ? 1 : least_of(c.panels, (4 * n_threads + c.bands - 1) / c.bands);
    c.part = (c.panels + c.parts - 1) / c.parts;
    c.parts = (c.panels + c.part - 1) / c.part;
    layout l = {.q = q, .steps = c.steps, .rows = LAID_OUT / q->k + 1};
    c.x = q->x;
    if (q->dynamic || sizeof(mi_term) != sizeof(given) || MI_SHIFT(q->is_signed) || q->k % MI_STEP) {
        l.scales = malloc((size_t)q->m * ((size_t)bytes + sizeof *l.scales));
        if (!l.scales) return -1;
        c.x = l.x = (mi_term *)(l.scales + q->m);
        c.scales = q->dynamic ? l.scales : NULL;
    }
    const size_t sums = (size_t)(c.band * COLUMNS) * (sizeof(total) + sizeof(float));
    int status = l.x ? run(lay_out, &l, (q->m + l.rows - 1) / l.rows, n_threads, 0) : 0;
    if (!status) status = run(cell, &c, c.bands * c.parts, n_threads, sums);
    free(l.scales);
    return status;
}
