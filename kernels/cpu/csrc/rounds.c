/* All rounds of a loop as launches of compiled code: described in rounds.py. */
#include "mirage_array.h"
#include "mirage_pool.h"

#include <string.h>
#include <time.h>

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

/* A tensor that is another one in each round: those of a list, or what is at `offset` bytes of a tensor in the first round, and
 * `step` further in each after it. */
typedef struct {
    void *const *list;
    long tensor, offset, step;
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
            *r->each[k].to = of->list ? of->list[i] : (char *)r->tensors[of->tensor] + of->offset + i * of->step;
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

/* What a loop leaves in a tensor: bytes from `offset` on of another one. */
typedef struct {
    const char *from;
    long offset;
    char *to;
    long bytes;
} result;

/* A tensor among those that a loop is given, and its bytes. `alone`: no other one may share memory with it. */
typedef struct {
    long bytes;
    int alone;
} given;

/* A loop whose body has parts that need nothing of one another; each has the tensors in an array of its own. The first ones behind
 * the index are given. */
typedef struct {
    rounds *const *parts;
    const given *given;
    const result *results;
    long n, n_given, n_results, count;
    double seconds[2]; /* of a round, the least of so many calls, of parts one after the other and side by side */
    long calls[2];
    long failed; /* the part whose launch failed */
} loop;

/* Calls that are made in each of two ways before the faster one is known; what a loop ends with that may not run. */
enum { TRIED = 3, SHARED = -100 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether tensors that must be alone share no memory with others that the loop is given. */
static int are_apart(const loop *l)
{
    const char *const *tensors = (const char *const *)l->parts[0]->tensors + 1;
    for (long j = 0; j < l->n_given; j++) {
        if (!l->given[j].alone) continue;
        for (long k = 0; k < l->n_given; k++) {
            const int meet = tensors[k] < tensors[j] + l->given[j].bytes && tensors[j] < tensors[k] + l->given[k].bytes;
            if (k != j && meet) return 0;
        }
    }
    return 1;
}

/* Whether parts run side by side: threads that no part would have are worth a measurement. */
static int is_together(const loop *l, int threads)
{
    if (l->n == 1 || threads <= l->n) return l->n > 1 && threads > 1;
    const long least = l->calls[0] < l->calls[1] ? l->calls[0] : l->calls[1];
    return least < TRIED ? l->calls[1] == least : l->seconds[1] <= l->seconds[0];
}

/* Rounds of all parts. */
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

/* The rounds from `first` on, up to `end`, 0 if all went well; SHARED before the first one, if tensors share memory that must not;
 * else the status of the launch that failed, of the part `failed`. */
int mi_loop(loop *l, long first, long end, mi_pool_run_fn *pool, int threads)
{
    if (!first && !are_apart(l)) return SHARED;
    const double start = now();
    int together = is_together(l, threads);
    if (together) {
        side_by_side s = {l->parts, first, end};
        for (long i = 0; i < l->n; i++) l->parts[i]->pool = pool;
        /* without memory for the pool, nothing ran */
        together = !pool(rounds_of_one, &s, l->n, threads, 0);
    }
    for (long i = 0; i < l->n; i++) {
        rounds *part = l->parts[i];
        if (!together) part->status = mi_rounds(part, first, end, pool, threads);
        if (part->status) {
            l->failed = i;
            return part->status;
        }
    }
    const double seconds = (now() - start) / (double)(end - first);
    if (!l->calls[together]++ || seconds < l->seconds[together]) l->seconds[together] = seconds;
    return 0;
}

/* The loop as a launch: all rounds, and what they leave. */
int mi_loop_launch(void *args, mi_pool_run_fn *pool, int threads)
{
    loop *l = args;
    const int status = mi_loop(l, 0, l->count, pool, threads);
    for (long k = 0; !status && k < l->n_results; k++) {
        const result *r = l->results + k;
        memcpy(r->to, r->from + r->offset, (size_t)r->bytes);
    }
    return status;
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
