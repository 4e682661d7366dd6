/* Products of matrices as they lie, one or a batch of them, and what is added to them; a call of few rows reads a weight once.
 * A weight may be packed in panels. */
#define MI_REAL float
#include "mirage_activation.h"
#include "mirage_gemm_block.h"
#include "mirage_groups.h"
#include "mirage_pool.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (256 * 1024) /* of a weight [n,k], per cell: long runs in memory, and cells for all threads to end together */
#define FEW 32                   /* rows up to which [k,n] is read in order */
#define ROWS 512                 /* of a cell, where there are more */
#define COLUMNS 96               /* of a cell, of more rows than FEW: a multiple of what register blocks have */
#define WIDEST (8 * MI_W)        /* columns of the widest blocks of a matrix in the caches */
#define BAND 32                  /* rows of a cell of a packed matrix, or a few more: they stay in the caches for all terms */
#define TURN 256                 /* rows that take turns with a panel: they are in the second cache, or near it, for the next */
#define PANEL (MI_BLOCK_VECTORS * MI_W) /* columns of a panel of a packed matrix */
#define DEPTH 768                /* of a copy of [n,k], for more rows: where rows lie whole pages apart, they share lines of the */
#define LINE (DEPTH + MI_W)      /* first cache, but not in the copy */
#define BATCH_DIMS 4

/* From so many products of numbers, or numbers to read, another thread's help is worth the wait for it: some 5 us of work. */
#define SHARED_WORK (320 * 1024)
#define SHARED_READ (48 * 1024)

/* out[i,j] = f(sum_t x[i,t] w[t,j] + added), for m rows, n columns and k terms, once for every index of the batch dims. With a gate,
 * another matrix laid out as w, f of it is times sum_t x[i,t] gate[t,j] (Shazeer, "GLU Variants Improve Transformer", 2020).
 *
 * Element [i,t] of x is at i * x_row + t * x_term; [t,j] of w at t * w_row + j, or, if it is `transposed`, at j * w_row + t, and
 * then x_term is 1, or, if it is `packed`, where mi_pack put it; [i,j] of out at i * out_row + j. Along batch dim d of
 * `sizes[d]`, each is so many elements further on. `added` is NULL, n numbers for every row, or a tensor laid out as out if it is
 * `whole`; `activation` is f. */
typedef struct {
    const mi_real *x, *w, *gate, *added; /* gate is NULL where there is none */
    mi_real *out;
    ptrdiff_t m, k, n, x_row, x_term, w_row, out_row;
    ptrdiff_t sizes[BATCH_DIMS], x_step[BATCH_DIMS], w_step[BATCH_DIMS], out_step[BATCH_DIMS];
    int dims, transposed, packed, whole, activation;
    int resident; /* w is in the caches, where a call before has read it */
} products;

typedef struct {
    const products *of;
    ptrdiff_t rows, columns, bands, parts; /* rows and columns per cell, and how many cells lie along them */
    ptrdiff_t turn;                        /* bands that are side by side: after those of one part come those of the next */
    size_t copy, gate;                     /* bytes of scratch: of a copy of a part of w, and of products with the gate */
} cells;

/* out = x w, or what is there and that if there is `more`, for a part of the rows and columns. */
static void multiply_part(
    const products *p, ptrdiff_t m, ptrdiff_t n, const mi_real *x, const mi_real *w, mi_real *out, ptrdiff_t out_row, int more,
    mi_real *copy)
{
    if (p->packed && n == PANEL) mi_gemm_outer_panel(m, p->k, x, p->x_row, p->x_term, w, out, out_row, more);
    else if (p->packed) mi_gemm_outer(m, p->k, n, x, p->x_row, p->x_term, w, PANEL, out, out_row, more);
    else if (p->transposed && m > FEW) {
        for (ptrdiff_t at = 0; at < p->k || !at; at += DEPTH) {
            const ptrdiff_t left = p->k - at, k = left < DEPTH ? left : DEPTH;
            for (ptrdiff_t j = 0; j < n; j++) memcpy(copy + j * LINE, w + j * p->w_row + at, (size_t)k * sizeof(mi_real));
            mi_gemm_dot(m, k, n, x + at, p->x_row, copy, LINE, out, out_row, more || at);
        }
    } else if (p->transposed) mi_gemm_dot(m, p->k, n, x, p->x_row, w, p->w_row, out, out_row, more);
    else if (m <= FEW && !p->resident) mi_gemm_stream(m, p->k, n, x, p->x_row, p->x_term, w, p->w_row, out, out_row, more);
    else mi_gemm_outer(m, p->k, n, x, p->x_row, p->x_term, w, p->w_row, out, out_row, more);
}

static void multiply(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const cells *c = args;
    const products *p = c->of;
    const ptrdiff_t cell = index % (c->bands * c->parts), first = cell / (c->turn * c->parts) * c->turn;
    const ptrdiff_t more = c->bands - first, turn = more < c->turn ? more : c->turn, place = cell - first * c->parts;
    const ptrdiff_t band = first + place % turn, part = place / turn;
    const ptrdiff_t from = part * c->columns, left = p->n - from, n = left < c->columns ? left : c->columns;
    const ptrdiff_t row = band * c->rows, rest = p->m - row, m = rest < c->rows ? rest : c->rows;
    ptrdiff_t x_at = row * p->x_row, w_at = from * (p->packed ? p->k : p->transposed ? p->w_row : 1);
    ptrdiff_t out_at = row * p->out_row + from;
    ptrdiff_t batch = index / c->parts / c->bands;
    for (int d = p->dims; d--; batch /= p->sizes[d]) {
        const ptrdiff_t i = batch % p->sizes[d];
        x_at += i * p->x_step[d], w_at += i * p->w_step[d], out_at += i * p->out_step[d];
    }
    mi_real *out = p->out + out_at;
    for (ptrdiff_t i = 0; p->whole && i < m; i++) {
        memcpy(out + i * p->out_row, p->added + out_at + i * p->out_row, (size_t)n * sizeof(mi_real));
    }
    multiply_part(p, m, n, p->x + x_at, p->w + w_at, out, p->out_row, p->whole, scratch);
    const mi_real *row_added = p->added && !p->whole ? p->added + from : NULL;
    if (row_added || p->activation) mi_finish(out, p->out_row, m, n, row_added, p->activation);
    if (!p->gate) return;
    mi_real *factors = (mi_real *)((char *)scratch + c->copy);
    multiply_part(p, m, n, p->x + x_at, p->gate + w_at, factors, c->columns, 0, scratch);
    for (ptrdiff_t i = 0; i < m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) out[i * p->out_row + j] *= factors[i * c->columns + j];
    }
}

/* The cells of products, `batch` of them one beside the other: their number. */
static ptrdiff_t divide(const products *p, ptrdiff_t batch, int n_threads, cells *found)
{
    /* runs of a row are as long as threads allow, and the cells of a matrix that is read row by row no larger than a block */
    const ptrdiff_t threads = batch < 2 * n_threads ? n_threads : 1;
    const ptrdiff_t depth = p->m > FEW && p->k > DEPTH ? DEPTH : p->k > 0 ? p->k : 1;
    const ptrdiff_t share = p->n / threads, block = BLOCK_BYTES / (ptrdiff_t)sizeof(mi_real) / depth;
    cells c = {.of = p, .rows = ROWS, .columns = ((p->transposed && block < share ? block : share) / MI_W + 1) * MI_W};
    if (p->resident && !p->transposed) c.columns = (p->n + threads * WIDEST - 1) / (threads * WIDEST) * WIDEST;
    if (p->m > FEW && c.columns > COLUMNS) c.columns = COLUMNS;
    if (p->packed) {
        const ptrdiff_t bands = p->m < 2 * BAND ? 1 : p->m / BAND;
        c.columns = PANEL;
        c.rows = (p->m + bands * MI_BLOCK_ROWS - 1) / (bands * MI_BLOCK_ROWS) * MI_BLOCK_ROWS;
        if (c.rows < TURN) c.turn = TURN / c.rows;
    }
    c.parts = (p->n + c.columns - 1) / c.columns;
    c.bands = (p->m + c.rows - 1) / c.rows;
    if (!c.turn) c.turn = c.bands;
    if (!p->packed && p->transposed && p->m > FEW) c.copy = (size_t)(c.columns * LINE) * sizeof(mi_real);
    if (p->gate) c.gate = (size_t)(c.columns * (p->m < c.rows ? p->m : c.rows)) * sizeof(mi_real);
    *found = c;
    return batch * c.parts * c.bands;
}

/* By `run`, mi_pool_run; its status. */
int mi_products(const products *p, mi_pool_run_fn *run, int n_threads)
{
    ptrdiff_t batch = 1;
    for (int d = 0; d < p->dims; d++) batch *= p->sizes[d];
    if (batch * p->m * p->k * p->n < SHARED_WORK && batch * p->k * p->n < SHARED_READ) n_threads = 1;
    cells c;
    const ptrdiff_t count = divide(p, batch, n_threads, &c);
    return run(multiply, &c, count, n_threads, c.copy + c.gate);
}

typedef struct {
    const mi_real *w;
    mi_real *out;
    ptrdiff_t k, n, w_row;
    int transposed;
} packing;

static void pack_panel(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const packing *p = args;
    const ptrdiff_t from = index * PANEL, left = p->n - from, n = left < PANEL ? left : PANEL;
    mi_real *out = p->out + from * p->k;
    for (ptrdiff_t t0 = 0; t0 < p->k; t0 += MI_W) {
        /* of few terms at a time, what is written stays in the first cache while all columns are read */
        const ptrdiff_t end = t0 + MI_W < p->k ? t0 + MI_W : p->k;
        for (ptrdiff_t j = 0; p->transposed && j < n; j++) {
            const mi_real *column = p->w + (from + j) * p->w_row;
            for (ptrdiff_t t = t0; t < end; t++) out[t * PANEL + j] = column[t];
        }
        for (ptrdiff_t t = t0; t < end; t++) {
            if (!p->transposed) memcpy(out + t * PANEL, p->w + t * p->w_row + from, (size_t)n * sizeof(mi_real));
            memset(out + t * PANEL + n, 0, (size_t)(PANEL - n) * sizeof(mi_real));
        }
    }
}

/* The columns of a panel. */
long mi_panel(void) { return PANEL; }

/* out[ceil(n / PANEL)][k][PANEL]: the columns of w, as it is in `products`, in panels, the last of which is filled up with zeros.
 * By `run`, mi_pool_run; its status. */
int mi_pack(packing *p, mi_pool_run_fn *run, int n_threads)
{
    return run(pack_panel, p, (p->n + PANEL - 1) / PANEL, n_threads, 0);
}

/* Products of rows in groups, each with a matrix of its own, and one of the gate if there is one: see `products`. */
typedef struct {
    const mi_real *x, *w, *gate;
    const void *ends;
    mi_real *out;
    ptrdiff_t m, k, n, groups;
    int transposed, wide, packed, activation; /* `wide`: ends are of 64 bits */
} grouped;

/* A group that has rows; `first` is the number of its first cell. */
typedef struct {
    products of;
    cells into;
    long first;
} group;

static void multiply_group(void *args, long index, int thread, void *scratch)
{
    group *g = args;
    while (index >= g[1].first) g++; /* behind the last group is one of no cells */
    multiply(&g->into, index - g->first, thread, scratch);
}

/* out[m,n]: the rows of x[m,k] from ends[j - 1] to ends[j] times w[j], and 0 from the last end on. MI_WRONG_ENDS, and nothing
 * written, where ends decrease or exceed m, else the status of `run`, or -1 without memory. */
int mi_grouped(const grouped *g, mi_pool_run_fn *run, int n_threads)
{
    const ptrdiff_t last = mi_last_end(g->ends, g->wide, g->groups, g->m), read = g->k * g->n * (g->gate ? 2 : 1);
    if (last < 0) return MI_WRONG_ENDS;
    memset(g->out + last * g->n, 0, (size_t)((g->m - last) * g->n) * sizeof(mi_real));
    if (!last || !g->n) return 0;
    const ptrdiff_t most = g->groups < last ? g->groups : last;
    const ptrdiff_t panels = (g->n + PANEL - 1) / PANEL * PANEL, matrix = g->k * (g->packed ? panels : g->n);
    group *parts = malloc((size_t)(most + 1) * sizeof(group)), *next = parts;
    if (!parts) return -1;
    size_t copy = 0, gate = 0;
    long count = 0;
    if (last * read < SHARED_WORK && most * read < SHARED_READ) n_threads = 1;
    for (ptrdiff_t j = 0, from = 0, end; j < g->groups; j++, from = end) {
        end = mi_end_of(g->ends, g->wide, j);
        if (end == from) continue;
        next->of = (products){
            .x = g->x + from * g->k, .w = g->w + j * matrix, .gate = g->gate ? g->gate + j * matrix : NULL,
            .out = g->out + from * g->n, .m = end - from, .k = g->k, .n = g->n, .x_row = g->k, .x_term = 1,
            .w_row = g->transposed ? g->k : g->n, .out_row = g->n, .transposed = g->transposed, .packed = g->packed,
            .activation = g->activation,
        };
        next->first = count;
        count += divide(&next->of, 1, n_threads, &next->into);
        copy = next->into.copy > copy ? next->into.copy : copy;
        gate = next->into.gate > gate ? next->into.gate : gate;
        next++;
    }
    next->first = count;
    const int status = run(multiply_group, parts, count, n_threads, copy + gate);
    free(parts);
    return status;
}
