/* Products of quantized activations with weights of 8 bits: sums in 32 bits, scaled to float32, and quantized again where they are
 * stored if that is asked for. With MI_OF_16_BITS, activations are of 16 bits, and sums in 64.
 *
 * Each element is what this says, operation by operation, so that it is the same on every processor:
 *
 *     sum    = sum over k of (x[m,k] - x_zero) * w[k,n]          modulo 2^32, or 2^64, plus offset[n]
 *     value  = float(sum) * scale[n] + bias[n]                   or, of groups along k, the sum of float(sum) * scale[group,n]
 *     result = max(value, 0) if it is `relu`
 *     result = clip(round(value), least - zero, most - zero) + zero, half to even, where it is stored as an integer
 *
 * With multipliers in place of scales it is ((sum * multiplier[n] + 2^(shift - 1)) >> shift) in 64 bits, the larger of 0 and that
 * if it is `relu`, clipped.
 */
#include "mirage_dot.h"
#include "mirage_pool.h"

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
#define BAND_BYTES (96 * 1024)   /* of the activations of a cell, in the second-level cache */
#define SHARED_WORK (1024 * 1024) /* from so many products, or bytes of weights, another thread is worth the wait for it */
#define SHARED_READ (128 * 1024)

typedef struct {
    const void *x; /* [m,k] */
    const signed char *w; /* as `mi_quantized_pack` lays it out */
    const int *sums; /* [groups, n]: of the weights of a column */
    const float *scale; /* [groups, n] */
    const float *bias; /* [n], or NULL */
    void *out; /* [m,n] */
    ptrdiff_t m, k, n, group; /* `group` terms have one scale: a multiple of 4, or k */
    int is_signed, x_zero; /* x: int8 or uint8 */
    int relu, bytes, zero, least, most; /* `bytes` of an element of the result: 4 of float32, 2 or 1 of an integer */
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
} cells;

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

/* Rows of x as terms, filled up with zeros to whole lanes. */
static void lay_out(const quantized *q, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t steps, mi_term *to)
{
    const int shift = MI_SHIFT(q->is_signed);
    const given *from = (const given *)q->x + row * q->k;
    for (; rows > 0; rows--, from += q->k, to += steps * MI_STEP) {
        if (q->is_signed || sizeof(given) > 1) {
            for (ptrdiff_t i = 0; i < q->k; i++) to[i] = (mi_term)(from[i] + shift);
        } else {
            for (ptrdiff_t i = 0; i < q->k; i++) to[i] = (mi_term)((unsigned char)from[i] + shift);
        }
        for (ptrdiff_t i = q->k; i < steps * MI_STEP; i++) to[i] = 0;
    }
}

/* Sums of MR rows by NV vectors over so many lanes; MR and NV are constants, so the sums live in registers. Rows of x are `row`
 * terms apart, those of `to` a panel. */
MI_INLINE void sums(
    const int MR, const int NV, ptrdiff_t steps, const mi_term *x, ptrdiff_t row, const signed char *w, unsigned *to)
{
    mi_sum sum[ROWS * VECTORS];
    MI_UNROLL for (int i = 0; i < MR * NV; i++) sum[i] = (mi_sum){0};
    MI_NO_UNROLL for (; steps > 0; steps--, x += MI_STEP, w += NV * MI_W * MI_STEP)
    {
        mi_sum wj[VECTORS];
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
        MI_UNROLL for (int j = 0; j < NV; j++) mi_store_lanes(to + i * COLUMNS + j * MI_W, sum[i * NV + j]);
    }
}

typedef void sums_fn(ptrdiff_t steps, const mi_term *x, ptrdiff_t row, const signed char *w, unsigned *to);
#define SUMS(NAME, MR, NV) \
    static void NAME##NV(ptrdiff_t steps, const mi_term *x, ptrdiff_t row, const signed char *w, unsigned *to) \
    { \
        sums(MR, NV, steps, x, row, w, to); \
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
SUMS_OF(most, ROWS)
/* by rows (1, 2, ROWS), and by vectors */
static sums_fn *const blocks[][VECTORS] = {NAMES_OF(one), NAMES_OF(two), NAMES_OF(most)};

/* Totals of `rows` rows by so many vectors over the lanes from `first` to `last`. */
MI_INLINE void add_up(
    sums_fn *multiply, ptrdiff_t first, ptrdiff_t last, const mi_term *x, ptrdiff_t apart, const signed char *w, int rows,
    int vectors, total *to)
{
    const ptrdiff_t lane = vectors * MI_W * MI_STEP;
#ifdef MI_OF_16_BITS
    unsigned sum[ROWS * COLUMNS];
    for (ptrdiff_t step = first; step < last; step += CHUNK / MI_STEP) {
        multiply(least_of(last - step, CHUNK / MI_STEP), x + step * MI_STEP, apart, w + step * lane, sum);
        for (int i = 0; i < rows; i++) {
            for (int j = i * COLUMNS; j < i * COLUMNS + vectors * MI_W; j++) to[j] = (step > first ? to[j] : 0) + (int)sum[j];
        }
    }
#else
    (void)rows;
    multiply(last - first, x + first * MI_STEP, apart, w + first * lane, (unsigned *)to);
#endif
}

/* The totals of the first n lanes of one group from element `at` on, without the zero of x. */
MI_INLINE void without_zero(const quantized *q, total *sum, ptrdiff_t at, int n)
{
    const any_total zero = (any_total)(q->x_zero + MI_SHIFT(q->is_signed));
#ifdef MI_OF_16_BITS
    for (int i = 0; i < n; i++) sum[i] = (total)((any_total)sum[i] - zero * (any_total)q->sums[at + i]);
    for (int i = 0; q->offset && i < n; i++) sum[i] = (total)((any_total)sum[i] + (any_total)q->offset[at + i]);
#else
    mi_sum whole = mi_load_lanes(sum) - zero * (mi_sum)mi_load_n((const float *)(const void *)(q->sums + at), n);
    if (q->offset) whole += (mi_sum)mi_load_n((const float *)(const void *)(q->offset + at), n);
    mi_store_lanes(sum, whole);
#endif
}

/* The sums of n lanes of one group, scaled. */
MI_INLINE mi_vec scaled(const quantized *q, const total *sum, ptrdiff_t at, int n)
{
#ifdef MI_OF_16_BITS
    float lanes[MI_W] = {0};
    for (int i = 0; i < n; i++) lanes[i] = (float)sum[i];
    const mi_vec real = mi_load(lanes);
#else
    const mi_vec real = __builtin_convertvector((mi_ivec)mi_load_lanes(sum), mi_vec);
#endif
    return mi_product(real, mi_load_n(q->scale + at, n));
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
    const long long low = q->least - q->zero, least = q->relu && low < 0 ? 0 : low, most = q->most - q->zero;
    for (int i = 0; i < n; i++) {
        const unsigned long long product = (unsigned long long)sum[i] * (unsigned long long)(long long)q->multiplier[at + i];
        const long long v = (long long)(product + half) >> q->shift, above = v < least ? least : v;
        lanes[i] = (int)(above > most ? most : above) + q->zero;
    }
    store_whole(q, lanes, row * q->n + at, n);
}

/* Stores the first n lanes of the results, of one row, from column `at` on. */
MI_INLINE void store(const quantized *q, mi_vec v, ptrdiff_t row, ptrdiff_t at, int n)
{
    if (q->bias) v += mi_load_n(q->bias + at, n);
    if (q->relu) v = mi_max(v, mi_broadcast(0));
    const ptrdiff_t to = row * q->n + at;
    if (q->bytes == 4) {
        mi_store_n((float *)q->out + to, v, n);
        return;
    }
    const float whole = 0x1.8p23f; /* floats from here on have no fraction, and the number in their low bits */
    v = mi_min(mi_max(v, mi_broadcast((float)(q->least - q->zero))), mi_broadcast((float)(q->most - q->zero)));
    const mi_sum bits = (mi_sum)(v + whole) - 0x4b400000u + (unsigned)q->zero;
    int lanes[MI_W];
    mi_store_lanes(lanes, bits);
    store_whole(q, lanes, to, n);
}

/* Rows of one panel: as many as a block of `kind` has. */
static void panel(const cells *c, int kind, int rows, const mi_term *x, ptrdiff_t row, ptrdiff_t column, const signed char *w)
{
    const quantized *q = c->q;
    const ptrdiff_t count = least_of(q->n - column, COLUMNS), apart = c->steps * MI_STEP;
    const int vectors = vectors_of(count);
    sums_fn *multiply = blocks[kind][vectors - 1];
    total sum[ROWS * COLUMNS];
    float value[ROWS * COLUMNS];
    ptrdiff_t at = column;
    for (ptrdiff_t from = 0; from < q->k; from += q->group, at += q->n) {
        const ptrdiff_t first = from / MI_STEP, last = steps_of(least_of(from + q->group, q->k));
        add_up(multiply, first, last, x, apart, w, rows, vectors, sum);
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < vectors; j++) {
                const ptrdiff_t left = count - j * MI_W;
                const int n = left < MI_W ? (int)left : MI_W;
                float *own = value + i * COLUMNS + j * MI_W;
                total *lanes = sum + i * COLUMNS + j * MI_W;
                without_zero(q, lanes, at + j * MI_W, n);
                if (q->multiplier) {
                    store_shifted(q, lanes, row + i, column + j * MI_W, n);
                    continue;
                }
                mi_vec v = scaled(q, lanes, at + j * MI_W, n);
                if (from) v += mi_load(own);
                if (from + q->group < q->k) mi_store(own, v);
                else store(q, v, row + i, column + j * MI_W, n);
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
    mi_term *x = scratch;
    lay_out(q, row, rows, c->steps, x);
    for (ptrdiff_t p = first; p < last; p++) {
        const signed char *w = q->w + p * COLUMNS * MI_STEP * c->steps;
        for (ptrdiff_t i = 0; i < rows;) {
            const ptrdiff_t left = rows - i;
            const int kind = left >= ROWS ? 2 : left >= 2, count = left >= ROWS ? ROWS : kind + 1;
            panel(c, kind, count, x + i * c->steps * MI_STEP, row + i, p * COLUMNS, w);
            i += count;
        }
    }
}

/* The product that `quantized` says, of sizes that are not 0. By `run`, mi_pool_run; its status. */
int mi_quantized(const quantized *q, int n_threads, mi_pool_run_fn *run)
{
    cells c = {.q = q, .steps = steps_of(q->k), .panels = panels_of(q->n)};
    if (q->m * q->k * q->n < SHARED_WORK && q->k * q->n < SHARED_READ) n_threads = 1;
    const ptrdiff_t bytes = c.steps * MI_STEP * (ptrdiff_t)sizeof(mi_term), fit = BAND_BYTES / bytes / ROWS * ROWS;
    c.band = least_of(q->m, fit > 4 * ROWS ? fit : 4 * ROWS);
    c.bands = (q->m + c.band - 1) / c.band;
    /* several cells for each thread, so that they end together; each lays its rows out anew */
    c.parts = n_threads == 1 ? 1 : least_of(c.panels, (4 * n_threads + c.bands - 1) / c.bands);
    c.part = (c.panels + c.parts - 1) / c.parts;
    c.parts = (c.panels + c.part - 1) / c.part;
    return run(cell, &c, c.bands * c.parts, n_threads, (size_t)(c.band * bytes));
}
