/* Elements in order, running sums, and elements written where positions say, along one dim: described in order.py. */
#include "mirage_pool.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FEW 64    /* elements up to which each one is moved to its place */
#define RUN 16    /* elements of the shortest runs that are merged */

enum { FLOAT32, FLOAT64, INT32, INT64 };

/* Statuses of a launch. */
enum { DONE, NO_MEMORY, OUTSIDE };

/* Element [o,j,i] of x is at (o * count + j) * inner + i, and so are the others, but for what is said of them. */
typedef struct {
    const void *x, *at, *given;
    void *values;
    int64_t *places;
    int64_t outer, count, inner;
    int64_t kept;     /* of each row in order, this many of the first; positions in a row */
    int64_t wrong;    /* a position that is outside of the dim */
    int dtype, descending;
    int wide;         /* positions are of 64 bits, else 32 */
    int along;        /* each element has positions of its own: [o,kept,i], else [kept] */
    int one;          /* a single value is written everywhere, else [o,kept,i] */
    int add, itemsize;
} ordered;

/* NaN is the largest. */
#define BEFORE(down, a, b) \
    ((down) ? (a) > (b) || ((a) != (a) && (b) == (b)) : (a) < (b) || ((b) != (b) && (a) == (a)))

/* `first_*` finds the first elements of a row in order, of which p has room for those alone; `all_*` puts a whole row in order, in p
 * or in q, and returns which; `order_*` writes the first elements of all rows, and where they were. Equal ones stay as they stood.
 * `distinct_*` leaves the first of equal ones in a row in order, and returns how many are left. */
#define ORDER(type, suffix) \
    typedef struct { \
        type v; \
        int64_t at; \
    } pair_##suffix; \
    \
    /* each element that comes before the last of those kept moves up to its place, behind its equals */ \
    static void first_##suffix(const type *x, int64_t step, int64_t from, int64_t to, int64_t kept, int down, pair_##suffix *p) \
    { \
        int64_t n = 0; \
        for (int64_t j = from; j < to; j++) { \
            const type v = x[j * step]; \
            if (n == kept) { \
                if (!BEFORE(down, v, p[n - 1].v)) continue; \
            } else { \
                n++; \
            } \
            int64_t k = n - 1; \
            for (; k > 0 && BEFORE(down, v, p[k - 1].v); k--) p[k] = p[k - 1]; \
            p[k] = (pair_##suffix){v, j}; \
        } \
    } \
    \
    static pair_##suffix *all_##suffix(const type *x, int64_t step, int64_t count, int down, pair_##suffix *p, pair_##suffix *q) \
    { \
        for (int64_t j = 0; j < count; j += RUN) { \
            const int64_t n = count - j < RUN ? count - j : RUN; \
            first_##suffix(x, step, j, j + n, n, down, p + j); \
        } \
        for (int64_t width = RUN; width < count; width *= 2) { \
            for (int64_t j = 0; j < count; j += 2 * width) { \
                const int64_t middle = j + width < count ? j + width : count; \
                const int64_t end = j + 2 * width < count ? j + 2 * width : count; \
                int64_t a = j, b = middle; \
                for (int64_t k = j; k < end; k++) \
                    q[k] = b == end || (a < middle && !BEFORE(down, p[b].v, p[a].v)) ? p[a++] : p[b++]; \
            } \
            pair_##suffix *other = p; \
            p = q, q = other; \
        } \
        return p; \
    } \
    \
    static int order_##suffix(const ordered *s) \
    { \
        const int few = s->kept <= FEW; \
        pair_##suffix small[FEW], *room = small; \
        if (!few && !(room = malloc(2 * s->count * sizeof *room))) return NO_MEMORY; \
        for (int64_t o = 0; o < s->outer; o++) \
            for (int64_t i = 0; i < s->inner; i++) { \
                const type *x = (const type *)s->x + o * s->count * s->inner + i; \
                pair_##suffix *p = room; \
                if (few) \
                    first_##suffix(x, s->inner, 0, s->count, s->kept, s->descending, p); \
                else \
                    p = all_##suffix(x, s->inner, s->count, s->descending, p, p + s->count); \
                for (int64_t k = 0; k < s->kept; k++) { \
                    const int64_t to = (o * s->kept + k) * s->inner + i; \
                    if (s->values) ((type *)s->values)[to] = p[k].v; \
                    if (s->places) s->places[to] = p[k].at; \
                } \
            } \
        if (!few) free(room); \
        return DONE; \
    } \
    \
    static int64_t distinct_##suffix(const ordered *s) \
    { \
        type *x = s->values; \
        int64_t n = 0; \
        for (int64_t j = 0; j < s->kept; j++) \
            if (!n || BEFORE(0, x[n - 1], x[j])) x[n++] = x[j]; \
        return n; \
    }

/* Sums of whole numbers go around, as in NumPy: those of `sum_type` do. */
#define SUMS(type, sum_type, suffix) \
    static void sums_##suffix(const ordered *s) \
    { \
        const int64_t row = s->count * s->inner; \
        for (int64_t o = 0; o < s->outer; o++) { \
            const sum_type *x = (const sum_type *)s->x + o * row; \
            sum_type *sum = (sum_type *)s->values + o * row; \
            for (int64_t i = 0; i < s->inner; i++) sum[i] = x[i]; \
            for (int64_t i = s->inner; i < row; i++) sum[i] = sum[i - s->inner] + x[i]; \
        } \
    } \
    \
    static void add_##suffix(const ordered *s, int64_t to, int64_t from, int64_t n) \
    { \
        const sum_type *given = s->given; \
        sum_type *out = (sum_type *)s->values + to; \
        for (int64_t i = 0; i < n; i++) out[i] += given[s->one ? 0 : from + i]; \
    }

ORDER(float, float32)
ORDER(double, float64)
ORDER(int32_t, int32)
ORDER(int64_t, int64)
SUMS(float, float, float32)
SUMS(double, double, float64)
SUMS(int32_t, uint32_t, int32)
SUMS(int64_t, uint64_t, int64)

/* The first elements of each row in order, or where they were, or both. */
int mi_order(void *args, mi_pool_run_fn *pool, int threads)
{
    static int (*const of[])(const ordered *) = {order_float32, order_float64, order_int32, order_int64};
    const ordered *s = args;
    (void)pool, (void)threads;
    return s->kept ? of[s->dtype](s) : DONE;
}

/* The distinct elements of a row in order, of which there are `kept`. */
int mi_unique(void *args, mi_pool_run_fn *pool, int threads)
{
    static int64_t (*const of[])(const ordered *) = {distinct_float32, distinct_float64, distinct_int32, distinct_int64};
    ordered *s = args;
    const int status = mi_order(s, pool, threads);
    if (status == DONE) s->kept = of[s->dtype](s);
    return status;
}

/* The sums of each element and those before it. */
int mi_sums(void *args, mi_pool_run_fn *pool, int threads)
{
    static void (*const of[])(const ordered *) = {sums_float32, sums_float64, sums_int32, sums_int64};
    const ordered *s = args;
    (void)pool, (void)threads;
    if (s->count) of[s->dtype](s);
    return DONE;
}

static void written(const ordered *s, int64_t to, int64_t from, int64_t n)
{
    static void (*const of[])(const ordered *, int64_t, int64_t, int64_t) = {add_float32, add_float64, add_int32, add_int64};
    if (s->add) {
        of[s->dtype](s, to, from, n);
        return;
    }
    const size_t size = s->itemsize;
    char *out = (char *)s->values + to * size;
    if (!s->one) {
        memcpy(out, (const char *)s->given + from * size, n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++) memcpy(out + i * size, s->given, size);
}

/* The elements of x, in values. */
int mi_copy(void *args, mi_pool_run_fn *pool, int threads)
{
    const ordered *s = args;
    (void)pool, (void)threads;
    memmove(s->values, s->x, s->outer * s->count * s->inner * s->itemsize);
    return DONE;
}

/* The place that position n says, from the end if it is negative; less than 0, and noted, where there is none. */
static int64_t place_of(ordered *s, int64_t n)
{
    const int64_t at = s->wide ? ((const int64_t *)s->at)[n] : ((const int32_t *)s->at)[n];
    if (at >= -s->count && at < s->count) return at < 0 ? at + s->count : at;
    s->wrong = at;
    return -1;
}

/* x with values written, or added, where positions say, those counted from the end if they are negative. */
int mi_scatter(void *args, mi_pool_run_fn *pool, int threads)
{
    ordered *s = args;
    const int64_t row = s->count * s->inner, step = s->along ? 1 : s->inner;
    (void)pool, (void)threads;
    if (s->values != s->x) memcpy(s->values, s->x, s->outer * row * s->itemsize);
    /* in place, nothing is written where a position is wrong */
    for (int64_t k = 0; k < s->kept && s->values == s->x && !s->along; k++)
        if (place_of(s, k) < 0) return OUTSIDE;
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t k = 0; k < s->kept; k++)
            for (int64_t i = 0; i < s->inner; i += step) {
                const int64_t from = (o * s->kept + k) * s->inner + i, at = place_of(s, s->along ? from : k);
                if (at < 0) return OUTSIDE;
                written(s, o * row + at * s->inner + i, from, step);
            }
    return DONE;
}
