/* What is done with the sums of products before they are stored: a row is added, and a function taken of each element. */
#ifndef MIRAGE_ACTIVATION_H
#define MIRAGE_ACTIVATION_H

#include "mirage_vec.h"
#include "mirage_math.h"

/* Functions of each element of a result. */
enum { IDENTITY, RELU, GELU, SIGMOID, SILU, TANH };

MI_INLINE mi_vec mi_activated(mi_vec x, int activation)
{
    switch (activation) {
    case RELU: return mi_select(x < (mi_vec){0}, (mi_vec){0}, x); /* NaN stays */
    case GELU: return x * mi_fn_gauss_cdf(x);
    case SIGMOID: return mi_fn_sigmoid(x);
    case SILU: return x * mi_fn_sigmoid(x);
    case TANH: return mi_fn_tanh(x);
    default: return x;
    }
}

/* Adds a row to each of m rows of n columns, unless it is NULL, and takes the function of each element. */
MI_NOINLINE void mi_finish(mi_real *out, ptrdiff_t out_row, ptrdiff_t m, ptrdiff_t n, const mi_real *row, int activation)
{
    for (ptrdiff_t i = 0; i < m; i++, out += out_row) {
        for (ptrdiff_t j = 0; j < n; j += MI_W) {
            const int lanes = n - j < MI_W ? (int)(n - j) : MI_W;
            const mi_vec sum = mi_load_n(out + j, lanes);
            mi_store_n(out + j, mi_activated(row ? sum + mi_load_n(row + j, lanes) : sum, activation), lanes);
        }
    }
}

#endif
