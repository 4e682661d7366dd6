/* The products of mirage_gemm.h for a y of 16-bit elements (see mirage_half.h).
 *
 * mi_gemm_stream_half converts y as it reads it, so that half the bytes take half the time. The others convert a panel
 * of y at a time, in the first-level cache, which costs little where many rows of x are multiplied with it. They are
 * defined in mirage_half_gemm.c, which is compiled once for all kernels.
 */
#ifndef MIRAGE_HALF_GEMM_H
#define MIRAGE_HALF_GEMM_H

#include "mirage_gemm.h"

MI_SHARED void mi_gemm_outer_half(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_half *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate);
MI_SHARED void mi_gemm_stream_half(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_half *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate);
MI_SHARED void mi_gemm_dot_half(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_half *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate);

#endif
