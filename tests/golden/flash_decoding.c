/* Generated from a muGraph:
 *
 * def flash_decoding(q: float32[b, h*d8, s, d64], k: float32[b, h, t, d64], v: float32[b, h, t, d64_2], *, b=b, h=h, d8=8, s=s, t=t, d64=64, d64_2=64) -> [b, h*d8, s, d64_2]:
 *     with kernel(q, k, v, grid=[b, h, s, t]) as (v3_0, v3_1):
 *         for t in loop:
 *             w0: [b.tile, h.tile*d8, s.tile, d64] = load(q, imap={b: 0, h: 1, s: 2, t: phi}, fmap={t: phi})
 *             w1: [b.tile, h.tile, t.tile, d64] = load(k, imap={b: 0, h: 1, s: phi, t: 2}, fmap={t: 2})
 *             w2: [b.tile, h.tile, t.tile, d64_2] = load(v, imap={b: 0, h: 1, s: phi, t: 2}, fmap={t: 2})
 *             w3: [b.tile, h.tile, d8, s.tile, t.tile] = matmul(w0, w1, over=[d64])
 *             w4: [] = constant(value=1/8)
 *             w5: [b.tile, h.tile, d8, s.tile, t.tile] = mul(w3, w4)
 *             w6: [b.tile, h.tile, d8, s.tile, t.tile] = exp(w5)
 *             w7: [b.tile, h.tile, d8, s.tile] = sum(w6, over=[t])
 *             w8: [b.tile, h.tile, d8, s.tile] = accumulate(w7, over=[t], fmap={t: phi})
 *             w9: [b.tile, h.tile, d8, s.tile, d64_2] = matmul(w6, w2, over=[t])
 *             w10: [b.tile, h.tile, d8, s.tile, d64_2] = accumulate(w9, over=[t], fmap={t: phi})
 *         store(w8, to=[t.grid, b, h, d8, s], omap={b: 1, h: 2, s: 4, t: 0})
 *         store(w10, to=[t.grid, b, h, d8, s, d64_2], omap={b: 1, h: 2, s: 4, t: 0})
 *     with kernel(v3_0, v3_1, grid=[b, h, d8, s, d64_2]) as v4:
 *         w0: [t.grid, b.tile, h.tile, d8.tile, s.tile] = load(v3_0, imap={b: 1, h: 2, d8: 3, s: 4, d64_2: phi})
 *         w1: [t.grid, b.tile, h.tile, d8.tile, s.tile, d64_2.tile] = load(v3_1, imap={b: 1, h: 2, d8: 3, s: 4, d64_2: 5})
 *         w2: [b.tile, h.tile, d8.tile, s.tile] = sum(w0, over=[t.grid])
 *         w3: [b.tile, h.tile, d8.tile, s.tile, d64_2.tile] = sum(w1, over=[t.grid])
 *         w4: [b.tile, h.tile, d8.tile, s.tile, d64_2.tile] = div(w3, w2)
 *         store(w4, to=[b, h*d8, s, d64_2], omap={b: 0, h: 1, d8: 1, s: 2, d64_2: 3})
 *     return v4
 *
 * kernel 0: tiles b=1, h=1, s=1, t=128; splits t=4
 * kernel 1: tiles b=1, h=1, d8=8, s=1, d64_2=64; splits none
 */
#define MI_REAL float
#include "mirage_gemm.h"
#include "mirage_pool.h"
#include "mirage_vec.h"

typedef struct {
    const long *sizes;         /* of every axis, then the dims that the program computes with */
    mi_real *const *tensors;   /* inputs, then the results of each kernel */
    const long *strides;       /* in elements, of all axes of all tensors in this order */
} mirage_args;

static inline long blocks(long size, long tile) { return (size + tile - 1) / tile; }
static inline long least(long a, long b) { return a < b ? a : b; }
static inline long whole_vectors(long size) { return (size + MI_W - 1) / MI_W * MI_W; }

/* Raises the maxima of n rows to `high`. `shift` is what to subtract from exponents, `factor` what to multiply earlier
 * results by; true if a maximum grew. NaN is no maximum, and a maximum of -inf shifts by nothing. */
static inline int running_maximum(mi_real *maximum, mi_real *shift, mi_real *factor, mi_vec high, int n)
{
    const mi_vec old = mi_load_n(maximum, n), zero = mi_broadcast(0), one = mi_broadcast(1);
    const mi_vec now = mi_max(high, old);
    const mi_ivec grew = now > old;
    mi_store_n(maximum, now, n);
    mi_store_n(shift, mi_select(now == mi_broadcast(-MI_INFINITY), zero, now), n);
    mi_store_n(factor, mi_select(grew, mi_exp_falling(old - now), one), n);
    return mi_hsum(mi_fill_tail(mi_select(grew, one, zero), n, zero)) > 0;
}

/* The same for rows that are seen once, whole. */
static inline void only_maximum(mi_real *maximum, mi_real *shift, mi_vec high, int n)
{
    mi_store_n(maximum, high, n);
    mi_store_n(shift, mi_select(high == mi_broadcast(-MI_INFINITY), mi_broadcast(0), high), n);
}

enum { n_d8 = 8, n_d64 = 64, n_d64_2 = 64, n_t_grid = 4 };

/* Kernel 0, one cell of the grid: b parallel, h parallel, d8 whole, s parallel, d64 whole, t split, d64_2 whole. */
static void cell_0(void *arguments, long cell, int thread, void *scratch)
{
    const mirage_args *const args = arguments;
    (void)thread, (void)scratch, (void)cell;
    const long n_h = args->sizes[1];
    const long n_s = args->sizes[3];
    const long n_t = args->sizes[4];
    const long room_t = blocks(blocks(n_t, 128), 4) * 128;

    const long g_t = cell % 4;
    cell /= 4;
    const long g_s = cell % blocks(n_s, 1);
    cell /= blocks(n_s, 1);
    const long g_h = cell % blocks(n_h, 1);
    cell /= blocks(n_h, 1);
    const long g_b = cell;
    const long b_b = g_b * 1;
    const long b_h = g_h * 1;
    const long b_s = g_s * 1;
    const long b_t = least(g_t * room_t, n_t);
    const long x_t = least(room_t, n_t - b_t);

    const long p0_b = args->strides[0];
    const long p0_h = args->strides[1];
    const long p0_d8 = args->strides[2];
    const long p0_s = args->strides[3];
    const mi_real *const p0 = args->tensors[0] + b_b * p0_b + b_h * p0_h + b_s * p0_s;
    const long p1_b = args->strides[5];
    const long p1_h = args->strides[6];
    const long p1_t = args->strides[7];
    const mi_real *const p1 = args->tensors[1] + b_b * p1_b + b_h * p1_h + b_t * p1_t;
    const long p2_b = args->strides[9];
    const long p2_h = args->strides[10];
    const long p2_t = args->strides[11];
    const mi_real *const p2 = args->tensors[2] + b_b * p2_b + b_h * p2_h + b_t * p2_t;
    const long o0_t_grid = args->strides[13];
    const long o0_b = args->strides[14];
    const long o0_h = args->strides[15];
    const long o0_d8 = args->strides[16];
    mi_real *const o0 = args->tensors[3] + g_t * o0_t_grid + b_b * o0_b + b_h * o0_h + b_s;
    const long o1_t_grid = args->strides[18];
    const long o1_b = args->strides[19];
    const long o1_h = args->strides[20];
    const long o1_d8 = args->strides[21];
    const long o1_s = args->strides[22];
    mi_real *const o1 = args->tensors[4] + g_t * o1_t_grid + b_b * o1_b + b_h * o1_h + b_s * o1_s;

    /* scratch: block tensors that are stored */
    mi_real *at = scratch;
    const long m3_s = whole_vectors(128);
    const long m3_d8 = m3_s;
    const long m3_h = 8 * m3_d8;
    const long m3_b = m3_h;
    mi_real *const m3 = at;
    at += m3_b;
    const long maximum0_s = whole_vectors(8);
    const long maximum0_h = maximum0_s;
    const long maximum0_b = maximum0_h;
    mi_real *const maximum0 = at;
    at += maximum0_b;
    const long shift0_s = whole_vectors(8);
    const long shift0_h = shift0_s;
    const long shift0_b = shift0_h;
    mi_real *const shift0 = at;
    at += shift0_b;
    const long growth0_s = whole_vectors(8);
    const long growth0_h = growth0_s;
    const long growth0_b = growth0_h;
    mi_real *const growth0 = at;
    at += growth0_b;
    (void)at;

    /* v8 = 0 */
    for (long i_d8 = 0; i_d8 < 8; i_d8++) {
        {
            mi_store_n(o0 + i_d8 * o0_d8, mi_broadcast(0), 1);
        }
    }

    /* v10 = 0 */
    for (long i_d8 = 0; i_d8 < 8; i_d8++) {
        {
            long i_d64_2 = 0;
            for (; i_d64_2 + MI_W <= 64; i_d64_2 += MI_W) {
                mi_store(o1 + i_d8 * o1_d8 + i_d64_2, mi_broadcast(0));
            }
            if (i_d64_2 < 64) {
                const int lanes = (int)(64 - i_d64_2);
                mi_store_n(o1 + i_d8 * o1_d8 + i_d64_2, mi_broadcast(0), lanes);
            }
        }
    }

    /* maxima of exp 0 */
    {
        long i_d8 = 0;
        for (; i_d8 + MI_W <= 8; i_d8 += MI_W) {
            mi_store(maximum0 + i_d8, mi_broadcast((-MI_INFINITY)));
        }
        if (i_d8 < 8) {
            const int lanes = (int)(8 - i_d8);
            mi_store_n(maximum0 + i_d8, mi_broadcast((-MI_INFINITY)), lanes);
        }
    }

    /* the for-loop */
    for (long done_t = 0; done_t < x_t; done_t += 128) {
        const long e_t = least(128, x_t - done_t);
        const mi_real *const t1 = p1 + done_t * p1_t;
        const mi_real *const t2 = p2 + done_t * p2_t;

        /* v3[b, h, d8, s, t] = matmul(v0, v1) over d64 */
        {
            mi_gemm_dot(8, 64, e_t, p0, p0_d8, t1, p1_t, m3, m3_d8, 0);
        }

        /* v5[b, h, d8, s, t] = mul(v3, v4) */
        {
            for (long i_d8 = 0; i_d8 < 8; i_d8++) {
                const mi_vec v4 = mi_broadcast(((mi_real)0.125));
                {
                    long i_t = 0;
                    for (; i_t + MI_W <= e_t; i_t += MI_W) {
                        const mi_vec v3 = mi_load(m3 + i_d8 * m3_d8 + i_t);
                        const mi_vec v5 = (v3 * v4);
                        mi_store(m3 + i_d8 * m3_d8 + i_t, v5);
                    }
                    if (i_t < e_t) {
                        const int lanes = (int)(e_t - i_t);
                        const mi_vec v3 = mi_load_n(m3 + i_d8 * m3_d8 + i_t, lanes);
                        const mi_vec v5 = (v3 * v4);
                        mi_store_n(m3 + i_d8 * m3_d8 + i_t, v5, lanes);
                    }
                }
            }
        }

        /* maxima of the rows [b, h, s, d8] of exp 0 (v6) */
        {
            int grown = 0;
            for (long i_d8 = 0; i_d8 < 8; i_d8++) {
                mi_vec high[MI_PARTS];
                MI_UNROLL for (int part = 0; part < MI_PARTS; part++) high[part] = mi_broadcast(-MI_INFINITY);
                long i_t = 0;
                for (; i_t + MI_PARTS * MI_W <= e_t; i_t += MI_PARTS * MI_W) {
                    MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                        const mi_vec v5 = mi_load(m3 + i_d8 * m3_d8 + (i_t + part * MI_W));
                        high[part] = mi_max(v5, high[part]);
                    }
                }
                for (; i_t < e_t; i_t += MI_W) {
                    const int lanes = (int)least(e_t - i_t, MI_W);
                    const mi_vec v5 = mi_load_n(m3 + i_d8 * m3_d8 + i_t, lanes);
                    high[0] = mi_max(mi_fill_tail(v5, lanes, mi_broadcast(-MI_INFINITY)), high[0]);
                }
                *(growth0 + i_d8) = mi_hmax(mi_max_parts(high));
            }
            {
                long i_d8 = 0;
                for (; i_d8 + MI_W <= 8; i_d8 += MI_W) {
                    grown |= running_maximum(maximum0 + i_d8, shift0 + i_d8, growth0 + i_d8, mi_load(growth0 + i_d8), MI_W);
                }
                if (i_d8 < 8) {
                    const int lanes = (int)(8 - i_d8);
                    grown |= running_maximum(maximum0 + i_d8, shift0 + i_d8, growth0 + i_d8, mi_load_n(growth0 + i_d8, lanes), lanes);
                }
            }
            if (grown) {
                /* v8 relative to the new maxima */
                for (long i_d8 = 0; i_d8 < 8; i_d8++) {
                    {
                        mi_store_n(o0 + i_d8 * o0_d8, mi_load_n(o0 + i_d8 * o0_d8, 1) * mi_load_strided_n(growth0 + i_d8, growth0_s, 1), 1);
                    }
                }
                /* v10 relative to the new maxima */
                for (long i_d8 = 0; i_d8 < 8; i_d8++) {
                    {
                        long i_d64_2 = 0;
                        for (; i_d64_2 + MI_W <= 64; i_d64_2 += MI_W) {
                            mi_store(o1 + i_d8 * o1_d8 + i_d64_2, mi_load(o1 + i_d8 * o1_d8 + i_d64_2) * mi_broadcast(*(growth0 + i_d8)));
                        }
                        if (i_d64_2 < 64) {
                            const int lanes = (int)(64 - i_d64_2);
                            mi_store_n(o1 + i_d8 * o1_d8 + i_d64_2, mi_load_n(o1 + i_d8 * o1_d8 + i_d64_2, lanes) * mi_broadcast(*(growth0 + i_d8)), lanes);
                        }
                    }
                }
            }
        }

        /* v6[b, h, d8, s, t] = exp(v5) */
        /* v7[b, h, d8, s] = sum(v6) over t */
        {
            for (long i_d8 = 0; i_d8 < 8; i_d8++) {
                const mi_vec shift6_0 = mi_broadcast(*(shift0 + i_d8));
                mi_vec sum7[MI_PARTS] = {0};
                long i_t = 0;
                for (; i_t + MI_PARTS * MI_W <= e_t; i_t += MI_PARTS * MI_W) {
                    MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                        const mi_vec v5 = mi_load(m3 + i_d8 * m3_d8 + (i_t + part * MI_W));
                        const mi_vec v6 = mi_exp_falling(v5 - shift6_0);
                        mi_store(m3 + i_d8 * m3_d8 + (i_t + part * MI_W), v6);
                        sum7[part] += v6;
                    }
                }
                for (; i_t < e_t; i_t += MI_W) {
                    const int lanes = (int)least(e_t - i_t, MI_W);
                    const mi_vec v5 = mi_load_n(m3 + i_d8 * m3_d8 + i_t, lanes);
                    const mi_vec v6 = mi_exp_falling(v5 - shift6_0);
                    mi_store_n(m3 + i_d8 * m3_d8 + i_t, v6, lanes);
                    sum7[0] += mi_fill_tail(v6, lanes, mi_broadcast(0));
                }
                *(o0 + i_d8 * o0_d8) += (mi_broadcast(mi_hsum(mi_sum_parts(sum7))))[0];
            }
        }

        /* v9[b, h, d8, s, d64_2] = matmul(v6, v2) over t */
        {
            mi_gemm_stream(8, e_t, 64, m3, m3_d8, 1, t2, p2_t, o1, o1_d8, 1);
        }
    }

    /* maxima of the rows of exp 0 */
    {
        const long own_t_grid = args->strides[24];
        const long own_b = args->strides[25];
        const long own_h = args->strides[26];
        const long own_d8 = args->strides[27];
        mi_real *const own = args->tensors[5] + g_t * own_t_grid + b_b * own_b + b_h * own_h + b_s;
        {
            long i_d8 = 0;
            for (; i_d8 + MI_W <= 8; i_d8 += MI_W) {
                mi_store_strided_n(own + i_d8 * own_d8, own_d8, mi_load(maximum0 + i_d8), MI_W);
            }
            if (i_d8 < 8) {
                const int lanes = (int)(8 - i_d8);
                mi_store_strided_n(own + i_d8 * own_d8, own_d8, mi_load_n(maximum0 + i_d8, lanes), lanes);
            }
        }
    }
}

/* Bytes of scratch that a cell uses. */
static size_t scratch_0(const mirage_args *args)
{
    (void)args;
    size_t count = 0;
    count += (size_t)(8 * whole_vectors(128)); /* m3 */
    count += (size_t)(whole_vectors(8)); /* maximum0 */
    count += (size_t)(whole_vectors(8)); /* shift0 */
    count += (size_t)(whole_vectors(8)); /* growth0 */
    return count * sizeof(mi_real);
}

/* Kernel 1, one cell of the grid: b parallel, h parallel, d8 parallel, s parallel, t.grid whole, d64_2 parallel. */
static void cell_1(void *arguments, long cell, int thread, void *scratch)
{
    const mirage_args *const args = arguments;
    (void)thread, (void)scratch, (void)cell;
    const long n_h = args->sizes[1];
    const long n_s = args->sizes[3];

    const long g_d64_2 = cell % blocks(n_d64_2, 64);
    cell /= blocks(n_d64_2, 64);
    const long g_s = cell % blocks(n_s, 1);
    cell /= blocks(n_s, 1);
    const long g_d8 = cell % blocks(n_d8, 8);
    cell /= blocks(n_d8, 8);
    const long g_h = cell % blocks(n_h, 1);
    cell /= blocks(n_h, 1);
    const long g_b = cell;
    const long b_b = g_b * 1;
    const long b_h = g_h * 1;
    const long b_d8 = g_d8 * 8;
    const long b_s = g_s * 1;
    const long b_d64_2 = g_d64_2 * 64;

    const long p0_t_grid = args->strides[13];
    const long p0_b = args->strides[14];
    const long p0_h = args->strides[15];
    const long p0_d8 = args->strides[16];
    const mi_real *const p0 = args->tensors[3] + b_b * p0_b + b_h * p0_h + b_d8 * p0_d8 + b_s;
    const long p3_t_grid = args->strides[18];
    const long p3_b = args->strides[19];
    const long p3_h = args->strides[20];
    const long p3_d8 = args->strides[21];
    const long p3_s = args->strides[22];
    const mi_real *const p3 = args->tensors[4] + b_b * p3_b + b_h * p3_h + b_d8 * p3_d8 + b_s * p3_s + b_d64_2;
    const long o0_b = args->strides[29];
    const long o0_h = args->strides[30];
    const long o0_d8 = args->strides[31];
    const long o0_s = args->strides[32];
    mi_real *const o0 = args->tensors[6] + b_b * o0_b + b_h * o0_h + b_d8 * o0_d8 + b_s * o0_s + b_d64_2;

    /* scratch: block tensors that are stored */
    mi_real *at = scratch;
    const long factor0_s = whole_vectors(8);
    const long factor0_h = factor0_s;
    const long factor0_b = factor0_h;
    const long factor0_t_grid = factor0_b;
    mi_real *const factor0 = at;
    at += 4 * factor0_t_grid;
    const long m5_s = whole_vectors(8);
    const long m5_h = m5_s;
    const long m5_b = m5_h;
    mi_real *const m5 = at;
    at += m5_b;
    const long m6_s = whole_vectors(64);
    const long m6_d8 = m6_s;
    const long m6_h = 8 * m6_d8;
    const long m6_b = m6_h;
    mi_real *const m6 = at;
    at += m6_b;
    (void)at;

    /* factors of the partial results of exp 0: exp(own maximum - largest maximum) */
    {
        const long own_t_grid = args->strides[24];
        const long own_b = args->strides[25];
        const long own_h = args->strides[26];
        const long own_d8 = args->strides[27];
        const mi_real *const own = args->tensors[5];
        for (long i_d8 = 0; i_d8 < 8; i_d8++) {
            mi_real largest = -MI_INFINITY;
            for (long k_t_grid = 0; k_t_grid < n_t_grid; k_t_grid++)
                if (*(own + k_t_grid * own_t_grid + (b_b + 0) * own_b + (b_h + 0) * own_h + (b_d8 + i_d8) * own_d8 + (b_s + 0)) > largest) largest = *(own + k_t_grid * own_t_grid + (b_b + 0) * own_b + (b_h + 0) * own_h + (b_d8 + i_d8) * own_d8 + (b_s + 0));
            const mi_real shift = largest == -MI_INFINITY ? 0 : largest;
            for (long i_t_grid = 0; i_t_grid < 4; i_t_grid++) {
                *(factor0 + i_t_grid * factor0_t_grid + i_d8) = mi_fn_exp(mi_broadcast(*(own + i_t_grid * own_t_grid + (b_b + 0) * own_b + (b_h + 0) * own_h + (b_d8 + i_d8) * own_d8 + (b_s + 0)) - shift))[0];
            }
        }
    }

    /* v2[t.grid, b, h, d8, s] = mul(v0, v1) */
    /* v5[b, h, d8, s] = sum(v2) over t.grid */
    {
        long i_d8 = 0;
        for (; i_d8 + MI_PARTS * MI_W <= 8; i_d8 += MI_PARTS * MI_W) {
            mi_vec sum5[MI_PARTS] = {0};
            for (long i_t_grid = 0; i_t_grid < 4; i_t_grid++) {
                MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                    const mi_vec v0 = mi_load_strided(p0 + i_t_grid * p0_t_grid + (i_d8 + part * MI_W) * p0_d8, p0_d8);
                    const mi_vec v1 = mi_load(factor0 + i_t_grid * factor0_t_grid + (i_d8 + part * MI_W));
                    const mi_vec v2 = (v0 * v1);
                    sum5[part] += v2;
                }
            }
            MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                mi_store(m5 + (i_d8 + part * MI_W), sum5[part]);
            }
        }
        for (; i_d8 < 8; i_d8 += MI_W) {
            const int lanes = (int)least(8 - i_d8, MI_W);
            mi_vec sum5[MI_PARTS] = {0};
            for (long i_t_grid = 0; i_t_grid < 4; i_t_grid++) {
                const mi_vec v0 = mi_load_strided_n(p0 + i_t_grid * p0_t_grid + i_d8 * p0_d8, p0_d8, lanes);
                const mi_vec v1 = mi_load_n(factor0 + i_t_grid * factor0_t_grid + i_d8, lanes);
                const mi_vec v2 = (v0 * v1);
                sum5[0] += v2;
            }
            mi_store_n(m5 + i_d8, sum5[0], lanes);
        }
    }

    /* v4[t.grid, b, h, d8, s, d64_2] = mul(v3, v1) */
    /* v6[b, h, d8, s, d64_2] = sum(v4) over t.grid */
    {
        for (long i_d8 = 0; i_d8 < 8; i_d8++) {
            long i_d64_2 = 0;
            for (; i_d64_2 + MI_PARTS * MI_W <= 64; i_d64_2 += MI_PARTS * MI_W) {
                mi_vec sum6[MI_PARTS] = {0};
                for (long i_t_grid = 0; i_t_grid < 4; i_t_grid++) {
                    MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                        const mi_vec v3 = mi_load(p3 + i_t_grid * p3_t_grid + i_d8 * p3_d8 + (i_d64_2 + part * MI_W));
                        const mi_vec v1 = mi_broadcast(*(factor0 + i_t_grid * factor0_t_grid + i_d8));
                        const mi_vec v4 = (v3 * v1);
                        sum6[part] += v4;
                    }
                }
                MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                    mi_store(m6 + i_d8 * m6_d8 + (i_d64_2 + part * MI_W), sum6[part]);
                }
            }
            for (; i_d64_2 < 64; i_d64_2 += MI_W) {
                const int lanes = (int)least(64 - i_d64_2, MI_W);
                mi_vec sum6[MI_PARTS] = {0};
                for (long i_t_grid = 0; i_t_grid < 4; i_t_grid++) {
                    const mi_vec v3 = mi_load_n(p3 + i_t_grid * p3_t_grid + i_d8 * p3_d8 + i_d64_2, lanes);
                    const mi_vec v1 = mi_broadcast(*(factor0 + i_t_grid * factor0_t_grid + i_d8));
                    const mi_vec v4 = (v3 * v1);
                    sum6[0] += v4;
                }
                mi_store_n(m6 + i_d8 * m6_d8 + i_d64_2, sum6[0], lanes);
            }
        }
    }

    /* v7[b, h, d8, s, d64_2] = div(v6, v5) */
    {
        for (long i_d8 = 0; i_d8 < 8; i_d8++) {
            const mi_vec v5 = mi_broadcast(*(m5 + i_d8));
            const mi_divisor divisor_v5 = mi_divisor_of(v5);
            {
                long i_d64_2 = 0;
                for (; i_d64_2 + MI_W <= 64; i_d64_2 += MI_W) {
                    const mi_vec v6 = mi_load(m6 + i_d8 * m6_d8 + i_d64_2);
                    const mi_vec v7 = mi_quotient(v6, divisor_v5);
                    mi_store(o0 + i_d8 * o0_d8 + i_d64_2, v7);
                }
                if (i_d64_2 < 64) {
                    const int lanes = (int)(64 - i_d64_2);
                    const mi_vec v6 = mi_load_n(m6 + i_d8 * m6_d8 + i_d64_2, lanes);
                    const mi_vec v7 = mi_quotient(v6, divisor_v5);
                    mi_store_n(o0 + i_d8 * o0_d8 + i_d64_2, v7, lanes);
                }
            }
        }
    }
}

/* Bytes of scratch that a cell uses. */
static size_t scratch_1(const mirage_args *args)
{
    (void)args;
    size_t count = 0;
    count += (size_t)(4 * whole_vectors(8)); /* factor0 */
    count += (size_t)(whole_vectors(8)); /* m5 */
    count += (size_t)(8 * whole_vectors(64)); /* m6 */
    return count * sizeof(mi_real);
}

/* Runs kernels 0 to 1; 0, or -1 if there is no memory for scratch. */
int mirage_run_0(const mirage_args *args, mi_pool_run_fn *pool, int threads)
{
    {
        const long n_b = args->sizes[0];
        const long n_h = args->sizes[1];
        const long n_s = args->sizes[3];
        const long n_t = args->sizes[4];
        (void)n_b; (void)n_h; (void)n_s; (void)n_t;
        if (pool(cell_0, (void *)args, blocks(n_b, 1) * blocks(n_h, 1) * blocks(n_s, 1) * 4, threads, scratch_0(args)))
            return -1;
    }
    {
        const long n_b = args->sizes[0];
        const long n_h = args->sizes[1];
        const long n_s = args->sizes[3];
        (void)n_b; (void)n_h; (void)n_s;
        if (pool(cell_1, (void *)args, blocks(n_b, 1) * blocks(n_h, 1) * blocks(n_d8, 8) * blocks(n_s, 1) * blocks(n_d64_2, 64), threads, scratch_1(args)))
            return -1;
    }
    return 0;
}
