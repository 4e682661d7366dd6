/* Register-blocked matrix products on strided tiles; m, k and n are run-time values, tails are masked.
 *
 *     mi_gemm_outer   o[m,n] (+)= sum_k x[m,k] y[k,n]     operands in cache, or a y that many rows of x reuse
 *     mi_gemm_stream  the same product                    few rows of x, y read once from memory
 *     mi_gemm_dot     o[m,n] (+)= sum_k x[m,k] y[n,k]     both contiguous along k
 *
 * Strides count elements. Rows of o are contiguous along n, and so are those of y in the first two. Nothing is read
 * past the last element of a row, nothing is written past n. With `accumulate` zero, o is overwritten (with zeros where
 * k is 0); o must not overlap x or y. Each is defined in a file of its own, which is compiled once for all kernels.
 */
#ifndef MIRAGE_GEMM_H
#define MIRAGE_GEMM_H

#include "mirage_vec.h"

#define MI_SHARED __attribute__((visibility("hidden")))

MI_SHARED void mi_gemm_outer(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate);
MI_SHARED void mi_gemm_stream(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_real *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate);
MI_SHARED void mi_gemm_dot(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_real *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate);

#endif
