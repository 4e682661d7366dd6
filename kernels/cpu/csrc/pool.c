/* The thread pool: one per process, described in mirage_pool.h.
 *
 * The pool's state is one word: the number of the job, whether it is open, and how many workers are inside it. A worker
 * joins by incrementing an open word, so a worker that the system does not schedule holds nobody up: the caller takes
 * its cells, closes the job and waits only for those inside. Job fields change only while the word is closed and empty.
 */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "mirage_pool.h"

#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define MAX_THREADS 1024
#define CHUNKS_PER_THREAD 16
#define SPIN_NANOSECONDS 200000 /* waking a worker costs some 20 us: longer than what a program does between two kernels */
#define OPEN ((uint64_t)1 << 31)
#define INSIDE (OPEN - 1)
#define JOB(word) ((uint32_t)((word) >> 32))

typedef struct {
    void *memory;
    size_t bytes;
} buffer;

static struct {
    mi_cell *cell;
    void *args;
    long n_cells, chunk;
    int n_threads, n_shares;
    uint64_t number;    /* of all jobs since the start */
    atomic_int tickets; /* thread numbers handed out */
    buffer scratch[MAX_THREADS];
} job;

/* The cells are in as many shares as threads, few of them in one. `taken` counts the chunks of a share that were taken; above these
 * bits is the number of their job: what an earlier job left is no count of this one. Each has a cache line of its own: writing to
 * one that another thread writes to takes longer than a small cell. */
#define TAKEN_BITS 16
static struct {
    _Alignas(64) _Atomic uint64_t taken;
} shares[MAX_THREADS];
#define FEW 4 /* cells per thread, below which there is one share: looking at a second one takes longer than sharing the first */

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER; /* held by the call that uses the workers */
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static pthread_cond_t emptied = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t word;
static atomic_int sleepers;       /* workers in `opened` */
static atomic_int caller_waiting; /* the caller is in `emptied` */
static int n_workers;             /* guarded by `running`, as is what follows */
static pthread_t workers[MAX_THREADS];
static int away_from = -1; /* the processor that workers keep off */
static _Thread_local mi_parallel_fn *parallel; /* runs jobs of this thread in place of the workers */
static _Thread_local struct {
    int64_t *nanoseconds;
    int most, count;
} noted; /* what the jobs of this thread take, while somebody wants to know */
static int forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Scratch of calls that run on their own thread alone. */
static pthread_key_t own_scratch;
static _Thread_local int own_busy;

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int reserve(buffer *b, size_t bytes)
{
    if (b->bytes >= bytes) return 0;
    const size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = rounded < bytes ? NULL : aligned_alloc(64, rounded);
    if (!memory) return -1;
    free(b->memory);
    b->memory = memory;
    b->bytes = rounded;
    return 0;
}

/* The next chunk of a share of `count` chunks; -1 where all were taken. */
static long take_chunk(int share, long count)
{
    const uint64_t none = job.number << TAKEN_BITS;
    uint64_t taken = atomic_load_explicit(&shares[share].taken, memory_order_relaxed);
    long next;
    do {
        next = taken >> TAKEN_BITS == job.number ? (long)(taken - none) : 0;
        if (next >= count) return -1;
    } while (!atomic_compare_exchange_weak_explicit(
        &shares[share].taken, &taken, none + (uint64_t)next + 1, memory_order_relaxed, memory_order_relaxed
    ));
    return next;
}

/* Those of a thread's own share, then what is left of others'. */
static void take_cells(int thread)
{
    const int n = job.n_shares;
    for (int k = 0; k < n; k++) {
        const int share = (thread + k) % n;
        const long begin = job.n_cells * share / n, end = job.n_cells * (share + 1) / n;
        const long count = (end - begin + job.chunk - 1) / job.chunk;
        for (long chunk; (chunk = take_chunk(share, count)) >= 0;) {
            const long first = begin + chunk * job.chunk, last = end - first < job.chunk ? end : first + job.chunk;
            for (long i = first; i < last; i++) job.cell(job.args, i, thread, job.scratch[thread].memory);
        }
    }
}

static int is_new(uint64_t w, uint32_t last) { return (w & OPEN) && JOB(w) != last; }

/* The word of an open job other than `last`; spins a little, then sleeps. */
static uint64_t await_job(uint32_t last)
{
    const int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    uint64_t w;
    do {
        for (int i = 0; i < 32; i++) {
            w = atomic_load(&word);
            if (is_new(w, last)) return w;
            pause_core();
        }
    } while (nanoseconds() < until);
    pthread_mutex_lock(&sleeping);
    atomic_fetch_add(&sleepers, 1);
    while (!is_new(w = atomic_load(&word), last)) pthread_cond_wait(&opened, &sleeping);
    atomic_fetch_sub(&sleepers, 1);
    pthread_mutex_unlock(&sleeping);
    return w;
}

static void *work(void *last_job)
{
    uint32_t last = (uint32_t)(uintptr_t)last_job;
    for (;;) {
        uint64_t w = await_job(last);
        while (is_new(w, last)) {
            if (!atomic_compare_exchange_weak(&word, &w, w + 1)) continue;
            last = JOB(w);
            const int thread = atomic_fetch_add(&job.tickets, 1);
            if (thread < job.n_threads) take_cells(thread);
            if ((atomic_fetch_sub(&word, 1) & (OPEN | INSIDE)) == 1 && atomic_load(&caller_waiting)) {
                pthread_mutex_lock(&sleeping);
                pthread_cond_signal(&emptied);
                pthread_mutex_unlock(&sleeping);
            }
            break;
        }
    }
    return NULL;
}

static void await_empty(void)
{
    const int64_t until = nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (!(atomic_load(&word) & INSIDE)) return;
            pause_core();
        }
    } while (nanoseconds() < until);
    pthread_mutex_lock(&sleeping);
    atomic_store(&caller_waiting, 1);
    while (atomic_load(&word) & INSIDE) pthread_cond_wait(&emptied, &sleeping);
    atomic_store(&caller_waiting, 0);
    pthread_mutex_unlock(&sleeping);
}

/* The child of a fork has none of the workers; buffers in use at that moment are left behind. */
static void after_fork(void)
{
    running = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    sleeping = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    opened = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    emptied = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    atomic_store(&word, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&caller_waiting, 0);
    n_workers = 0;
    away_from = -1;
    parallel = NULL; /* would wait for its threads forever */
    forked = 1;
    for (int i = 0; i < MAX_THREADS; i++) job.scratch[i] = (buffer){NULL, 0};
}

static void free_own(void *b)
{
    free(((buffer *)b)->memory);
    free(b);
}

static void initialize(void)
{
    pthread_key_create(&own_scratch, free_own);
    pthread_atfork(NULL, NULL, after_fork);
}

/* Workers are optional, as the caller takes what they do not: one that cannot be created is done without. */
static void create_workers(int wanted)
{
    sigset_t all, before;
    if (n_workers >= wanted) return; /* two system calls are half of a launch */
    sigfillset(&all); /* signals belong to the application's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (n_workers < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)JOB(atomic_load(&word)))) break;
        pthread_detach(thread);
        workers[n_workers++] = thread;
        away_from = -1;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Systems like to wake a thread on the processor of the one that wakes it, where it then waits for the caller, which
 * computes: sleeping workers are sent to the others first. */
static void keep_off_caller(void)
{
#ifdef __linux__
    const int here = sched_getcpu();
    cpu_set_t others;
    if (here < 0 || here == away_from || sched_getaffinity(0, sizeof others, &others)) return;
    CPU_CLR(here, &others);
    if (!CPU_COUNT(&others)) return;
    for (int i = 0; i < n_workers; i++) pthread_setaffinity_np(workers[i], sizeof others, &others);
    away_from = here;
#endif
}

static int run_alone(mi_cell *cell, void *args, long n_cells, size_t scratch_bytes)
{
    buffer nested = {NULL, 0}, *b = &nested;
    const int outermost = !own_busy;
    if (outermost) {
        b = pthread_getspecific(own_scratch);
        if (!b) {
            b = calloc(1, sizeof *b);
            if (!b) return -1;
            if (pthread_setspecific(own_scratch, b)) {
                free(b);
                return -1;
            }
        }
    }
    if (reserve(b, scratch_bytes)) return -1;
    own_busy = 1;
    for (long i = 0; i < n_cells; i++) cell(args, i, 0, b->memory);
    if (outermost) own_busy = 0;
    free(nested.memory);
    return 0;
}

static void take_part(void *unused)
{
    (void)unused;
    const int thread = atomic_fetch_add(&job.tickets, 1);
    if (thread < job.n_threads) take_cells(thread);
}

static void run_with_workers(int n_threads)
{
    create_workers(n_threads - 1);
    atomic_store(&job.tickets, 1);
    const uint64_t number = (uint64_t)(JOB(atomic_load(&word)) + 1) << 32;
    atomic_store(&word, number | OPEN);
    if (atomic_load(&sleepers)) {
        keep_off_caller();
        pthread_mutex_lock(&sleeping);
        for (int i = 1; i < n_threads; i++) pthread_cond_signal(&opened);
        pthread_mutex_unlock(&sleeping);
    }
    take_cells(0);
    atomic_fetch_and(&word, ~OPEN);
    await_empty();
}

mi_parallel_fn *mi_pool_use(mi_parallel_fn *other)
{
    pthread_once(&once, initialize);
    mi_parallel_fn *const before = parallel;
    parallel = forked ? NULL : other;
    return before;
}

static int run(mi_cell *cell, void *args, long n_cells, int n_threads, size_t scratch_bytes)
{
    pthread_once(&once, initialize);
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    if (n_threads > n_cells) n_threads = (int)n_cells;
    if (n_threads <= 1 || pthread_mutex_trylock(&running)) return run_alone(cell, args, n_cells, scratch_bytes);

    for (int i = 0; i < n_threads; i++) {
        if (reserve(&job.scratch[i], scratch_bytes)) {
            pthread_mutex_unlock(&running);
            return -1;
        }
    }
    job.cell = cell;
    job.args = args;
    job.n_cells = n_cells;
    job.n_threads = n_threads;
    job.chunk = n_cells / ((long)n_threads * CHUNKS_PER_THREAD);
    if (job.chunk < 1) job.chunk = 1;
    job.n_shares = n_cells < (long)n_threads * FEW ? 1 : n_threads;
    job.number++;
    if (parallel) {
        atomic_store(&job.tickets, 0);
        parallel(take_part, NULL, (unsigned)n_threads, 0);
    } else {
        run_with_workers(n_threads);
    }
    pthread_mutex_unlock(&running);
    return 0;
}

mi_pool_run_fn mi_pool_run;

int mi_pool_run(mi_cell *cell, void *args, long n_cells, int n_threads, size_t scratch_bytes)
{
    if (!noted.nanoseconds) return run(cell, args, n_cells, n_threads, scratch_bytes);
    const int64_t start = nanoseconds();
    const int status = run(cell, args, n_cells, n_threads, scratch_bytes);
    if (noted.count < noted.most) noted.nanoseconds[noted.count] = nanoseconds() - start;
    noted.count++;
    return status;
}

/* From now on, note what each job of this thread takes, up to so many of them; NULL ends that. Returns how many jobs there were
 * since the last call. */
int mi_pool_note(int64_t *to, int most)
{
    const int count = noted.count;
    noted.nanoseconds = to;
    noted.most = most;
    noted.count = 0;
    return count;
}

/* ---- threads that are awake ---- */

#define PATIENCE_NANOSECONDS 1000000 /* until which a thread waits for others, which another call may have */

typedef struct {
    _Atomic int here;
    int all;
} meeting;

static void meet(void *args, long index, int thread, void *scratch)
{
    (void)index, (void)thread, (void)scratch;
    meeting *const m = args;
    atomic_fetch_add(&m->here, 1);
    const int64_t until = nanoseconds() + PATIENCE_NANOSECONDS;
    while (atomic_load(&m->here) < m->all && nanoseconds() < until) continue;
}

/* Returns when so many threads are awake, the caller among them. */
void mi_pool_wake(int n_threads)
{
    meeting m = {0, n_threads};
    mi_pool_run(meet, &m, n_threads, n_threads, 0);
}
