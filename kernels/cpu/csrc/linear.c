/* Products of rows with a matrix as it lies, which a call of few rows reads from memory once. */
#define MI_REAL float
#include "mirage_gemm.h"
#include "mirage_pool.h"

#include <string.h>

#define BLOCK_BYTES (256 * 1024) /* of a weight [n,k], per cell: long runs in memory, and cells for all threads to end together */
#define FEW 32                   /* rows up to which [k,n] is read in order */
#define ROWS 512                 /* of a cell, where there are more */
#define COLUMNS 96               /* of a cell, of more rows than FEW: a multiple of what register blocks have */
#define DEPTH 768                /* of a copy of [n,k], for more rows: where rows lie whole pages apart, they share lines of the */
#define LINE (DEPTH + MI_W)      /* first cache, but not in the copy */

typedef struct {
    ptrdiff_t m, k, n, columns, parts; /* columns per cell, and cells along them */
    const mi_real *x, *w, *bias;
    mi_real *out;
    int transposed, accumulate;
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
    } else if (m <= FEW) mi_gemm_stream(m, p->k, n, x, p->k, 1, p->w + from, p->n, out, p->n, p->accumulate);
    else mi_gemm_outer(m, p->k, n, x, p->k, 1, p->w + from, p->n, out, p->n, p->accumulate);
    if (!p->bias) return;
    for (ptrdiff_t i = 0; i < m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) out[i * p->n + j] += p->bias[from + j];
    }
}

/* out[m,n] = x[m,k] w + bias[n], or out += x w where it is to `accumulate`; w is [n,k] if it is `transposed`, else [k,n], and
 * bias may be NULL. By `run`, mi_pool_run; its status. */
int mi_linear(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, const mi_real *w, const mi_real *bias, mi_real *out,
    int transposed, int accumulate, int n_threads, mi_pool_run_fn *run)
{
    /* runs of a row are as long as threads allow, and the cells of a matrix that is read row by row no larger than a block */
    const ptrdiff_t depth = m > FEW && k > DEPTH ? DEPTH : k > 0 ? k : 1;
    const ptrdiff_t share = n / n_threads, block = BLOCK_BYTES / (ptrdiff_t)sizeof(mi_real) / depth;
    ptrdiff_t columns = ((transposed && block < share ? block : share) / MI_W + 1) * MI_W;
    if (m > FEW && columns > COLUMNS) columns = COLUMNS;
    const ptrdiff_t parts = (n + columns - 1) / columns, bands = (m + ROWS - 1) / ROWS;
    product p = {m, k, n, columns, parts, x, w, bias, out, transposed, accumulate};
    const size_t bytes = transposed && m > FEW ? (size_t)(columns * LINE) * sizeof(mi_real) : 0;
    return run(multiply, &p, bands * parts, n_threads, bytes);
}

#define SHARED_WORK (128 * 1024) /* products of numbers from which another thread's help is worth the wait for it */

/* A product whose arguments were prepared before: out[m,n] = x[m,k] w + added, which is NULL, bias[n], or [m,n] if it is `whole`. */
typedef struct {
    const mi_real *x, *w, *added;
    mi_real *out;
    ptrdiff_t m, k, n;
    int transposed, whole;
} prepared;

int mi_linear_prepared(prepared *p, mi_pool_run_fn *run, int n_threads)
{
    if (p->m * p->k * p->n < SHARED_WORK) n_threads = 1;
    if (p->whole) memcpy(p->out, p->added, (size_t)(p->m * p->n) * sizeof(mi_real));
    return mi_linear(
        p->m, p->k, p->n, p->x, p->w, p->whole ? NULL : p->added, p->out, p->transposed, p->whole, n_threads, run);
}
