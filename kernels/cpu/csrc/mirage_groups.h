/* Rows in groups, which end where a tensor of 32 or, if it is `wide`, 64 bits says: each has a matrix of its own. */
#ifndef MIRAGE_GROUPS_H
#define MIRAGE_GROUPS_H

#include <stddef.h>
#include <stdint.h>

#define MI_WRONG_ENDS 2 /* a status that mi_pool_run does not have */

static inline ptrdiff_t mi_end_of(const void *ends, int wide, ptrdiff_t j)
{
    return wide ? (ptrdiff_t)((const int64_t *)ends)[j] : ((const int32_t *)ends)[j];
}

/* The end of the last group, 0 if there is none; -1 where ends decrease or exceed the number of rows. */
static inline ptrdiff_t mi_last_end(const void *ends, int wide, ptrdiff_t groups, ptrdiff_t rows)
{
    ptrdiff_t from = 0;
    for (ptrdiff_t j = 0; j < groups; j++) {
        const ptrdiff_t end = mi_end_of(ends, wide, j);
        if (end < from || end > rows) return -1;
        from = end;
    }
    return from;
}

#endif
