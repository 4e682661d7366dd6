/* The interface between generated kernels and the thread pool, which is a library of its own: a kernel's launcher is
 * given the address of mi_pool_run. */
#ifndef MIRAGE_POOL_H
#define MIRAGE_POOL_H

#include <stddef.h>

/* One cell of a grid. `thread` is in [0, n_threads), and no two cells run at once with the same one; `scratch` is that
 * thread's own, aligned to 64 bytes, with undefined contents. */
typedef void mi_cell(void *args, long index, int thread, void *scratch);

/* Runs cell(args, i, ...) for every i in [0, n_cells), on at most n_threads threads, the caller among them. Returns 0,
 * or -1, having run nothing, if there is no memory for the scratch. May be called from several threads, and from a
 * cell: while one call holds the pool, the others run on their own thread alone. */
typedef int mi_pool_run_fn(mi_cell *cell, void *args, long n_cells, int n_threads, size_t scratch_bytes);

/* Calls work(argument) on so many threads at once, the caller among them: GOMP_parallel of an OpenMP runtime. */
typedef void mi_parallel_fn(void (*work)(void *argument), void *argument, unsigned n_threads, unsigned flags);

/* Lets this function run what this thread runs from now on, instead of the pool's own workers; NULL ends that. Returns what did
 * before. A child of a fork has the workers only. */
mi_parallel_fn *mi_pool_use(mi_parallel_fn *parallel);

#endif
