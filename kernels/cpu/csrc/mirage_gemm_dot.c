/* mi_gemm_dot: see mirage_gemm.h. */
#include "mirage_gemm_block.h"

/* Partial sums over interleaved parts of k, where MI_W sums alone would wait for each other. */
#define MI_DOT_PARTS (MI_W <= 4 ? 2 : 1)

/* o[MR,NC] with MR * NC == MI_W; of the NC columns the first `columns` exist. MR, NC and FETCH are constants; with FETCH, as
 * many bytes of what follows on y are fetched as are read. */
MI_INLINE void mi_dot_tile(
    const int MR, const int NC, const int FETCH, ptrdiff_t k, int columns, const mi_real *x, ptrdiff_t xs_m, const mi_real *y,
    ptrdiff_t ys_n, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec sum[MI_DOT_PARTS][MI_W];
    const mi_real *xr[MI_W], *yr[MI_W];
    MI_UNROLL for (int i = 0; i < MR; i++) xr[i] = x + i * xs_m;
    MI_UNROLL for (int j = 0; j < NC; j++) yr[j] = y + (j < columns ? j : columns - 1) * ys_n;
    MI_UNROLL for (int i = 0; i < MI_DOT_PARTS * MI_W; i++) sum[i / MI_W][i % MI_W] = (mi_vec){0};
    const char *next = (const char *)y + MI_AHEAD;
    ptrdiff_t at = 0;
    MI_NO_UNROLL for (; at + MI_DOT_PARTS * MI_W <= k; at += MI_DOT_PARTS * MI_W)
    {
        MI_UNROLL for (int p = 0; p < MI_DOT_PARTS; p++)
        {
            mi_vec xv[MI_W];
            MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_load(xr[i] + at + p * MI_W);
            MI_UNROLL for (int j = 0; j < NC; j++)
            {
                if (FETCH && j * MI_VEC_BYTES % MI_LINE == 0) mi_fetch(MI_LINE, next + j * MI_VEC_BYTES);
                mi_vec yv = mi_load(yr[j] + at + p * MI_W);
                if (MR > 1) MI_IN_REGISTER(yv);
                MI_UNROLL for (int i = 0; i < MR; i++) sum[p][i * NC + j] += xv[i] * yv;
            }
            next += NC * MI_VEC_BYTES;
        }
    }
    MI_NO_UNROLL for (; at < k; at += MI_W)
    {
        const mi_mask mask = mi_mask_n(k - at < MI_W ? (int)(k - at) : MI_W);
        mi_vec xv[MI_W];
        MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_load_mask(xr[i] + at, mask);
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            mi_vec yv = mi_load_mask(yr[j] + at, mask);
            MI_UNROLL for (int i = 0; i < MR; i++) sum[0][i * NC + j] += xv[i] * yv;
        }
    }
    MI_UNROLL for (int p = 1; p < MI_DOT_PARTS; p++)
    {
        MI_UNROLL for (int i = 0; i < MI_W; i++) sum[0][i] += sum[p][i];
    }
    mi_vec total = mi_hsum_each(sum[0]);
    if (MR == 1) {
        if (accumulate) total += mi_load_n(o, columns);
        mi_store_n(o, total, columns);
        return;
    }
    mi_real lanes[MI_W];
    mi_store(lanes, total);
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            if (j < columns) o[i * os_m + j] = accumulate ? o[i * os_m + j] + lanes[i * NC + j] : lanes[i * NC + j];
        }
    }
}

/* All n columns of MR rows. */
#define MI_DOT_ROWS(MR, FETCH, name) \
    MI_NOINLINE void name( \
        ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n, mi_real *o, \
        ptrdiff_t os_m, int accumulate) \
    { \
        enum { NC = MI_W / MR }; \
        for (ptrdiff_t j = 0; j < n; j += NC) { \
            const int columns = n - j < NC ? (int)(n - j) : NC; \
            mi_dot_tile(MR, NC, FETCH, k, columns, x, xs_m, y + j * ys_n, ys_n, o + j, os_m, accumulate); \
        } \
    }
MI_DOT_ROWS(1, 0, mi_dot_1)
MI_DOT_ROWS(2, 0, mi_dot_2)
MI_DOT_ROWS(1, 1, mi_dot_1_fetching)
MI_DOT_ROWS(2, 1, mi_dot_2_fetching)

/* The first two rows may `fetch`. */
MI_NOINLINE void mi_dot_few(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate, int fetch)
{
    for (; m > 1; m -= 2, x += 2 * xs_m, o += 2 * os_m, fetch = 0) {
        (fetch ? mi_dot_2_fetching : mi_dot_2)(k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
    }
    if (m) (fetch ? mi_dot_1_fetching : mi_dot_1)(k, n, x, xs_m, y, ys_n, o, os_m, accumulate);
}

/* More rows: lane i * P + p of a vector has x[i,t * P + p], for P = MI_W / MR and some t, and multiplies P elements of
 * a row of y, repeated: few horizontal sums are left, of P lanes. */

typedef long long mi_pair_int __attribute__((aligned(MI_REAL_BYTES), may_alias));
typedef long long mi_pairs __attribute__((vector_size(MI_VEC_BYTES)));
typedef mi_real mi_quad __attribute__((vector_size(16), aligned(MI_REAL_BYTES), may_alias));

#if defined(__has_builtin)
#if MI_VEC_BYTES == 64 && __has_builtin(__builtin_ia32_broadcastf32x4_512)
typedef float mi_four_floats __attribute__((vector_size(16)));
typedef float mi_floats __attribute__((vector_size(64)));
#define MI_REPEAT_16_BYTES(v) (mi_vec) __builtin_ia32_broadcastf32x4_512((mi_four_floats)(v), (mi_floats){0}, -1)
#endif
#endif
#ifndef MI_REPEAT_16_BYTES
#define MI_LANE_OF_16_(l, h) ((l) % (16 / MI_REAL_BYTES))
#define MI_REPEAT_16_BYTES(v) __builtin_shufflevector(v, v, MI_LANES(MI_LANE_OF_16_, 0))
#endif

/* p[P] in all lanes, over and over. */
MI_INLINE mi_vec mi_repeat(const int P, const mi_real *p)
{
    if (P == 1) return mi_broadcast(*p);
    if (P * MI_REAL_BYTES == 8) return (mi_vec)(*(const mi_pair_int *)p - (mi_pairs){0});
    return MI_REPEAT_16_BYTES(*(const mi_quad *)p);
}

#define MI_DOT_STEPS 256 /* of x at once: as many vectors, 16 KiB */
#define MI_DOT_COLUMNS (MI_W >= 8 ? MI_W : 8) /* sums side by side: no multiply-add waits for the last one */

/* o[rows,MI_DOT_COLUMNS] (+)= x y for x of `steps` vectors; what is read is a PART-th of what is fetched, if any. */
MI_INLINE void mi_dot_block(
    const int MR, const int PART, ptrdiff_t steps, const mi_real *x, const mi_real *y, ptrdiff_t ys_n,
    const char *next, mi_real *o, ptrdiff_t os_m, int rows, int accumulate)
{
    const int P = MI_W / MR, FETCH = PART ? MI_DOT_COLUMNS * P * MI_REAL_BYTES / PART : 0;
    mi_vec sum[MI_DOT_COLUMNS];
    const mi_real *four[MI_DOT_COLUMNS / 4]; /* the first of every four rows of y */
    ptrdiff_t s1 = ys_n * MI_REAL_BYTES, s3 = 3 * s1;
    MI_UNROLL for (int q = 0; q < MI_DOT_COLUMNS / 4; q++) four[q] = y + 4 * q * ys_n;
    MI_UNROLL for (int j = 0; j < MI_DOT_COLUMNS; j++) sum[j] = (mi_vec){0};
    MI_NO_UNROLL for (; steps > 0; steps--)
    {
        __asm__("" : "+r"(s1), "+r"(s3)); /* opaque, or the compiler wants a register for each row of y */
        const ptrdiff_t offset[4] = {0, s1, 2 * s1, s3};
        const mi_vec xv = mi_load(x);
        mi_fetch(FETCH, next);
        next += FETCH;
        MI_UNROLL for (int j = 0; j < MI_DOT_COLUMNS; j++)
        {
            sum[j] += xv * mi_repeat(P, (const mi_real *)((const char *)four[j / 4] + offset[j % 4]));
        }
        MI_UNROLL for (int q = 0; q < MI_DOT_COLUMNS / 4; q++) four[q] += P;
        x += MI_W;
    }
    MI_UNROLL for (int g = 0; g < MI_DOT_COLUMNS / MI_W; g++)
    {
        mi_vec *part = sum + g * MI_W, v[MI_W];
#define MI_STEP(h) \
    MI_UNROLL for (int j = 0; h < P && j < MI_W; j++) \
    { \
        if (j % P < h) part[j] = MI_KEEP(part[j], part[j + h], h) + MI_SWAP(part[j], part[j + h], h); \
    }
        MI_BITS(MI_STEP)
#undef MI_STEP
        MI_UNROLL for (int i = 0; i < MR; i++) v[i] = part[i * P];
        mi_transpose_groups(MR, v);
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            mi_real *to = o + i * os_m + g * MI_W;
            if (i < rows) mi_store(to, accumulate ? v[i] + mi_load(to) : v[i]);
        }
    }
}

/* to = x[rows,kc] as mi_dot_block wants it; rows that do not exist are zeros. */
MI_INLINE void mi_dot_pack(const int MR, int rows, ptrdiff_t kc, const mi_real *x, ptrdiff_t xs_m, mi_vec *to)
{
    const int P = MI_W / MR;
    for (ptrdiff_t at = 0; at < kc; at += MI_W) {
        const mi_mask mask = mi_mask_n(kc - at < MI_W ? (int)(kc - at) : MI_W);
        mi_vec v[MI_W];
        MI_UNROLL for (int i = 0; i < MR; i++) v[i] = i < rows ? mi_load_mask(x + i * xs_m + at, mask) : (mi_vec){0};
        mi_transpose_groups(MR, v);
        MI_UNROLL for (int i = 0; i < MR; i++) to[at / P + i] = v[i];
    }
}

typedef struct {
    ptrdiff_t k, n; /* n columns, whole blocks of them */
    const mi_real *x;
    const mi_real *y;
    ptrdiff_t ys_n;
    const char *next;
    mi_real *o;
    ptrdiff_t os_m;
    int rows, accumulate;
} mi_dot_args;

MI_INLINE void mi_dot_columns(const int MR, const int PART, const mi_dot_args *a)
{
    const char *next = a->next;
    for (ptrdiff_t j = 0; j < a->n; j += MI_DOT_COLUMNS) {
        mi_dot_block(
            MR, PART, a->k / (MI_W / MR), a->x, a->y + j * a->ys_n, a->ys_n, next, a->o + j, a->os_m, a->rows,
            a->accumulate);
        if (PART) next += a->k * MI_DOT_COLUMNS * MI_REAL_BYTES / PART;
    }
}

typedef struct {
    int rows;
    void (*pack)(int rows, ptrdiff_t kc, const mi_real *x, ptrdiff_t xs_m, mi_vec *to);
    void (*columns[3])(const mi_dot_args *); /* with nothing, all, or half of what follows fetched */
} mi_dot;

#define MI_DOT(MR) \
    MI_NOINLINE void mi_dot_pack_##MR(int rows, ptrdiff_t kc, const mi_real *x, ptrdiff_t xs_m, mi_vec *to) \
    { \
        mi_dot_pack(MR, rows, kc, x, xs_m, to); \
    } \
    MI_NOINLINE void mi_dot_columns_##MR(const mi_dot_args *a) { mi_dot_columns(MR, 0, a); } \
    MI_NOINLINE void mi_dot_fetching_##MR(const mi_dot_args *a) { mi_dot_columns(MR, 1, a); } \
    MI_NOINLINE void mi_dot_half_fetching_##MR(const mi_dot_args *a) { mi_dot_columns(MR, 2, a); } \
    static const mi_dot mi_dot_by_##MR = { \
        MR, mi_dot_pack_##MR, {mi_dot_columns_##MR, mi_dot_fetching_##MR, mi_dot_half_fetching_##MR}};
#if MI_W >= 4
MI_DOT(4)
#endif
#if MI_W >= 8
MI_DOT(8)
#endif

#define MI_DOT_GROUPS 8 /* of rows, at once */
#define MI_DOT_BYTES (16 * 1024) /* of y, in the first-level cache for all of them */

/* The blocks of m > 2 rows, and how many rows they are together; n columns are whole blocks. */
#if MI_W >= 4
MI_NOINLINE ptrdiff_t mi_dot_groups(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_vec packed[MI_DOT_STEPS];
    const mi_dot *dots[MI_DOT_GROUPS];
    ptrdiff_t done = 0;
    int groups = 0, P = 1;
    while (m - done > 2 && groups < MI_DOT_GROUPS) {
        const mi_dot *d = &mi_dot_by_4;
#if MI_W >= 8
        /* blocks with few rows that do not exist */
        if (m - done > 5) d = &mi_dot_by_8;
#endif
        const ptrdiff_t steps = (k + MI_W - 1) / MI_W * d->rows;
        if (groups && (groups + 1) * steps > MI_DOT_STEPS) break;
        if (P < MI_W / d->rows) P = MI_W / d->rows;
        dots[groups++] = d;
        done += d->rows;
    }
    if (done > m) done = m;
    const ptrdiff_t whole = k / P * P, most = MI_DOT_STEPS / groups * (MI_W / dots[0]->rows) / MI_W * MI_W;
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = whole - k0 < most ? whole - k0 : most, steps = (kc + MI_W - 1) / MI_W * dots[0]->rows;
        const ptrdiff_t fit = kc ? MI_DOT_BYTES / MI_REAL_BYTES / kc / MI_DOT_COLUMNS * MI_DOT_COLUMNS : n;
        const ptrdiff_t strip = groups == 1 ? n : fit < MI_DOT_COLUMNS ? MI_DOT_COLUMNS : fit;
        const int fetch = ys_n == k && kc == k;
        for (int g = 0; g < groups; g++) {
            const ptrdiff_t i = (ptrdiff_t)g * dots[0]->rows, rows = m - i < dots[g]->rows ? m - i : dots[g]->rows;
            dots[g]->pack((int)rows, kc, x + i * xs_m + k0, xs_m, packed + g * steps);
        }
        for (ptrdiff_t j = 0; j < n; j += strip) {
            const ptrdiff_t nc = n - j < strip ? n - j : strip, bytes = nc * k * MI_REAL_BYTES;
            const mi_real *yj = y + j * ys_n + k0;
            const char *next = (const char *)yj + (groups > 1 && bytes > MI_AHEAD ? bytes : MI_AHEAD);
            for (int g = 0; g < groups; g++) {
                const ptrdiff_t i = (ptrdiff_t)g * dots[0]->rows, rows = m - i < dots[g]->rows ? m - i : dots[g]->rows;
                const mi_real *xg = (const mi_real *)(packed + g * steps);
                mi_real *og = o + i * os_m + j;
                const mi_dot_args a = {
                    kc, nc, xg, yj, ys_n, next + g * bytes / 2, og, os_m, (int)rows, accumulate || k0 > 0};
                dots[g]->columns[!fetch || g > 1 ? 0 : groups > 1 ? 2 : 1](&a);
            }
        }
        k0 += kc;
    } while (k0 < whole);
    if (k > whole) mi_dot_few(done, k - whole, n, x + whole, xs_m, y + whole, ys_n, o, os_m, 1, 0);
    return done;
}
#endif

void mi_gemm_dot(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate)
{
    const int few = m <= 2;
    const ptrdiff_t whole = MI_W >= 4 && !few ? n / MI_DOT_COLUMNS * MI_DOT_COLUMNS : 0;
    if (whole < n) mi_dot_few(m, k, n - whole, x, xs_m, y + whole * ys_n, ys_n, o + whole, os_m, accumulate, few && ys_n == k);
    if (!whole) return;
#if MI_W >= 4
    while (m > 2) {
        const ptrdiff_t done = mi_dot_groups(m, k, whole, x, xs_m, y, ys_n, o, os_m, accumulate);
        x += done * xs_m;
        o += done * os_m;
        m -= done;
    }
#endif
    mi_dot_few(m, k, whole, x, xs_m, y, ys_n, o, os_m, accumulate, 0);
}
