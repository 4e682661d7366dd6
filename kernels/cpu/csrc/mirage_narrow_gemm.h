/* The products of mirage_gemm.h for a y of narrow elements (see mirage_narrow.h).
 *
 * mi_gemm_stream_narrow converts y as it reads it, so that fewer bytes take less time. The others convert a
 * panel of y at a time, in the first-level cache, which costs little where many rows of x are multiplied with it. They are
 * defined in mirage_narrow_gemm.c, which is compiled once for all kernels.
 */
#ifndef MIRAGE_NARROW_GEMM_H
#define MIRAGE_NARROW_GEMM_H

#include "mirage_gemm.h"

MI_SHARED void mi_gemm_outer_narrow(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_narrow *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate);
MI_SHARED void mi_gemm_stream_narrow(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, ptrdiff_t xs_k, const mi_narrow *y,
    ptrdiff_t ys_k, mi_real *o, ptrdiff_t os_m, int accumulate);
MI_SHARED void mi_gemm_dot_narrow(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_real *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n,
    mi_real *o, ptrdiff_t os_m, int accumulate);

#if MI_IS_BYTE
/* The same product as mi_gemm_dot_narrow for an x of bytes, too: exact sums of up to 32768 terms, by the processor's products of
 * bytes where it has them (mirage_dot.h). */
MI_SHARED void mi_gemm_dot_bytes(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const mi_narrow *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o,
    ptrdiff_t os_m, int accumulate);
#endif

#endif
