"""The thread pool under ThreadSanitizer and AddressSanitizer: many callers at once, nested calls, forks."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.sanitize import check_caught, check_clean
from tests.sampled import crossed

SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mirage_pool.h"

mi_pool_run_fn mi_pool_run; /* of pool.c */

static void must(int fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "%s\n", what);
    fflush(stderr);
    _exit(3);
}

typedef struct {
    long *visits;
    int n_threads, nested;
    size_t scratch_bytes;
} state;

static void jobs(unsigned seed, int count, int nested, long most);

/* Everything here is plain memory: whatever two threads share without order is a race. */
static void visit(void *args, long index, int thread, void *scratch)
{
    state *s = args;
    s->visits[index]++;
    must(thread >= 0 && thread < s->n_threads && (uintptr_t)scratch % 64 == 0, "wrong thread or scratch");
    memset(scratch, (int)index, s->scratch_bytes);
    if (s->nested) jobs((unsigned)index, 2, s->nested - 1, 5);
    for (size_t i = 0; i < s->scratch_bytes; i++) must(((char *)scratch)[i] == (char)index, "scratch is shared");
}

/* Calls one after another, of all numbers of threads and of cells up to `most`. */
static void jobs(unsigned seed, int count, int nested, long most)
{
    static const int threads[] = {1, 2, 5, 3, 1, 4, 2, 7};
    static const long cells[] = {0, 1, 2, 33, 100, 7, 64, 3, 250};
    for (int k = 0; k < count; k++) {
        seed = seed * 1103515245u + 12345u;
        const long some = cells[seed / 65536 % 9], n = some < most ? some : most;
        long visits[250] = {0};
        state s = {visits, threads[seed / 1048576 % 8], nested, seed / 256 % 3000};
        must(!mi_pool_run(visit, &s, n, s.n_threads, s.scratch_bytes), "no memory");
        for (long i = 0; i < n; i++) must(visits[i] == 1, "a cell did not run once");
    }
}

static mi_parallel_fn *used; /* by every caller */

static void *caller(void *number)
{
    mi_pool_use(used);
    jobs((unsigned)(uintptr_t)number, 60, 0, 250);
    return NULL;
}

static void at_once(int callers)
{
    pthread_t threads[8];
    for (int i = 0; i < callers; i++) must(!pthread_create(threads + i, NULL, caller, (void *)(uintptr_t)i), "thread");
    for (int i = 0; i < callers; i++) pthread_join(threads[i], NULL);
}

static void forks(int count)
{
    for (int i = 0; i < count; i++) {
        const pid_t child = fork();
        must(child >= 0, "no fork");
        if (!child) {
            must(!mi_pool_use(used) && !mi_pool_use(NULL), "a team in a child");
            jobs((unsigned)i, 20, 1, 10);
            _exit(0);
        }
        jobs((unsigned)i, 20, 0, 250);
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child failed");
    }
}

/* What an OpenMP runtime does; a child of a fork must never come here. */
static pid_t home;

typedef struct {
    void (*work)(void *);
    void *argument;
} task;

static void *begin(void *t)
{
    ((task *)t)->work(((task *)t)->argument);
    return NULL;
}

static void team(void (*work)(void *), void *argument, unsigned n_threads, unsigned flags)
{
    must(getpid() == home && n_threads > 1 && !flags, "wrong team");
    task t = {work, argument};
    pthread_t threads[8];
    for (unsigned i = 1; i < n_threads; i++) must(!pthread_create(threads + i, NULL, begin, &t), "thread");
    work(argument);
    for (unsigned i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
}

/* What the sanitizer has to find: cells that add to one number. */
static void add(void *args, long index, int thread, void *scratch)
{
    (void)index, (void)thread, (void)scratch;
    for (int i = 0; i < 1000; i++) ++*(volatile long *)args;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    home = getpid();
    if (argc > 2) used = team;
    must(!mi_pool_use(used) && mi_pool_use(used) == used, "what ran before");
    if (!strcmp(what, "in a row")) {
        jobs(1, 200, 0, 250);
        usleep(20000); /* the workers sleep */
        jobs(2, 50, 0, 250);
    } else if (!strcmp(what, "nested")) jobs(3, 10, 2, 40);
    else if (!strcmp(what, "at once")) at_once(5);
    else if (!strcmp(what, "fork")) {
        jobs(4, 50, 0, 250);
        forks(8);
    } else if (!strcmp(what, "fork among callers")) {
        pthread_t other;
        must(!pthread_create(&other, NULL, caller, NULL), "thread");
        forks(8);
        pthread_join(other, NULL);
    } else if (!strcmp(what, "new callers")) {
        for (int i = 0; i < 4; i++) at_once(2);
    } else if (!strcmp(what, "race")) {
        long sum = 0;
        for (int i = 0; i < 20; i++) mi_pool_run(add, &sum, 500, 2, 0);
    } else must(0, "what?");
    return 0;
}
"""

WHAT = ["in a row", "nested", "at once", "new callers"]
#: ThreadSanitizer does not support threads that a child of several threads starts; AddressSanitizer's allocator, unlike
#: libc's, may be locked for ever in a child whose parent's other threads allocate
FORKS = [("fork", "address"), ("fork among callers", "native")]


@pytest.mark.parametrize(("what", "build"), [*crossed(WHAT, ["thread", "address"]), *FORKS])
def test_the_pool(what: str, build: str) -> None:
    check_clean(build, SOURCE, what)


@pytest.mark.parametrize(
    ("what", "build"), [("in a row", "thread"), ("at once", "thread"), ("nested", "address"), ("fork", "address")]
)
def test_the_threads_of_another_runtime(what: str, build: str) -> None:
    check_clean(build, SOURCE, what, "team")


def test_a_race_is_found() -> None:
    check_caught("thread", SOURCE, "race", text="data race")
