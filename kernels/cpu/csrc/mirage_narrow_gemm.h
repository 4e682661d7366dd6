/* The products of mirage_gemm.h for a y of narrow elements (see mirage_narrow.h).
 *
 * mi_gemm_stream_narrow converts y as it reads it, so that fewer bytes take less time. The others convert a
 * panel of y at a time, in the first-level cache, which costs little where many rows of x are multiplied with it. They are
 * defined in mirage_narrow_gemm.c, which is compiled once for all kernels.
 */
#include "mirage_gemm.h"

#ifndef MIRAGE_NARROW_GEMM_H
#define MIRAGE_NARROW_GEMM_H
#define mi_gemm_outer_narrow MI_OF(mi_gemm_outer_narrow)
#define mi_gemm_stream_narrow MI_OF(mi_gemm_stream_narrow)
#define mi_gemm_dot_narrow MI_OF(mi_gemm_dot_narrow)
/* of rows of one type of bytes and columns of another: mi_gemm_dot_bytes_uint8_int8 */
#define MI_GEMM_DOT_BYTES(rows) MI_CAT(MI_CAT(mi_gemm_dot_bytes_, rows), MI_CAT(_, MI_NARROW))
#endif

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
MI_SHARED void MI_GEMM_DOT_BYTES(int8)(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const signed char *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o,
    ptrdiff_t os_m, int accumulate);
MI_SHARED void MI_GEMM_DOT_BYTES(uint8)(
    ptrdiff_t m, ptrdiff_t k, ptrdiff_t n, const unsigned char *x, ptrdiff_t xs_m, const mi_narrow *y, ptrdiff_t ys_n, mi_real *o,
    ptrdiff_t os_m, int accumulate);
#endif
