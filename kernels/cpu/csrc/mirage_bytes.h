/* Bytes, one for each lane of 32 bits. */
#ifndef MIRAGE_BYTES_H
#define MIRAGE_BYTES_H

#define MI_REAL float
#include "mirage_vec.h"
typedef unsigned mi_sum __attribute__((vector_size(MI_VEC_BYTES)));
typedef unsigned mi_sum_unaligned __attribute__((vector_size(MI_VEC_BYTES), aligned(1), may_alias));
MI_INLINE mi_sum mi_load_lanes(const void *p) { return (mi_sum) * (const mi_sum_unaligned *)p; }
MI_INLINE void mi_store_lanes(void *p, mi_sum v) { *(mi_sum_unaligned *)p = (mi_sum_unaligned)v; }
typedef unsigned char mi_bytes_of_lanes __attribute__((vector_size(MI_W), aligned(1), may_alias));

/* Lanes of MI_W bytes, and the low bytes of lanes. As assembler: compilers convert vectors whose elements are 4 times as wide
 * one by one. */
MI_INLINE mi_ivec mi_load_bytes(const unsigned char *p)
{
#if defined(__AVX2__)
    mi_ivec v;
    __asm__("vpmovzxbd %1, %0" : "=v"(v) : "m"(*(const mi_bytes_of_lanes *)p));
    return v;
#else
    int lanes[MI_W];
    for (int i = 0; i < MI_W; i++) lanes[i] = p[i];
    return (mi_ivec)mi_load_lanes(lanes);
#endif
}

MI_INLINE void mi_store_bytes(unsigned char *p, mi_sum v)
{
#if defined(__AVX512F__)
    __asm__("vpmovdb %1, %0" : "=m"(*(mi_bytes_of_lanes *)p) : "v"(v));
#else
    unsigned lanes[MI_W];
    mi_store_lanes(lanes, v);
    for (int i = 0; i < MI_W; i++) p[i] = (unsigned char)lanes[i];
#endif
}

/* Copies n < MI_W bytes in halving powers of two: no call. */
MI_INLINE void mi_copy_bytes(unsigned char *to, const unsigned char *from, int n)
{
    MI_UNROLL for (int part = MI_W / 2; part; part /= 2)
    {
        if (n & part) {
            __builtin_memcpy(to, from, (size_t)part);
            to += part, from += part;
        }
    }
}

/* The first n of them, of which the others are 0. */
MI_INLINE mi_ivec mi_load_bytes_n(const unsigned char *p, int n)
{
#if defined(__AVX512F__) && MI_CHEAP_MASKS
    mi_ivec v;
    __asm__("vpmovzxbd %1, %0%{%2%}%{z%}" : "=v"(v) : "m"(*(const mi_bytes_of_lanes *)p), "Yk"(mi_mask_n(n)));
    return v;
#else
    unsigned char part[MI_W] = {0};
    if (n == MI_W) return mi_load_bytes(p);
    mi_copy_bytes(part, p, n);
    return mi_load_bytes(part);
#endif
}

MI_INLINE void mi_store_bytes_n(unsigned char *p, mi_sum v, int n)
{
#if defined(__AVX512F__) && MI_CHEAP_MASKS
    __asm__("vpmovdb %1, %0%{%2%}" : "+m"(*(mi_bytes_of_lanes *)p) : "v"(v), "Yk"(mi_mask_n(n)));
#else
    unsigned char part[MI_W];
    if (n == MI_W) {
        mi_store_bytes(p, v);
        return;
    }
    mi_store_bytes(part, v);
    mi_copy_bytes(p, part, n);
#endif
}

#endif
