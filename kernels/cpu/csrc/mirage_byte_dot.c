/* Products of rows of bytes of the type that MI_ROWS names with columns of MI_NARROW: see mirage_narrow_gemm.h. */
#include "mirage_narrow_gemm.h"

#include "mirage_dot.h"

#define MI_BYTE_SIGNED_int8 1
#define MI_BYTE_SIGNED_uint8 0
#define MI_ROWS_SIGNED MI_CAT(MI_BYTE_SIGNED_, MI_ROWS)
#define MI_COLUMNS_SIGNED MI_CAT(MI_BYTE_SIGNED_, MI_NARROW)
typedef MI_CAT(MI_ELEMENT_, MI_ROWS) mi_row_element;

/* Whether the processor multiplies four pairs of bytes at once: of unsigned and signed ones, or of signed ones. */
#if MI_STEP == 4 && (MI_SHIFT(1) || (MI_ROWS_SIGNED && MI_COLUMNS_SIGNED))

#define MI_BYTE_TERMS 32768 /* of which no sum is cut off */
#define MI_EACH_BYTE(b) ((mi_sum){0} + (b) * 0x1010101u)

/* The next bytes of a row or a column, of which the first n exist; the others are 0. */
MI_INLINE mi_sum mi_next_bytes(const void *p, ptrdiff_t n)
{
    if (n >= MI_VEC_BYTES) return mi_load_lanes(p);
    char part[MI_VEC_BYTES] = {0};
    __builtin_memcpy(part, p, (size_t)n);
    return mi_load_lanes(part);
}

/* Whether y has to be half of its range away, as the processor multiplies unsigned bytes with signed ones. */
#define MI_IS_MOVED (MI_SHIFT(1) && MI_ROWS_SIGNED == MI_COLUMNS_SIGNED)

/* sum + the products of the bytes of x and y, or of y + 128 if both are signed, of y - 128 if neither is. */
MI_INLINE mi_sum mi_add_products(mi_sum sum, mi_sum x, mi_sum y)
{
    const mi_sum other = MI_IS_MOVED ? y ^ MI_EACH_BYTE(0x80u) : y;
    return MI_SHIFT(1) && MI_ROWS_SIGNED ? mi_dot(sum, other, x) : mi_dot(sum, x, other);
}

/* What that makes too much in every sum of a row of x, with its sign turned: sums begin with it. */
MI_INLINE mi_sum mi_begin_row(ptrdiff_t k, const mi_row_element *x)
{
    mi_sum found = {0};
    for (ptrdiff_t at = 0; at < k && MI_IS_MOVED; at += MI_VEC_BYTES) {
        const mi_sum xv = mi_next_bytes(x + at, k - at), half = MI_EACH_BYTE(0x80u);
        found = MI_ROWS_SIGNED ? mi_dot(found, half, xv) : mi_dot(found, xv, half);
    }
    return -found;
}

/* o[MR,NC] with MR * NC == MI_W, both constants; of the NC columns the first `columns` exist. */
MI_INLINE void mi_byte_tile(
    const int MR, const int NC, ptrdiff_t k, int columns, const mi_sum *begin, const mi_row_element *x, ptrdiff_t xs_m, const mi_narrow *y,
    ptrdiff_t ys_n, mi_real *o, ptrdiff_t os_m, int accumulate)
{
    mi_sum sum[MI_W];
    const mi_narrow *yr[MI_W];
    MI_UNROLL for (int j = 0; j < NC; j++) yr[j] = y + (j < columns ? j : columns - 1) * ys_n;
    MI_UNROLL for (int i = 0; i < MI_W; i++) sum[i] = begin[i / NC];
    for (ptrdiff_t at = 0; at < k; at += MI_VEC_BYTES) {
        mi_sum xv[MI_W];
        MI_UNROLL for (int i = 0; i < MR; i++) xv[i] = mi_next_bytes(x + i * xs_m + at, k - at);
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            const mi_sum yv = mi_next_bytes(yr[j] + at, k - at);
            MI_UNROLL for (int i = 0; i < MR; i++) sum[i * NC + j] = mi_add_products(sum[i * NC + j], xv[i], yv);
        }
    }
    mi_vec real[MI_W];
    MI_UNROLL for (int i = 0; i < MI_W; i++) real[i] = __builtin_convertvector((mi_ivec)sum[i], mi_vec);
    const mi_vec total = mi_hsum_each(real);
    mi_real lanes[MI_W];
    mi_store(lanes, total);
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        mi_real *const to = o + i * os_m;
        MI_UNROLL for (int j = 0; j < NC; j++)
        {
            if (j < columns) to[j] = accumulate ? to[j] + lanes[i * NC + j] : lanes[i * NC + j];
        }
    }
}

#define MI_BYTE_ROWS(MR) \
    MI_NOINLINE void mi_byte_rows_##MR( \
        ptrdiff_t k, ptrdiff_t n, const mi_row_element *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o, \
        ptrdiff_t os_m, int accumulate) \
    { \
        enum { NC = MI_W / MR }; \
        mi_sum begin[MR]; \
        for (int i = 0; i < MR; i++) begin[i] = mi_begin_row(k, x + i * xs_m); \
        for (ptrdiff_t j = 0; j < n; j += NC) { \
            const int columns = n - j < NC ? (int)(n - j) : NC; \
            mi_byte_tile(MR, NC, k, columns, begin, x, xs_m, y + j * ys_n, ys_n, o + j, os_m, accumulate); \
        } \
    }
MI_BYTE_ROWS(1)
MI_BYTE_ROWS(2)
MI_BYTE_ROWS(4)

void MI_GEMM_DOT_BYTES(MI_ROWS)(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_row_element *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o,
    ptrdiff_t os_m, int accumulate)
{
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < MI_BYTE_TERMS ? k - k0 : MI_BYTE_TERMS;
        const int add = accumulate || k0 > 0;
        const mi_row_element *xk = x + k0;
        const mi_narrow *yk = y + k0;
        ptrdiff_t i = 0;
        for (; i + 4 <= m; i += 4) mi_byte_rows_4(kc, n, xk + i * xs_m, xs_m, yk, ys_n, o + i * os_m, os_m, add);
        for (; i + 2 <= m; i += 2) mi_byte_rows_2(kc, n, xk + i * xs_m, xs_m, yk, ys_n, o + i * os_m, os_m, add);
        if (i < m) mi_byte_rows_1(kc, n, xk + i * xs_m, xs_m, yk, ys_n, o + i * os_m, os_m, add);
        k0 += kc;
    } while (k0 < k);
}

#else

#define MI_BYTE_PART 1024 /* of a row, as mi_real */

void MI_GEMM_DOT_BYTES(MI_ROWS)(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_row_element *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o,
    ptrdiff_t os_m, int accumulate)
{
    enum { ROWS = 8 };
    mi_real rows[ROWS * MI_BYTE_PART];
    ptrdiff_t k0 = 0;
    do {
        const ptrdiff_t kc = k - k0 < MI_BYTE_PART ? k - k0 : MI_BYTE_PART;
        for (ptrdiff_t i0 = 0; i0 < m; i0 += ROWS) {
            const ptrdiff_t mc = m - i0 < ROWS ? m - i0 : ROWS;
            for (ptrdiff_t i = 0; i < mc; i++) {
                for (ptrdiff_t t = 0; t < kc; t++) rows[i * MI_BYTE_PART + t] = x[(i0 + i) * xs_m + k0 + t];
            }
            mi_gemm_dot_narrow(mc, kc, n, rows, MI_BYTE_PART, y + k0, ys_n, o + i0 * os_m, os_m, accumulate || k0 > 0);
        }
        k0 += kc;
    } while (k0 < k);
}

#endif
