/* Reading memory and nothing else, as fast as it comes: the yardstick of what has to read as much. */
#ifndef MIRAGE_READ_H
#define MIRAGE_READ_H

#include "mirage_vec.h"

#define MI_READ_PARTS 12 /* sums side by side: more than latency times throughput of an addition, fewer than registers */
#define MI_AHEAD (2048 / (long)sizeof(mi_real))

/* The sum of n elements, a multiple of MI_W, which has to be kept so that no compiler drops the reading. They are read in
 * `streams` (a divisor of MI_READ_PARTS) side by side, and each fetched `ahead` elements before it is needed, past the caches. */
MI_INLINE mi_vec mi_read(const mi_real *p, long n, const int streams, const long ahead)
{
    const long step = MI_READ_PARTS / streams * MI_W, part = n / streams / step * step;
    mi_vec sum[MI_READ_PARTS];
    MI_UNROLL for (int i = 0; i < MI_READ_PARTS; i++) sum[i] = (mi_vec){0};
    MI_NO_UNROLL for (long at = 0; at < part; at += step)
    {
        MI_UNROLL for (int i = 0; i < MI_READ_PARTS; i++)
        {
            const mi_real *q = p + i % streams * part + at + i / streams * MI_W;
            if (ahead) __builtin_prefetch(q + ahead, 0, 0);
            sum[i] += mi_load(q);
        }
    }
    MI_NO_UNROLL for (long at = streams * part; at < n; at += MI_W) sum[0] += mi_load(p + at);
    MI_UNROLL for (int i = 1; i < MI_READ_PARTS; i++) sum[0] += sum[i];
    return sum[0];
}

#endif
