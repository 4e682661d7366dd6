/* What the kernels of convolutions share: the sizes, what a window reads of which rows, and panels of windows side by side. */
#ifndef MIRAGE_CONVOLUTION_H
#define MIRAGE_CONVOLUTION_H

#include "mirage_gemm_block.h"
#include "mirage_pool.h"

#include <string.h>

#define MI_COLUMNS (MI_BLOCK_VECTORS * MI_W) /* of a panel: places, of one image or of several */

/* Vectors that n elements fill. */
MI_INLINE ptrdiff_t mi_vectors_of(ptrdiff_t n) { return (n + MI_W - 1) / MI_W; }

/* Where sums go, and what is done to them before. */
struct mi_finish;

/* `channels` and `outputs` are those of one group; three spatial dims, of which the first ones may be 1. Element i of x is
 * `low` places before that of the padded tensor; what lies beyond x is 0. */
typedef struct {
    ptrdiff_t batch, groups, channels, outputs, in[3], kernel[3], places[3], strides[3], gaps[3], low[3];
    const mi_real *x, *w;
    const struct mi_finish *finish;
} mi_windows;

/* The sizes: batch, groups, channels, outputs, then three each of in, kernel, places, strides, gaps and low. */
MI_INLINE mi_windows mi_windows_of(const ptrdiff_t *sizes)
{
    mi_windows c = {.batch = sizes[0], .groups = sizes[1], .channels = sizes[2], .outputs = sizes[3]};
    for (int i = 0; i < 3; i++) {
        c.in[i] = sizes[4 + i], c.kernel[i] = sizes[7 + i], c.places[i] = sizes[10 + i];
        c.strides[i] = sizes[13 + i], c.gaps[i] = sizes[16 + i], c.low[i] = sizes[19 + i];
    }
    return c;
}

/* ---- bands: rows of places of one channel, and what their windows read, laid out in the first-level cache ---- */

#define MI_BAND_BYTES (24 * 1024) /* of what is laid out, where one row does not have more */
#define MI_BAND_ROWS 4            /* rows and vectors of sums in registers */
#define MI_BAND_VECTORS 2

/* Rows that the windows of `count` rows of places read. */
MI_INLINE ptrdiff_t mi_rows_of(const mi_windows *c, ptrdiff_t count)
{
    return (count - 1) * c->strides[1] + (c->kernel[1] - 1) * c->gaps[1] + 1;
}

/* Rows of places of a band, of which a row that is read takes so many bytes. */
MI_INLINE ptrdiff_t mi_rows_of_band(const mi_windows *c, ptrdiff_t row_bytes)
{
    const ptrdiff_t fit = MI_BAND_BYTES / (row_bytes * c->kernel[0]), reach = mi_rows_of(c, 1);
    const ptrdiff_t rows = fit > reach ? ((fit - reach) / c->strides[1] + 1) / MI_BAND_ROWS * MI_BAND_ROWS : 0;
    const ptrdiff_t least = rows < MI_BAND_ROWS ? MI_BAND_ROWS : rows;
    return least < c->places[1] ? least : c->places[1];
}

/* to[i] = from[i * step] for i < n. */
MI_INLINE void mi_copy_every(mi_real *to, const mi_real *from, ptrdiff_t step, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    for (; step == 1 && i + MI_W <= n; i += MI_W) mi_store(to + i, mi_load(from + i));
    if (step == 1 && i < n) mi_store_n(to + i, mi_load_n(from + i, (int)(n - i)), (int)(n - i));
    for (; step == 2 && i < n; i += MI_W) {
        const int rest = n - i < MI_W ? (int)(n - i) : MI_W;
        mi_store_n(to + i, mi_load_second_n(from + 2 * i, rest), rest);
    }
    for (; step > 2 && i < n; i++) to[i] = from[i * step];
}

/* The places j of `count` from place `from` on whose element `from * step + j * step + shift` is within n: *first to the result. */
MI_INLINE ptrdiff_t mi_within(ptrdiff_t from, ptrdiff_t count, ptrdiff_t step, ptrdiff_t shift, ptrdiff_t n, ptrdiff_t *first)
{
    const ptrdiff_t at = from * step + shift, behind = n - at;
    const ptrdiff_t end = behind <= 0 ? 0 : (behind + step - 1) / step;
    *first = at >= 0 ? 0 : (-at + step - 1) / step;
    return end < count ? end : count;
}

/* Rows of a block of `left` outputs; the last blocks have as many as a power of two. */
MI_INLINE ptrdiff_t mi_output_rows(ptrdiff_t left)
{
    ptrdiff_t rows = MI_BLOCK_ROWS;
    while (rows / 2 >= left) rows /= 2;
    return rows;
}

/* Outputs of packed weights: those of whole blocks. */
MI_INLINE ptrdiff_t mi_packed_outputs(ptrdiff_t outputs)
{
    const ptrdiff_t whole = outputs / MI_BLOCK_ROWS * MI_BLOCK_ROWS;
    return whole < outputs ? whole + mi_output_rows(outputs - whole) : whole;
}

/* Neighbouring places of a panel, in one row of one image. */
typedef struct {
    ptrdiff_t to, image, i0, i1, i2, count;
} mi_run_of_places;

/* What one element of all channels' windows has of runs: `count` elements of x from `from` on, in channel 0, and so on. */
typedef struct {
    int found;
    ptrdiff_t covered; /* columns of all of them; the others lie beyond x */
    struct {
        ptrdiff_t to, from, count;
    } each[MI_COLUMNS];
} mi_segments;

/* The runs of `count` columns from column `from` on: places of the first image, then of the next one. */
static int mi_find_runs(const mi_windows *c, ptrdiff_t from, ptrdiff_t count, mi_run_of_places *runs)
{
    const ptrdiff_t *places = c->places, positions = places[0] * places[1] * places[2];
    ptrdiff_t at = from % positions, image = from / positions;
    ptrdiff_t i2 = at % places[2], i1 = at / places[2] % places[1], i0 = at / (places[1] * places[2]);
    int n = 0;
    for (ptrdiff_t done = 0; done < count; n++) {
        const ptrdiff_t left = count - done, row = places[2] - i2, run = row < left ? row : left;
        runs[n] = (mi_run_of_places){done, image, i0, i1, i2, run};
        done += run, i2 = 0;
        if (++i1 == places[1]) i1 = 0, i0++;
        if (i0 == places[0]) i0 = 0, image++;
    }
    return n;
}

/* What element `tap` of the windows has of these runs. */
static void mi_find_segments(const mi_windows *c, const mi_run_of_places *runs, int n_runs, ptrdiff_t tap, mi_segments *s)
{
    const ptrdiff_t *k = c->kernel, *n = c->in, *step = c->strides, *d = c->gaps;
    const ptrdiff_t shift2 = tap % k[2] * d[2] - c->low[2], shift1 = tap / k[2] % k[1] * d[1] - c->low[1];
    const ptrdiff_t shift0 = tap / (k[1] * k[2]) * d[0] - c->low[0], image = c->groups * c->channels * n[0] * n[1] * n[2];
    s->found = 0, s->covered = 0;
    for (int r = 0; r < n_runs; r++) {
        const ptrdiff_t at0 = runs[r].i0 * step[0] + shift0, at1 = runs[r].i1 * step[1] + shift1;
        if (at0 < 0 || at0 >= n[0] || at1 < 0 || at1 >= n[1]) continue;
        ptrdiff_t first;
        const ptrdiff_t end = mi_within(runs[r].i2, runs[r].count, step[2], shift2, n[2], &first);
        if (first >= end) continue;
        s->each[s->found].from = runs[r].image * image + (at0 * n[1] + at1) * n[2] + (runs[r].i2 + first) * step[2] + shift2;
        s->each[s->found].to = runs[r].to + first;
        s->each[s->found++].count = end - first;
        s->covered += end - first;
    }
}

/* Of each of `rows` channels, `plane` elements apart, WHOLE vectors and `rest` elements. */
MI_INLINE void mi_lay_out_segment(
    const int WHOLE, const mi_real *x, ptrdiff_t plane, ptrdiff_t rows, int rest, ptrdiff_t width, mi_real *to)
{
    const mi_mask mask = mi_mask_n(rest);
    for (; rows; rows--, x += plane, to += width) {
        MI_UNROLL for (int j = 0; j < WHOLE; j++) mi_store(to + j * MI_W, mi_load(x + j * MI_W));
        if (rest) mi_store_mask(to + WHOLE * MI_W, mi_load_mask(x + WHOLE * MI_W, mask), mask);
    }
}

/* Rows of a panel, `width` columns each: an element of the window in `rows` channels from `channel` on. Where windows lie beyond x
 * they have `blank`. */
static void mi_lay_out_rows(
    const mi_windows *c, const mi_real *x, const mi_segments *segments, ptrdiff_t channel, ptrdiff_t rows, ptrdiff_t width,
    mi_real blank, mi_real *to)
{
    const ptrdiff_t plane = c->in[0] * c->in[1] * c->in[2], step = c->strides[2];
    for (ptrdiff_t i = segments->covered < width ? 0 : rows * width; i < rows * width; i += MI_W) mi_store(to + i, mi_broadcast(blank));
    for (int i = 0; i < segments->found; i++) {
        const ptrdiff_t count = segments->each[i].count;
        const mi_real *from = x + channel * plane + segments->each[i].from;
        mi_real *at = to + segments->each[i].to;
        const int rest = (int)(count % MI_W);
        if (step == 1 && count < MI_W) mi_lay_out_segment(0, from, plane, rows, rest, width, at);
        else if (step == 1 && count < 2 * MI_W) mi_lay_out_segment(1, from, plane, rows, rest, width, at);
        else if (step == 1 && count < 3 * MI_W) mi_lay_out_segment(2, from, plane, rows, rest, width, at);
        else for (ptrdiff_t k = 0; k < rows; k++) mi_copy_every(at + k * width, from + k * plane, step, count);
    }
}

#define MI_APART 4 /* steps that places lie apart, at most, where the elements between them are laid out together */

/* own[k] is every S-th lane, from lane k on, of S vectors as one; S is 1, 2 or 4. */
MI_INLINE void mi_every(const int S, const mi_vec *v, mi_vec *own)
{
    mi_vec halves[MI_APART];
    MI_UNROLL for (int k = 0; k < S; k++)
    {
        halves[k] = S == 4 ? mi_every_second(k / 2, v[k % 2 * 2], v[k % 2 * 2 + 1]) : v[k];
    }
    MI_UNROLL for (int k = 0; k < S; k++)
    {
        own[k] = S == 1 ? halves[0] : S == 2 ? mi_every_second(k, halves[0], halves[1])
                                             : mi_every_second(k / 2, halves[k % 2 * 2], halves[k % 2 * 2 + 1]);
    }
}

/* `count` elements of a window's row from `tap` on, at most S, in all channels, where places lie S apart, which is 2 or 4: what is
 * read is in one piece, of which each row gets what belongs to its element. */
MI_INLINE void mi_lay_out_apart(
    const int S, const mi_windows *c, const mi_real *x, const mi_run_of_places *runs, int n_runs, ptrdiff_t tap, int count,
    ptrdiff_t width, mi_real blank, mi_real *to)
{
    const ptrdiff_t plane = c->in[0] * c->in[1] * c->in[2], element = c->channels * width;
    mi_segments whole, part;
    mi_windows pieces = *c;
    pieces.strides[2] = 1;
    for (int r = 0; r < n_runs; r++) {
        mi_run_of_places run = runs[r];
        run.i2 *= S, run.count = (run.count - 1) * S + count;
        mi_find_segments(&pieces, &run, 1, tap, &whole);
        const int complete = whole.covered == run.count;
        for (ptrdiff_t t = 0; t < count && !complete; t++) {
            mi_real *row = to + t * element + runs[r].to;
            mi_find_segments(c, runs + r, 1, tap + t, &part);
            for (ptrdiff_t k = 0; k < c->channels; k++, row += width) {
                for (ptrdiff_t i = 0; i < runs[r].count; i++) row[i] = blank;
                if (!part.found) continue;
                mi_copy_every(row + (part.each->to - runs[r].to), x + k * plane + part.each->from, S, part.each->count);
            }
        }
        for (ptrdiff_t i = 0; i < runs[r].count && complete; i += MI_W) {
            const int n = runs[r].count - i < MI_W ? (int)(runs[r].count - i) : MI_W;
            const mi_mask stored = mi_mask_n(n);
            const mi_real *from = x + whole.each->from + i * S;
            mi_real *row = to + runs[r].to + i;
            mi_mask read[MI_APART];
            MI_UNROLL for (int j = 0; j < S; j++)
            {
                const int left = (n - 1) * S + count - j * MI_W;
                read[j] = mi_mask_n(left < 0 ? 0 : left < MI_W ? left : MI_W);
            }
            for (ptrdiff_t k = 0; k < c->channels; k++, from += plane, row += width) {
                mi_vec v[MI_APART], own[MI_APART];
                MI_UNROLL for (int j = 0; j < S; j++) v[j] = mi_load_mask(from + j * MI_W, read[j]);
                mi_every(S, v, own);
                MI_UNROLL for (int j = 0; j < S; j++)
                {
                    if (j < count) mi_store_mask(row + j * element, own[j], stored);
                }
            }
        }
    }
}

/* `rows` rows of a panel from row `row` on; rows are channels of an element of the window, and then of the next one. */
static void mi_lay_out_panel(
    const mi_windows *c, const mi_real *x, const mi_run_of_places *runs, int n_runs, ptrdiff_t row, ptrdiff_t rows,
    ptrdiff_t width, mi_real blank, mi_real *to)
{
    const ptrdiff_t end = row + rows;
    const ptrdiff_t step = c->strides[2], apart = c->gaps[2] == 1 && (step == 2 || step == MI_APART) ? step : 0;
    mi_segments segments;
    while (row < end) {
        const ptrdiff_t tap = row / c->channels, next = (tap + 1) * c->channels, stop = next < end ? next : end;
        const ptrdiff_t of_row = tap % c->kernel[2], left = c->kernel[2] - of_row, count = left < step ? left : step;
        if (apart && of_row % step == 0 && tap * c->channels == row && row + count * c->channels <= end) {
            if (step == 2) mi_lay_out_apart(2, c, x, runs, n_runs, tap, (int)count, width, blank, to);
            else mi_lay_out_apart(MI_APART, c, x, runs, n_runs, tap, (int)count, width, blank, to);
            to += count * c->channels * width, row += count * c->channels;
            continue;
        }
        mi_find_segments(c, runs, n_runs, tap, &segments);
        mi_lay_out_rows(c, x, &segments, row - tap * c->channels, stop - row, width, blank, to);
        to += (stop - row) * width, row = stop;
    }
}

#endif
