/* All rounds of a loop as launches of compiled code: described in rounds.py. */
#include "mirage_array.h"
#include "mirage_pool.h"

#include <string.h>

/* A launcher with its arguments; what it returns is 0 unless it failed. */
typedef struct {
    int (*run)(void *args, mi_pool_run_fn *pool, int threads);
    void *args;
} launch;

/* A pointer among the arguments of a launcher, and the tensor that it is to point to. */
typedef struct {
    void **to;
    long tensor;
} pointer;

/* A tensor that is another one in each round: those of a list, or rows of a tensor, `step` bytes apart. */
typedef struct {
    void *const *list;
    char *rows;
    long step;
} item;

typedef struct {
    const launch *launches; /* of the first round, of odd and of even ones, `count` of each */
    const pointer *pointers;
    void *const *tensors;
    const pointer *each; /* those that point to items */
    const item *items;
    long count, n_pointers, n_each;
    long *index;  /* the number of the round */
    long failed;  /* the launch that failed */
    mi_pool_run_fn *pool; /* of rounds side by side, and what they ended with */
    int status;
} rounds;

/* The rounds from `first` on, up to `end`; the status of the launch that failed, which ends them, or 0. */
int mi_rounds(rounds *r, long first, long end, mi_pool_run_fn *pool, int threads)
{
    if (!first) {
        for (long i = 0; i < r->n_pointers; i++) *r->pointers[i].to = r->tensors[r->pointers[i].tensor];
    }
    for (long i = first; i < end; i++) {
        const launch *l = r->launches + (i ? 2 - i % 2 : 0) * r->count;
        *r->index = i;
        for (long k = 0; k < r->n_each; k++) {
            const item *of = r->items + r->each[k].tensor;
            *r->each[k].to = of->list ? of->list[i] : of->rows + i * of->step;
        }
        for (long k = 0; k < r->count; k++) {
            const int status = l[k].run(l[k].args, pool, threads);
            if (status) {
                r->failed = k;
                return status;
            }
        }
    }
    return 0;
}

/* Rounds of several loops that need nothing of one another. */
typedef struct {
    rounds *const *of;
    long first, end;
} side_by_side;

static void rounds_of_one(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const side_by_side *s = args;
    rounds *own = s->of[index];
    own->status = mi_rounds(own, s->first, s->end, own->pool, 1);
}

/* The same rounds of n loops, each on a thread of its own where the pool has one; their statuses are in each. */
int mi_rounds_side_by_side(rounds *const *of, long n, long first, long end, mi_pool_run_fn *pool, int threads)
{
    side_by_side s = {of, first, end};
    for (long i = 0; i < n; i++) of[i]->pool = pool;
    return pool(rounds_of_one, &s, n, threads, 0);
}

/* What a tensor has to be, and its place among those of the launches. */
typedef struct {
    const object *dtype;
    long nd;
    const long *dims;
    long tensor;
} expected;

/* Take the tensors for the launches from objects, from number `first` on; the number of the first one that is not dense, or not an
 * array as is expected, `n` where all are. */
long mi_rounds_take(
    object *const *objects, const expected *e, long first, long n, const object *ndarray, long header, void **tensors
)
{
    for (long k = first; k < n; k++) {
        if (type_at(objects[k], header) != ndarray) return k;
        const array *a = array_at(objects[k], header);
        if (a->dtype != e[k].dtype || a->nd != e[k].nd || !is_dense(a)) return k;
        for (long i = 0; i < e[k].nd; i++) {
            if (a->dims[i] != e[k].dims[i]) return k;
        }
        tensors[e[k].tensor] = a->data;
    }
    return n;
}
