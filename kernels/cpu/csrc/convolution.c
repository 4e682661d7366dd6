/* Convolutions of tensors with zeros around them. Those of several channels are products: patches are laid out as the columns of
 * a panel, some rows at a time, in a thread's own memory, and weights are packed in the order of the register blocks.
 */
#include "mirage_depthwise.h"

#define ROWS 256                          /* of a panel: elements of a window, in the second-level cache */
#define COLUMNS (MI_BLOCK_VECTORS * MI_W) /* of a cell: places, of one image or of several */
#define OUTPUTS 32                        /* of a cell at least, so that laying out columns is the smaller part of it */
#define FEW 4                             /* outputs of one channel that are no product */

typedef struct {
    mi_windows c;
    ptrdiff_t positions, depth, columns; /* places of an image, elements of a window; places of all images */
    ptrdiff_t tiles, parts, part;        /* cells along the columns and the outputs; outputs per cell */
} products;

/* Neighbouring places of a cell, in one row of one image. */
typedef struct {
    ptrdiff_t to, image, i0, i1, i2, count;
} run_of_places;

/* What one element of all channels' windows has of a run: elements of x from `from` on, in channel 0. */
typedef struct {
    ptrdiff_t to, from, count;
} segment;

/* Rows of a block of `left` outputs; the last blocks have as many as a power of two. */
static ptrdiff_t block_rows(ptrdiff_t left)
{
    ptrdiff_t rows = MI_BLOCK_ROWS;
    while (rows / 2 >= left) rows /= 2;
    return rows;
}

static ptrdiff_t packed_rows(ptrdiff_t outputs)
{
    const ptrdiff_t whole = outputs / MI_BLOCK_ROWS * MI_BLOCK_ROWS;
    return whole < outputs ? whole + block_rows(outputs - whole) : whole;
}

typedef struct {
    ptrdiff_t k;
    const mi_real *w, *y;
    mi_real *o;
    ptrdiff_t os, output, at; /* elements between rows of o; the first output, and where it is in the result */
    int rows, tail, accumulate;
    const mi_windows *finish; /* NULL where more is to be added */
} block;

/* MR rows by NV vectors of sums; MR and NV are constants, so the sums live in registers. */
MI_INLINE void sums(const int MR, const int NV, const block *b)
{
    mi_vec sum[MI_BLOCK_SUMS];
    const mi_real *w = b->w, *y = b->y;
    const mi_mask mask = mi_mask_n(b->tail), all = mi_mask_n(MI_W);
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const mi_real *from = b->o + (i < b->rows ? i : b->rows - 1) * b->os + j * MI_W;
            sum[i * NV + j] = b->accumulate ? mi_load_mask(from, j == NV - 1 ? mask : all) : (mi_vec){0};
        }
    }
    MI_NO_UNROLL for (ptrdiff_t k = b->k; k > 0; k--, w += MR, y += NV * MI_W)
    {
        mi_vec yj[MI_BLOCK_VECTORS];
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            yj[j] = mi_load(y + j * MI_W);
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
        if (i >= b->rows) break;
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const mi_mask own = j == NV - 1 ? mask : all;
            mi_vec v = sum[i * NV + j];
            if (b->finish) v = mi_finished(b->finish, v, b->output + i, b->at + i * b->os + j * MI_W, own);
            mi_store_mask(b->o + i * b->os + j * MI_W, v, own);
        }
    }
}

#define SUMS(MR, NV) \
    static void sums_##MR##x##NV(const block *b) { sums(MR, NV, b); }
#define SUMS_OF(MR) SUMS(MR, 1) SUMS(MR, 2) SUMS(MR, 3)
#define NAMES_OF(MR) {sums_##MR##x1, sums_##MR##x2, sums_##MR##x3}
SUMS_OF(1)
SUMS_OF(2)
SUMS_OF(4)
#if MI_BLOCK_ROWS == 8
SUMS_OF(8)
#endif
/* by the logarithm of the rows, and by vectors */
static void (*const blocks[][MI_BLOCK_VECTORS])(const block *) = {
    NAMES_OF(1), NAMES_OF(2), NAMES_OF(4),
#if MI_BLOCK_ROWS == 8
    NAMES_OF(8),
#endif
};

/* The runs of `count` columns from column `from` on. */
static int find_runs(const products *p, ptrdiff_t from, ptrdiff_t count, run_of_places *runs)
{
    const ptrdiff_t *places = p->c.places;
    ptrdiff_t at = from % p->positions, image = from / p->positions;
    ptrdiff_t i2 = at % places[2], i1 = at / places[2] % places[1], i0 = at / (places[1] * places[2]);
    int n = 0;
    for (ptrdiff_t done = 0; done < count; n++) {
        const ptrdiff_t left = count - done, row = places[2] - i2, run = row < left ? row : left;
        runs[n] = (run_of_places){done, image, i0, i1, i2, run};
        done += run, i2 = 0;
        if (++i1 == places[1]) i1 = 0, i0++;
        if (i0 == places[0]) i0 = 0, image++;
    }
    return n;
}

/* What a tap has of the runs; `covered` gets the columns that lie within x. */
static int find_segments(
    const mi_windows *c, const run_of_places *runs, int n_runs, ptrdiff_t tap, segment *segments, ptrdiff_t *covered)
{
    const ptrdiff_t *k = c->kernel, *n = c->in, *s = c->strides, *d = c->gaps;
    const ptrdiff_t shift2 = tap % k[2] * d[2] - c->low[2], shift1 = tap / k[2] % k[1] * d[1] - c->low[1];
    const ptrdiff_t shift0 = tap / (k[1] * k[2]) * d[0] - c->low[0], image = c->groups * c->channels * n[0] * n[1] * n[2];
    int found = 0;
    *covered = 0;
    for (int r = 0; r < n_runs; r++) {
        const ptrdiff_t at0 = runs[r].i0 * s[0] + shift0, at1 = runs[r].i1 * s[1] + shift1;
        if (at0 < 0 || at0 >= n[0] || at1 < 0 || at1 >= n[1]) continue;
        ptrdiff_t first;
        const ptrdiff_t end = mi_within(runs[r].i2, runs[r].count, s[2], shift2, n[2], &first);
        if (first >= end) continue;
        const ptrdiff_t from = runs[r].image * image + (at0 * n[1] + at1) * n[2] + (runs[r].i2 + first) * s[2] + shift2;
        segments[found++] = (segment){runs[r].to + first, from, end - first};
        *covered += end - first;
    }
    return found;
}

/* `rows` rows of a panel from row `row` on; rows are channels of an element of the window, and then of the next one. */
static void lay_out(
    const mi_windows *c, const mi_real *x, const run_of_places *runs, int n_runs, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t width,
    mi_real *to)
{
    const ptrdiff_t plane = c->in[0] * c->in[1] * c->in[2], end = row + rows;
    segment segments[COLUMNS];
    while (row < end) {
        const ptrdiff_t tap = row / c->channels, next = (tap + 1) * c->channels, stop = next < end ? next : end;
        ptrdiff_t covered;
        const int found = find_segments(c, runs, n_runs, tap, segments, &covered);
        const mi_real *channel = x + (row - tap * c->channels) * plane;
        for (; row < stop; row++, to += width, channel += plane) {
            if (covered < width) memset(to, 0, (size_t)width * sizeof(mi_real));
            for (int i = 0; i < found; i++) {
                mi_copy_every(to + segments[i].to, channel + segments[i].from, c->strides[2], segments[i].count);
            }
        }
    }
}

/* The columns of a cell of several images, as they are stored: each run of an image by itself. */
static void store(const products *p, const mi_real *from, ptrdiff_t group, ptrdiff_t first, ptrdiff_t outputs, ptrdiff_t column, ptrdiff_t count)
{
    const mi_windows *c = &p->c;
    for (ptrdiff_t done = 0; done < count;) {
        const ptrdiff_t image = (column + done) / p->positions, place = (column + done) % p->positions;
        const ptrdiff_t left = count - done, rest = p->positions - place, run = rest < left ? rest : left;
        for (ptrdiff_t o = 0; o < outputs; o++) {
            const ptrdiff_t output = group * c->outputs + first + o;
            const ptrdiff_t at = (image * c->groups * c->outputs + output) * p->positions + place;
            for (ptrdiff_t i = 0; i < run; i += MI_W) {
                const mi_mask mask = mi_mask_n(run - i < MI_W ? (int)(run - i) : MI_W);
                const mi_vec v = mi_load_mask(from + o * COLUMNS + done + i, mask);
                mi_store_mask(c->out + at + i, mi_finished(c, v, output, at + i, mask), mask);
            }
        }
        done += run;
    }
}

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const products *p = args;
    const mi_windows *c = &p->c;
    const ptrdiff_t part = index % p->parts, tile = index / p->parts % p->tiles, group = index / (p->parts * p->tiles);
    const ptrdiff_t column = tile * COLUMNS, rest = p->columns - column, count = rest < COLUMNS ? rest : COLUMNS;
    const ptrdiff_t first = part * p->part, left = c->outputs - first, outputs = left < p->part ? left : p->part;
    const ptrdiff_t image = column / p->positions, place = column % p->positions;
    const int vectors = (int)((count + MI_W - 1) / MI_W), together = place + count <= p->positions;
    const ptrdiff_t at = ((image * c->groups + group) * c->outputs + first) * p->positions + place;
    const mi_real *x = c->x + group * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    const mi_real *w = c->w + (group * packed_rows(c->outputs) + first) * p->depth;
    mi_real *panel = scratch, *aside = panel + ROWS * COLUMNS;
    run_of_places runs[COLUMNS];
    const int n_runs = find_runs(p, column, count, runs);
    for (ptrdiff_t row = 0; row < p->depth; row += ROWS) {
        const ptrdiff_t rows = p->depth - row < ROWS ? p->depth - row : ROWS;
        const int last = row + rows == p->depth;
        lay_out(c, x, runs, n_runs, row, rows, vectors * MI_W, panel);
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t more = outputs - o, mr = block_rows(more);
            const int log = mr == 8 ? 3 : mr == 4 ? 2 : mr == 2;
            const block b = {
                .k = rows, .w = w + o * p->depth + row * mr, .y = panel,
                .o = together ? c->out + at + o * p->positions : aside + o * COLUMNS,
                .os = together ? p->positions : COLUMNS, .output = group * c->outputs + first + o,
                .at = at + o * p->positions, .rows = (int)(more < mr ? more : mr), .tail = (int)(count - (vectors - 1) * MI_W),
                .accumulate = row > 0, .finish = together && last ? c : NULL,
            };
            blocks[log][vectors - 1](&b);
            o += mr;
        }
    }
    if (!together) store(p, aside, group, first, outputs, column, count);
}

/* A convolution's weights w[groups * outputs, channels, taps] as `mi_convolution` reads them; returns their elements, and writes
 * them where `to` is not NULL. */
ptrdiff_t mi_convolution_pack(
    ptrdiff_t groups, ptrdiff_t outputs, ptrdiff_t channels, ptrdiff_t taps, const mi_real *w, mi_real *to)
{
    const ptrdiff_t depth = channels * taps;
    if (!to) return groups * packed_rows(outputs) * depth;
    for (ptrdiff_t g = 0; g < groups; g++) {
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t left = outputs - o, rows = block_rows(left);
            for (ptrdiff_t tap = 0; tap < taps; tap++) {
                for (ptrdiff_t k = 0; k < channels; k++) {
                    for (ptrdiff_t i = 0; i < rows; i++) {
                        *to++ = i < left ? w[((g * outputs + o + i) * channels + k) * taps + tap] : 0;
                    }
                }
            }
            o += rows;
        }
    }
    return groups * packed_rows(outputs) * depth;
}

/* Whether groups of so many channels and outputs are computed without packed weights. */
int mi_convolution_is_depthwise(ptrdiff_t channels, ptrdiff_t outputs) { return channels == 1 && outputs <= FEW; }

/* out[b,g*o,p...] of x[b,g*c,n...] and w[g*o,c,k...], which is packed unless it is depthwise; none of them is empty. `sizes` are
 * batch, groups, c, o, then three each of n, k, p, strides, dilations and zeros in front. bias[g*o] and other[b,g*o,p...] are
 * added unless they are NULL; the results are between bounds[0] and bounds[1]. By `run`, mi_pool_run; its status. */
int mi_convolution(
    const ptrdiff_t *sizes, const mi_real *x, const mi_real *w, const mi_real *bias, const mi_real *other, mi_real *out,
    const double *bounds, int n_threads, mi_pool_run_fn *run)
{
    products p = {.c = {.batch = sizes[0], .groups = sizes[1], .channels = sizes[2], .outputs = sizes[3], .x = x, .w = w,
        .bias = bias, .other = other, .out = out, .least = (mi_real)bounds[0], .most = (mi_real)bounds[1]}};
    mi_windows *c = &p.c;
    for (int i = 0; i < 3; i++) {
        c->in[i] = sizes[4 + i], c->kernel[i] = sizes[7 + i], c->places[i] = sizes[10 + i];
        c->strides[i] = sizes[13 + i], c->gaps[i] = sizes[16 + i], c->low[i] = sizes[19 + i];
    }
    if (mi_convolution_is_depthwise(c->channels, c->outputs)) return mi_run_depthwise(c, n_threads, run);
    p.positions = c->places[0] * c->places[1] * c->places[2];
    p.depth = c->channels * c->kernel[0] * c->kernel[1] * c->kernel[2];
    p.columns = c->batch * p.positions;
    p.tiles = (p.columns + COLUMNS - 1) / COLUMNS;
    /* several cells for each thread, so that they end together */
    p.parts = 1;
    while (c->groups * p.tiles * p.parts < 4 * n_threads && c->outputs / (p.parts + 1) >= OUTPUTS) p.parts++;
    p.part = (c->outputs + p.parts - 1) / p.parts;
    p.part = (p.part + MI_BLOCK_ROWS - 1) / MI_BLOCK_ROWS * MI_BLOCK_ROWS;
    p.parts = (c->outputs + p.part - 1) / p.part;
    const size_t bytes = (size_t)(ROWS + p.part) * COLUMNS * sizeof(mi_real);
    return run(cell, &p, c->groups * p.tiles * p.parts, n_threads, bytes);
}

/* The arguments of a convolution that is launched again and again. */
typedef struct {
    const mi_real *x, *w, *bias, *other;
    mi_real *out;
    const ptrdiff_t *sizes;
    const double *bounds;
} prepared;

int mi_convolution_prepared(const prepared *p, mi_pool_run_fn *run, int n_threads)
{
    return mi_convolution(p->sizes, p->x, p->w, p->bias, p->other, p->out, p->bounds, n_threads, run);
}
