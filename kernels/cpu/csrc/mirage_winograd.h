/* Convolutions with windows of 3 by 3 elements and steps of 1, by tiles of 2 by 2 places with 16 products instead of 36: Winograd's
 * F(2x2, 3x3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016, section 4.1).
 *
 * The 4 by 4 elements that a tile's windows read are a window, too, of a convolution by steps of 2. They are laid out in pairs, with
 * tiles side by side, and become 16 sums of themselves, tiles as columns; what weights become is packed. For each of the 16, channels
 * are summed by a product, and the places of a tile are sums of its 16 results. An infinity becomes NaN in all of its tile.
 */
#ifndef MIRAGE_WINOGRAD_H
#define MIRAGE_WINOGRAD_H

#include "mirage_convolution.h"

#define MI_TILE 4                        /* elements and windows of a tile along a dim */
#define MI_TERMS (MI_TILE * MI_TILE)
#define MI_SIDE 2                        /* places of a tile along a dim */

/* v[i] of x[i], each `step` vectors after the other: B^T x. */
MI_INLINE void mi_winograd_elements(mi_vec *v, const int step)
{
    const mi_vec a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
    v[0] = a - c, v[step] = b + c, v[2 * step] = c - b, v[3 * step] = b - d;
}

/* Two sums of four results: A^T y. */
MI_INLINE void mi_winograd_places(mi_vec *v, const int step)
{
    const mi_vec a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
    v[0] = a + b + c, v[step] = b - c - d;
}

/* The 16 numbers of a window of weights: G w G^T. */
static void mi_winograd_weights(const mi_real *w, mi_real *to)
{
    mi_real rows[MI_TILE][3];
    for (int j = 0; j < 3; j++) {
        const mi_real a = w[j], b = w[3 + j], c = w[6 + j];
        rows[0][j] = a, rows[1][j] = (a + b + c) / 2, rows[2][j] = (a - b + c) / 2, rows[3][j] = c;
    }
    for (int i = 0; i < MI_TILE; i++, to += MI_TILE) {
        const mi_real a = rows[i][0], b = rows[i][1], c = rows[i][2];
        to[0] = a, to[1] = (a + b + c) / 2, to[2] = (a - b + c) / 2, to[3] = c;
    }
}

/* The tiles of a convolution as the windows of another one. */
MI_INLINE mi_windows mi_tiles_of(const mi_windows *c)
{
    mi_windows tiles = *c;
    for (int i = 1; i < 3; i++) {
        tiles.kernel[i] = MI_TILE, tiles.strides[i] = MI_SIDE;
        tiles.places[i] = (c->places[i] + MI_SIDE - 1) / MI_SIDE;
    }
    return tiles;
}

/* Two neighbouring elements of a tile along its row as windows, two columns of a panel each: what `runs` of tiles become. */
MI_INLINE mi_windows mi_pairs_of(const mi_windows *tiles, mi_run_of_places *runs, int n_runs)
{
    mi_windows pairs = *tiles;
    pairs.kernel[2] = 2, pairs.gaps[2] = 2, pairs.strides[2] = 1;
    for (int r = 0; r < n_runs; r++) runs[r].to *= 2, runs[r].i2 *= MI_SIDE, runs[r].count *= 2;
    return pairs;
}

/* to[MI_TERMS][term] of `channels` channels, `width` tiles each, of pairs[MI_TERMS / 2][channels][2 * width]. */
static void mi_transform_elements(const mi_real *pairs, ptrdiff_t channels, ptrdiff_t width, ptrdiff_t term, mi_real *to)
{
    for (ptrdiff_t at = 0; at < channels * width; at += MI_W) {
        mi_vec v[MI_TERMS];
        MI_UNROLL for (int i = 0; i < MI_TERMS; i += 2)
        {
            const mi_real *from = pairs + i * channels * width + 2 * at;
            const mi_vec first = mi_load(from), second = mi_load(from + MI_W);
            v[i] = mi_every_second(0, first, second), v[i + 1] = mi_every_second(1, first, second);
        }
        MI_UNROLL for (int i = 0; i < MI_TILE; i++) mi_winograd_elements(v + i, MI_TILE);
        MI_UNROLL for (int i = 0; i < MI_TILE; i++) mi_winograd_elements(v + i * MI_TILE, 1);
        MI_UNROLL for (int i = 0; i < MI_TERMS; i++) mi_store(to + i * term + at, v[i]);
    }
}

/* The places of tiles of one output, whose results are `term` elements apart: to[MI_SIDE * MI_SIDE][width]. */
MI_INLINE void mi_transform_results(const mi_real *results, ptrdiff_t term, ptrdiff_t width, mi_real *to)
{
    for (ptrdiff_t at = 0; at < width; at += MI_W) {
        mi_vec v[MI_TERMS];
        MI_UNROLL for (int i = 0; i < MI_TERMS; i++) v[i] = mi_load(results + i * term + at);
        MI_UNROLL for (int i = 0; i < MI_TILE; i++) mi_winograd_places(v + i, MI_TILE);
        MI_UNROLL for (int i = 0; i < MI_SIDE; i++) mi_winograd_places(v + i * MI_TILE, 1);
        MI_UNROLL for (int i = 0; i < MI_SIDE; i++)
        {
            MI_UNROLL for (int j = 0; j < MI_SIDE; j++) mi_store(to + (i * MI_SIDE + j) * width + at, v[i * MI_TILE + j]);
        }
    }
}

#define MI_IN_TURN_(l, h) (((l) + (h)) / 2 + ((l) & 1) * MI_W)

/* The first or the last MI_W of a[0], b[0], a[1], b[1], ... */
MI_INLINE mi_vec mi_in_turn(const int LAST, mi_vec a, mi_vec b)
{
    return LAST ? __builtin_shufflevector(a, b, MI_LANES(MI_IN_TURN_, MI_W)) : __builtin_shufflevector(a, b, MI_LANES(MI_IN_TURN_, 0));
}

#endif
