/* What the kernels of convolutions share: the sizes, and what is done to a sum before it is stored. */
#ifndef MIRAGE_CONVOLUTION_H
#define MIRAGE_CONVOLUTION_H

#include "mirage_gemm_block.h"
#include "mirage_pool.h"

/* `channels` and `outputs` are those of one group; three spatial dims, of which the first ones may be 1. Element i of x is
 * `low` places before that of the padded tensor; what lies beyond x is 0. */
typedef struct {
    ptrdiff_t batch, groups, channels, outputs, in[3], kernel[3], places[3], strides[3], gaps[3], low[3];
    const mi_real *x, *w;
    const mi_real *bias, *other; /* [groups * outputs] and as `out`, or NULL */
    mi_real *out;
    mi_real least, most;
} mi_windows;

/* The sums of an output as they are stored: plus its bias and what else is added, between the bounds. NaN stays NaN. */
MI_INLINE mi_vec mi_finished(const mi_windows *c, mi_vec sum, ptrdiff_t output, ptrdiff_t at, mi_mask mask)
{
    if (c->bias) sum += mi_broadcast(c->bias[output]);
    if (c->other) sum += mi_load_mask(c->other + at, mask);
    return mi_min(mi_broadcast(c->most), mi_max(mi_broadcast(c->least), sum));
}

#define MI_EVEN_(l, h) (2 * (l) + (h))

/* The elements p[0], p[2], ... of a vector; nothing behind the last of them is read. */
MI_INLINE mi_vec mi_load_even(const mi_real *p)
{
    const mi_vec a = mi_load(p), b = mi_load_n(p + MI_W, MI_W - 1);
    return __builtin_shufflevector(a, b, MI_LANES(MI_EVEN_, 0));
}

/* to[i] = from[i * step] for i < n. */
MI_INLINE void mi_copy_every(mi_real *to, const mi_real *from, ptrdiff_t step, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    if (step == 1) {
        for (; i + MI_W <= n; i += MI_W) mi_store(to + i, mi_load(from + i));
        if (i < n) mi_store_n(to + i, mi_load_n(from + i, (int)(n - i)), (int)(n - i));
        return;
    }
    if (step == 2) {
        for (; i + MI_W <= n; i += MI_W) mi_store(to + i, mi_load_even(from + 2 * i));
    }
    for (; i < n; i++) to[i] = from[i * step];
}

/* The places j of `count` from place `from` on whose element `from * step + j * step + shift` is within n: *first to the result. */
MI_INLINE ptrdiff_t mi_within(ptrdiff_t from, ptrdiff_t count, ptrdiff_t step, ptrdiff_t shift, ptrdiff_t n, ptrdiff_t *first)
{
    const ptrdiff_t at = from * step + shift, behind = n - at;
    const ptrdiff_t end = behind <= 0 ? 0 : (behind + step - 1) / step;
    *first = at >= 0 ? 0 : (-at + step - 1) / step;
    return end < count ? end : count;
}

#endif
