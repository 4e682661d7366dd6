/* Numbers as whole ones, with one scale: clip(round(x / scale) + zero), half to even. */
#include "mirage_dot.h"
#include "mirage_pool.h"

#include <string.h>

#define STRIP 16384 /* elements of a cell */

typedef struct {
    const float *x;
    void *out;
    ptrdiff_t n;
    float scale, least, most; /* bounds without the zero point */
    int zero, bytes;          /* of an element of the result: 1 or 2 */
} to_whole;

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const to_whole *q = args;
    const ptrdiff_t first = index * STRIP, left = q->n - first, n = left < STRIP ? left : STRIP;
    const mi_vec scale = mi_broadcast(q->scale), least = mi_broadcast(q->least), most = mi_broadcast(q->most);
    const float whole = 0x1.8p23f; /* floats from here on have no fraction, and the number in their low bits */
    for (ptrdiff_t i = 0; i < n; i += MI_W) {
        const int count = n - i < MI_W ? (int)(n - i) : MI_W;
        const mi_vec v = mi_min(mi_max(mi_load_n(q->x + first + i, count) / scale, least), most);
        const mi_sum lanes = (mi_sum)(v + whole) - 0x4b400000u + (unsigned)q->zero;
        if (q->bytes == 1) {
            mi_store_bytes_n((unsigned char *)q->out + first + i, lanes, count);
        } else {
            unsigned wide[MI_W];
            unsigned short part[MI_W];
            mi_store_lanes(wide, lanes);
            for (int j = 0; j < MI_W; j++) part[j] = (unsigned short)wide[j];
            memcpy((unsigned short *)q->out + first + i, part, (size_t)count * sizeof *part);
        }
    }
}

/* What `to_whole` says. By `run`, mi_pool_run; its status. */
int mi_quantize(to_whole *q, mi_pool_run_fn *run, int n_threads)
{
    return run(cell, q, (q->n + STRIP - 1) / STRIP, n_threads, 0);
}
