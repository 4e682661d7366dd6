/* A product of few rows with a weight as it lies, which a call reads from memory once. */
#define MI_REAL float
#include "mirage_gemm.h"
#include "mirage_pool.h"

#define BLOCK_BYTES (256 * 1024) /* of a weight [n,k], per cell: long runs in memory, and cells for all threads to end together */

typedef struct {
    ptrdiff_t m, k, n, columns; /* columns per cell */
    const mi_real *x, *w, *bias;
    mi_real *out;
    int transposed;
} product;

static void multiply(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const product *p = args;
    const ptrdiff_t from = index * p->columns, left = p->n - from, n = left < p->columns ? left : p->columns;
    mi_real *out = p->out + from;
    if (p->transposed) mi_gemm_dot(p->m, p->k, n, p->x, p->k, p->w + from * p->k, p->k, out, p->n, 0);
    else mi_gemm_stream(p->m, p->k, n, p->x, p->k, 1, p->w + from, p->n, out, p->n, 0);
    if (!p->bias) return;
    for (ptrdiff_t i = 0; i < p->m; i++) {
        for (ptrdiff_t j = 0; j < n; j++) out[i * p->n + j] += p->bias[from + j];
    }
}

/* out[m,n] = x[m,k] w + bias[n]; w is [n,k] if it is `transposed`, else [k,n], and bias may be NULL. By `run`, mi_pool_run; its
 * status. */
int mi_linear(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, const mi_real *w, const mi_real *bias, mi_real *out,
    int transposed, int n_threads, mi_pool_run_fn *run)
{
    /* rows of [k,n] are read in runs as long as threads allow */
    const ptrdiff_t wanted = transposed ? BLOCK_BYTES / (ptrdiff_t)sizeof(mi_real) / (k > 0 ? k : 1) : n / n_threads;
    const ptrdiff_t columns = (wanted / MI_W + 1) * MI_W;
    product p = {m, k, n, columns, x, w, bias, out, transposed};
    return run(multiply, &p, (n + columns - 1) / columns, n_threads, 0);
}
