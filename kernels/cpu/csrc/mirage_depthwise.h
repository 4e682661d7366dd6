/* Convolutions channel by channel: sums of shifted rows, columns as lanes.
 *
 * A cell is a band of rows of one channel. What its windows read is laid out in a thread's cache first, with zeros at the edges
 * and the columns of one remainder by the stride beside one another, so that the sums need neither tests nor gathers.
 *
 * What includes it defines before
 *
 *   mi_output        what the sums of an output have in common where they are stored, as mi_output_of gives it
 *   mi_store_sums    n sums of an output, from element `at` of the result on
 */
#ifndef MIRAGE_DEPTHWISE_H
#define MIRAGE_DEPTHWISE_H

#include "mirage_convolution.h"

typedef struct {
    mi_windows c;
    ptrdiff_t bands, band, rows, length, line; /* rows of a band, and of what it reads; columns of a remainder, elements of a row */
    int square; /* 10 * K + STEP of windows as mi_sums_of_square has them, or 0 */
} mi_depthwise;

/* Fetches what lies behind a row of n elements as far as a band is long: rows are so short that little else is read meanwhile. */
MI_INLINE void mi_fetch_row(const mi_real *row, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += MI_LINE / (ptrdiff_t)sizeof *row) mi_fetch(MI_LINE, (const char *)(row + i) + MI_AHEAD);
}

/* even[i] = x[2 * i] and odd[i] = x[2 * i + 1] for so many of each, of n elements of x. */
MI_INLINE void mi_lay_pairs(mi_real *even, ptrdiff_t evens, mi_real *odd, ptrdiff_t odds, const mi_real *x, ptrdiff_t n)
{
    const ptrdiff_t most = evens > odds ? evens : odds;
    for (ptrdiff_t i = 0; i < most; i += MI_W) {
        const ptrdiff_t left = n - 2 * i, behind = left - MI_W;
        const mi_vec a = mi_load_n(x + 2 * i, left < MI_W ? (int)left : MI_W);
        const mi_vec b = behind > 0 ? mi_load_n(x + 2 * i + MI_W, behind < MI_W ? (int)behind : MI_W) : (mi_vec){0};
        if (i < evens) mi_store_n(even + i, mi_every_second(0, a, b), evens - i < MI_W ? (int)(evens - i) : MI_W);
        if (i < odds) mi_store_n(odd + i, mi_every_second(1, a, b), odds - i < MI_W ? (int)(odds - i) : MI_W);
    }
}

/* Zeros, of n elements at least, and of less than a vector more. */
MI_INLINE void mi_zeros(mi_real *to, ptrdiff_t n)
{
    mi_vec zero = {0};
    MI_IN_REGISTER(zero); /* compilers would call a function for some vectors */
    MI_NO_UNROLL for (ptrdiff_t i = 0; i < n; i += MI_W) mi_store(to + i, zero);
}

/* Those around `count` of n elements, from element `first` on, which are written after them: as many as fit. Returns how many do. */
MI_INLINE ptrdiff_t mi_zeros_around(mi_real *to, ptrdiff_t first, ptrdiff_t count, ptrdiff_t n)
{
    const ptrdiff_t fit = n - first, most = count < fit ? count : fit, end = most > 0 ? first + most : n;
    mi_zeros(to, most > 0 ? first : n);
    mi_zeros(to + end, n - end);
    return most > 0 ? most : 0;
}

static void mi_band_lay_out(const mi_depthwise *d, const mi_real *x, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t rows, mi_real *to)
{
    const mi_windows *c = &d->c;
    const ptrdiff_t *n = c->in;
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++) {
        const ptrdiff_t at0 = i0 * c->strides[0] + a0 * c->gaps[0] - c->low[0];
        mi_real *row = to + a0 * d->rows * d->line;
        for (ptrdiff_t r = 0; r < rows; r++, row += d->line) {
            const ptrdiff_t at1 = i1 * c->strides[1] + r - c->low[1];
            if (at0 < 0 || at0 >= n[0] || at1 < 0 || at1 >= n[1]) {
                mi_zeros(row, d->line);
                continue;
            }
            const mi_real *line = x + (at0 * n[1] + at1) * n[2];
            mi_fetch_row(line, n[2]);
            if (c->strides[2] == 1) {
                mi_copy_every(row + c->low[2], line, 1, mi_zeros_around(row, c->low[2], n[2], d->line));
                continue;
            }
            if (c->strides[2] == 2) {
                const ptrdiff_t first = c->low[2] / 2, second = (c->low[2] + 1) / 2, odd = c->low[2] % 2;
                ptrdiff_t evens = (n[2] + 1) / 2, odds = n[2] / 2; /* elements, which begin in one half of the row or the other */
                mi_real *const half = row + d->length;
                if (odd) odds = mi_zeros_around(row, second, odds, d->length);
                else evens = mi_zeros_around(row, first, evens, d->length);
                if (odd) evens = mi_zeros_around(half, first, evens, d->line - d->length);
                else odds = mi_zeros_around(half, second, odds, d->line - d->length);
                mi_lay_pairs((odd ? half : row) + first, evens, (odd ? row : half) + second, odds, line, n[2]);
                continue;
            }
            for (ptrdiff_t phase = 0; phase < c->strides[2]; phase++) {
                const ptrdiff_t shift = phase - c->low[2];
                ptrdiff_t first;
                const ptrdiff_t end = mi_within(0, d->length, c->strides[2], shift, n[2], &first);
                mi_real *const own = row + phase * d->length;
                const ptrdiff_t room = phase + 1 < c->strides[2] ? d->length : d->line - phase * d->length;
                const ptrdiff_t count = mi_zeros_around(own, first, end - first, room);
                if (count) mi_copy_every(own + first, line + first * c->strides[2] + shift, c->strides[2], count);
            }
        }
    }
}

/* Sums over windows of any kind, of rows from `from` on and columns from i2 on. */
MI_INLINE void mi_sums_of_any(const int NV, const mi_depthwise *d, const mi_real *from, const mi_real *w, ptrdiff_t i2, int rows, mi_vec *sum)
{
    const mi_windows *c = &d->c;
    const ptrdiff_t step = c->strides[1] * d->line;
    ptrdiff_t row[MI_BAND_ROWS]; /* a row that does not exist has the sums of the last one */
    MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++) row[i] = (i < rows ? i : rows - 1) * step + i2;
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++) {
        for (ptrdiff_t a1 = 0; a1 < c->kernel[1]; a1++) {
            const mi_real *line = from + (a0 * d->rows + a1 * c->gaps[1]) * d->line;
            ptrdiff_t phase = 0, column = 0;
            for (ptrdiff_t a2 = 0; a2 < c->kernel[2]; a2++) {
                const mi_vec factor = mi_broadcast(*w++);
                const mi_real *p = line + phase * d->length + column;
                MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++)
                {
                    MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] += factor * mi_load(p + row[i] + j * MI_W);
                }
                phase += c->gaps[2];
                while (phase >= c->strides[2]) phase -= c->strides[2], column++;
            }
        }
    }
}

/* The same over windows of K by K elements without gaps, by steps of STEP: what is read is read once for all rows. */
MI_INLINE void mi_sums_of_square(
    const int K, const int STEP, const int NV, const mi_depthwise *d, const mi_real *from, const mi_real *w, ptrdiff_t i2, int rows,
    mi_vec *sum)
{
    const int last = (rows - 1) * STEP + K - 1; /* rows that do not exist read the last one */
    MI_UNROLL for (int r = 0; r < (MI_BAND_ROWS - 1) * STEP + K; r++)
    {
        const mi_real *line = from + (r < last ? r : last) * d->line + i2;
        MI_UNROLL for (int a2 = 0; a2 < K; a2++)
        {
            MI_UNROLL for (int j = 0; j < NV; j++)
            {
                mi_vec x = mi_load(line + a2 % STEP * d->length + a2 / STEP + j * MI_W);
                MI_IN_REGISTER(x);
                MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++)
                {
                    const int a1 = r - i * STEP;
                    if (a1 >= 0 && a1 < K) sum[i * NV + j] += mi_broadcast(w[a1 * K + a2]) * x;
                }
            }
        }
    }
}

/* Sums of `rows` rows, at most MI_BAND_ROWS, by NV vectors from column i2 on; `from` is the first row that they read. */
MI_INLINE void mi_band_sums(
    const int NV, const mi_depthwise *d, const mi_real *from, const mi_real *w, ptrdiff_t output, ptrdiff_t at, ptrdiff_t i2,
    int rows)
{
    const mi_windows *c = &d->c;
    const mi_output own = mi_output_of(c->finish, output);
    mi_vec sum[MI_BAND_ROWS * MI_BAND_VECTORS];
    MI_UNROLL for (int i = 0; i < MI_BAND_ROWS * NV; i++) sum[i] = (mi_vec){0};
    switch (d->square) {
    case 31: mi_sums_of_square(3, 1, NV, d, from, w, i2, rows, sum); break;
    case 32: mi_sums_of_square(3, 2, NV, d, from, w, i2, rows, sum); break;
    case 51: mi_sums_of_square(5, 1, NV, d, from, w, i2, rows, sum); break;
    case 52: mi_sums_of_square(5, 2, NV, d, from, w, i2, rows, sum); break;
    case 71: mi_sums_of_square(7, 1, NV, d, from, w, i2, rows, sum); break;
    default: mi_sums_of_any(NV, d, from, w, i2, rows, sum);
    }
    const ptrdiff_t left = c->places[2] - i2;
    MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const ptrdiff_t n = left - j * MI_W, to = at + i * c->places[2] + i2 + j * MI_W;
            if (i < rows) mi_store_sums(c->finish, &own, sum[i * NV + j], output, to, n < MI_W ? (int)n : MI_W);
        }
    }
}

/* The sums of `count` rows of an output of a channel that is laid out, which are stored from element `at` of the result on. */
static void mi_band_of_output(
    const mi_depthwise *d, const mi_real *laid, const mi_real *w, ptrdiff_t output, ptrdiff_t at, ptrdiff_t count)
{
    const ptrdiff_t places = d->c.places[2];
    for (ptrdiff_t i = 0; i < count; i += MI_BAND_ROWS, at += MI_BAND_ROWS * places) {
        const mi_real *from = laid + i * d->c.strides[1] * d->line;
        const int rows = count - i < MI_BAND_ROWS ? (int)(count - i) : MI_BAND_ROWS;
        ptrdiff_t i2 = 0;
        for (; i2 + MI_W < places; i2 += 2 * MI_W) mi_band_sums(2, d, from, w, output, at, i2, rows);
        if (i2 < places) mi_band_sums(1, d, from, w, output, at, i2, rows);
    }
}

static void mi_band(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const mi_depthwise *d = args;
    const mi_windows *c = &d->c;
    const ptrdiff_t *p = c->places;
    const ptrdiff_t first = index % d->bands * d->band, i0 = index / d->bands % p[0], image = index / (d->bands * p[0]);
    const ptrdiff_t left = p[1] - first, count = left < d->band ? left : d->band;
    const mi_real *x = c->x + image * (c->in[0] * c->in[1] * c->in[2]);
    const ptrdiff_t taps = c->kernel[0] * c->kernel[1] * c->kernel[2];
    mi_band_lay_out(d, x, i0, first, mi_rows_of(c, count), scratch);
    for (ptrdiff_t o = 0; o < c->outputs; o++) {
        const ptrdiff_t output = image % c->groups * c->outputs + o, plane = image * c->outputs + o;
        mi_band_of_output(d, scratch, c->w + output * taps, output, ((plane * p[0] + i0) * p[1] + first) * p[2], count);
    }
}

/* How bands of a channel are laid out, in as many bands as the first-level cache asks for. */
static mi_depthwise mi_depthwise_of(const mi_windows *c)
{
    mi_depthwise d = {.c = *c};
    const ptrdiff_t wide = MI_BAND_VECTORS * MI_W;
    d.length = (c->places[2] + wide - 1) / wide * wide + (c->kernel[2] - 1) * c->gaps[2] / c->strides[2];
    d.line = d.length * c->strides[2];
    d.band = mi_rows_of_band(c, d.line * (ptrdiff_t)sizeof(mi_real));
    d.bands = (c->places[1] + d.band - 1) / d.band;
    d.rows = mi_rows_of(c, d.band);
    const int flat = c->kernel[0] == 1 && c->gaps[1] == 1 && c->gaps[2] == 1;
    if (flat && c->kernel[1] == c->kernel[2] && c->strides[1] == c->strides[2] && c->kernel[1] < 10 && c->strides[1] < 10) {
        d.square = (int)(10 * c->kernel[1] + c->strides[1]);
    }
    return d;
}

/* Elements of a channel as a band lays it out, and of what is written behind it. */
MI_INLINE ptrdiff_t mi_band_elements(const mi_depthwise *d) { return d->c.kernel[0] * d->rows * d->line + MI_W; }

/* The convolution of groups of one channel; the status of `run`. */
static int mi_run_depthwise(const mi_windows *c, int n_threads, mi_pool_run_fn *run)
{
    mi_depthwise d = mi_depthwise_of(c);
    const size_t bytes = (size_t)mi_band_elements(&d) * sizeof(mi_real);
    return run(mi_band, &d, c->batch * c->groups * c->places[0] * d.bands, n_threads, bytes);
}

#endif
