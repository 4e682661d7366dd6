/* What is done with the sums of products before they are stored: a row is added, and a function taken of each element. */
#ifndef MIRAGE_ACTIVATION_H
#define MIRAGE_ACTIVATION_H

#include "mirage_vec.h"
#include "mirage_math.h"

/* Functions of each element of a result. */
enum { IDENTITY, RELU, GELU, SIGMOID, SILU, TANH };

/* x times the normal distribution up to x, with an error of 2e-7 |x|, as sums have it: 0.5 + x P(x^2) / Q(x^2), of least error up to
 * |x| = 5.6, from where on it is 0 or 1. */
MI_INLINE mi_vec mi_gelu(mi_vec x)
{
    static const mi_real p[] = {0.398942222f, 0.0343737588f, 0.00470710409f, 1.73825596e-4f, 6.35624649e-6f, 2.21463996e-8f};
    static const mi_real q[] = {1, 0.252827951f, 0.0289387145f, 0.00191283579f, 7.50932956e-5f, 1.18022294e-6f};
    const mi_vec most = mi_broadcast(5.6f);
    const mi_vec own = mi_min(most, mi_max(-most, x)), square = own * own;
    const mi_vec share = own * MI_POLY(square, p) / MI_POLY(square, q) + (mi_real)0.5;
    return x * mi_select(x < -most, (mi_vec){0}, mi_min(mi_broadcast(1), share));
}

MI_INLINE mi_vec mi_activated(mi_vec x, int activation)
{
    switch (activation) {
    case RELU: return mi_select(x < (mi_vec){0}, (mi_vec){0}, x); /* NaN stays */
    case GELU: return mi_gelu(x);
    case SIGMOID: return mi_fn_sigmoid(x);
    case SILU: return x * mi_fn_sigmoid(x);
    case TANH: return mi_fn_tanh(x);
    default: return x;
    }
}

MI_INLINE void mi_finish_with(
    const int ACTIVATION, mi_real *out, ptrdiff_t out_row, ptrdiff_t m, ptrdiff_t n, const mi_real *row)
{
    for (ptrdiff_t i = 0; i < m; i++, out += out_row) {
        for (ptrdiff_t j = 0; j < n; j += MI_W) {
            const int lanes = n - j < MI_W ? (int)(n - j) : MI_W;
            const mi_vec sum = mi_load_n(out + j, lanes);
            mi_store_n(out + j, mi_activated(row ? sum + mi_load_n(row + j, lanes) : sum, ACTIVATION), lanes);
        }
    }
}

/* Adds a row to each of m rows of n columns, unless it is NULL, and takes the function of each element. */
MI_NOINLINE void mi_finish(mi_real *out, ptrdiff_t out_row, ptrdiff_t m, ptrdiff_t n, const mi_real *row, int activation)
{
    switch (activation) {
    case RELU: mi_finish_with(RELU, out, out_row, m, n, row); break;
    case GELU: mi_finish_with(GELU, out, out_row, m, n, row); break;
    case SIGMOID: mi_finish_with(SIGMOID, out, out_row, m, n, row); break;
    case SILU: mi_finish_with(SILU, out, out_row, m, n, row); break;
    case TANH: mi_finish_with(TANH, out, out_row, m, n, row); break;
    default: mi_finish_with(IDENTITY, out, out_row, m, n, row);
    }
}

#endif
