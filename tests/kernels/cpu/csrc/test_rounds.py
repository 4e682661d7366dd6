"""Rounds of launches in C under the sanitizers, beside the loop that they mean."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.sanitize import BEGIN, BUILDS, FOREIGN, check_caught, check_clean

SOURCE = BEGIN + r"""
#include "rounds.c"

#define N 5

/* to = from + item + 1, of N cells; fails where a number is `bad` */
typedef struct {
    const long *from, *item;
    long *to;
    long bad;
} next;

static void cell(void *args, long i, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    next *a = args;
    a->to[i] = a->from[i] + a->item[i] + 1;
}

static int advance(void *args, mi_pool_run_fn *pool, int threads)
{
    next *a = args;
    if (a->from[0] == a->bad) return 7;
    return pool(cell, a, N, threads, 64);
}

/* writes a row of what it is told */
typedef struct {
    long *x;
    const long *values, *at;
    long extent;
} row;

static int store(void *args, mi_pool_run_fn *pool, int threads)
{
    const row *r = args;
    (void)pool, (void)threads;
    if (*r->at >= r->extent) return 1;
    memcpy(r->x + *r->at * N, r->values, N * sizeof(long));
    return 0;
}

/* what there is before round i, of which the item is i */
static long before(long i) { return i + i * (i - 1) / 2; }

static void check(long count, long bad, long places, int listed, int threads)
{
    long begin[N] = {0}, *turns[2] = {malloc(sizeof begin), malloc(sizeof begin)}, index = -1;
    long *rows = calloc((size_t)(2 * places * N), sizeof *rows);
    long *items = calloc((size_t)(count * N + 1), sizeof *items);
    void **list = calloc((size_t)count + 1, sizeof *list);
    next args[3];
    row stored[3];
    launch launches[6];
    pointer pointers[15], each[3];
    for (long i = 0; i < count * N; i++) items[i] = i / N;
    for (long i = 0; i < count; i++) list[i] = items + i * N;
    /* the tensors: the index, what the loop begins with, the two turns, the rows */
    void *const tensors[] = {&index, begin, turns[0], turns[1], rows};
    for (long k = 0; k < 3; k++) {
        const long to = 2 + k % 2, from = k ? 5 - to : 1;
        args[k] = (next){NULL, NULL, NULL, before(bad)};
        each[k] = (pointer){(void **)&args[k].item, 1};
        stored[k] = (row){NULL, NULL, NULL, places};
        launches[2 * k] = (launch){advance, args + k};
        launches[2 * k + 1] = (launch){store, stored + k};
        pointer *p = pointers + 5 * k;
        p[0] = (pointer){(void **)&args[k].from, from};
        p[1] = (pointer){(void **)&args[k].to, to};
        p[2] = (pointer){(void **)&stored[k].x, 4};
        p[3] = (pointer){(void **)&stored[k].values, to};
        p[4] = (pointer){(void **)&stored[k].at, 0};
    }
    const item of[2] = {{NULL, NULL, 0}, {listed ? list : NULL, (char *)items, N * sizeof(long)}};
    rounds r = {launches, pointers, tensors, each, of, 2, 15, 3, &index, -1};
    /* in two parts, as signals have their turn between them */
    int status = mi_rounds(&r, 0, count / 2, mi_pool_run, threads);
    if (!status) status = mi_rounds(&r, count / 2, count, mi_pool_run, threads);
    const long whole = bad < count && bad < places ? bad : places < count ? places : count;
    must(status == (whole == count ? 0 : whole == bad ? 7 : 1), "a wrong status");
    if (whole < count) must(index == whole && r.failed == (whole == bad ? 0 : 1), "a wrong launch");
    for (long i = 0; i < places; i++) {
        for (long j = 0; j < N; j++) must(rows[i * N + j] == (i < whole ? before(i + 1) : 0), "a wrong row");
    }
    free(rows), free(turns[0]), free(turns[1]), free(items), free(list);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    for (long count = 0; count < 9; count++) {
        for (int listed = 0; listed < 2; listed++) {
            check(count, 100, 9, listed, threads);
            check(count, 4, 9, listed, threads);
            check(count, 100, 6, listed, threads);
        }
    }
    return 0;
}
"""


@pytest.mark.parametrize(("build", "threads"), [("address", "1"), ("thread", "3"), ("native", "2")])
def test_under_sanitizers(build: str, threads: str) -> None:
    assert build in BUILDS
    check_clean(build, SOURCE, threads)


@pytest.mark.parametrize("build", FOREIGN)
def test_by_other_compilers(build: str) -> None:
    check_clean(build, SOURCE, "2")


def test_a_row_that_is_not_there_is_found() -> None:
    wrong = SOURCE.replace("2 * places * N", "(places - 1) * N")
    check_caught("address", wrong, "1", text="heap-buffer-overflow")
