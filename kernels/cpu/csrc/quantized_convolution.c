/* Convolutions of quantized activations with weights of 8 bits: sums in 32 bits, scaled to float32, and quantized again where they
 * are stored if that is asked for.
 *
 * Each element is what this says, operation by operation, so that it is the same on every processor:
 *
 *     sum    = sum over the window of (x - x_zero) * w, 0 beyond x, plus offset[o]     modulo 2^32
 *     value  = float(sum) * scale[o] + bias[o]
 *     value  = value + other, which is float32, or float(other - other_zero) * other_scale
 *     value  = min(max(value, least), most)
 *     result = clip(round(value), range - zero) + zero, half to even, where it is stored as an integer
 *
 * With multipliers in place of scales it is ((sum * multiplier[o] + 2^(shift - 1)) >> shift), clipped, in 64 bits.
 *
 * Channels are interleaved to words of 4 bytes first, each with what one lane multiplies; words are then laid out in panels and
 * multiplied as the numbers of other convolutions are. Those of one channel: mirage_byte_windows.h.
 */
#include "mirage_convolution.h"
#include "mirage_dot.h"

#include <stdlib.h>

#define ROWS 256          /* words of a panel's column: in the second-level cache */
#define COLUMNS MI_COLUMNS
#define PANELS 4          /* of a cell, whose columns fill some cache lines of an output */
#define OUTPUTS 32        /* of a cell at least, so that laying out columns is the smaller part of it */
#define FEW 4             /* outputs of one channel that are no product */
#define SHARED (16 * 1024) /* from so many words on, several threads interleave */
#define STRIP 4096        /* places of a channel that one cell interleaves */

typedef short mi_bytes16 __attribute__((vector_size(MI_W * 2)));

struct mi_finish {
    const int *sums;   /* of the weights of an output */
    const int *offset; /* added to the sums, or NULL */
    const float *scale;
    const int *multiplier; /* in place of the scale, or NULL */
    const float *bias;     /* or NULL */
    const void *other;     /* as `out`, or NULL */
    void *out;
    float other_scale, lower, upper;          /* bounds of the value */
    int other_bytes, other_is_signed, other_zero; /* 4 of float32, 1 of an integer */
    int bytes, whole, zero;                   /* of the result: 4 of float32, or of `whole` sums; 2 or 1 of an integer */
    int shift, least, most;                   /* with multipliers: bounds of what is shifted */
    unsigned term_zero;                       /* what a term is where x is zero */
};

typedef struct {
    const void *x, *w; /* w as `mi_quantized_windows_pack` lays it out */
    const ptrdiff_t *sizes;
    int is_signed, x_zero; /* x: int8 or uint8 */
    struct mi_finish finish;
} quantized_windows;

typedef struct {
    mi_windows c; /* of words: `channels` of so many bytes each */
    ptrdiff_t positions, depth, columns, tiles, parts, part, panels; /* panels of a cell, of at most `most` words of windows */
    ptrdiff_t most;
    const unsigned char *bytes;
    const unsigned *w; /* words of weights */
    unsigned *words, flip;
    int is_signed;
    ptrdiff_t given, strips; /* channels of a group */
    mi_real blank;
} products;

/* n numbers that are added, of OTHER bytes: 4 of float32, 1 of an integer. */
MI_INLINE mi_vec other_of(const int OTHER, const struct mi_finish *f, ptrdiff_t at, int n)
{
    if (OTHER == 4) return mi_load_n((const float *)f->other + at, n);
    const int flip = f->other_is_signed ? 128 : 0;
    const mi_ivec whole = (mi_load_bytes_n((const unsigned char *)f->other + at, n) ^ flip) - (f->other_zero + flip);
    return mi_product(__builtin_convertvector(whole, mi_vec), mi_broadcast(f->other_scale));
}

/* Stores BYTES of each of n lanes: the low ones, or all four. */
MI_INLINE void store_lanes(const int BYTES, const struct mi_finish *f, mi_sum lanes, ptrdiff_t at, int n)
{
    if (BYTES == 1) {
        mi_store_bytes_n((unsigned char *)f->out + at, lanes, n);
    } else if (BYTES == 2) {
        const mi_bytes16 part = __builtin_convertvector((mi_ivec)lanes, mi_bytes16);
        memcpy((unsigned short *)f->out + at, &part, (size_t)n * 2);
    } else {
        mi_store_n((float *)f->out + at, (mi_vec)lanes, n);
    }
}

/* What the sums of an output have in common. */
typedef struct {
    unsigned offset;
    mi_vec scale, bias, lower, upper;
} mi_output;

MI_INLINE mi_output mi_output_of(const struct mi_finish *f, ptrdiff_t output)
{
    mi_output o;
    o.offset = (unsigned)(f->offset ? f->offset[output] : 0) - f->term_zero * (unsigned)f->sums[output];
    o.scale = mi_broadcast(f->scale ? f->scale[output] : 0);
    o.bias = mi_broadcast(f->bias ? f->bias[output] : 0);
    o.lower = mi_broadcast(f->lower), o.upper = mi_broadcast(f->upper);
    return o;
}

/* Stores n sums, scaled, in BYTES each; OTHER bytes of each number that is added, or 0. */
MI_INLINE void store_scaled(
    const int BYTES, const int OTHER, const struct mi_finish *f, const mi_output *o, mi_sum sum, ptrdiff_t at, int n)
{
    mi_vec v = mi_product(__builtin_convertvector((mi_ivec)(sum + o->offset), mi_vec), o->scale);
    if (f->bias) v += o->bias;
    if (OTHER) v += other_of(OTHER, f, at, n);
    v = mi_min(mi_max(v, o->lower), o->upper);
    const float whole = 0x1.8p23f; /* floats from here on have no fraction, and the number in their low bits */
    store_lanes(BYTES, f, BYTES == 4 ? (mi_sum)v : (mi_sum)(v + whole) - 0x4b400000u + (unsigned)f->zero, at, n);
}

/* Stores n sums, or what is multiplied and shifted. */
MI_INLINE void store_whole(const struct mi_finish *f, const mi_output *o, mi_sum sum, ptrdiff_t output, ptrdiff_t at, int n)
{
    int lanes[MI_W];
    mi_store_lanes(lanes, sum + o->offset);
    if (f->multiplier) {
        const long long factor = f->multiplier[output], half = f->shift ? 1LL << (f->shift - 1) : 0;
        for (int i = 0; i < MI_W; i++) {
            const long long v = (lanes[i] * factor + half) >> f->shift, above = v < f->least ? f->least : v;
            lanes[i] = (int)(above > f->most ? f->most : above) + f->zero;
        }
    }
    const mi_sum found = mi_load_lanes(lanes);
    if (f->bytes == 1) store_lanes(1, f, found, at, n);
    else if (f->bytes == 2) store_lanes(2, f, found, at, n);
    else store_lanes(4, f, found, at, n);
}

MI_INLINE void store_some(const struct mi_finish *f, const mi_output *o, mi_sum sum, ptrdiff_t output, ptrdiff_t at, int n)
{
    const int other = f->other ? f->other_bytes : 0;
    if (f->whole || f->multiplier) store_whole(f, o, sum, output, at, n);
    else if (f->bytes == 1 && !other) store_scaled(1, 0, f, o, sum, at, n);
    else if (f->bytes == 1 && other == 1) store_scaled(1, 1, f, o, sum, at, n);
    else if (f->bytes == 1) store_scaled(1, 4, f, o, sum, at, n);
    else if (f->bytes == 2 && !other) store_scaled(2, 0, f, o, sum, at, n);
    else if (f->bytes == 2 && other == 1) store_scaled(2, 1, f, o, sum, at, n);
    else if (f->bytes == 2) store_scaled(2, 4, f, o, sum, at, n);
    else if (!other) store_scaled(4, 0, f, o, sum, at, n);
    else if (other == 1) store_scaled(4, 1, f, o, sum, at, n);
    else store_scaled(4, 4, f, o, sum, at, n);
}

/* Whether results are bytes of scaled sums and nothing more: those of most convolutions. */
MI_INLINE int is_plain(const struct mi_finish *f) { return f->bytes == 1 && !f->other && !f->multiplier; }

/* Stores a row of n sums. */
MI_INLINE void store_row(const struct mi_finish *f, const unsigned *from, ptrdiff_t output, ptrdiff_t at, ptrdiff_t n)
{
    const mi_output o = mi_output_of(f, output);
    const int plain = is_plain(f);
    for (ptrdiff_t i = 0; i < n; i += MI_W) {
        const int lanes = n - i < MI_W ? (int)(n - i) : MI_W;
        const mi_sum sum = lanes < MI_W ? (mi_sum)mi_load_n((const float *)(const void *)(from + i), lanes) : mi_load_lanes(from + i);
        if (plain) store_scaled(1, 0, f, &o, sum, at + i, lanes);
        else store_some(f, &o, sum, output, at + i, lanes);
    }
}

#include "mirage_byte_windows.h"

MI_INLINE void mi_store_rows(
    const int NV, const struct mi_finish *given, const mi_sum *sums, ptrdiff_t output, ptrdiff_t at, ptrdiff_t step, int rows, ptrdiff_t n)
{
    const struct mi_finish f = *given; /* a copy, as in `store` */
    const mi_output own = mi_output_of(&f, output);
    const int plain = is_plain(&f);
    MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            const ptrdiff_t left = n - j * MI_W, to = at + i * step + j * MI_W;
            const int lanes = left < MI_W ? (int)left : MI_W;
            if (i >= rows) return;
            if (plain) store_scaled(1, 0, &f, &own, sums[i * NV + j], to, lanes);
            else store_some(&f, &own, sums[i * NV + j], output, to, lanes);
        }
    }
}

/* Words of a quad of channels: those that there are not are the first one, and have weights of 0. */
static void interleave(void *args, long index, int thread, void *scratch)
{
    (void)thread, (void)scratch;
    const products *p = args;
    const ptrdiff_t plane = p->c.in[0] * p->c.in[1] * p->c.in[2], quad = index / p->strips, first = index % p->strips * STRIP;
    const ptrdiff_t group = quad / p->c.channels, channel = quad % p->c.channels * MI_STEP, left = plane - first;
    const ptrdiff_t count = left < STRIP ? left : STRIP;
    const unsigned char *x = p->bytes + (group * p->given + channel) * plane + first, *from[MI_STEP];
    for (int t = 0; t < MI_STEP; t++) from[t] = channel + t < p->given ? x + t * plane : x;
    unsigned *to = p->words + quad * plane + first;
#if MI_STEP == 4
    const unsigned char *a = from[0], *b = from[1], *c = from[2], *d = from[3];
    for (ptrdiff_t i = 0; i < count; i++) {
        to[i] = ((unsigned)a[i] | (unsigned)b[i] << 8 | (unsigned)c[i] << 16 | (unsigned)d[i] << 24) ^ p->flip;
    }
#else
    const unsigned char *a = from[0], *b = from[1];
    if (p->is_signed) {
        for (ptrdiff_t i = 0; i < count; i++) {
            to[i] = ((unsigned)(signed char)a[i] & 0xffff) | (unsigned)(signed char)b[i] << 16;
        }
    } else {
        for (ptrdiff_t i = 0; i < count; i++) to[i] = (unsigned)a[i] | (unsigned)b[i] << 16;
    }
#endif
}

typedef struct {
    ptrdiff_t k;
    const unsigned *w, *y;
    unsigned *sums; /* COLUMNS apart */
    int accumulate;
} block;

/* MR rows by NV vectors of sums; MR and NV are constants, so the sums live in registers. */
MI_INLINE void sums(const int MR, const int NV, const block *b)
{
    mi_sum sum[MI_BLOCK_SUMS];
    const unsigned *w = b->w, *y = b->y;
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            sum[i * NV + j] = b->accumulate ? mi_load_lanes(b->sums + i * COLUMNS + j * MI_W) : (mi_sum){0};
        }
    }
    MI_NO_UNROLL for (ptrdiff_t k = b->k; k > 0; k--, w += MR, y += NV * MI_W)
    {
        mi_sum yj[MI_BLOCK_VECTORS];
        MI_UNROLL for (int j = 0; j < NV; j++)
        {
            yj[j] = mi_load_lanes(y + j * MI_W);
            MI_IN_REGISTER(yj[j]);
        }
        MI_UNROLL for (int i = 0; i < MR; i++)
        {
            const mi_sum wi = w[i] - (mi_sum){0};
            MI_UNROLL for (int j = 0; j < NV; j++) sum[i * NV + j] = mi_dot(sum[i * NV + j], yj[j], wi);
        }
    }
    /* what is stored of them in the end is not done here: compilers would run out of registers for the sums */
    MI_UNROLL for (int i = 0; i < MR; i++)
    {
        MI_UNROLL for (int j = 0; j < NV; j++) mi_store_lanes(b->sums + i * COLUMNS + j * MI_W, sum[i * NV + j]);
    }
}

#define SUMS(MR, NV) \
    static void sums_##MR##x##NV(const block *b) { sums(MR, NV, b); }
#define SUMS_OF(MR) SUMS(MR, 1) SUMS(MR, 2) SUMS(MR, 3)
#define NAMES_OF(MR) {sums_##MR##x1, sums_##MR##x2, sums_##MR##x3}
SUMS_OF(1)
SUMS_OF(2)
SUMS_OF(4)
#if MI_BLOCK_ROWS == 8
SUMS_OF(8)
#endif
/* by the logarithm of the rows, and by vectors */
static void (*const blocks[][MI_BLOCK_VECTORS])(const block *) = {
    NAMES_OF(1), NAMES_OF(2), NAMES_OF(4),
#if MI_BLOCK_ROWS == 8
    NAMES_OF(8),
#endif
};

/* The sums of some outputs, from output `first` of a group on, as they are stored: each run of an image by itself. */
static void store(
    const products *p, const unsigned *from, ptrdiff_t group, ptrdiff_t first, ptrdiff_t outputs, ptrdiff_t column,
    ptrdiff_t count)
{
    const mi_windows *c = &p->c;
    const struct mi_finish finish = *c->finish; /* a copy, as what is stored might be what a pointer leads to */
    for (ptrdiff_t done = 0; done < count;) {
        const ptrdiff_t image = (column + done) / p->positions, place = (column + done) % p->positions;
        const ptrdiff_t left = count - done, rest = p->positions - place, run = rest < left ? rest : left;
        for (ptrdiff_t o = 0; o < outputs; o++) {
            const ptrdiff_t output = group * c->outputs + first + o;
            const ptrdiff_t at = (image * c->groups * c->outputs + output) * p->positions + place;
            store_row(&finish, from + o * COLUMNS + done, output, at, run);
        }
        done += run;
    }
}

/* Columns of the panel that begins at column `at` of `count`. */
MI_INLINE ptrdiff_t columns_of(ptrdiff_t count, ptrdiff_t at) { return count - at < COLUMNS ? count - at : COLUMNS; }

/* Some panels by some outputs: of each output, what lies side by side in all panels is stored after one another. Where windows are
 * laid out in several parts, there is one panel, whose sums are kept. */
static void cell(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const products *p = args;
    const mi_windows *c = &p->c;
    const ptrdiff_t part = index % p->parts, tile = index / p->parts % p->tiles, group = index / (p->parts * p->tiles);
    const ptrdiff_t column = tile * p->panels * COLUMNS, rest = p->columns - column, most = p->panels * COLUMNS;
    const ptrdiff_t count = rest < most ? rest : most, size = p->most * COLUMNS;
    const ptrdiff_t first = part * p->part, left = c->outputs - first, outputs = left < p->part ? left : p->part;
    const mi_real *x = (const mi_real *)(const void *)p->words + group * c->channels * (c->in[0] * c->in[1] * c->in[2]);
    const unsigned *w = p->w + (group * mi_packed_outputs(c->outputs) + first) * p->depth;
    mi_real *panels = scratch;
    unsigned *aside = (unsigned *)scratch + p->panels * size;
    for (ptrdiff_t row = 0; row < p->depth; row += p->most) {
        const ptrdiff_t rows = p->depth - row < p->most ? p->depth - row : p->most;
        const int last = row + rows == p->depth;
        for (ptrdiff_t at = 0; at < count; at += COLUMNS) {
            mi_run_of_places runs[COLUMNS];
            const ptrdiff_t columns = columns_of(count, at);
            const int n_runs = mi_find_runs(c, column + at, columns, runs);
            mi_lay_out_panel(c, x, runs, n_runs, row, rows, mi_vectors_of(columns) * MI_W, p->blank, panels + at / COLUMNS * size);
        }
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t more = outputs - o, mr = mi_output_rows(more);
            const int log = mr == 8 ? 3 : mr == 4 ? 2 : mr == 2;
            for (ptrdiff_t at = 0; at < count; at += COLUMNS) {
                const ptrdiff_t columns = columns_of(count, at);
                const block b = {
                    .k = rows, .w = w + o * p->depth + row * mr, .y = (const unsigned *)scratch + at / COLUMNS * size,
                    .sums = aside + o * COLUMNS, .accumulate = row > 0,
                };
                blocks[log][mi_vectors_of(columns) - 1](&b);
                if (last) store(p, b.sums, group, first + o, more < mr ? more : mr, column + at, columns);
            }
            o += mr;
        }
    }
}

/* Whether groups of so many channels and outputs are no products. */
static int is_alone(ptrdiff_t channels, ptrdiff_t outputs) { return channels == 1 && outputs <= FEW; }

#if MI_STEP == 4
typedef signed char weight; /* as it is multiplied */
#else
typedef short weight;
#endif

/* A convolution's weights w[groups * outputs, channels, taps] as `mi_quantized_windows` reads them, and the sums of each output's;
 * `row` taps are a row of a window. Returns the bytes of the packed form, and writes where `to` is not NULL. */
ptrdiff_t mi_quantized_windows_pack(
    ptrdiff_t groups, ptrdiff_t outputs, ptrdiff_t channels, ptrdiff_t taps, ptrdiff_t row, const signed char *w, void *to, int *sums)
{
    const ptrdiff_t quads = (channels + MI_STEP - 1) / MI_STEP, words = mi_words_of_row(row);
    const int alone = is_alone(channels, outputs);
    if (!to) return 4 * groups * (alone ? outputs * (taps / row) * words : mi_packed_outputs(outputs) * quads * taps);
    for (ptrdiff_t o = 0; o < groups * outputs; o++) {
        sums[o] = 0;
        for (ptrdiff_t i = 0; i < channels * taps; i++) sums[o] += w[o * channels * taps + i];
    }
    char *next = to;
    for (ptrdiff_t i = 0; alone && i < groups * outputs * taps; i += row) {
        for (ptrdiff_t k = 0; k < row; k += MI_STEP, next += 4) {
            weight word[MI_STEP];
            for (int t = 0; t < MI_STEP; t++) word[t] = k + t < row ? w[i + k + t] : 0;
            memcpy(next, word, 4);
        }
    }
    if (alone) return next - (char *)to;
    for (ptrdiff_t g = 0; g < groups; g++) {
        for (ptrdiff_t o = 0; o < outputs;) {
            const ptrdiff_t left = outputs - o, rows = mi_output_rows(left);
            for (ptrdiff_t tap = 0; tap < taps; tap++) {
                for (ptrdiff_t q = 0; q < quads; q++) {
                    for (ptrdiff_t i = 0; i < rows; i++, next += 4) {
                        weight word[MI_STEP];
                        for (int t = 0; t < MI_STEP; t++) {
                            const ptrdiff_t k = q * MI_STEP + t;
                            word[t] = i < left && k < channels ? w[((g * outputs + o + i) * channels + k) * taps + tap] : 0;
                        }
                        memcpy(next, word, 4);
                    }
                }
            }
            o += rows;
        }
    }
    return next - (char *)to;
}

/* The convolution that `quantized_windows` says, none of whose sizes is 0, as `mi_convolution` has them. By `run`, mi_pool_run; its
 * status, and -1 where there is no memory. */
int mi_quantized_windows(const quantized_windows *q, mi_pool_run_fn *run, int n_threads)
{
    struct mi_finish finish = q->finish;
    products p = {.c = mi_windows_of(q->sizes), .bytes = q->x, .w = q->w, .is_signed = q->is_signed};
    mi_windows *c = &p.c;
    const ptrdiff_t plane = c->in[0] * c->in[1] * c->in[2], taps = c->kernel[0] * c->kernel[1] * c->kernel[2];
    const int zero = q->x_zero + MI_SHIFT(q->is_signed);
    c->finish = &finish;
    finish.term_zero = (unsigned)zero;
    if (is_alone(c->channels, c->outputs)) return mi_run_byte_windows(c, q->x, q->is_signed, zero, q->w, n_threads, run);
    const unsigned blank = MI_STEP == 4 ? (unsigned)(zero & 0xff) * 0x01010101u : (unsigned)(zero & 0xffff) * 0x00010001u;
    memcpy(&p.blank, &blank, sizeof blank);
    p.flip = MI_SHIFT(q->is_signed) ? 0x80808080u : 0;
    p.given = c->channels;
    c->channels = (c->channels + MI_STEP - 1) / MI_STEP;
    const ptrdiff_t words = c->batch * c->groups * c->channels * plane;
    p.words = malloc((size_t)words * sizeof *p.words);
    if (!p.words) return -1;
    p.positions = c->places[0] * c->places[1] * c->places[2];
    p.depth = c->channels * taps;
    p.columns = c->batch * p.positions;
    p.most = p.depth < ROWS ? p.depth : ROWS;
    p.panels = 1;
    while (p.panels < PANELS && (p.panels + 1) * p.depth <= ROWS && p.columns > 4 * n_threads * (p.panels + 1) * COLUMNS) p.panels++;
    p.tiles = (p.columns + p.panels * COLUMNS - 1) / (p.panels * COLUMNS);
    p.strips = (plane + STRIP - 1) / STRIP;
    /* several cells for each thread, so that they end together */
    p.parts = 1;
    while (c->groups * p.tiles * p.parts < 4 * n_threads && c->outputs / (p.parts + 1) >= OUTPUTS) p.parts++;
    p.part = (c->outputs + p.parts - 1) / p.parts;
    p.part = (p.part + MI_BLOCK_ROWS - 1) / MI_BLOCK_ROWS * MI_BLOCK_ROWS;
    p.parts = (c->outputs + p.part - 1) / p.part;
    const size_t bytes = (size_t)(p.panels * p.most + p.part) * COLUMNS * sizeof(unsigned);
    int status = run(interleave, &p, c->batch * c->groups * c->channels * p.strips, words < SHARED ? 1 : n_threads, 0);
    if (!status) status = run(cell, &p, c->groups * p.tiles * p.parts, n_threads, bytes);
    free(p.words);
    return status;
}
