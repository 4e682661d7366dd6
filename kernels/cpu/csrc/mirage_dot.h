/* Sums of products of bytes in 32-bit lanes: what processors have for them, behind one interface. With MI_OF_16_BITS, activations are
 * 16-bit numbers; no sum of 256 of their products with bytes is cut off.
 *
 *   MI_STEP          terms of one lane: a lane of weights and one of activations hold so many of them, next to each other
 *   mi_term          an activation as it is multiplied, MI_STEP of which are 4 bytes
 *   MI_SHIFT(s)      what a term is more than the byte that it stands for, which is signed or not
 *   mi_dot           sum + the products of a lane's terms, in every lane, modulo 2^32
 *   mi_dot_weights   the next MI_W lanes of weights, MI_W * MI_STEP bytes
 *
 * Activations are unsigned bytes beside signed weights for VNNI, signed bytes for ARM's dot products; elsewhere both become 16-bit
 * numbers, in pairs, as no sum of two products of theirs is cut off (what AVX2 has for bytes saturates).
 */
#ifndef MIRAGE_DOT_H
#define MIRAGE_DOT_H

#define MI_REAL float
#include "mirage_bytes.h"
typedef signed char mi_bytes __attribute__((vector_size(MI_VEC_BYTES)));

#if !defined(MI_OF_16_BITS) && (defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && MI_VEC_BYTES == 32))
#define MI_STEP 4
#define MI_UNSIGNED (MI_VEC_BYTES == 64) /* terms are bytes as AMX takes them, and lanes of weights lie in vectors of its tiles */
#define MI_SHIFT(is_signed) ((is_signed) ? 128 : 0)
typedef unsigned char mi_term;
MI_INLINE mi_sum mi_dot_weights(const signed char *p) { return mi_load_lanes(p); }
MI_INLINE mi_sum mi_dot(mi_sum sum, mi_sum terms, mi_sum weights)
{
    /* as assembler: compilers disagree about the types that their builtins for it take */
#if MI_VEC_BYTES == 64
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(terms), "v"(weights));
#else
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(terms), "x"(weights));
#endif
    return sum;
}

#elif !defined(MI_OF_16_BITS) && defined(__ARM_FEATURE_DOTPROD)
#define MI_STEP 4
#define MI_SHIFT(is_signed) ((is_signed) ? 0 : -128)
typedef signed char mi_term;
MI_INLINE mi_sum mi_dot_weights(const signed char *p) { return mi_load_lanes(p); }
MI_INLINE mi_sum mi_dot(mi_sum sum, mi_sum terms, mi_sum weights)
{
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(terms), "w"(weights));
    return sum;
}

#else
#define MI_STEP 2
#define MI_SHIFT(is_signed) 0
typedef short mi_term;
typedef short mi_terms __attribute__((vector_size(MI_VEC_BYTES)));
typedef signed char mi_half_bytes __attribute__((vector_size(MI_VEC_BYTES / 2), aligned(1), may_alias));
MI_INLINE mi_sum mi_dot_weights(const signed char *p)
{
    return (mi_sum)__builtin_convertvector(*(const mi_half_bytes *)p, mi_terms);
}
MI_INLINE mi_sum mi_dot(mi_sum sum, mi_sum terms, mi_sum weights)
{
#if defined(__AVX512VNNI__) && MI_VEC_BYTES == 64
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(terms), "v"(weights));
    return sum;
#elif defined(__AVX512BW__) && MI_VEC_BYTES == 64
    mi_sum both;
    __asm__("vpmaddwd %2, %1, %0" : "=v"(both) : "v"(terms), "v"(weights));
    return sum + both;
#elif defined(__AVX2__) && MI_VEC_BYTES == 32
    return sum + (mi_sum)__builtin_ia32_pmaddwd256((mi_terms)terms, (mi_terms)weights);
#elif defined(__SSE2__) && MI_VEC_BYTES == 16
    return sum + (mi_sum)__builtin_ia32_pmaddwd128((mi_terms)terms, (mi_terms)weights);
#else
    const mi_ivec x = (mi_ivec)terms, w = (mi_ivec)weights;
    return sum + (mi_sum)((x >> 16) * (w >> 16)) + (mi_sum)(((mi_ivec)(terms << 16) >> 16) * ((mi_ivec)(weights << 16) >> 16));
#endif
}
#endif

/* a * b, which no compiler makes one operation with a sum that follows: results are those of one rounding per operation. */
MI_INLINE mi_vec mi_product(mi_vec a, mi_vec b)
{
    mi_vec r = a * b;
#if defined(__x86_64__)
    __asm__("" : "+v"(r));
#elif defined(__aarch64__)
    __asm__("" : "+w"(r));
#else
    __asm__("" : "+m"(r));
#endif
    return r;
}

#endif
