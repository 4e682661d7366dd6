/* Generated from a loop program:
 *
 * def masked_softmax(x: float32[n, m], mask: bool[n, m]) -> float32[n, m]:
 *     @max
 *     def greatest(i0) -> float32[n]:
 *         for r0 in range(m):
 *             yield x[i0, r0] if mask[i0, r0] else -1000000000.0
 *     def e(i0, i1) -> float32[n, m]:
 *         return exp((x[i0, i1] if mask[i0, i1] else -1000000000.0) - greatest[i0])
 *     @sum
 *     def total(i0) -> float32[n]:
 *         for r0 in range(m):
 *             yield e[i0, r0]
 *     def out(i0, i1) -> float32[n, m]:
 *         return e[i0, i1] / total[i0]
 *     return out
 */
#define MI_REAL float
#include "mirage_loops.h"

/* How the rows and columns of a nest are split into cells. */
typedef struct {
    long rows, columns, row_cells, column_cells;
} mi_split;

static inline long mi_lines(long bytes) { return (bytes + 63) / 64 * 64; }
static inline long mi_blocks(long size, long step) { return (size + step - 1) / step; }

static mi_split split_0(const mi_loops *args)
{
    const long n1_4xm = args->sizes[1];
    const long n_n = args->sizes[2];
    mi_split s = {1, 1, 1, 1};
    s.rows = 16384 / mi_clamp(n1_4xm, 1, 16384);
    s.row_cells = mi_blocks(n_n, s.rows);
    return s;
}

/* A cell of greatest, e, total, out. */
static void cell_0(void *given, long cell, int thread, void *scratch)
{
    mi_loops *const args = given;
    (void)thread;
    const long n_m = args->sizes[0];
    const long n_n = args->sizes[2];
    const long t_x_step0 = args->strides[0];
    const long t_mask_step0 = args->strides[2];
    const float *restrict const t_x = args->tensors[0];
    const unsigned char *restrict const t_mask = args->tensors[1];
    float *restrict const t_out = args->tensors[2];
    float *restrict const row_e = (float *)((char *)scratch + 0);
    const mi_split split = split_0(args);
    const long first_row = cell * split.rows;
    const long last_row = mi_least(first_row + split.rows, n_n);
    for (long row = first_row; row < last_row; row++) {
        const long g0 = row;
        /* greatest */
        float value_greatest;
        {
            mi_vec parts[MI_PARTS];
            MI_UNROLL for (int part = 0; part < MI_PARTS; part++) parts[part] = mi_broadcast((-__builtin_inff()));
            long r0 = 0L;
            for (; r0 + MI_PARTS * MI_W <= n_m; r0 += MI_PARTS * MI_W) {
                MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                    const mi_ivec v1 = mi_load_bool(t_mask + g0 * t_mask_step0 + (r0 + part * MI_W));
                    const mi_vec v2 = mi_load(t_x + g0 * t_x_step0 + (r0 + part * MI_W));
                    const mi_vec v0 = mi_select(v1, v2, mi_broadcast((-1000000000.0f)));
                    parts[part] = mi_maximum(parts[part], v0);
                }
            }
            for (; r0 < n_m; r0 += MI_W) {
                const int lanes = (int)mi_least(n_m - r0, MI_W);
                const mi_ivec v4 = mi_load_bool_n(t_mask + g0 * t_mask_step0 + r0, lanes);
                const mi_vec v5 = mi_load_n(t_x + g0 * t_x_step0 + r0, lanes);
                const mi_vec v3 = mi_select(v4, v5, mi_broadcast((-1000000000.0f)));
                const mi_vec rest = mi_fill_tail(v3, lanes, mi_broadcast((-__builtin_inff())));
                parts[0] = mi_maximum(parts[0], rest);
            }
            value_greatest = mi_hmaximum(mi_maximum(mi_maximum(parts[0], parts[1]), mi_maximum(parts[2], parts[3])));
        }
        /* e */
        {
            const float v6 = value_greatest;
            long i1 = 0L;
            for (; i1 + MI_W <= n_m; i1 += MI_W) {
                const mi_ivec v10 = mi_load_bool(t_mask + g0 * t_mask_step0 + i1);
                const mi_vec v11 = mi_load(t_x + g0 * t_x_step0 + i1);
                const mi_vec v9 = mi_select(v10, v11, mi_broadcast((-1000000000.0f)));
                const mi_vec v8 = v9 - mi_broadcast(v6);
                const mi_vec v7 = mi_fn_exp(v8);
                mi_store(row_e + i1, v7);
            }
            if (i1 < n_m) {
                const int lanes = (int)(n_m - i1);
                const mi_ivec v15 = mi_load_bool_n(t_mask + g0 * t_mask_step0 + i1, lanes);
                const mi_vec v16 = mi_load_n(t_x + g0 * t_x_step0 + i1, lanes);
                const mi_vec v14 = mi_select(v15, v16, mi_broadcast((-1000000000.0f)));
                const mi_vec v13 = v14 - mi_broadcast(v6);
                const mi_vec v12 = mi_fn_exp(v13);
                mi_store_n(row_e + i1, v12, lanes);
            }
        }
        /* total */
        float value_total;
        {
            mi_vec parts[MI_PARTS];
            MI_UNROLL for (int part = 0; part < MI_PARTS; part++) parts[part] = mi_broadcast(0.0f);
            long r0 = 0L;
            for (; r0 + MI_PARTS * MI_W <= n_m; r0 += MI_PARTS * MI_W) {
                MI_UNROLL for (int part = 0; part < MI_PARTS; part++) {
                    const mi_vec v17 = mi_load(row_e + (r0 + part * MI_W));
                    parts[part] = parts[part] + v17;
                }
            }
            for (; r0 < n_m; r0 += MI_W) {
                const int lanes = (int)mi_least(n_m - r0, MI_W);
                const mi_vec v18 = mi_load_n(row_e + r0, lanes);
                const mi_vec rest = mi_fill_tail(v18, lanes, mi_broadcast(0.0f));
                parts[0] = parts[0] + rest;
            }
            value_total = mi_hsum(parts[0] + parts[1] + parts[2] + parts[3]);
        }
        /* out */
        {
            {
                const float v19 = value_total;
                const float v20 = mi_fn_abs(mi_broadcast(v19))[0];
                const int v21 = (v20 >= 1.1754943508222875e-38f);
                const int v22 = (v20 <= 8.507059173023462e+37f);
                const int v23 = (v21 & v22);
                if (v23) {
                    const float v24 = value_total;
                    const float v25 = (1.0f / v24);
                    long i1 = 0L;
                    for (; i1 + MI_W <= n_m; i1 += MI_W) {
                        const mi_vec v27 = mi_load(row_e + i1);
                        const mi_vec v26 = v27 * mi_broadcast(v25);
                        mi_store(t_out + g0 * n_m + i1, v26);
                    }
                    if (i1 < n_m) {
                        const int lanes = (int)(n_m - i1);
                        const mi_vec v29 = mi_load_n(row_e + i1, lanes);
                        const mi_vec v28 = v29 * mi_broadcast(v25);
                        mi_store_n(t_out + g0 * n_m + i1, v28, lanes);
                    }
                }
                else {
                    const float v30 = value_total;
                    long i1 = 0L;
                    for (; i1 + MI_W <= n_m; i1 += MI_W) {
                        const mi_vec v32 = mi_load(row_e + i1);
                        const mi_vec v31 = v32 / mi_broadcast(v30);
                        mi_store(t_out + g0 * n_m + i1, v31);
                    }
                    if (i1 < n_m) {
                        const int lanes = (int)(n_m - i1);
                        const mi_vec v34 = mi_load_n(row_e + i1, lanes);
                        const mi_vec v33 = v34 / mi_broadcast(v30);
                        mi_store_n(t_out + g0 * n_m + i1, v33, lanes);
                    }
                }
            }
        }
    }
}

/* Runs the nests; 0, -1 if there is no memory for scratch, or 1 if a check failed. */
int mirage_run(mi_loops *args, mi_pool_run_fn *pool, int threads)
{
    const long n_m = args->sizes[0];
    args->failed = 0;
    {
        const mi_split s = split_0(args);
        if (pool(cell_0, args, s.row_cells * s.column_cells, threads, (size_t)(mi_lines(n_m * (long)sizeof(float)))))
            return -1;
        if (args->failed) return 1;
    }
    return 0;
}
