/* Convolutions of few channels as products of weights with rows of x, whose windows are laid out nowhere.
 *
 * A cell is some rows of one image. What its windows read is laid out once, as for sums channel by channel
 * (mirage_depthwise.h): with zeros at the edges, and the columns of one remainder by the stride beside one another. An
 * element of the windows of neighbouring places is then in neighbouring columns, from one that the element tells on.
 */
#ifndef MIRAGE_DIRECT_H
#define MIRAGE_DIRECT_H

#include "mirage_depthwise.h"

#include <stdint.h>

#define MI_DIRECT_ROWS 3               /* of a cell, or twice as many and so on: as many vectors of each fill blocks */
#define MI_DIRECT_MOST_ROWS 12         /* where what they read fits the first-level cache: cells read some rows again */
#define MI_DIRECT_FEW (8 * 1024)       /* elements that do */
#define MI_DIRECT_ELEMENTS (20 * 1024) /* of what a cell lays out, at most: for more channels, panels cost little */

typedef struct {
    ptrdiff_t k;
    const mi_real *w, *y;
    const ptrdiff_t *taps; /* where an element of the windows begins */
    ptrdiff_t from[MI_BLOCK_VECTORS], to[MI_BLOCK_VECTORS]; /* vectors in y and in the result */
    int lanes[MI_BLOCK_VECTORS], rows;
    ptrdiff_t os, output; /* elements between outputs of the result; the first output */
    const struct mi_finish *finish;
} mi_direct;

/* MR outputs by NV vectors of sums; MR and NV are constants, so the sums live in registers. */
MI_INLINE void mi_direct_sums(const int MR, const int NV, const mi_direct *d)
{
    mi_vec sum[MI_BLOCK_SUMS] = {{0}};
    const mi_real *w = d->w, *y[MI_BLOCK_VECTORS];
    MI_UNROLL for (int j = 0; j < NV; j++) y[j] = d->y + d->from[j];
    MI_NO_UNROLL for (ptrdiff_t k = 0; k < d->k; k++, w += MR)
    {
        mi_vec yj[MI_BLOCK_VECTORS];
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            yj[j] = mi_load(y[j] + d->taps[k]);
            MI_IN_REGISTER(yj[j]);
        }
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            const mi_vec wi = mi_broadcast(w[i]);
            MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] += wi * yj[j];
        }
    }
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        if (i >= d->rows) break;
        const mi_output own = mi_output_of(d->finish, d->output + i);
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            mi_store_sums(d->finish, &own, sum[i * NV + j], d->output + i, d->to[j] + i * d->os, d->lanes[j]);
        }
    }
}

#define MI_DIRECT(MR, NV) static void mi_direct_##MR##x##NV(const mi_direct *d) { mi_direct_sums(MR, NV, d); }
#define MI_DIRECT_OF(MR) MI_DIRECT(MR, 1) MI_DIRECT(MR, 2) MI_DIRECT(MR, 3)
#define MI_DIRECT_NAMES(MR) {mi_direct_##MR##x1, mi_direct_##MR##x2, mi_direct_##MR##x3}
MI_DIRECT_OF(1)
MI_DIRECT_OF(2)
MI_DIRECT_OF(4)
#if MI_BLOCK_ROWS == 8
MI_DIRECT_OF(8)
#endif
/* by the logarithm of the outputs, and by vectors */
static void (*const mi_direct_blocks[][MI_BLOCK_VECTORS])(const mi_direct *) = {
    MI_DIRECT_NAMES(1), MI_DIRECT_NAMES(2), MI_DIRECT_NAMES(4),
#if MI_BLOCK_ROWS == 8
    MI_DIRECT_NAMES(8),
#endif
};

/* Elements of a channel as a cell lays it out. */
MI_INLINE ptrdiff_t mi_direct_plane(const mi_depthwise *d) { return d->c.kernel[0] * d->rows * d->line; }

/* How a cell lays out channels; there are at least so many cells. */
MI_INLINE mi_depthwise mi_direct_band(const mi_windows *c, ptrdiff_t cells)
{
    const ptrdiff_t places = (c->places[2] + MI_W - 1) / MI_W * MI_W, reach = (c->kernel[2] - 1) * c->gaps[2];
    mi_depthwise d = {.c = *c, .length = places + reach / c->strides[2]}, more = d;
    d.line = (c->strides[2] * d.length + MI_W - 1) / MI_W * MI_W;
    for (ptrdiff_t band = MI_DIRECT_ROWS; band <= MI_DIRECT_MOST_ROWS; band *= 2) {
        more = d, more.band = band;
        more.rows = mi_rows_of(c, band);
        more.bands = (c->places[1] + band - 1) / band;
        const int few = c->channels * mi_direct_plane(&more) <= MI_DIRECT_FEW;
        if (band > MI_DIRECT_ROWS && (!few || c->batch * c->groups * c->places[0] * more.bands < cells)) break;
        d.band = band, d.rows = more.rows, d.bands = more.bands;
    }
    return d;
}

/* Whether windows overlap, most lanes of the vectors of a row have places, and a cell's part of all channels fits. */
MI_INLINE int mi_is_direct(const mi_windows *c)
{
    const mi_depthwise d = mi_direct_band(c, PTRDIFF_MAX);
    const ptrdiff_t lanes = (c->places[2] + MI_W - 1) / MI_W * MI_W;
    return c->kernel[2] > c->strides[2] && c->strides[2] <= 2 && 4 * c->places[2] >= 3 * lanes
        && c->channels * mi_direct_plane(&d) <= MI_DIRECT_ELEMENTS;
}

/* `outputs` outputs from `first` on, in `group`, of rows from i1 on of plane i0 of an image; `w` are their weights, packed. */
static void mi_direct_cell(
    const mi_depthwise *band, ptrdiff_t image, ptrdiff_t group, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t first, ptrdiff_t outputs,
    const mi_real *w, void *scratch)
{
    const mi_windows *c = &band->c;
    const ptrdiff_t plane = mi_direct_plane(band), step = c->strides[2], left = c->places[1] - i1;
    const ptrdiff_t rows = left < band->band ? left : band->band;
    const ptrdiff_t read = mi_rows_of(c, rows);
    const ptrdiff_t depth = c->kernel[0] * c->kernel[1] * c->kernel[2] * c->channels;
    mi_real *laid = scratch;
    ptrdiff_t *taps = (ptrdiff_t *)(laid + c->channels * plane + MI_W), *tap = taps;
    const mi_real *x = c->x + (image * c->groups + group) * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    for (ptrdiff_t k = 0; k < c->channels; k++, x += c->in[0] * c->in[1] * c->in[2]) {
        mi_band_lay_out(band, x, i0, i1, read, laid + k * plane);
    }
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++) {
        for (ptrdiff_t a1 = 0; a1 < c->kernel[1]; a1++) {
            for (ptrdiff_t a2 = 0; a2 < c->kernel[2]; a2++) {
                const ptrdiff_t at = a2 * c->gaps[2], row = a0 * band->rows + a1 * c->gaps[1];
                for (ptrdiff_t k = 0; k < c->channels; k++) {
                    *tap++ = k * plane + row * band->line + at % step * band->length + at / step;
                }
            }
        }
    }
    const ptrdiff_t of_row = (c->places[2] + MI_W - 1) / MI_W, vectors = rows * of_row, output = group * c->outputs + first;
    const ptrdiff_t positions = c->places[0] * c->places[1] * c->places[2];
    const ptrdiff_t whole = (image * c->groups * c->outputs + output) * positions + (i0 * c->places[1] + i1) * c->places[2];
    mi_direct d = {.k = depth, .y = laid, .taps = taps, .os = positions, .finish = c->finish};
    for (ptrdiff_t o = 0; o < outputs;) {
        const ptrdiff_t more = outputs - o, mr = mi_output_rows(more);
        d.w = w + o * depth, d.rows = (int)(more < mr ? more : mr), d.output = output + o;
        for (ptrdiff_t v = 0; v < vectors;) {
            const ptrdiff_t rest = vectors - v, nv = rest == 4 ? 2 : rest < MI_BLOCK_VECTORS ? rest : MI_BLOCK_VECTORS;
            for (ptrdiff_t j = 0; j < nv; j++) {
                const ptrdiff_t row = (v + j) / of_row, column = (v + j) % of_row * MI_W, lanes = c->places[2] - column;
                d.from[j] = row * c->strides[1] * band->line + column;
                d.to[j] = whole + o * positions + row * c->places[2] + column;
                d.lanes[j] = lanes < MI_W ? (int)lanes : MI_W;
            }
            mi_direct_blocks[mr == 8 ? 3 : mr == 4 ? 2 : mr == 2][nv - 1](&d);
            v += nv;
        }
        o += mr;
    }
}

#endif
