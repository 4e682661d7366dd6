/* A convolution channel by channel between products with windows of one element, as blocks of MobileNet have it: none of the channels
 * between them, which are several times as many, is ever a whole tensor.
 *
 * A cell is a band of rows of an image. Its part of x is laid out in panels; then, some channels at a time, the first product, and the
 * sums over its rows, which are the rows of the second product. Either product may be missing. Bands read some rows of their
 * neighbours, which both compute.
 *
 * Included by convolution.c, which has the products' blocks.
 */
#ifndef MIRAGE_SEPARABLE_H
#define MIRAGE_SEPARABLE_H

#include "mirage_depthwise.h"

#define MI_SEPARABLE_CHANNELS (2 * MI_BLOCK_ROWS) /* that the first product makes at a time */
#define MI_SEPARABLE_BYTES (384 * 1024)           /* of a band of all channels, and of its part of x: in the second-level cache */

typedef struct {
    mi_depthwise d; /* of c->groups channels */
    const mi_real *x, *first, *second; /* weights of the products, packed, or NULL */
    ptrdiff_t channels, outputs;       /* of x and of the result */
    struct mi_finish widened, narrowed; /* what is done to the results of the products */
    ptrdiff_t bands, band, columns, step; /* rows of a band; columns of its part of x, and of a channel of the rows between */
} mi_separable;

/* Columns of what a cell has of x, as panels: panel after panel, of `channels` rows each. */
static void mi_lay_out_columns(const mi_separable *s, const mi_real *x, ptrdiff_t plane, ptrdiff_t columns, mi_real *to)
{
    for (ptrdiff_t at = 0; at < columns; at += MI_COLUMNS) {
        const ptrdiff_t left = columns - at, count = left < MI_COLUMNS ? left : MI_COLUMNS, width = mi_vectors_of(count) * MI_W;
        for (ptrdiff_t k = 0; k < s->channels; k++, to += width) mi_copy_every(to, x + k * plane + at, 1, count);
    }
}

static void mi_separable_cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const mi_separable *s = args;
    const mi_windows *c = &s->d.c;
    const ptrdiff_t image = index / s->bands, i1 = index % s->bands * s->band, left = c->places[1] - i1;
    const ptrdiff_t count = left < s->band ? left : s->band, plane = c->in[1] * c->in[2], wide = c->groups;
    const ptrdiff_t read = i1 * c->strides[1] - c->low[1], behind = read + mi_rows_of(c, count);
    const ptrdiff_t begin = read < 0 ? 0 : read < c->in[1] ? read : c->in[1], end = behind < c->in[1] ? behind : c->in[1];
    const ptrdiff_t columns = end > begin ? (end - begin) * c->in[2] : 0, taps = c->kernel[1] * c->kernel[2];
    const ptrdiff_t places = count * c->places[2], positions = c->places[1] * c->places[2], stored = i1 * c->places[2];
    mi_real *panels = scratch, *made = panels + s->channels * s->columns, *rows = made + MI_SEPARABLE_CHANNELS * s->columns;
    mi_real *laid = rows + (s->second ? wide * s->step + MI_COLUMNS : 0);
    const mi_real *x = s->x + image * s->channels * plane + begin * c->in[2];
    mi_depthwise d = s->d;
    struct mi_finish between = *c->finish;
    d.c.finish = &between;
    if (s->second) between.out = rows;
    if (s->first) {
        /* the rows that there are, of which the first one is row `begin` */
        d.c.in[1] = end > begin ? end - begin : 0, d.c.low[1] = c->low[1] + begin;
        mi_lay_out_columns(s, x, plane, columns, panels);
    }
    for (ptrdiff_t from = 0; from < wide; from += MI_SEPARABLE_CHANNELS) {
        const ptrdiff_t rest = wide - from, some = rest < MI_SEPARABLE_CHANNELS ? rest : MI_SEPARABLE_CHANNELS;
        for (ptrdiff_t at = 0; s->first && at < columns; at += MI_COLUMNS) {
            const ptrdiff_t n = columns - at < MI_COLUMNS ? columns - at : MI_COLUMNS, vectors = mi_vectors_of(n);
            const block b = {
                .k = s->channels, .y = panels + at * s->channels, .ys = vectors * MI_W, .o = made + at, .os = s->columns, .output = from,
                .tail = (int)(n - (vectors - 1) * MI_W), .finish = &s->widened,
            };
            sum_outputs(b, s->first + from * s->channels, s->channels, 0, some, (int)vectors);
        }
        for (ptrdiff_t j = 0; j < some; j++) {
            const ptrdiff_t channel = from + j, own = image * wide + channel;
            const mi_real *channel_of_x = s->first ? made + j * s->columns : s->x + own * plane;
            for (ptrdiff_t row = 0; row < count; row += d.band) {
                const ptrdiff_t n = count - row < d.band ? count - row : d.band;
                const ptrdiff_t at = s->second ? channel * s->step : own * positions + stored;
                mi_band_lay_out(&d, channel_of_x, 0, i1 + row, mi_rows_of(c, n), laid);
                mi_band_of_output(&d, laid, c->w + channel * taps, channel, at + row * c->places[2], n);
            }
        }
    }
    for (ptrdiff_t at = 0; s->second && at < places; at += MI_COLUMNS) {
        const ptrdiff_t n = places - at < MI_COLUMNS ? places - at : MI_COLUMNS, vectors = mi_vectors_of(n);
        const ptrdiff_t to = image * s->outputs * positions + stored + at;
        const block b = {
            .k = wide, .y = rows + at, .ys = s->step, .o = s->narrowed.out + to, .os = positions, .at = to,
            .tail = (int)(n - (vectors - 1) * MI_W), .finish = &s->narrowed,
        };
        sum_outputs(b, s->second, wide, 0, s->outputs, (int)vectors);
    }
}

/* Of a convolution of single channels `c`, whose `finish` is that of its own results; the status of `run`. */
static int mi_run_separable(mi_separable s, const mi_windows *c, int n_threads, mi_pool_run_fn *run)
{
    s.d = mi_depthwise_of(c);
    /* as few bands as the cache and the threads allow */
    const ptrdiff_t wide = c->groups, of_place = c->places[2] * (ptrdiff_t)sizeof(mi_real);
    s.bands = (n_threads + c->batch - 1) / c->batch;
    for (;; s.bands++) {
        s.band = (c->places[1] + s.bands - 1) / s.bands;
        const ptrdiff_t rows = mi_rows_of(c, s.band), of_x = s.channels * rows * c->in[2] * (ptrdiff_t)sizeof(mi_real);
        if (s.band <= MI_BAND_ROWS || (of_x <= MI_SEPARABLE_BYTES && wide * s.band * of_place <= MI_SEPARABLE_BYTES)) break;
    }
    s.bands = (c->places[1] + s.band - 1) / s.band;
    const ptrdiff_t most = mi_rows_of(c, s.band) < c->in[1] ? mi_rows_of(c, s.band) : c->in[1];
    s.columns = s.first ? mi_vectors_of(most * c->in[2]) * MI_W : 0;
    /* a vector more, so that rows do not share sets of a cache */
    s.step = mi_vectors_of(s.band * c->places[2]) * MI_W + MI_W;
    const ptrdiff_t of_product = (s.channels + MI_SEPARABLE_CHANNELS) * s.columns;
    const ptrdiff_t of_rows = s.second ? wide * s.step + MI_COLUMNS : 0;
    const size_t bytes = (size_t)(of_product + of_rows + mi_band_elements(&s.d)) * sizeof(mi_real);
    return run(mi_separable_cell, &s, c->batch * s.bands, n_threads, bytes);
}

#endif
