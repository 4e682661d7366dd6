/* Attention: softmax(mask ? f(scale * q k^T) + bias : hidden) v for batches of heads, some keys after the other, so that no scores
 * leave the caches.
 *
 * A cell is some bands of BAND rows of a head. Running maxima and sums of each row make the softmax of all keys from those of some
 * (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). Keys that the bias
 * or the mask hides from all rows of a band are visited only where a row sees no others. Where rows are many, a cell copies a tile
 * of keys, a column each, and one of values, and reads the copies for all of its bands; tensors of 16 bits, of the type that MI_NARROW
 * names, become float32 in them, or pairs of bfloat16 where processors have sums of products of these, which shares are rounded for, too.
 * Keys and values that are those of a cache with others behind them are written tile by tile, just after they were read.
 * A row of no keys but hidden ones of -inf is NaN, as a softmax is. `f` is cap * tanh, or nothing. A sink is the score of a further
 * key of each row, whose values are 0.
 */
#define MI_REAL float
#ifndef MI_NARROW
#define MI_NARROW bfloat16
#endif
#include "mirage_bytes.h"
#include "mirage_gemm_block.h"
#include "mirage_math.h"
#include "mirage_pairs.h"
#include "mirage_pool.h"
#include "mirage_stream.h"

#include <string.h>

#define BAND 64  /* rows, */
#define KEYS 144 /* and keys of a tile, whole panels of them: scores stay in the first cache, or near it */
#define BANDS 4  /* of a cell, at most, that read a copy of a tile */
#define FEW 16   /* rows up to which keys are read as they lie */
#define PANEL (MI_BLOCK_VECTORS * MI_W) /* keys in a panel of columns */
#define NONE (-__builtin_inff())
#define HIDDEN -1e30f /* scores with a bias from here down are nothing beside those above SEEN, */
#define SEEN -1e29f
#define DROPPED -1e8f /* and those that a mask makes such a number nothing beside those above KEPT */
#define KEPT -1e7f
#define NO_PAGE 2 /* the status where an index is none of a page */
#define SHARED_WORK (256 * 1024) /* from so many products, another thread is worth the wait for it */

typedef struct {
    const void *q, *k, *v; /* elements of a row are side by side */
    const void *k_cache, *k_new, *v_cache, *v_new; /* or NULL: what is written to k and v, in order without gaps, as they are */
    const void *bias, *sink; /* or NULL */
    const long long *pages; /* or NULL: k and v are pools of pages of keys, and these are the pages of a batch, in order */
    const unsigned char *mask; /* or NULL: of each score, whether it stays, or, if `hiding`, whether it is `hidden` instead */
    void *out;             /* [batch, heads, rows, depth] */
    ptrdiff_t batch, heads, rows, keys, width, depth;
    ptrdiff_t cached; /* keys of the cache, */
    ptrdiff_t first;  /* and those in front of k and v */
    ptrdiff_t inner; /* rows of one head of the bias: heads of queries that share keys are one behind the other */
    ptrdiff_t q_step[3], k_step[3], v_step[3]; /* to the next batch, head, and row or key */
    ptrdiff_t pool, page, table_step, k_page, v_page; /* pages in all, keys of one, and steps to the next batch and page */
    ptrdiff_t bias_step[4], sink_step[3], mask_step[4]; /* to the next batch, head, row, and key: 0 where it is the same */
    float scale, cap, hidden; /* cap is 0 for nothing */
    int hiding, half; /* all tensors but the mask and the pages are of MI_NARROW */
    long long wrong; /* the index that is none of a page, where there is one */
} attention;

typedef struct {
    const attention *a;
    ptrdiff_t rows, parts; /* rows of a cell, whole bands, and cells of a head */
    const attention *cache, *behind; /* what is read up to the last key of the cache, and from there on: its k and v */
    int appends, past;     /* cells write the keys that they read, past the caches */
} cells;

/* What a cell works on: copies of tiles in float32, or NULL where tensors are read as they lie, scores of a band, sums of values, and
 * of each row the maximum and the sum of its shares. With `shares`, copies and shares are of bfloat16, pairs of terms in a float. */
typedef struct {
    ptrdiff_t *starts, *masks; /* of the bias and of the mask of each row */
    float *q, *k, *columns, *v, *scores, *shares, *sums, *most, *total;
} workspace;

static ptrdiff_t whole(ptrdiff_t n) { return (n + MI_W - 1) / MI_W * MI_W; }

/* Whether so many rows of a cell are multiplied as pairs of bfloat16: of keys, whole pairs lie side by side. */
static int is_paired(const attention *a, ptrdiff_t rows)
{
    return MI_PAIRS && a->half && !a->pages && rows > FEW && a->width % 2 == 0 && a->k_step[2] % 2 == 0;
}

/* Lays the workspace of a cell of so many rows out in `memory`, which is NULL if only its size, in bytes, is asked for. */
static size_t lay_out(const attention *a, ptrdiff_t rows, float *memory, workspace *r)
{
    const ptrdiff_t band = rows < BAND ? rows : BAND, width = whole(a->width), depth = whole(a->depth);
    const ptrdiff_t many = rows > FEW, pairs = is_paired(a, rows), half = a->half && !pairs, terms = 1 + pairs;
    const ptrdiff_t copied = half || a->pages;
    const ptrdiff_t sizes[] = {
        2 * rows * (ptrdiff_t)(sizeof(ptrdiff_t) / sizeof(float)), half * rows * width, copied * KEYS * width,
        many * KEYS * width / terms, (copied || many) * KEYS * depth / terms, band * KEYS, pairs * band * KEYS / 2, rows * depth,
        rows, rows,
    };
    float *starts, **const parts[] = {
        &starts, &r->q, &r->k, &r->columns, &r->v, &r->scores, &r->shares, &r->sums, &r->most, &r->total,
    };
    ptrdiff_t at = 0;
    for (int i = 0; i < 10; i++) {
        if (memory) *parts[i] = sizes[i] ? memory + at : NULL;
        at += whole(sizes[i]);
    }
    if (memory) r->starts = (ptrdiff_t *)starts, r->masks = r->starts + rows;
    return (size_t)at * sizeof(float);
}

static ptrdiff_t element_bytes(const attention *a) { return a->half ? (ptrdiff_t)sizeof(mi_narrow) : (ptrdiff_t)sizeof(float); }

/* Rows of a tensor from element `at` on as float32, `step` elements apart: in `copy`, where rows are whole vectors, or, where that
 * is NULL, as they lie. Rows from element `next` on are fetched meanwhile. */
static const float *rows_of(
    const attention *a, const void *tensor, ptrdiff_t at, ptrdiff_t next, ptrdiff_t rows, ptrdiff_t width, float *copy,
    ptrdiff_t *step)
{
    const ptrdiff_t bytes = element_bytes(a);
    if (!copy) return (const float *)tensor + at;
    const ptrdiff_t apart = whole(width);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t from = at + i * *step;
        const char *later = (const char *)tensor + (next + i * *step) * bytes;
        for (ptrdiff_t j = 0; next != at && j < width * bytes; j += 64) __builtin_prefetch(later + j);
        for (ptrdiff_t j = 0; j < width; j += MI_W) {
            const int n = width - j < MI_W ? (int)(width - j) : MI_W;
            const mi_narrow *half = (const mi_narrow *)tensor + from + j;
            mi_store(copy + i * apart + j, a->half ? mi_load_narrow_n(half, n) : mi_load_n((const float *)tensor + from + j, n));
        }
    }
    *step = apart;
    return copy;
}

/* So many keys from one on, and their values, NULL before they are read. */
typedef struct {
    const float *k, *v;
    ptrdiff_t k_step, v_step, batch, head, from, keys;
} tile;

/* Where a key of the tile's head lies, or its value: a multiple of the steps of the tensor, and of pages. */
MI_INLINE ptrdiff_t place_of(const attention *a, const tile *t, const ptrdiff_t *step, ptrdiff_t page_step, ptrdiff_t key)
{
    const ptrdiff_t head = t->head * step[1];
    if (!a->pages) return t->batch * step[0] + head + (key - a->first) * step[2];
    const long long page = a->pages[t->batch * a->table_step + key / a->page];
    return (ptrdiff_t)(page < 0 ? page + a->pool : page) * page_step + head + key % a->page * step[2];
}

/* The keys of a tile, or its values, `apart` elements apart; see `rows_of`. Those of pages are copied, while those of the next page,
 * where a processor does not expect them, are fetched. */
static const float *tile_of(
    const attention *a, const tile *t, const void *tensor, const ptrdiff_t *step, ptrdiff_t page_step, ptrdiff_t width, float *copy,
    ptrdiff_t *apart)
{
    const float *first = NULL;
    for (ptrdiff_t i = 0, n; i < t->keys; i += n) {
        const ptrdiff_t key = t->from + i, left = a->pages ? a->page - key % a->page : t->keys;
        n = left < t->keys - i ? left : t->keys - i;
        *apart = step[2];
        const ptrdiff_t at = place_of(a, t, step, page_step, key);
        const ptrdiff_t next = a->pages && key + n < a->keys ? place_of(a, t, step, page_step, key + n) : at;
        const float *rows = rows_of(a, tensor, at, next, n, width, copy ? copy + i * whole(width) : NULL, apart);
        if (!first) first = rows;
    }
    return first;
}

/* The next n <= MI_W elements of a row of the bias. */
MI_INLINE mi_vec bias_of(const attention *a, ptrdiff_t at, int n)
{
    if (a->half) {
        const mi_narrow *p = (const mi_narrow *)a->bias + at;
        return a->bias_step[3] ? mi_load_narrow_n(p, n) : mi_broadcast_narrow(p);
    }
    const float *p = (const float *)a->bias + at;
    return a->bias_step[3] ? mi_load_n(p, n) : mi_broadcast(*p);
}

/* Where a row's part of a tensor starts whose heads are those of the bias. */
MI_INLINE ptrdiff_t start_of(const attention *a, const ptrdiff_t *step, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t row)
{
    const ptrdiff_t own = head * (a->rows / a->inner) + row / a->inner;
    return batch * step[0] + own * step[1] + row % a->inner * step[2];
}

/* An element of a tensor. */
MI_INLINE float element(const attention *a, const void *tensor, ptrdiff_t at)
{
    return a->half ? mi_broadcast_narrow((const mi_narrow *)tensor + at)[0] : ((const float *)tensor)[at];
}

/* Which of the next n <= MI_W scores of a row the mask leaves as they are. */
MI_INLINE mi_ivec mask_of(const attention *a, ptrdiff_t at, int n)
{
    const unsigned char *p = a->mask + at;
    const mi_ivec set = a->mask_step[3] ? mi_load_bytes_n(p, n) != 0 : (mi_ivec){0} - (*p != 0);
    return a->hiding ? ~set : set;
}

/* Whether bias and mask hide keys, so many from `key` on, from so many rows of a cell from `row` on. */
static int hides(const attention *a, const workspace *r, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t key, ptrdiff_t keys)
{
    const mi_vec least = mi_broadcast(HIDDEN), dropped = mi_broadcast(a->hidden <= DROPPED ? NONE : 0);
    if (!a->bias && !a->mask) return 0;
    for (const ptrdiff_t end = row + rows, first = row; row < end; row++) {
        mi_ivec seen = {0};
        if (row > first && r->starts[row] == r->starts[row - 1] && r->masks[row] == r->masks[row - 1]) continue;
        for (ptrdiff_t j = 0; j < keys; j += MI_W) {
            const int n = keys - j < MI_W ? (int)(keys - j) : MI_W;
            mi_vec v = {0};
            if (a->bias) v = bias_of(a, r->starts[row] + (key + j) * a->bias_step[3], n);
            if (a->mask) v = mi_select(mask_of(a, r->masks[row] + (key + j) * a->mask_step[3], n), v, dropped);
            seen |= ~(mi_fill_tail(v, n, least) <= least);
        }
        if (mi_hmax(mi_select(seen, mi_broadcast(1), (mi_vec){0})) > 0) return 0;
    }
    return 1;
}

/* Makes shares of the scores of a row, of so many keys, beside the largest of all so far: the factor of what was summed before.
 * They are in place of the scores, or in `shares`, as MI_NARROW. */
static float share(
    const attention *a, float *scores, mi_narrow *shares, ptrdiff_t keys, ptrdiff_t bias_at, ptrdiff_t mask_at, float *most,
    float *total)
{
    const mi_vec scale = mi_broadcast(a->scale), none = mi_broadcast(NONE), hidden = mi_broadcast(a->hidden);
    (void)shares; /* where there are no pairs */
    mi_vec largest = none, sum = {0};
    for (ptrdiff_t j = 0; j < keys; j += MI_W) {
        const int n = keys - j < MI_W ? (int)(keys - j) : MI_W;
        mi_vec v = mi_load(scores + j) * scale;
        if (a->cap != 0) v = mi_fn_tanh(v) * a->cap;
        if (a->bias) v += bias_of(a, bias_at + j * a->bias_step[3], n);
        if (a->mask) v = mi_select(mask_of(a, mask_at + j * a->mask_step[3], n), v, hidden);
        if (n < MI_W) v = mi_fill_tail(v, n, none);
        mi_store(scores + j, v);
        largest = mi_max(v, largest);
    }
    const float own = mi_hmax(largest), above = own > *most ? own : *most;
    const mi_vec shift = mi_broadcast(above == NONE ? 0 : above);
    for (ptrdiff_t j = 0; j < keys; j += MI_W) {
        const mi_vec v = mi_exp_falling(mi_load(scores + j) - shift);
        sum += v;
#if MI_PAIRS
        if (shares) {
            mi_store_pairs(shares + j, v);
            continue;
        }
#endif
        mi_store(scores + j, v);
    }
    const float factor = *most == above ? 1 : mi_exp_falling(mi_broadcast(*most - above))[0];
    *total = *total * factor + mi_hsum(sum);
    *most = above;
    return factor;
}

/* Lays keys out as columns of pairs along their width, and values as rows of pairs of keys, the last one filled up. */
static void read_pairs(const attention *a, const workspace *r, const mi_narrow *k, const mi_narrow *v, ptrdiff_t keys)
{
    const ptrdiff_t pairs = a->width / 2, k_step = a->k_step[2], v_step = a->v_step[2], apart = whole(a->depth);
    for (ptrdiff_t i = 0; i < keys; i += PANEL) {
        const ptrdiff_t n = keys - i < PANEL ? keys - i : PANEL;
        mi_transpose(n, pairs, (const float *)(k + i * k_step), k_step / 2, r->columns + i * pairs, PANEL);
    }
    for (ptrdiff_t i = 0; i < keys; i += 2, v += 2 * v_step) {
        for (ptrdiff_t j = 0; j < a->depth; j += MI_W) {
            const int n = a->depth - j < MI_W ? (int)(a->depth - j) : MI_W;
            /* the bits of a bfloat16 are the upper half of a float */
            const mi_uvec first = (mi_uvec)mi_load_narrow_n(v + j, n) >> 16;
            const mi_uvec second = i + 1 < keys ? (mi_uvec)mi_load_narrow_n(v + v_step + j, n) : (mi_uvec){0};
            mi_store(r->v + i / 2 * apart + j, (mi_vec)(first | second));
        }
    }
}

/* Reads a tile, and makes columns of its keys in a workspace that has them. */
static void read_keys(const attention *a, const workspace *r, tile *t)
{
    if (r->shares) {
        const mi_narrow *k = (const mi_narrow *)a->k + place_of(a, t, a->k_step, 0, t->from);
        const mi_narrow *v = (const mi_narrow *)a->v + place_of(a, t, a->v_step, 0, t->from);
        read_pairs(a, r, k, v, t->keys);
        t->v = r->v;
        return;
    }
    t->k = tile_of(a, t, a->k, a->k_step, a->k_page, a->width, r->k, &t->k_step);
    t->v = tile_of(a, t, a->v, a->v_step, a->v_page, a->depth, r->v, &t->v_step);
    for (ptrdiff_t i = 0; r->columns && i < t->keys; i += PANEL) {
        const ptrdiff_t n = t->keys - i < PANEL ? t->keys - i : PANEL;
        mi_transpose(n, a->width, t->k + i * t->k_step, t->k_step, r->columns + i * a->width, PANEL);
    }
}

/* Makes the scores of a tile for so many rows of a cell from `row` on. */
static void score(
    const attention *a, const workspace *r, const void *q, ptrdiff_t q_step, ptrdiff_t row, ptrdiff_t rows, const tile *t)
{
    const float *x = (const float *)q + row * q_step;
    if (!r->columns) mi_gemm_dot(rows, a->width, t->keys, x, q_step, t->k, t->k_step, r->scores, KEYS, 0);
    for (ptrdiff_t i = 0; r->columns && i < t->keys; i += PANEL) {
        const ptrdiff_t n = t->keys - i < PANEL ? whole(t->keys - i) : PANEL;
#if MI_PAIRS
        if (r->shares) {
            const mi_narrow *pairs = (const mi_narrow *)q + row * q_step;
            mi_gemm_pairs(rows, a->width / 2, n, pairs, q_step, r->columns + i * (a->width / 2), PANEL, r->scores + i, KEYS, 0);
            continue;
        }
#endif
        mi_gemm_outer(rows, a->width, n, x, q_step, 1, r->columns + i * a->width, PANEL, r->scores + i, KEYS, 0);
    }
}

/* Adds the values of a tile, in their shares, to the sums of so many rows of a cell from `row` on; `more` after the first ones. */
static void add_keys(
    const attention *a, const workspace *r, const void *q, ptrdiff_t q_step, ptrdiff_t row, ptrdiff_t rows, const tile *t, int more)
{
    const ptrdiff_t apart = whole(a->depth);
    float *sums = r->sums + row * apart;
    mi_narrow *shares = (mi_narrow *)r->shares;
    score(a, r, q, q_step, row, rows, t);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t bias_at = a->bias ? r->starts[row + i] + t->from * a->bias_step[3] : 0;
        mi_narrow *to = shares ? shares + i * KEYS : NULL;
        const ptrdiff_t mask_at = r->masks[row + i] + t->from * a->mask_step[3];
        float *most = r->most + row + i, *total = r->total + row + i;
        const float factor = share(a, r->scores + i * KEYS, to, t->keys, bias_at, mask_at, most, total);
        float *row_sums = sums + i * apart;
        for (ptrdiff_t j = 0; more && factor != 1 && j < apart; j += MI_W) mi_store(row_sums + j, mi_load(row_sums + j) * factor);
    }
#if MI_PAIRS
    if (shares) {
        mi_gemm_pairs(rows, (t->keys + 1) / 2, apart, shares, KEYS, r->v, apart, sums, apart, more);
        return;
    }
#endif
    mi_gemm_outer(rows, t->keys, a->depth, r->scores, KEYS, 1, t->v, t->v_step, sums, apart, more);
}

/* Writes so many rows, which lie in order without gaps. */
static void copy_rows(void *to, const void *from, size_t bytes, int past)
{
    if (!past) memcpy(to, from, bytes);
    else for (size_t i = 0; i < bytes; i += MI_PIECE) mi_stream((char *)to + i, (const char *)from + i, MI_PIECE);
}

/* Writes keys of a head, so many from one on, which are all of the cache, or all behind it, and their values. */
static void append(const attention *a, ptrdiff_t head, ptrdiff_t from, ptrdiff_t keys, int past)
{
    const int old = from < a->cached;
    const ptrdiff_t count = old ? a->cached : a->keys - a->cached, first = old ? from : from - a->cached;
    const void *const of[] = {old ? a->k_cache : a->k_new, old ? a->v_cache : a->v_new}, *const to[] = {a->k, a->v};
    const ptrdiff_t widths[] = {a->width, a->depth};
    for (int i = 0; i < 2; i++) {
        const ptrdiff_t row = widths[i] * element_bytes(a);
        char *out = (char *)to[i] + (head * a->keys + from) * row;
        copy_rows(out, (const char *)of[i] + (head * count + first) * row, (size_t)(keys * row), past);
    }
}

/* Keys of a tile from one on. */
static ptrdiff_t tile_keys(const attention *a, ptrdiff_t from)
{
    const ptrdiff_t left = (from < a->cached ? a->cached : a->keys) - from;
    return left < KEYS ? left : KEYS;
}

/* Tiles of so many keys. */
static ptrdiff_t tiles_of(ptrdiff_t keys) { return (keys + KEYS - 1) / KEYS; }

static void append_tile(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const cells *c = args;
    const attention *a = c->a;
    const ptrdiff_t old = tiles_of(a->cached), tiles = old + tiles_of(a->keys - a->cached), tile = index % tiles;
    const ptrdiff_t from = tile < old ? tile * KEYS : a->cached + (tile - old) * KEYS;
    append(a, index / tiles, from, tile_keys(a, from), c->past);
    if (c->past) mi_flush_stream();
}

static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const cells *c = args;
    const attention *a = c->a;
    /* heads that share a bias or a mask follow each other, while it is in a cache */
    const int shared = (a->bias || a->mask) && !a->bias_step[1] && !a->mask_step[1];
    const float seen = a->mask ? KEPT : SEEN;
    const ptrdiff_t part = shared ? index / a->heads % c->parts : index % c->parts, row = part * c->rows;
    const ptrdiff_t head = shared ? index % a->heads : index / c->parts % a->heads, batch = index / c->parts / a->heads;
    const ptrdiff_t left = a->rows - row, rows = left < c->rows ? left : c->rows, apart = whole(a->depth);
    workspace r;
    lay_out(a, c->rows, scratch, &r);
    ptrdiff_t q_step = a->q_step[2], done[BANDS] = {0};
    const ptrdiff_t q_at = batch * a->q_step[0] + head * a->q_step[1] + row * q_step;
    const void *q = (const mi_narrow *)a->q + q_at;
    if (!r.shares) q = rows_of(a, a->q, q_at, q_at, rows, a->width, r.q, &q_step);
    for (ptrdiff_t i = 0; i < rows; i++) {
        r.most[i] = a->sink ? element(a, a->sink, start_of(a, a->sink_step, batch, head, row + i)) : NONE;
        r.total[i] = a->sink ? 1 : 0;
        r.starts[i] = a->bias ? start_of(a, a->bias_step, batch, head, row + i) : 0;
        r.masks[i] = a->mask ? start_of(a, a->mask_step, batch, head, row + i) : 0;
    }
    for (int hidden = 0; hidden < 2; hidden++) {
        int blind[BANDS] = {0};
        for (ptrdiff_t i = 0; i < rows; i++) blind[i / BAND] |= done[i / BAND] < a->keys && (!hidden || r.most[i] < seen);
        for (tile t = {.batch = batch, .head = head}; t.from < a->keys; t.from += t.keys) {
            t.keys = tile_keys(a, t.from);
            for (ptrdiff_t b = 0, at = 0; at < rows; b++, at += BAND) {
                const ptrdiff_t n = rows - at < BAND ? rows - at : BAND;
                if (!blind[b] || hides(a, &r, at, n, t.from, t.keys) != hidden) continue;
                if (!t.v) read_keys(t.from < a->cached ? c->cache : c->behind, &r, &t);
                add_keys(a, &r, q, q_step, at, n, &t, done[b] > 0);
                done[b] += t.keys;
            }
            t.v = NULL;
            if (c->appends && !hidden) append(a, batch * a->heads + head, t.from, t.keys, c->past);
        }
    }
    if (c->past) mi_flush_stream();
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t to = ((batch * a->heads + head) * a->rows + row + i) * a->depth;
        const mi_vec total = mi_broadcast(r.most[i] == NONE ? __builtin_nanf("") : r.total[i]);
        for (ptrdiff_t j = 0; j < a->depth; j += MI_W) {
            const int n = a->depth - j < MI_W ? (int)(a->depth - j) : MI_W;
            const mi_vec v = done[i / BAND] ? mi_load(r.sums + i * apart + j) / total : (mi_vec){0};
            if (a->half) mi_store_narrow_n((mi_narrow *)a->out + to + j, v, n);
            else mi_store_n((float *)a->out + to + j, v, n);
        }
    }
}

/* The attention that is asked for, of at least one key and element of the result. By `run`, mi_pool_run; its status, or NO_PAGE. */
int mi_attention(attention *a, mi_pool_run_fn *run, int n_threads)
{
    workspace unused;
    const ptrdiff_t tables = a->pages ? (a->table_step ? a->batch : 1) * (a->keys / a->page) : 0;
    for (ptrdiff_t i = 0; i < tables; i++) {
        a->wrong = a->pages[i];
        if (a->wrong < -a->pool || a->wrong >= a->pool) return NO_PAGE;
    }
    const ptrdiff_t heads = a->batch * a->heads, bands = (a->rows + BAND - 1) / BAND;
    if (heads * a->rows * a->keys * (a->width + a->depth) < SHARED_WORK) n_threads = 1;
    ptrdiff_t side = BANDS;
    /* cells for all threads to end together */
    while (side > 1 && heads * ((bands + side - 1) / side) < 4 * n_threads) side /= 2;
    cells c = {a, a->rows < BAND ? a->rows : side * BAND, (bands + side - 1) / side, a, a, 0, 0};
    attention cache = *a, behind = *a;
    if (a->k_cache) {
        const ptrdiff_t bytes = element_bytes(a), added = a->keys - a->cached;
        c.past = a->width * bytes % MI_PIECE == 0 && a->depth * bytes % MI_PIECE == 0 && (uintptr_t)a->v % MI_PIECE == 0 &&
                 mi_past_caches(a->k, a->k_cache, (size_t)(heads * a->cached * a->width * bytes));
        /* one cell of a head may write what it reads, if there are cells for all threads */
        c.appends = c.parts == 1 && heads >= 2 * n_threads;
        if (c.appends) {
            const ptrdiff_t steps[][3] = {{a->heads * a->cached, a->cached, 1}, {a->heads * added, added, 1}};
            for (int i = 0; i < 3; i++) {
                cache.k_step[i] = steps[0][i] * a->width, cache.v_step[i] = steps[0][i] * a->depth;
                behind.k_step[i] = steps[1][i] * a->width, behind.v_step[i] = steps[1][i] * a->depth;
            }
            cache.k = a->k_cache, cache.v = a->v_cache, behind.k = a->k_new, behind.v = a->v_new, behind.first = a->cached;
            c.cache = &cache, c.behind = &behind;
        } else if (run(append_tile, &c, heads * (tiles_of(a->cached) + tiles_of(added)), n_threads, 0)) {
            return -1;
        }
    }
    return run(cell, (void *)&c, heads * c.parts, n_threads, lay_out(a, c.rows, NULL, &unused));
}
