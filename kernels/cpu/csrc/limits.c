/* Loops that do nothing but move memory, or nothing but multiply and add: the machine's limits. */
#include "mirage_pool.h"
#include "mirage_read.h"
#include "mirage_stream.h"

#include <time.h>

typedef struct {
    mi_real *data;
    long n;       /* elements per cell, a multiple of MI_PARTS * MI_W */
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

static void fill_cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    mi_real *p = j->data + index * j->stride;
    (void)thread, (void)scratch;
    for (long i = 0; i < j->n; i++) p[i] = 1;
}

#define READER(name, streams, ahead)                                                                                   \
    static void name(void *args, long index, int thread, void *scratch)                                                \
    {                                                                                                                  \
        const job *j = args;                                                                                           \
        (void)thread;                                                                                                  \
        const long start = nanoseconds();                                                                              \
        mi_store(scratch, mi_read(j->data + index * j->stride, j->n, streams, ahead));                                 \
        j->times[index] = nanoseconds() - start;                                                                       \
    }
READER(read_ahead, 1, MI_AHEAD)
READER(read_streams_4, 4, 0)

/* The first half of the cell into the second one, past the caches: memory may take writes while it gives what is read. */
static void copy_cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    mi_real *p = j->data + index * j->stride;
    const long step = MI_PARTS * MI_W, half = j->n / step / 2 * step;
    (void)thread, (void)scratch;
    const long start = nanoseconds();
    MI_NO_UNROLL for (long at = 0; at < half; at += step)
    {
        MI_UNROLL for (int i = 0; i < MI_PARTS; i++)
        {
            const mi_vec v = mi_load(p + at + i * MI_W);
            mi_stream(p + half + at + i * MI_W, &v, sizeof v);
        }
    }
    mi_flush_stream();
    j->times[index] = nanoseconds() - start;
}

#define SUMS 12 /* as many as two units of five cycles have on their way, and no more than there are registers for */

static void multiply_cell(void *args, long index, int thread, void *scratch)
{
    const job *j = args;
    const mi_vec a = mi_broadcast(j->data[0]), b = mi_broadcast(j->data[1]);
    mi_vec sum[SUMS];
    (void)thread;
    MI_UNROLL for (int i = 0; i < SUMS; i++) sum[i] = mi_broadcast((mi_real)i);
    const long start = nanoseconds();
    MI_NO_UNROLL for (long r = 0; r < j->repeats; r++)
    {
        MI_UNROLL for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * a + b;
    }
    /* the sums leave through the thread's scratch, so that no compiler drops them */
    MI_UNROLL for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
    mi_store(scratch, sum[0]);
    j->times[index] = nanoseconds() - start;
}

/* Elements that one pass through a loop that moves memory handles, and multiply-adds of one that multiplies. */
long mi_limits_step(void) { return MI_PARTS * MI_W; }
long mi_limits_multiplied(void) { return SUMS * MI_W; }

int mi_limits_run(
    mi_pool_run_fn *run, int what, mi_real *data, long *times, long cells, long n, long stride, long repeats, int threads)
{
    mi_cell *const cell[] = {fill_cell, multiply_cell, read_ahead, read_streams_4, copy_cell};
    job j = {data, n, stride, repeats, times};
    return run(cell[what], &j, cells, threads, sizeof(mi_vec));
}
