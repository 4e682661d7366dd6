/* Convolutions of tensors with zeros around them. Those of several channels are products: patches are laid out as the columns of
 * a panel, some rows at a time, in a thread's own memory, and weights are packed in the order of the register blocks.
 */
#include "mirage_convolution.h"

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

MI_INLINE void mi_lay_row(const mi_windows *c, mi_real *to, const mi_real *from, ptrdiff_t step, ptrdiff_t n)
{
    (void)c;
    mi_copy_every(to, from, step, n);
}

#include "mirage_depthwise.h"

#define ROWS 256                          /* of a panel: elements of a window, in the second-level cache */
#define COLUMNS MI_COLUMNS
#define OUTPUTS 32                        /* of a cell at least, so that laying out columns is the smaller part of it */
#define FEW 4                             /* outputs of one channel that are no product */

typedef struct {
    mi_windows c;
    ptrdiff_t positions, depth, columns; /* places of an image, elements of a window; places of all images */
    ptrdiff_t tiles, parts, part;        /* cells along the columns and the outputs; outputs per cell */
} products;

typedef struct {
    ptrdiff_t k;
    const mi_real *w, *y;
    mi_real *o;
    ptrdiff_t os, output, at; /* elements between rows of o; the first output, and where it is in the result */
    int rows, tail, accumulate;
    const struct mi_finish *finish; /* NULL where more is to be added */
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
        mi_output output = {0};
        if (b->finish) output = mi_output_of(b->finish, b->output + i);
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const mi_mask own = j == NV - 1 ? mask : all;
            mi_vec v = sum[i * NV + j];
            if (b->finish) v = finished(b->finish, &output, v, b->at + i * b->os + j * MI_W, own);
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
    const ptrdiff_t column = tile * COLUMNS, rest = p->columns - column, count = rest < COLUMNS ? rest : COLUMNS;
    const ptrdiff_t first = part * p->part, left = c->outputs - first, outputs = left < p->part ? left : p->part;
    const ptrdiff_t image = column / p->positions, place = column % p->positions;
    const int vectors = (int)((count + MI_W - 1) / MI_W), together = place + count <= p->positions;
    const ptrdiff_t at = ((image * c->groups + group) * c->outputs + first) * p->positions + place;
    const mi_real *x = c->x + group * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    const mi_real *w = c->w + (group * mi_packed_outputs(c->outputs) + first) * p->depth;
    mi_real *panel = scratch, *aside = panel + ROWS * COLUMNS;
    mi_run_of_places runs[COLUMNS];
    const int n_runs = mi_find_runs(c, column, count, runs);
    for (ptrdiff_t row = 0; row < p->depth; row += ROWS) {
        const ptrdiff_t rows = p->depth - row < ROWS ? p->depth - row : ROWS;
        const int last = row + rows == p->depth;
        mi_lay_out_panel(c, x, runs, n_runs, row, rows, vectors * MI_W, 0, panel);
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t more = outputs - o, mr = mi_output_rows(more);
            const int log = mr == 8 ? 3 : mr == 4 ? 2 : mr == 2;
            const block b = {
                .k = rows, .w = w + o * p->depth + row * mr, .y = panel,
                .o = together ? c->finish->out + at + o * p->positions : aside + o * COLUMNS,
                .os = together ? p->positions : COLUMNS, .output = group * c->outputs + first + o,
                .at = at + o * p->positions, .rows = (int)(more < mr ? more : mr), .tail = (int)(count - (vectors - 1) * MI_W),
                .accumulate = row > 0, .finish = together && last ? c->finish : NULL,
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
    if (!to) return groups * mi_packed_outputs(outputs) * depth;
    for (ptrdiff_t g = 0; g < groups; g++) {
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t left = outputs - o, rows = mi_output_rows(left);
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
    return groups * mi_packed_outputs(outputs) * depth;
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
    const struct mi_finish finish = {bias, other, out, (mi_real)bounds[0], (mi_real)bounds[1]};
    products p = {.c = mi_windows_of(sizes)};
    mi_windows *c = &p.c;
    c->x = x, c->w = w, c->finish = &finish;
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
