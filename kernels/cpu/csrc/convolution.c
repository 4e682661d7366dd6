/* Convolutions of padded tensors as products: patches are laid out as columns, a block at a time, in a thread's own memory. */
#include "mirage_gemm.h"
#include "mirage_pool.h"

#include <string.h>

#define COLUMNS 128 /* positions of a cell: with ROWS, a block that stays in the second level of the cache */
#define ROWS 384    /* of a block: channels and elements of the window */
#define OUTPUTS 32  /* channels of a cell at least, so that laying out columns is the smaller part of it */

/* `channels` and `outputs` are those of one group; three spatial dims, of which the first ones may be 1. */
typedef struct {
    ptrdiff_t batch, groups, channels, outputs, in[3], kernel[3], places[3], strides[3], gaps[3];
    const mi_real *x, *w;
    mi_real *out;
    ptrdiff_t tiles, parts, part; /* cells along the positions and the outputs; outputs per cell */
} convolution;

static void columns(
    const convolution *c, const mi_real *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t from, ptrdiff_t count, mi_real *to)
{
    const ptrdiff_t *k = c->kernel, *p = c->places, *n = c->in, *s = c->strides, *d = c->gaps, taps = k[0] * k[1] * k[2];
    for (ptrdiff_t r = row; r < row + rows; r++, to += COLUMNS) {
        const ptrdiff_t tap = r % taps, a2 = tap % k[2] * d[2], a1 = tap / k[2] % k[1] * d[1], a0 = tap / (k[1] * k[2]) * d[0];
        const mi_real *channel = x + r / taps * (n[0] * n[1] * n[2]);
        ptrdiff_t at = from, i2 = at % p[2], i1 = at / p[2] % p[1], i0 = at / (p[1] * p[2]);
        for (ptrdiff_t done = 0; done < count;) {
            const ptrdiff_t left = count - done, run = p[2] - i2 < left ? p[2] - i2 : left;
            const mi_real *line = channel + ((i0 * s[0] + a0) * n[1] + i1 * s[1] + a1) * n[2] + i2 * s[2] + a2;
            if (s[2] == 1) {
                memcpy(to + done, line, (size_t)run * sizeof(mi_real));
            } else {
                for (ptrdiff_t j = 0; j < run; j++) to[done + j] = line[j * s[2]];
            }
            done += run, i2 = 0;
            if (++i1 == p[1]) i1 = 0, i0++;
        }
    }
}

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const convolution *c = args;
    const ptrdiff_t part = index % c->parts, tile = index / c->parts % c->tiles, image = index / (c->parts * c->tiles);
    const ptrdiff_t group = image % c->groups, positions = c->places[0] * c->places[1] * c->places[2];
    const ptrdiff_t from = tile * COLUMNS, rest = positions - from, count = rest < COLUMNS ? rest : COLUMNS;
    const ptrdiff_t first = part * c->part, left = c->outputs - first, outputs = left < c->part ? left : c->part;
    const ptrdiff_t inner = c->channels * c->kernel[0] * c->kernel[1] * c->kernel[2];
    const mi_real *x = c->x + image * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    const mi_real *w = c->w + (group * c->outputs + first) * inner;
    mi_real *out = c->out + (image * c->outputs + first) * positions + from;
    for (ptrdiff_t row = 0; row < inner; row += ROWS) {
        const ptrdiff_t rows = inner - row < ROWS ? inner - row : ROWS;
        columns(c, x, row, rows, from, count, scratch);
        mi_gemm_outer(outputs, rows, count, w + row, inner, 1, scratch, COLUMNS, out, positions, row > 0);
    }
}

/* out[b,g*o,p...] of x[b,g*c,n...] and w[g*o,c,k...]; `sizes` are batch, groups, c, o, then three each of n, k, p, strides and
 * dilations. By `run`, mi_pool_run; its status. */
int mi_convolution(
    const ptrdiff_t *sizes, const mi_real *x, const mi_real *w, mi_real *out, int n_threads, mi_pool_run_fn *run)
{
    convolution c = {.batch = sizes[0], .groups = sizes[1], .channels = sizes[2], .outputs = sizes[3], .x = x, .w = w, .out = out};
    for (int i = 0; i < 3; i++) {
        c.in[i] = sizes[4 + i], c.kernel[i] = sizes[7 + i], c.places[i] = sizes[10 + i];
        c.strides[i] = sizes[13 + i], c.gaps[i] = sizes[16 + i];
    }
    const ptrdiff_t images = c.batch * c.groups, positions = c.places[0] * c.places[1] * c.places[2];
    c.tiles = (positions + COLUMNS - 1) / COLUMNS;
    /* several cells for each thread, so that they end together */
    c.parts = 1;
    while (images * c.tiles * c.parts < 4 * n_threads && c.outputs / (c.parts + 1) >= OUTPUTS) c.parts++;
    c.part = (c.outputs + c.parts - 1) / c.parts;
    c.parts = (c.outputs + c.part - 1) / c.part;
    return run(cell, &c, images * c.tiles * c.parts, n_threads, ROWS * COLUMNS * sizeof(mi_real));
}
