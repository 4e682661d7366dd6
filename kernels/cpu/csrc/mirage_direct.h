/* Convolutions of few channels as products of weights with rows of x, whose windows are laid out nowhere.
 *
 * A cell is some rows of places of one image. What their windows read is laid out once: with zeros at the edges, and the rows, and
 * the columns, of one remainder by the stride beside one another, each row as long as a row of places and what its windows reach
 * beyond. An element of the windows of neighbouring places, also of the last one of a row and the first one of the next, is then in
 * neighbouring elements, from one that the element tells on. Vectors of sums go on from row to row where that leaves fewer lanes
 * without a place than those of each row by itself.
 */
#ifndef MIRAGE_DIRECT_H
#define MIRAGE_DIRECT_H

#include "mirage_depthwise.h"

#include <stdint.h>

#define MI_DIRECT_ROWS 3               /* of a cell: at least, as cells read some rows again, and at most */
#define MI_DIRECT_MOST_ROWS 12
#define MI_DIRECT_LAID 6               /* products of vectors in the time that it takes to lay out one */
#define MI_DIRECT_FEW (16 * 1024)      /* elements that nearly fit the first one */
#define MI_DIRECT_ELEMENTS (20 * 1024) /* of what a cell lays out, at most: for more channels, panels cost little */

/* How a cell lays out channels. */
typedef struct {
    mi_windows c;
    ptrdiff_t band, bands;         /* rows of places of a cell, and cells of a plane */
    ptrdiff_t length, rows, plane; /* elements of a row; rows of one remainder; elements of a channel */
    ptrdiff_t of_row;              /* vectors of sums of each row, or 0 where they go on from row to row */
} mi_direct_band;

/* The lanes of a vector of sums that are places, the first `count` of `lanes`, and where these are in the result, in one piece, as
 * one row's places follow those of the row before. */
typedef struct {
    mi_int lanes[MI_W];
    int count;
    ptrdiff_t to;
} mi_direct_places;

typedef struct {
    ptrdiff_t k;
    const mi_real *w, *y;
    const ptrdiff_t *taps;           /* where an element of the windows begins */
    ptrdiff_t from[MI_BLOCK_VECTORS]; /* vectors in y */
    const mi_direct_places *places;   /* of each */
    int rows;
    ptrdiff_t os, output, first; /* elements between outputs of the result; the first output, and its number among the cell's */
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
            const mi_direct_places *p = d->places + j;
            const mi_vec kept = mi_permute(sum[i * NV + j], p->lanes);
            mi_store_sums(d->finish, &own, kept, d->output + i, p->to + (d->first + i) * d->os, p->count);
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

/* Vectors of sums of `rows` rows of places, and where one begins among what is laid out. */
MI_INLINE ptrdiff_t mi_direct_vectors(const mi_direct_band *d, ptrdiff_t rows)
{
    return d->of_row ? rows * d->of_row : mi_vectors_of((rows - 1) * d->length + d->c.places[2]);
}

MI_INLINE ptrdiff_t mi_direct_from(const mi_direct_band *d, ptrdiff_t vector)
{
    return d->of_row ? vector / d->of_row * d->length + vector % d->of_row * MI_W : vector * MI_W;
}

/* How cells of `band` rows lay out channels. */
MI_INLINE mi_direct_band mi_direct_rows(const mi_windows *c, ptrdiff_t band)
{
    const ptrdiff_t reach = (c->kernel[2] - 1) * c->gaps[2] / c->strides[2], of_row = mi_vectors_of(c->places[2]);
    mi_direct_band d = {.c = *c, .band = band, .bands = (c->places[1] + band - 1) / band, .length = c->places[2] + reach};
    d.rows = (mi_rows_of(c, band) + c->strides[1] - 1) / c->strides[1];
    const ptrdiff_t plane = c->kernel[0] * c->strides[1] * c->strides[2] * d.rows * d.length;
    d.plane = mi_vectors_of(plane) * MI_W;
    if (band * of_row <= mi_direct_vectors(&d, band)) d.of_row = of_row;
    return d;
}

/* Those that take the least time on so many threads, of what nearly fits the first-level cache. */
static mi_direct_band mi_direct_band_of(const mi_windows *c, ptrdiff_t n_threads)
{
    const ptrdiff_t taps = c->kernel[0] * c->kernel[1] * c->kernel[2], planes = c->batch * c->groups * c->places[0];
    mi_direct_band best = mi_direct_rows(c, c->places[1] < MI_DIRECT_ROWS ? c->places[1] : MI_DIRECT_ROWS);
    ptrdiff_t least = PTRDIFF_MAX;
    for (ptrdiff_t band = best.band; band <= MI_DIRECT_MOST_ROWS && band <= c->places[1]; band++) {
        const mi_direct_band d = mi_direct_rows(c, band);
        const ptrdiff_t turns = (planes * d.bands + n_threads - 1) / n_threads;
        const ptrdiff_t time = turns * (mi_direct_vectors(&d, band) * c->outputs * taps + MI_DIRECT_LAID * d.plane / MI_W);
        if (time < least && (band == best.band || c->channels * d.plane <= MI_DIRECT_FEW)) best = d, least = time;
    }
    return best;
}

/* Elements that a cell lays out; vectors read some of behind them. */
MI_INLINE ptrdiff_t mi_direct_elements(const mi_direct_band *d) { return d->c.channels * d->plane + 2 * MI_W; }

/* Bytes of a cell: of these, of where elements of windows of so many begin, and of where sums go. */
MI_INLINE size_t mi_direct_bytes(const mi_direct_band *d, ptrdiff_t depth)
{
    const size_t places = (size_t)mi_direct_vectors(d, d->band) * sizeof(mi_direct_places);
    return (size_t)mi_direct_elements(d) * sizeof(mi_real) + (size_t)depth * sizeof(ptrdiff_t) + places;
}

/* Whether windows overlap, a cell's part of all channels fits, and sums between rows cost less than panels would, which take longer
 * to lay out the farther places are apart. */
MI_INLINE int mi_is_direct(const mi_direct_band *d)
{
    const mi_windows *c = &d->c;
    const ptrdiff_t places = d->band * c->places[2], lanes = mi_direct_vectors(d, d->band) * MI_W;
    return c->kernel[2] > c->strides[2] && mi_direct_elements(d) <= MI_DIRECT_ELEMENTS
        && (lanes - places) * c->outputs <= (4 * c->strides[2] - 3) * places;
}

/* A row of n elements by their remainders by the stride S, `step` elements apart, with `low` zeros in front and others behind. */
MI_INLINE void mi_direct_lay_row(
    const int S, const mi_real *line, ptrdiff_t n, ptrdiff_t low, ptrdiff_t length, ptrdiff_t step, mi_real *to)
{
    for (ptrdiff_t j = 0; j < length; j += MI_W) {
        const ptrdiff_t at = j * S - low, room = length - j;
        const mi_real *from = line + at;
        ptrdiff_t left = n - at;
        mi_real edge[4 * MI_W];
        if (at < 0) {
            for (int i = 0; i < S * MI_W; i++) edge[i] = at + i >= 0 && i < left ? from[i] : 0;
            from = edge, left = S * MI_W;
        }
        mi_vec v[MI_APART] = {{0}}, own[MI_APART];
        MI_UNROLL for (int k = 0; k < S; k++, left -= MI_W)
        {
            if (left >= MI_W) v[k] = mi_load(from + k * MI_W);
            else if (left > 0) v[k] = mi_load_n(from + k * MI_W, (int)left);
        }
        mi_every(S, v, own);
        const mi_mask stored = mi_mask_n(room < MI_W ? (int)room : MI_W);
        MI_UNROLL for (int k = 0; k < S; k++) mi_store_mask(to + k * step + j, own[k], stored);
    }
}

/* What the windows of `rows` rows of places, from row i1 of plane i0 on, read of a channel. */
static void mi_direct_lay_out(const mi_direct_band *d, const mi_real *x, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t rows, mi_real *to)
{
    const mi_windows *c = &d->c;
    const ptrdiff_t *n = c->in, *s = c->strides, length = d->length, step = d->rows * length, read = mi_rows_of(c, rows);
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++, to += s[1] * s[2] * step) {
        const ptrdiff_t at0 = i0 * s[0] + a0 * c->gaps[0] - c->low[0];
        ptrdiff_t remainder = 0, of = 0;
        for (ptrdiff_t r = 0; r < read; r++) {
            const ptrdiff_t at1 = i1 * s[1] + r - c->low[1];
            const ptrdiff_t within = at0 >= 0 && at0 < n[0] && at1 >= 0 && at1 < n[1] ? n[2] : 0;
            const mi_real *line = within ? x + (at0 * n[1] + at1) * n[2] : x;
            mi_real *row = to + remainder * s[2] * step + of * length;
            if (s[2] == 1) mi_direct_lay_row(1, line, within, c->low[2], length, step, row);
            else if (s[2] == 2) mi_direct_lay_row(2, line, within, c->low[2], length, step, row);
            else if (s[2] == 4) mi_direct_lay_row(4, line, within, c->low[2], length, step, row);
            else for (ptrdiff_t k = 0; k < s[2]; k++) {
                for (ptrdiff_t j = 0, at = k - c->low[2]; j < length; j++, at += s[2]) {
                    row[k * step + j] = at >= 0 && at < within ? line[at] : 0;
                }
            }
            if (++remainder == s[1]) remainder = 0, of++;
        }
    }
}

/* The places of a vector whose first lane is `at`, counted as rows are laid out, of `rows` rows of places that begin at `to`: of one
 * row, where each has vectors of its own. */
MI_INLINE mi_direct_places mi_direct_places_of(const mi_direct_band *d, ptrdiff_t at, ptrdiff_t rows, ptrdiff_t to)
{
    const ptrdiff_t places = d->c.places[2];
    mi_direct_places p = {.count = 0};
    ptrdiff_t i = at / d->length, j = at % d->length;
    const ptrdiff_t end = d->of_row ? i + 1 : rows;
    p.to = to + i * places + (j < places ? j : places);
    for (int lane = 0; lane < MI_W && i < end; lane++) {
        if (j < places) p.lanes[p.count++] = lane;
        if (++j == d->length) j = 0, i++;
    }
    return p;
}

/* `outputs` outputs from `first` on, in `group`, of rows from i1 on of plane i0 of an image; `w` are their weights, packed. */
static void mi_direct_cell(
    const mi_direct_band *band, ptrdiff_t image, ptrdiff_t group, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t first, ptrdiff_t outputs,
    const mi_real *w, void *scratch)
{
    const mi_windows *c = &band->c;
    const ptrdiff_t *s = c->strides, left = c->places[1] - i1, rows = left < band->band ? left : band->band;
    const ptrdiff_t depth = c->kernel[0] * c->kernel[1] * c->kernel[2] * c->channels, phases = band->rows * band->length;
    mi_real *laid = scratch;
    ptrdiff_t *taps = (ptrdiff_t *)(laid + mi_direct_elements(band)), *tap = taps;
    const mi_real *x = c->x + (image * c->groups + group) * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    for (ptrdiff_t k = 0; k < c->channels; k++, x += c->in[0] * c->in[1] * c->in[2]) {
        mi_direct_lay_out(band, x, i0, i1, rows, laid + k * band->plane);
    }
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++) {
        for (ptrdiff_t a1 = 0; a1 < c->kernel[1]; a1++) {
            for (ptrdiff_t a2 = 0; a2 < c->kernel[2]; a2++) {
                const ptrdiff_t at1 = a1 * c->gaps[1], at2 = a2 * c->gaps[2];
                const ptrdiff_t phase = (a0 * s[1] + at1 % s[1]) * s[2] + at2 % s[2];
                for (ptrdiff_t k = 0; k < c->channels; k++) {
                    *tap++ = k * band->plane + phase * phases + at1 / s[1] * band->length + at2 / s[2];
                }
            }
        }
    }
    const ptrdiff_t vectors = mi_direct_vectors(band, rows);
    const ptrdiff_t output = group * c->outputs + first, positions = c->places[0] * c->places[1] * c->places[2];
    const ptrdiff_t whole = (image * c->groups * c->outputs + output) * positions + (i0 * c->places[1] + i1) * c->places[2];
    mi_direct d = {.k = depth, .y = laid, .taps = taps, .os = positions, .finish = c->finish};
    mi_direct_places *places = (mi_direct_places *)(taps + depth);
    for (ptrdiff_t v = 0; v < vectors; v++) places[v] = mi_direct_places_of(band, mi_direct_from(band, v), rows, whole);
    for (ptrdiff_t o = 0; o < outputs;) {
        const ptrdiff_t more = outputs - o, mr = mi_output_rows(more);
        d.w = w + o * depth, d.rows = (int)(more < mr ? more : mr), d.output = output + o, d.first = o;
        for (ptrdiff_t v = 0; v < vectors;) {
            const ptrdiff_t rest = vectors - v, nv = rest == 4 ? 2 : rest < MI_BLOCK_VECTORS ? rest : MI_BLOCK_VECTORS;
            for (ptrdiff_t j = 0; j < nv; j++) d.from[j] = mi_direct_from(band, v + j);
            d.places = places + v;
            mi_direct_blocks[mr == 8 ? 3 : mr == 4 ? 2 : mr == 2][nv - 1](&d);
            v += nv;
        }
        o += mr;
    }
}

#endif
