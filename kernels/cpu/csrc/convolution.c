/* Convolutions of tensors with zeros around them. Those of several channels are products: patches are laid out as the columns of
 * a panel, some rows at a time, in a thread's own memory, and weights are packed in the order of the register blocks; those of 3 by
 * 3 windows are products of tiles where there are places enough (mirage_winograd.h), those of few channels need no panels
 * (mirage_direct.h). Single channels: mirage_depthwise.h.
 */
#include "mirage_winograd.h"

#include <stdlib.h>

/* Sums as they are stored: plus the bias of their output and what else is added, between the bounds. NaN stays NaN. */
struct mi_finish {
    const mi_real *bias, *other; /* [groups * outputs] and as `out`, or NULL */
    mi_real *out;
    mi_real least, most;
};

typedef struct {
    mi_vec bias;
} mi_output;

MI_INLINE mi_output mi_output_of(const struct mi_finish *f, ptrdiff_t output)
{
    return (mi_output){mi_broadcast(f->bias ? f->bias[output] : 0)};
}

MI_INLINE mi_vec finished(const struct mi_finish *f, const mi_output *own, mi_vec sum, ptrdiff_t at, mi_mask mask)
{
    if (f->bias) sum += own->bias;
    if (f->other) sum += mi_load_mask(f->other + at, mask);
    return mi_min(mi_broadcast(f->most), mi_max(mi_broadcast(f->least), sum));
}

MI_INLINE void mi_store_sums(
    const struct mi_finish *f, const mi_output *own, mi_vec sum, ptrdiff_t output, ptrdiff_t at, int n)
{
    (void)output;
    const mi_mask mask = mi_mask_n(n);
    mi_store_mask(f->out + at, finished(f, own, sum, at, mask), mask);
}

#include "mirage_depthwise.h"
#include "mirage_direct.h"

#define ROWS 256                          /* of a panel: elements of a window, in the second-level cache */
#define LARGE (128 * 1024)                /* weights that come from memory: those of a program are more than a cache has */
#define MANY (16 * ROWS)                  /* elements of windows of these, at most */
#define COLUMNS MI_COLUMNS
#define OUTPUTS 32                        /* of a cell at least, so that laying out columns is the smaller part of it */
#define CHANNELS 128                      /* of tiles that are laid out at a time */
#define LAID 16                           /* of them, side by side, as elements, in the first-level cache */
#define STORED 8                          /* outputs of tiles that are stored at a time */
#define MOST 128                          /* outputs of tiles, whose results are all kept until the last channel */
#define LEAST 16                          /* channels and outputs from which on tiles are worth being laid out */
#define FEW 4                             /* outputs of one channel that are no product */

/* How weights are read: as they are, channel by channel, or packed, as the windows have them or as tiles do. */
enum { SINGLE, WINDOWS, TILES };

typedef struct {
    mi_windows c;
    ptrdiff_t positions, depth, columns;  /* places of an image, elements of a window; places of all images */
    ptrdiff_t most;                       /* elements of windows that are laid out at a time */
    ptrdiff_t tiles, width, parts, part;  /* cells along the columns and the outputs; columns and outputs per cell */
    int large;                            /* whether weights come from memory */
    mi_direct_band band;                  /* of cells of rows */
} products;

typedef struct {
    ptrdiff_t k;
    const mi_real *w, *y;
    mi_real *o;
    ptrdiff_t ys, os, output, at; /* elements between rows of y and of o; the first output, and where it is in the result */
    int rows, tail, accumulate, fetch; /* `fetch`: what comes next of w is fetched */
    const struct mi_finish *finish; /* NULL where more is to be added */
} block;

/* MR rows by NV vectors of sums; MR, NV and FETCH are constants, so the sums live in registers. */
MI_INLINE void sums(const int MR, const int NV, const int FETCH, const block *b)
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
    MI_NO_UNROLL for (ptrdiff_t k = b->k; k > 0; k--, w += MR, y += b->ys)
    {
        if (FETCH) mi_fetch(MI_LINE, (const char *)w + MI_AHEAD);
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
    /* copies, as what is stored might be what a pointer leads to */
    const int rows = b->rows, last = b->finish != NULL;
    const ptrdiff_t os = b->os, output = b->output, at = b->at;
    mi_real *const o = b->o;
    const struct mi_finish finish = last ? *b->finish : (struct mi_finish){0};
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        if (i >= rows) break;
        const mi_output own = mi_output_of(&finish, output + i);
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const mi_mask lanes = j == NV - 1 ? mask : all;
            mi_vec v = sum[i * NV + j];
            if (last) v = finished(&finish, &own, v, at + i * os + j * MI_W, lanes);
            mi_store_mask(o + i * os + j * MI_W, v, lanes);
        }
    }
}

#define SUMS(MR, NV) \
    static void sums_##MR##x##NV(const block *b) \
    { \
        if (b->fetch) sums(MR, NV, 1, b); \
        else sums(MR, NV, 0, b); \
    }
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

/* Rows of sums of `outputs` outputs, from the first one on as `b` says, with weights of `depth` terms, from term `row` on. */
static void sum_outputs(block b, const mi_real *w, ptrdiff_t depth, ptrdiff_t row, ptrdiff_t outputs, int vectors)
{
    for (ptrdiff_t o = 0; o < outputs;) {
        const ptrdiff_t more = outputs - o, mr = mi_output_rows(more);
        const int log = mr == 8 ? 3 : mr == 4 ? 2 : mr == 2;
        b.w = w + o * depth + row * mr;
        b.rows = (int)(more < mr ? more : mr);
        blocks[log][vectors - 1](&b);
        b.o += mr * b.os, b.at += mr * b.os, b.output += mr, o += mr;
    }
}

#include "mirage_separable.h"

/* The columns of a cell of several images, as they are stored: each run of an image by itself. */
static void store(const products *p, const mi_real *from, ptrdiff_t group, ptrdiff_t first, ptrdiff_t outputs, ptrdiff_t column, ptrdiff_t count)
{
    const mi_windows *c = &p->c;
    for (ptrdiff_t done = 0; done < count;) {
        const ptrdiff_t image = (column + done) / p->positions, place = (column + done) % p->positions;
        const ptrdiff_t left = count - done, rest = p->positions - place, run = rest < left ? rest : left;
        for (ptrdiff_t o = 0; o < outputs; o++) {
            const ptrdiff_t output = group * c->outputs + first + o;
            const mi_output own = mi_output_of(c->finish, output);
            const ptrdiff_t at = (image * c->groups * c->outputs + output) * p->positions + place;
            for (ptrdiff_t i = 0; i < run; i += MI_W) {
                const int n = run - i < MI_W ? (int)(run - i) : MI_W;
                mi_store_sums(c->finish, &own, mi_load_n(from + o * COLUMNS + done + i, n), output, at + i, n);
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
    const ptrdiff_t column = tile * p->width, rest = p->columns - column, count = rest < p->width ? rest : p->width;
    const ptrdiff_t first = part * p->part, left = c->outputs - first, outputs = left < p->part ? left : p->part;
    const ptrdiff_t image = column / p->positions, place = column % p->positions;
    const int vectors = (int)mi_vectors_of(count), together = place + count <= p->positions;
    const ptrdiff_t at = ((image * c->groups + group) * c->outputs + first) * p->positions + place;
    const mi_real *x = c->x + group * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    const mi_real *w = c->w + (group * mi_packed_outputs(c->outputs) + first) * p->depth;
    mi_real *panel = scratch, *aside = panel + p->most * COLUMNS;
    mi_run_of_places runs[COLUMNS];
    const int n_runs = mi_find_runs(c, column, count, runs);
    for (ptrdiff_t row = 0; row < p->depth; row += p->most) {
        const ptrdiff_t rows = p->depth - row < p->most ? p->depth - row : p->most;
        const int last = row + rows == p->depth;
        mi_lay_out_panel(c, x, runs, n_runs, row, rows, vectors * MI_W, 0, panel);
        const block b = {
            .k = rows, .y = panel, .ys = vectors * MI_W, .o = together ? c->finish->out + at : aside, .os = together ? p->positions : COLUMNS,
            .output = group * c->outputs + first, .at = at, .tail = (int)(count - (vectors - 1) * MI_W), .accumulate = row > 0,
            .fetch = p->large, .finish = together && last ? c->finish : NULL,
        };
        sum_outputs(b, w, p->depth, row, outputs, vectors);
    }
    if (!together) store(p, aside, group, first, outputs, column, count);
}

static void cell_of_rows(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const products *p = args;
    const mi_windows *c = &p->c;
    const ptrdiff_t part = index % p->parts, tile = index / p->parts % p->tiles, group = index / (p->parts * p->tiles);
    const ptrdiff_t first = part * p->part, left = c->outputs - first, outputs = left < p->part ? left : p->part;
    const mi_direct_band *band = &p->band;
    const mi_real *w = c->w + (group * mi_packed_outputs(c->outputs) + first) * p->depth;
    const ptrdiff_t plane = tile / band->bands, image = plane / c->places[0], i0 = plane % c->places[0];
    mi_direct_cell(band, image, group, i0, tile % band->bands * band->band, first, outputs, w, scratch);
}

/* The places of tiles of one output, as they are stored. */
static void store_tiles(
    const mi_windows *c, const mi_run_of_places *runs, int n_runs, const mi_real *places, ptrdiff_t width, ptrdiff_t output)
{
    const mi_output own = mi_output_of(c->finish, output);
    for (int r = 0; r < n_runs; r++) {
        const ptrdiff_t row = runs[r].i1 * MI_SIDE, column = runs[r].i2 * MI_SIDE, rest = c->places[2] - column;
        const ptrdiff_t count = rest < runs[r].count * MI_SIDE ? rest : runs[r].count * MI_SIDE;
        const ptrdiff_t image = runs[r].image * c->groups * c->outputs + output;
        for (int i = 0; i < MI_SIDE && row + i < c->places[1]; i++) {
            const mi_real *first = places + i * MI_SIDE * width + runs[r].to, *second = first + width;
            const ptrdiff_t at = (image * c->places[1] + row + i) * c->places[2] + column;
            for (ptrdiff_t k = 0; k < count; k += MI_SIDE * MI_W) {
                const mi_vec a = mi_load(first + k / MI_SIDE), b = mi_load(second + k / MI_SIDE);
                const int n = count - k < MI_SIDE * MI_W ? (int)(count - k) : MI_SIDE * MI_W;
                mi_store_sums(c->finish, &own, mi_in_turn(0, a, b), output, at + k, n < MI_W ? n : MI_W);
                if (n > MI_W) mi_store_sums(c->finish, &own, mi_in_turn(1, a, b), output, at + k + MI_W, n - MI_W);
            }
        }
    }
}

static void cell_of_tiles(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const products *p = args;
    const mi_windows *c = &p->c, tiles = mi_tiles_of(c);
    const ptrdiff_t part = index % p->parts, tile = index / p->parts % p->tiles, group = index / (p->parts * p->tiles);
    const ptrdiff_t column = tile * p->width, rest = p->columns - column, count = rest < p->width ? rest : p->width;
    const ptrdiff_t first = part * p->part, left = c->outputs - first, outputs = left < p->part ? left : p->part;
    const int vectors = (int)mi_vectors_of(count);
    const ptrdiff_t width = vectors * MI_W, packed = mi_packed_outputs(c->outputs);
    const mi_real *x = c->x + group * c->channels * (c->in[1] * c->in[2]);
    const mi_real *w = c->w + group * MI_TERMS * packed * c->channels;
    mi_real *panel = scratch, *elements = panel + MI_TERMS * CHANNELS * COLUMNS;
    mi_real *results = elements + MI_TERMS * LAID * COLUMNS, *places = results + MI_TERMS * p->part * COLUMNS;
    mi_run_of_places runs[COLUMNS], own[COLUMNS];
    const int n_runs = mi_find_runs(&tiles, column, count, runs);
    memcpy(own, runs, (size_t)n_runs * sizeof *runs);
    const mi_windows pairs = mi_pairs_of(&tiles, own, n_runs);
    mi_segments segments[MI_TERMS / 2];
    for (int j = 0; j < MI_TERMS / 2; j++) mi_find_segments(&pairs, own, n_runs, j, segments + j);
    for (ptrdiff_t k = 0; k < c->channels; k += CHANNELS) {
        const ptrdiff_t n = c->channels - k < CHANNELS ? c->channels - k : CHANNELS;
        for (ptrdiff_t i = 0; i < n; i += LAID) {
            const ptrdiff_t laid = n - i < LAID ? n - i : LAID;
            for (int j = 0; j < MI_TERMS / 2; j++) {
                mi_lay_out_rows(&pairs, x, segments + j, k + i, laid, 2 * width, 0, elements + j * laid * 2 * width);
            }
            mi_transform_elements(elements, laid, width, n * width, panel + i * width);
        }
        for (int i = 0; i < MI_TERMS; i++) {
            const block b = {
                .k = n, .y = panel + i * n * width, .ys = width, .o = results + i * outputs * width, .os = width, .tail = MI_W,
                .accumulate = k > 0, .fetch = p->large,
            };
            sum_outputs(b, w + (k * MI_TERMS + i * n) * packed + first * n, n, 0, outputs, vectors);
        }
    }
    /* several outputs at a time, so that nothing is read again that was only just written */
    const ptrdiff_t places_of = MI_SIDE * MI_SIDE * width;
    for (ptrdiff_t o = 0; o < outputs; o += STORED) {
        const ptrdiff_t end = o + STORED < outputs ? o + STORED : outputs;
        for (ptrdiff_t i = o; i < end; i++) {
            mi_transform_results(results + i * width, outputs * width, width, places + (i - o) * places_of);
        }
        for (ptrdiff_t i = o; i < end; i++) {
            store_tiles(c, runs, n_runs, places + (i - o) * places_of, width, group * c->outputs + first + i);
        }
    }
}

/* How a convolution of these sizes reads its weights. */
int mi_convolution_form(const ptrdiff_t *sizes)
{
    const mi_windows c = mi_windows_of(sizes);
    if (c.channels == 1 && c.outputs <= FEW) return SINGLE;
    int fits = c.kernel[0] == 1 && c.in[0] == 1 && c.places[0] == 1 && c.channels >= LEAST && c.outputs >= LEAST;
    for (int i = 1; i < 3; i++) fits &= c.kernel[i] == 3 && c.strides[i] == 1 && c.gaps[i] == 1;
    if (!fits) return WINDOWS;
    const mi_windows tiles = mi_tiles_of(&c);
    const ptrdiff_t windows = 9 * mi_vectors_of(c.batch * c.places[1] * c.places[2]);
    return 5 * MI_TERMS * mi_vectors_of(tiles.batch * tiles.places[1] * tiles.places[2]) < 4 * windows ? TILES : WINDOWS;
}

/* A convolution's weights w[groups * outputs, channels, taps] as `mi_convolution` reads them in this form; returns their elements,
 * and writes them where `to` is not NULL. */
ptrdiff_t mi_convolution_pack(
    ptrdiff_t groups, ptrdiff_t outputs, ptrdiff_t channels, ptrdiff_t taps, const mi_real *w, mi_real *to, int form)
{
    const int tiles = form == TILES;
    const ptrdiff_t packed = mi_packed_outputs(outputs), terms = tiles ? MI_TERMS : taps, size = groups * packed * channels * terms;
    if (!to) return size;
    for (ptrdiff_t g = 0; g < groups; g++, to += packed * channels * terms) {
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t left = outputs - o, rows = mi_output_rows(left);
            for (ptrdiff_t k = 0; k < channels; k++) {
                const ptrdiff_t first = k / CHANNELS * CHANNELS, n = channels - first < CHANNELS ? channels - first : CHANNELS;
                for (ptrdiff_t i = 0; i < rows; i++) {
                    const mi_real *own = i < left ? w + ((g * outputs + o + i) * channels + k) * taps : NULL;
                    mi_real sums[MI_TERMS];
                    if (tiles && own) mi_winograd_weights(own, sums);
                    for (ptrdiff_t t = 0; t < terms; t++) {
                        const ptrdiff_t of_tiles = (first * MI_TERMS + t * n) * packed + o * n + (k - first) * rows + i;
                        const ptrdiff_t at = tiles ? of_tiles : o * channels * taps + (t * channels + k) * rows + i;
                        to[at] = !own ? 0 : tiles ? sums[t] : own[t];
                    }
                }
            }
            o += rows;
        }
    }
    return size;
}

/* out[b,g*o,p...] of x[b,g*c,n...] and w[g*o,c,k...], which is packed as its form asks for; none of them is empty. `sizes` are
 * batch, groups, c, o, then three each of n, k, p, strides, dilations and zeros in front. bias[g*o] and other[b,g*o,p...] are
 * added unless they are NULL; the results are between bounds[0] and bounds[1]. By `run`, mi_pool_run; its status. */
int mi_convolution(
    const ptrdiff_t *sizes, const mi_real *x, const mi_real *w, const mi_real *bias, const mi_real *other, mi_real *out,
    const double *bounds, int n_threads, mi_pool_run_fn *run)
{
    const struct mi_finish finish = {bias, other, out, (mi_real)bounds[0], (mi_real)bounds[1]};
    products p = {.c = mi_windows_of(sizes)};
    mi_windows *c = &p.c;
    c->x = x, c->w = w, c->finish = &finish;
    const int form = mi_convolution_form(sizes);
    if (form == SINGLE) return mi_run_depthwise(c, n_threads, run);
    const mi_windows columns = form == TILES ? mi_tiles_of(c) : *c;
    p.positions = columns.places[0] * columns.places[1] * columns.places[2];
    p.depth = c->channels * c->kernel[0] * c->kernel[1] * c->kernel[2];
    p.columns = c->batch * p.positions;
    const ptrdiff_t panels = (p.columns + COLUMNS - 1) / COLUMNS;
    p.width = mi_vectors_of((p.columns + panels - 1) / panels) * MI_W;
    /* several cells for each thread, so that they end together; where more is laid out than read, they have more outputs */
    const int pointwise = p.depth == c->channels;
    const ptrdiff_t wanted = (pointwise ? 4 : 2) * n_threads, least = pointwise ? OUTPUTS : 2 * OUTPUTS;
    if (form == WINDOWS) p.band = mi_direct_band_of(c, n_threads);
    const int direct = form == WINDOWS && mi_is_direct(&p.band);
    p.tiles = direct ? c->batch * c->places[0] * p.band.bands : (p.columns + p.width - 1) / p.width;
    p.parts = form == TILES ? (c->outputs + MOST - 1) / MOST : 1;
    /* no thread is idle, even where that is more to lay out */
    while (c->groups * p.tiles * p.parts < n_threads && c->outputs / (p.parts + 1) >= MI_BLOCK_ROWS) p.parts++;
    while (c->groups * p.tiles * p.parts < wanted && c->outputs / (p.parts + 1) >= least) p.parts++;
    p.part = (c->outputs + p.parts - 1) / p.parts;
    p.part = (p.part + MI_BLOCK_ROWS - 1) / MI_BLOCK_ROWS * MI_BLOCK_ROWS;
    p.parts = (c->outputs + p.part - 1) / p.part;
    const ptrdiff_t of_tiles = MI_TERMS * (CHANNELS + LAID + p.part) + STORED * MI_SIDE * MI_SIDE + 1;
    /* what comes from memory is read in order, a weight's outputs one after the other, and fetched before */
    p.large = c->outputs * (form == TILES ? MI_TERMS * c->channels : p.depth) >= LARGE;
    p.most = !p.large ? ROWS : p.depth < MANY ? p.depth : MANY;
    const ptrdiff_t lines = form == TILES ? of_tiles : p.most + p.part;
    if (direct) {
        return run(cell_of_rows, &p, c->groups * p.tiles * p.parts, n_threads, mi_direct_bytes(&p.band, p.depth));
    }
    const size_t bytes = (size_t)lines * COLUMNS * sizeof(mi_real);
    return run(form == TILES ? cell_of_tiles : cell, &p, c->groups * p.tiles * p.parts, n_threads, bytes);
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

/* The arguments of convolutions that `mi_run_separable` has: sizes are those of the one channel by channel, then the channels of x and
 * of the result; bounds are those of the first product, of that convolution, and of the second product. */
typedef struct {
    const mi_real *x, *first, *first_bias, *w, *bias, *second, *second_bias, *other;
    mi_real *out;
    const ptrdiff_t *sizes;
    const double *bounds;
} separable;

/* Sizes of a product of all places of images with a matrix, as `mi_convolution` has them. */
static void sizes_of_product(ptrdiff_t *sizes, ptrdiff_t batch, ptrdiff_t channels, ptrdiff_t outputs, const ptrdiff_t *space)
{
    const ptrdiff_t first[] = {batch, 1, channels, outputs};
    memcpy(sizes, first, sizeof first);
    for (int i = 0; i < 3; i++) {
        sizes[4 + i] = sizes[10 + i] = space[i];
        sizes[7 + i] = sizes[13 + i] = sizes[16 + i] = 1, sizes[19 + i] = 0;
    }
}

/* The same, one after the other, where there are fewer bands than threads. -1 where there is no memory. */
static int run_apart(const separable *p, const mi_windows *c, mi_pool_run_fn *run, int n_threads)
{
    const ptrdiff_t channels = p->sizes[22], outputs = p->sizes[23], all = c->batch * c->groups, *n = c->in, *m = c->places;
    const ptrdiff_t before = p->first ? all * n[0] * n[1] * n[2] : 0, behind = p->second ? all * m[0] * m[1] * m[2] : 0;
    mi_real *made = malloc((size_t)(before + behind + 1) * sizeof *made), *rows = p->second ? made + before : p->out;
    ptrdiff_t sizes[22];
    if (!made) return -1;
    int status = 0;
    if (p->first) {
        sizes_of_product(sizes, c->batch, channels, c->groups, n);
        status = mi_convolution(sizes, p->x, p->first, p->first_bias, NULL, made, p->bounds, n_threads, run);
    }
    const mi_real *x = p->first ? made : p->x;
    if (!status) status = mi_convolution(p->sizes, x, p->w, p->bias, NULL, rows, p->bounds + 2, n_threads, run);
    if (!status && p->second) {
        sizes_of_product(sizes, c->batch, c->groups, outputs, m);
        status = mi_convolution(sizes, rows, p->second, p->second_bias, p->other, p->out, p->bounds + 4, n_threads, run);
    }
    free(made);
    return status;
}

int mi_separable_prepared(const separable *p, mi_pool_run_fn *run, int n_threads)
{
    const double *b = p->bounds;
    const struct mi_finish finish = {p->bias, NULL, p->out, (mi_real)b[2], (mi_real)b[3]};
    const mi_separable s = {
        .x = p->x, .first = p->first, .second = p->second, .channels = p->sizes[22], .outputs = p->sizes[23],
        .widened = {p->first_bias, NULL, NULL, (mi_real)b[0], (mi_real)b[1]},
        .narrowed = {p->second_bias, p->other, p->out, (mi_real)b[4], (mi_real)b[5]},
    };
    mi_windows c = mi_windows_of(p->sizes);
    c.w = p->w, c.finish = &finish;
    if (c.batch * ((c.places[1] + MI_BAND_ROWS - 1) / MI_BAND_ROWS) < n_threads) return run_apart(p, &c, run, n_threads);
    return mi_run_separable(s, &c, n_threads, run);
}
