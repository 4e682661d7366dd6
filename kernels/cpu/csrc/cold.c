/* What it takes to time a call whose arrays are in no cache: described in cold.py. */
#include "mirage_pool.h"

#include <stdatomic.h>
#include <time.h>

#define LINE 64
#define PATIENCE_NANOSECONDS 1000000 /* until which a thread waits for others, which another call may have */

/* Whether lines can be flushed here. */
int mi_can_flush(void)
{
#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
    return 1;
#else
    return 0;
#endif
}

/* Leaves the bytes in no cache of any core; they are written to memory first where they have changed. */
void mi_flush(const char *from, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += LINE) __builtin_ia32_clflush(from + i);
    if (bytes) __builtin_ia32_clflush(from + bytes - 1);
    __builtin_ia32_mfence();
#elif defined(__aarch64__) && defined(__linux__)
    for (size_t i = 0; i < bytes; i += LINE) __asm__ volatile("dc civac, %0" : : "r"(from + i) : "memory");
    if (bytes) __asm__ volatile("dc civac, %0" : : "r"(from + bytes - 1) : "memory");
    __asm__ volatile("dsb sy" : : : "memory");
#else
    (void)from, (void)bytes;
#endif
}

typedef struct {
    _Atomic int here;
    int all;
} meeting;

static long nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void meet(void *args, long index, int thread, void *scratch)
{
    (void)index, (void)thread, (void)scratch;
    meeting *const m = args;
    atomic_fetch_add(&m->here, 1);
    const long until = nanoseconds() + PATIENCE_NANOSECONDS;
    while (atomic_load(&m->here) < m->all && nanoseconds() < until) continue;
}

/* Returns when as many threads of the pool are awake, this one among them. */
void mi_wake(mi_pool_run_fn *pool, int threads)
{
    meeting m = {0, threads};
    pool(meet, &m, threads, threads, 0);
}
