/* Convolutions of bytes channel by channel: columns are lanes, each of which has MI_STEP terms of a row of its window as one word.
 *
 * A cell is a band of rows of one channel. The rows that its windows read are laid out in a thread's cache first: as terms, with
 * `blank` at the edges, and from these as words, so that the sums need neither tests nor gathers.
 */
#ifndef MIRAGE_BYTE_WINDOWS_H
#define MIRAGE_BYTE_WINDOWS_H

#include "mirage_convolution.h"
#include "mirage_dot.h"

/* Stores the sums of an output, NV vectors of each of `rows` rows: n of a row, from element `at` of the result on and `step` apart.
 * What includes this says how. */
MI_INLINE void mi_store_rows(
    const int NV, const struct mi_finish *f, const mi_sum *sums, ptrdiff_t output, ptrdiff_t at, ptrdiff_t step, int rows, ptrdiff_t n);

#define MI_AT_ONCE 16 /* bytes that become terms */
typedef unsigned char mi_at_once __attribute__((vector_size(MI_AT_ONCE)));
typedef signed char mi_signed_at_once __attribute__((vector_size(MI_AT_ONCE)));
typedef mi_term mi_terms_at_once __attribute__((vector_size(MI_AT_ONCE * sizeof(mi_term))));
typedef unsigned char mi_word_bytes __attribute__((vector_size(MI_VEC_BYTES)));
typedef mi_term mi_word_blanks __attribute__((vector_size(MI_VEC_BYTES)));

typedef struct {
    mi_windows c;
    const unsigned char *x;
    const unsigned *w;
    int is_signed;
    mi_term blank;
    ptrdiff_t bands, band, rows; /* rows of a band, and those that it reads */
    ptrdiff_t words, length;     /* words of a window's row; of each, lanes of a row: those of whole vectors */
    ptrdiff_t terms;             /* of a row that windows read */
    int shuffled;                /* whether the terms of a vector's lanes are bytes of one vector: those of `pattern` */
    mi_word_bytes pattern;
} mi_byte_windows;

/* Words of a row of so many elements of a window. */
MI_INLINE ptrdiff_t mi_words_of_row(ptrdiff_t elements) { return (elements + MI_STEP - 1) / MI_STEP; }

/* Bytes of x as terms: so many at once. */
MI_INLINE void mi_lay_some(const int is_signed, const unsigned char *x, mi_term *to)
{
    mi_at_once part;
    memcpy(&part, x, sizeof part);
    const mi_terms_at_once terms = is_signed ? __builtin_convertvector((mi_signed_at_once)part, mi_terms_at_once)
                                             : __builtin_convertvector(part, mi_terms_at_once);
    const mi_terms_at_once shifted = terms + (mi_term)MI_SHIFT(is_signed);
    memcpy(to, &shifted, sizeof shifted);
}

/* n bytes of each of `rows` rows of x, `step` apart, as terms `length` apart. */
MI_INLINE void mi_lay_terms(
    const int is_signed, const unsigned char *x, ptrdiff_t rows, ptrdiff_t step, ptrdiff_t n, mi_term *to, ptrdiff_t length)
{
    for (; rows > 0; rows--, x += step, to += length) {
        ptrdiff_t i = 0;
        for (; i + MI_AT_ONCE <= n; i += MI_AT_ONCE) mi_lay_some(is_signed, x + i, to + i);
        if (i && i < n) mi_lay_some(is_signed, x + n - MI_AT_ONCE, to + n - MI_AT_ONCE); /* some of them once more */
        MI_NO_UNROLL for (; i < n && n < MI_AT_ONCE; i++)
        {
            to[i] = (mi_term)((is_signed ? (signed char)x[i] : x[i]) + MI_SHIFT(is_signed));
        }
    }
}

/* Lane i of `to` has MI_STEP terms from i * stride on, a gap apart. */
MI_INLINE void mi_lay_words(const mi_byte_windows *b, const mi_term *terms, unsigned *to)
{
    const ptrdiff_t stride = b->c.strides[2], gap = b->c.gaps[2], n = b->length;
#ifndef __clang__ /* which has no shuffles by variables */
    if (b->shuffled) {
        const mi_word_bytes pattern = b->pattern;
        for (ptrdiff_t i = 0; i < n; i += MI_W) {
            mi_word_bytes v;
            memcpy(&v, terms + i * stride, sizeof v);
            mi_store_lanes(to + i, (mi_sum)__builtin_shuffle(v, pattern));
        }
        return;
    }
#endif
    for (ptrdiff_t i = 0; i < n; i++) {
        mi_term word[MI_STEP];
        for (int t = 0; t < MI_STEP; t++) word[t] = terms[i * stride + t * gap];
        memcpy(to + i, word, sizeof word);
    }
}

/* The rows that the windows of a band read, all of them as terms first: what is read at once is then no longer in the way of being
 * written in parts. */
MI_NOINLINE void mi_lay_band(
    const mi_byte_windows *b, const unsigned char *x, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t rows, unsigned *to, mi_term *terms)
{
    const mi_windows *c = &b->c;
    const ptrdiff_t n0 = c->in[0], n1 = c->in[1], n2 = c->in[2], low = c->low[2], length = b->terms;
    const ptrdiff_t count = n2 < length - low ? n2 : length - low, all = c->kernel[0] * b->rows;
    const mi_word_blanks blanks = b->blank - (mi_word_blanks){0};
    for (ptrdiff_t i = 0; i < all * length; i += (ptrdiff_t)(sizeof blanks / sizeof *terms)) memcpy(terms + i, &blanks, sizeof blanks);
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++) {
        const ptrdiff_t at0 = i0 * c->strides[0] + a0 * c->gaps[0] - c->low[0], at1 = i1 * c->strides[1] - c->low[1];
        if (at0 < 0 || at0 >= n0) continue;
        const ptrdiff_t first = at1 < 0 ? -at1 : 0, last = rows < n1 - at1 ? rows : n1 - at1;
        const unsigned char *from = x + (at0 * n1 + at1 + first) * n2;
        mi_term *own = terms + (a0 * b->rows + first) * length + low;
        if (b->is_signed) mi_lay_terms(1, from, last - first, n2, count, own, length);
        else mi_lay_terms(0, from, last - first, n2, count, own, length);
    }
    for (ptrdiff_t row = 0; row < all; row++) {
        for (ptrdiff_t q = 0; q < b->words; q++) {
            mi_lay_words(b, terms + row * length + q * MI_STEP * c->gaps[2], to + (row * b->words + q) * b->length);
        }
    }
}

/* Sums of `rows` rows, at most MI_BAND_ROWS, by NV vectors from column i2 on; `from` is the first row that they read. */
MI_INLINE void mi_byte_sums(
    const int NV, const mi_byte_windows *b, const unsigned *from, const unsigned *w, ptrdiff_t output, ptrdiff_t at, ptrdiff_t i2,
    int rows)
{
    const mi_windows *c = &b->c;
    const ptrdiff_t line = b->words * b->length, step = c->strides[1] * line;
    mi_sum sum[MI_BAND_ROWS * MI_BAND_VECTORS];
    MI_UNROLL for (int i = 0; i < MI_BAND_ROWS * NV; i++) sum[i] = (mi_sum){0};
    ptrdiff_t row[MI_BAND_ROWS]; /* a row that does not exist has the sums of the last one */
    MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++) row[i] = (i < rows ? i : rows - 1) * step + i2;
    for (ptrdiff_t a0 = 0; a0 < c->kernel[0]; a0++) {
        for (ptrdiff_t a1 = 0; a1 < c->kernel[1]; a1++) {
            const unsigned *p = from + (a0 * b->rows + a1 * c->gaps[1]) * line;
            for (ptrdiff_t q = 0; q < b->words; q++, p += b->length) {
                const mi_sum factors = *w++ - (mi_sum){0};
                MI_UNROLL for (int i = 0; i < MI_BAND_ROWS; i++)
                {
                    MI_UNROLL for (int j = 0; j < NV; j++)
                    {
                        sum[i * NV + j] = mi_dot(sum[i * NV + j], mi_load_lanes(p + row[i] + j * MI_W), factors);
                    }
                }
            }
        }
    }
    mi_store_rows(NV, c->finish, sum, output, at + i2, c->places[2], rows, c->places[2] - i2);
}

MI_NOINLINE void mi_byte_sums_of_two(
    const mi_byte_windows *b, const unsigned *from, const unsigned *w, ptrdiff_t output, ptrdiff_t at, ptrdiff_t i2, int rows)
{
    mi_byte_sums(2, b, from, w, output, at, i2, rows);
}

MI_NOINLINE void mi_byte_sums_of_one(
    const mi_byte_windows *b, const unsigned *from, const unsigned *w, ptrdiff_t output, ptrdiff_t at, ptrdiff_t i2, int rows)
{
    mi_byte_sums(1, b, from, w, output, at, i2, rows);
}

static void mi_byte_band(void *args, long index, int thread, void *scratch)
{
    (void)thread;
    const mi_byte_windows *b = args;
    const mi_windows *c = &b->c;
    const ptrdiff_t *p = c->places, line = b->words * b->length;
    const ptrdiff_t first = index % b->bands * b->band, i0 = index / b->bands % p[0], image = index / (b->bands * p[0]);
    const ptrdiff_t left = p[1] - first, count = left < b->band ? left : b->band;
    unsigned *laid = scratch;
    mi_term *terms = (mi_term *)(laid + c->kernel[0] * b->rows * line);
    mi_lay_band(b, b->x + image * (c->in[0] * c->in[1] * c->in[2]), i0, first, mi_rows_of(c, count), laid, terms);
    for (ptrdiff_t o = 0; o < c->outputs; o++) {
        const ptrdiff_t output = image % c->groups * c->outputs + o, plane = image * c->outputs + o;
        const unsigned *w = b->w + output * c->kernel[0] * c->kernel[1] * b->words;
        for (ptrdiff_t i = 0; i < count; i += MI_BAND_ROWS) {
            const unsigned *from = laid + i * c->strides[1] * line;
            const ptrdiff_t at = ((plane * p[0] + i0) * p[1] + first + i) * p[2];
            const int rows = count - i < MI_BAND_ROWS ? (int)(count - i) : MI_BAND_ROWS;
            ptrdiff_t i2 = 0;
            for (; i2 + MI_W < p[2]; i2 += 2 * MI_W) mi_byte_sums_of_two(b, from, w, output, at, i2, rows);
            if (i2 < p[2]) mi_byte_sums_of_one(b, from, w, output, at, i2, rows);
        }
    }
}

/* The convolution of groups of one channel, of terms that are `blank` where x is zero; the status of `run`. */
static int mi_run_byte_windows(
    const mi_windows *c, const unsigned char *x, int is_signed, int blank, const unsigned *w, int n_threads, mi_pool_run_fn *run)
{
    mi_byte_windows b = {.c = *c, .x = x, .w = w, .is_signed = is_signed, .blank = (mi_term)blank};
    const ptrdiff_t stride = c->strides[2], gap = c->gaps[2];
    b.words = mi_words_of_row(c->kernel[2]);
    b.length = mi_vectors_of(c->places[2]) * MI_W;
    b.terms = (c->places[2] - 1) * stride + (c->kernel[2] - 1) * gap + 1;
    b.shuffled = (MI_W - 1) * stride + (MI_STEP - 1) * gap < MI_VEC_BYTES / (ptrdiff_t)sizeof(mi_term);
    for (int i = 0; b.shuffled && i < MI_VEC_BYTES; i++) {
        const ptrdiff_t term = i / 4 * stride + i % 4 / (ptrdiff_t)sizeof(mi_term) * gap;
        b.pattern[i] = (unsigned char)(term * (ptrdiff_t)sizeof(mi_term) + i % (ptrdiff_t)sizeof(mi_term));
    }
    const ptrdiff_t line = b.words * b.length;
    b.band = mi_rows_of_band(c, 4 * line);
    b.bands = (c->places[1] + b.band - 1) / b.band;
    b.rows = mi_rows_of(c, b.band);
    /* lanes that do not exist, and elements of words that windows do not have, are read behind their row */
    const ptrdiff_t behind = b.length * stride + b.words * MI_STEP * gap + MI_VEC_BYTES;
    const ptrdiff_t terms = c->kernel[0] * b.rows * b.terms + behind;
    const size_t bytes = (size_t)(c->kernel[0] * b.rows * line) * 4 + (size_t)terms * sizeof(mi_term);
    return run(mi_byte_band, &b, c->batch * c->groups * c->places[0] * b.bands, n_threads, bytes);
}

#endif
