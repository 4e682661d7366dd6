/* Loops that do nothing but move memory, or nothing but multiply and add: the machine's limits. */
#include "mirage_pool.h"
#include "mirage_stream.h"
#include "mirage_vec.h"

#include <time.h>

#define PARTS 12 /* sums side by side: more than latency times throughput of an addition, fewer than registers */

typedef struct {
    mi_real *data;
    long n;       /* elements per cell, a multiple of PARTS * MI_W */
    long stride;  /* elements from one cell's first to the next one's */
    long repeats; /* multiply-adds in each register */
    long *times;  /* nanoseconds that each cell took */
} job;

static long nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The sums leave through the thread's scratch, so that no compiler drops them. */
static void keep(const mi_vec *sum, void *scratch)
{
    mi_vec all = {0};
    MI_UNROLL for (int i = 0; i < PARTS; i++) all += sum[i];
    mi_store(scratch, all);
}

static void fill_cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    mi_real *p = j->data + index * j->stride;
    (void)thread, (void)scratch;
    for (long i = 0; i < j->n; i++) p[i] = 1;
}

/* The cell in `streams` parts side by side, each fetched `ahead` elements before it is needed, past the caches. */
static inline __attribute__((always_inline)) void read_streams(
    const job *j, long index, void *scratch, const int streams, const long ahead)
{
    const mi_real *p = j->data + index * j->stride;
    const long part = j->n / streams, step = PARTS / streams * MI_W;
    mi_vec sum[PARTS];
    MI_UNROLL for (int i = 0; i < PARTS; i++) sum[i] = (mi_vec){0};
    const long start = nanoseconds();
    MI_NO_UNROLL for (long at = 0; at < part; at += step)
    {
        MI_UNROLL for (int i = 0; i < PARTS; i++)
        {
            const mi_real *q = p + i % streams * part + at + i / streams * MI_W;
            if (ahead) __builtin_prefetch(q + ahead, 0, 0);
            sum[i] += mi_load(q);
        }
    }
    keep(sum, scratch);
    j->times[index] = nanoseconds() - start;
}

#define AHEAD (2048 / (long)sizeof(mi_real))
#define READER(name, streams, ahead)                                                                                   \
    static void name(void *args, long index, int thread, void *scratch)                                                \
    {                                                                                                                  \
        (void)thread;                                                                                                  \
        read_streams(args, index, scratch, streams, ahead);                                                            \
    }
READER(read_ahead, 1, AHEAD)
READER(read_streams_4, 4, 0)

/* The first half of the cell into the second one, past the caches: memory may take writes while it gives what is read. */
static void copy_cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    mi_real *p = j->data + index * j->stride;
    const long step = PARTS * MI_W, half = j->n / step / 2 * step;
    (void)thread, (void)scratch;
    const long start = nanoseconds();
    MI_NO_UNROLL for (long at = 0; at < half; at += step)
    {
        MI_UNROLL for (int i = 0; i < PARTS; i++)
        {
            const mi_vec v = mi_load(p + at + i * MI_W);
            mi_stream(p + half + at + i * MI_W, &v, sizeof v);
        }
    }
    mi_flush_stream();
    j->times[index] = nanoseconds() - start;
}

static void multiply_cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    const mi_vec a = mi_broadcast(j->data[0]), b = mi_broadcast(j->data[1]);
    mi_vec sum[PARTS];
    (void)thread;
    MI_UNROLL for (int i = 0; i < PARTS; i++) sum[i] = mi_broadcast((mi_real)i);
    const long start = nanoseconds();
    MI_NO_UNROLL for (long r = 0; r < j->repeats; r++)
    {
        MI_UNROLL for (int i = 0; i < PARTS; i++) sum[i] = sum[i] * a + b;
    }
    keep(sum, scratch);
    j->times[index] = nanoseconds() - start;
}

/* Elements that one pass through a loop handles. */
long mi_limits_step(void) { return PARTS * MI_W; }

int mi_limits_run(
    mi_pool_run_fn *run, int what, mi_real *data, long *times, long cells, long n, long stride, long repeats, int threads)
{
    mi_cell *const cell[] = {fill_cell, multiply_cell, read_ahead, read_streams_4, copy_cell};
    job j = {data, n, stride, repeats, times};
    return run(cell[what], &j, cells, threads, sizeof(mi_vec));
}
