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

/* One part of a loop, with all that its rounds refer to. */
typedef struct {
    long begin[N], *turns[2], index, count, bad, places, *rows, *items;
    void **list, *tensors[6];
    next args[3];
    row stored[3];
    launch launches[6];
    pointer pointers[15], each[3];
    item of[2];
    rounds r;
} example;

static example *example_of(long count, long bad, long places, int listed)
{
    example *l = calloc(1, sizeof *l);
    l->count = count, l->bad = bad, l->places = places, l->index = -1;
    for (int k = 0; k < 2; k++) l->turns[k] = malloc(sizeof l->begin);
    l->rows = calloc((size_t)(2 * places * N), sizeof *l->rows);
    /* the first row is of no round */
    l->items = calloc((size_t)((count + 1) * N), sizeof *l->items);
    l->list = calloc((size_t)count + 1, sizeof *l->list);
    for (long i = 0; i < count * N; i++) l->items[N + i] = i / N;
    for (long i = 0; i < count; i++) l->list[i] = l->items + (i + 1) * N;
    /* the tensors: the index, what the loop begins with, the two turns, the rows, the items */
    void *const tensors[] = {&l->index, l->begin, l->turns[0], l->turns[1], l->rows, l->items};
    memcpy(l->tensors, tensors, sizeof tensors);
    for (long k = 0; k < 3; k++) {
        const long to = 2 + k % 2, from = k ? 5 - to : 1;
        l->args[k] = (next){NULL, NULL, NULL, before(bad)};
        l->each[k] = (pointer){(void **)&l->args[k].item, 1};
        l->stored[k] = (row){NULL, NULL, NULL, places};
        l->launches[2 * k] = (launch){advance, l->args + k};
        l->launches[2 * k + 1] = (launch){store, l->stored + k};
        pointer *p = l->pointers + 5 * k;
        p[0] = (pointer){(void **)&l->args[k].from, from};
        p[1] = (pointer){(void **)&l->args[k].to, to};
        p[2] = (pointer){(void **)&l->stored[k].x, 4};
        p[3] = (pointer){(void **)&l->stored[k].values, to};
        p[4] = (pointer){(void **)&l->stored[k].at, 0};
    }
    l->of[1] = (item){listed ? l->list : NULL, 5, N * sizeof(long), N * sizeof(long)};
    l->r = (rounds){l->launches, l->pointers, l->tensors, l->each, l->of, 2, 15, 3, &l->index, -1, NULL, 0};
    return l;
}

static void end(example *l)
{
    free(l->rows), free(l->turns[0]), free(l->turns[1]), free(l->items), free(l->list), free(l);
}

/* What it has to be after all rounds, or those that ended with this status; frees it. */
static void examine(example *l, int status)
{
    const long count = l->count, bad = l->bad, places = l->places;
    const long whole = bad < count && bad < places ? bad : places < count ? places : count;
    must(status == (whole == count ? 0 : whole == bad ? 7 : 1), "a wrong status");
    if (whole < count) must(l->index == whole && l->r.failed == (whole == bad ? 0 : 1), "a wrong launch");
    for (long i = 0; i < places; i++) {
        for (long j = 0; j < N; j++) must(l->rows[i * N + j] == (i < whole ? before(i + 1) : 0), "a wrong row");
    }
    end(l);
}

static void check(long count, long bad, long places, int listed, int threads)
{
    example *l = example_of(count, bad, places, listed);
    /* in two parts, as signals have their turn between them */
    int status = mi_rounds(&l->r, 0, count / 2, mi_pool_run, threads);
    if (!status) status = mi_rounds(&l->r, count / 2, count, mi_pool_run, threads);
    examine(l, status);
}

/* A loop of two parts several times, by some rounds and as a launch, and once with a part that fails. */
static void check_loop(long count, int threads)
{
    loop l = {.n = 2, .n_given = 4, .count = count};
    given of[] = {{sizeof(long[N]), 0}, {sizeof(long[N]), 1}, {sizeof(long[N]), 1}, {(long)sizeof(long) * count * N, 1}};
    for (int k = 0; k < 8; k++) {
        const long bad = k == 7 ? 1 : 100;
        example *parts[] = {example_of(count, 100, count, 0), example_of(count, bad, count, 1)};
        rounds *all[] = {&parts[0]->r, &parts[1]->r};
        long left[N] = {0};
        result results[] = {{(const char *)parts[0]->rows, (count - 1) * N * (long)sizeof(long), (char *)left, sizeof left}};
        l.parts = all, l.given = of, l.results = results, l.n_results = k % 2;
        int status = k % 2 ? mi_loop_launch(&l, mi_pool_run, threads) : mi_loop(&l, 0, count / 2, mi_pool_run, threads);
        if (!(k % 2)) status = status || mi_loop(&l, count / 2, count, mi_pool_run, threads);
        must(status == (bad < count ? 7 : 0), "a wrong status");
        if (status) must(l.failed == 1, "a wrong part");
        else must(left[N - 1] == (k % 2 ? before(count) : 0), "a wrong result");
        if (status && threads == 1) must(parts[0]->index == count - 1, "the first part did not end");
        for (int j = 0; j < 2; j++) examine(parts[j], all[j]->status);
    }
    const int wanted[] = {threads <= 2 ? threads == 1 : 1, threads > 1};
    for (int k = 0; k < 2; k++) must((l.calls[k] >= TRIED) == wanted[k], "not measured");
}

/* Rows that are where the tensor lies that the loop begins with. */
static void check_shared(long count, int threads)
{
    for (long by = -1; by < 2; by++) {
        example *part = example_of(count, 100, count, 0);
        rounds *all[] = {&part->r};
        /* the loop begins with what is just before the rows, with the first, or with what is just behind them */
        long *memory = calloc((size_t)(count + 2) * N, sizeof *memory), *rows = memory + N;
        part->tensors[4] = rows, part->tensors[1] = by < 0 ? memory : by ? rows + count * N : rows;
        const given of[] = {{sizeof(long[N]), 0}, {1, 0}, {1, 0}, {(long)sizeof(long) * count * N, 1}};
        loop l = {.parts = all, .given = of, .n = 1, .n_given = 4, .count = count};
        must(mi_loop_launch(&l, mi_pool_run, threads) == (by ? 0 : SHARED), "a wrong status");
        must(part->index == (by ? count - 1 : -1) && rows[N] == (by ? before(2) : 0), "rounds that must not run");
        free(memory), end(part);
    }
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
        if (count > 1) check_loop(count, threads), check_shared(count, threads);
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
