/* Products of rows with a matrix as it lies, which a call of few rows reads from memory once. */
#define MI_REAL float
#include "mirage_gemm.h"
#include "mirage_pool.h"

#include <stdint.h>
#include <string.h>

#define BLOCK_BYTES (256 * 1024) /* of a weight [n,k], per cell: long runs in memory, and cells for all threads to end together */
#define FEW 32                   /* rows up to which [k,n] is read in order */
#define ROWS 512                 /* of a cell, where there are more */
#define COLUMNS 96               /* of a cell, of more rows than FEW: a multiple of what register blocks have */
#define PANEL (8 * MI_W)         /* columns of the widest blocks of a matrix in the caches */
#define DEPTH 768                /* of a copy of [n,k], for more rows: where rows lie whole pages apart, they share lines of the */
#define LINE (DEPTH + MI_W)      /* first cache, but not in the copy */

typedef struct {
    ptrdiff_t m, k, n, columns, parts; /* columns per cell, and cells along them */
    const mi_real *x, *w, *bias;
    mi_real *out;
    int transposed, accumulate, resident; /* `resident`: w is in the caches, where a call before has read it */
} product;

static void multiply(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const product *p = args;
    const ptrdiff_t from = index % p->parts * p->columns, left = p->n - from, n = left < p->columns ? left : p->columns;
    const ptrdiff_t row = index / p->parts * ROWS, rest = p->m - row, m = rest < ROWS ? rest : ROWS;
    const mi_real *x = p->x + row * p->k;
    mi_real *out = p->out + row * p->n + from;
    if (p->transposed && m > FEW) {
        for (ptrdiff_t at = 0; at < p->k || !at; at += DEPTH) {
            const ptrdiff_t more = p->k - at, k = more < DEPTH ? more : DEPTH;
            for (ptrdiff_t j = 0; j < n; j++) {
                memcpy((mi_real *)scratch + j * LINE, p->w + (from + j) * p->k + at, (size_t)k * sizeof(mi_real));
            }
            mi_gemm_dot(m, k, n, x + at, p->k, scratch, LINE, out, p->n, p->accumulate || at);
        }
    } else if (p->transposed) {
        mi_gemm_dot(m, p->k, n, x, p->k, p->w + from * p->k, p->k, out, p->n, p->accumulate);
    } else if (m <= FEW && !p->resident) mi_gemm_stream(m, p->k, n, x, p->k, 1, p->w + from, p->n, out, p->n, p->accumulate);
    else mi_gemm_outer(m, p->k, n, x, p->k, 1, p->w + from, p->n, out, p->n, p->accumulate);
    if (!p->bias) return;
    for (ptrdiff_t i = 0; i < m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) out[i * p->n + j] += p->bias[from + j];
    }
}

static int run_in_cells(product p, int n_threads, mi_pool_run_fn *run)
{
    /* runs of a row are as long as threads allow, and the cells of a matrix that is read row by row no larger than a block */
    const ptrdiff_t depth = p.m > FEW && p.k > DEPTH ? DEPTH : p.k > 0 ? p.k : 1;
    const ptrdiff_t share = p.n / n_threads, block = BLOCK_BYTES / (ptrdiff_t)sizeof(mi_real) / depth;
    p.columns = ((p.transposed && block < share ? block : share) / MI_W + 1) * MI_W;
    if (p.resident && !p.transposed) p.columns = (p.n + n_threads * PANEL - 1) / (n_threads * PANEL) * PANEL;
    if (p.m > FEW && p.columns > COLUMNS) p.columns = COLUMNS;
    p.parts = (p.n + p.columns - 1) / p.columns;
    const ptrdiff_t bands = (p.m + ROWS - 1) / ROWS;
    const size_t bytes = p.transposed && p.m > FEW ? (size_t)(p.columns * LINE) * sizeof(mi_real) : 0;
    return run(multiply, &p, bands * p.parts, n_threads, bytes);
}

/* out[m,n] = x[m,k] w + bias[n], or out += x w where it is to `accumulate`; w is [n,k] if it is `transposed`, else [k,n], and
 * bias may be NULL. By `run`, mi_pool_run; its status. */
int mi_linear(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, const mi_real *w, const mi_real *bias, mi_real *out,
    int transposed, int accumulate, int n_threads, mi_pool_run_fn *run)
{
    return run_in_cells((product){m, k, n, 0, 0, x, w, bias, out, transposed, accumulate, 0}, n_threads, run);
}

/* From so many products of numbers, or numbers to read, another thread's help is worth the wait for it: some 5 us of work. */
#define SHARED_WORK (320 * 1024)
#define SHARED_READ (128 * 1024)

/* A product that is made again and again: out[m,n] = x[m,k] w + added, which is NULL, bias[n], or [m,n] if it is `whole`. */
typedef struct {
    const mi_real *x, *w, *added;
    mi_real *out;
    ptrdiff_t m, k, n;
    int transposed, whole, relu;
} prepared;

int mi_linear_prepared(prepared *p, mi_pool_run_fn *run, int n_threads)
{
    if (p->m * p->k * p->n < SHARED_WORK && p->k * p->n < SHARED_READ) n_threads = 1;
    if (p->whole) memcpy(p->out, p->added, (size_t)(p->m * p->n) * sizeof(mi_real));
    const mi_real *bias = p->whole ? NULL : p->added;
    const product all = {p->m, p->k, p->n, 0, 0, p->x, p->w, bias, p->out, p->transposed, p->whole, 1};
    const int status = run_in_cells(all, n_threads, run);
    /* NaN stays */
    for (ptrdiff_t i = 0; p->relu && i < p->m * p->n; i++) p->out[i] = p->out[i] < 0 ? 0 : p->out[i];
    return status;
}

/* Products of rows in groups, each with a matrix of its own. */
typedef struct {
    const mi_real *x, *w;
    const void *ends;
    mi_real *out;
    ptrdiff_t m, k, n, groups;
    int transposed, wide; /* `wide`: ends are of 64 bits */
} grouped;

static ptrdiff_t end_of(const grouped *g, ptrdiff_t j)
{
    return g->wide ? (ptrdiff_t)((const int64_t *)g->ends)[j] : ((const int32_t *)g->ends)[j];
}

#define WRONG_ENDS 2 /* a status that `run` does not have */

/* out[m,n]: the rows of x[m,k] from ends[j - 1] to ends[j] times w[j], and 0 from the last end on. WRONG_ENDS, and nothing
 * written, where ends decrease or exceed m, else the status of `run`. */
int mi_grouped(grouped *g, mi_pool_run_fn *run, int n_threads)
{
    ptrdiff_t from = 0;
    for (ptrdiff_t j = 0; j < g->groups; j++) {
        const ptrdiff_t end = end_of(g, j);
        if (end < from || end > g->m) return WRONG_ENDS;
        from = end;
    }
    memset(g->out + from * g->n, 0, (size_t)((g->m - from) * g->n) * sizeof(mi_real));
    from = 0;
    for (ptrdiff_t j = 0; j < g->groups; j++) {
        const ptrdiff_t end = end_of(g, j), m = end - from;
        const mi_real *x = g->x + from * g->k, *w = g->w + j * g->k * g->n;
        from = end;
        if (!m || !g->n) continue;
        const int threads = m * g->k * g->n < SHARED_WORK && g->k * g->n < SHARED_READ ? 1 : n_threads;
        const product one = {m, g->k, g->n, 0, 0, x, w, NULL, g->out + (end - m) * g->n, g->transposed, 0, 0};
        const int status = run_in_cells(one, threads, run);
        if (status) return status;
    }
    return 0;
}
