/* Tensors of 16 bits, of the type that MI_NARROW names, as float32 and back; and code for float32 that is run on copies of them. */
#define MI_REAL float
#include "mirage_pool.h"
#include "mirage_vec.h"

#include <stdlib.h>

#define STRIP 16384 /* elements of a cell */

typedef struct {
    mi_narrow *half;
    float *real;
    ptrdiff_t n;
    int widens; /* whether `real` is made of `half` */
} conversion;

static void strip(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const conversion *c = args;
    const ptrdiff_t first = index * STRIP, left = c->n - first, last = left < STRIP ? c->n : first + STRIP;
    for (ptrdiff_t i = first; i < last; i += MI_W) {
        const int n = last - i < MI_W ? (int)(last - i) : MI_W;
        if (c->widens) mi_store_n(c->real + i, mi_load_narrow_n(c->half + i, n), n);
        else mi_store_narrow_n(c->half + i, mi_load_n(c->real + i, n), n);
    }
}

/* By `run`, mi_pool_run; its status. */
int mi_convert(conversion *c, mi_pool_run_fn *run, int n_threads)
{
    return run(strip, c, (c->n + STRIP - 1) / STRIP, n_threads, 0);
}

typedef struct {
    mi_narrow *half;
    float **pointer; /* to its copy, among the arguments of the code */
    ptrdiff_t n;
    int written; /* by the code, which does not read it */
} copied;

typedef int code_fn(void *args, mi_pool_run_fn *run, int n_threads);

typedef struct {
    code_fn *code;
    void *args;
    copied *tensors;
    ptrdiff_t count;
} in_float32;

/* Runs code for float32 on copies of tensors of 16 bits. Its status, or that of `run`; -1 without memory. */
int mi_in_float32(const in_float32 *p, mi_pool_run_fn *run, int n_threads)
{
    size_t total = 0;
    for (ptrdiff_t i = 0; i < p->count; i++) total += ((size_t)p->tensors[i].n + MI_LINE - 1) / MI_LINE * MI_LINE;
    float *memory = malloc(total * sizeof *memory + 1), *next = memory;
    int status = memory ? 0 : -1;
    for (ptrdiff_t i = 0; i < p->count && !status; i++) {
        const copied *t = p->tensors + i;
        conversion c = {t->half, next, t->n, 1};
        *t->pointer = next;
        next += ((size_t)t->n + MI_LINE - 1) / MI_LINE * MI_LINE;
        if (!t->written) status = mi_convert(&c, run, n_threads);
    }
    if (!status) status = p->code(p->args, run, n_threads);
    for (ptrdiff_t i = 0; i < p->count && !status; i++) {
        const copied *t = p->tensors + i;
        conversion c = {t->half, *t->pointer, t->n, 0};
        if (t->written) status = mi_convert(&c, run, n_threads);
    }
    free(memory);
    return status;
}
