/* Loads and stores that convert between narrow elements in memory and vectors of float. Included by mirage_vec.h where
 * `#define MI_NARROW float16` (IEEE binary16) or `bfloat16` (the upper half of a float) names their type; or `int8` or `uint8`,
 * which are only loaded. Included once more, for another type, where several are read.
 *
 * All names end in their type's: mi_load_narrow_int8. Without it, they are those of the type that MI_NARROW names at that place.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes infinite, and NaN stays NaN.
 * Subnormal numbers are kept. The names are those of mirage_vec.h with `half`; no alignment is assumed, and the
 * functions for n lanes touch no memory outside of these.
 */
#ifndef MIRAGE_NARROW_H
#define MIRAGE_NARROW_H

#if !MI_IS_FLOAT
#error "narrow elements are computed with in float: define MI_REAL as float"
#endif
#define MI_IS_BFLOAT_bfloat16 1
#define MI_IS_BFLOAT_float16 0
#define MI_IS_BFLOAT_int8 0
#define MI_IS_BFLOAT_uint8 0
#define MI_IS_BFLOAT MI_CAT(MI_IS_BFLOAT_, MI_NARROW)
#define MI_IS_BYTE_bfloat16 0
#define MI_IS_BYTE_float16 0
#define MI_IS_BYTE_int8 1
#define MI_IS_BYTE_uint8 1
#define MI_IS_BYTE MI_CAT(MI_IS_BYTE_, MI_NARROW)
#define MI_ELEMENT_bfloat16 unsigned short /* the bits */
#define MI_ELEMENT_float16 unsigned short
#define MI_ELEMENT_int8 signed char
#define MI_ELEMENT_uint8 unsigned char
typedef unsigned mi_uvec __attribute__((vector_size(MI_VEC_BYTES)));

#define MI_OF(name) MI_CAT(name##_, MI_NARROW)
#define mi_narrow MI_OF(mi_narrow)
#define mi_narrow_vec MI_OF(mi_narrow_vec)
#define mi_narrow_unaligned MI_OF(mi_narrow_unaligned)
#define mi_widen MI_OF(mi_widen)
#define mi_to_narrow MI_OF(mi_to_narrow)
#define mi_load_narrow MI_OF(mi_load_narrow)
#define mi_store_narrow MI_OF(mi_store_narrow)
#define mi_broadcast_narrow MI_OF(mi_broadcast_narrow)
#define mi_load_narrow_n MI_OF(mi_load_narrow_n)
#define mi_store_narrow_n MI_OF(mi_store_narrow_n)
#define mi_copy_narrow_n MI_OF(mi_copy_narrow_n)
#define mi_load_narrow_strided MI_OF(mi_load_narrow_strided)
#define mi_load_narrow_strided_n MI_OF(mi_load_narrow_strided_n)
#define mi_store_narrow_strided_n MI_OF(mi_store_narrow_strided_n)
#define mi_transpose_narrow MI_OF(mi_transpose_narrow)
#endif

typedef MI_CAT(MI_ELEMENT_, MI_NARROW) mi_narrow;
typedef mi_narrow mi_narrow_vec __attribute__((vector_size(sizeof(mi_narrow) * MI_W)));
typedef mi_narrow mi_narrow_unaligned __attribute__((vector_size(sizeof(mi_narrow) * MI_W), aligned(sizeof(mi_narrow)), may_alias));

#if MI_IS_BYTE

#define MI_WIDEN_int8 "vpmovsxbd %1, %0"
#define MI_WIDEN_uint8 "vpmovzxbd %1, %0"

MI_INLINE mi_vec mi_widen(mi_narrow_vec h)
{
    mi_ivec found;
#if defined(__AVX2__) && MI_VEC_BYTES > 16
    /* GCC 12 would convert the lanes one by one */
    __asm__(MI_CAT(MI_WIDEN_, MI_NARROW) : "=v"(found) : "m"(h));
#else
    found = __builtin_convertvector(h, mi_ivec);
#endif
    return __builtin_convertvector(found, mi_vec);
}

#elif MI_IS_BFLOAT

MI_INLINE mi_vec mi_widen(mi_narrow_vec h) { return (mi_vec)(__builtin_convertvector(h, mi_uvec) << 16); }

MI_INLINE mi_narrow_vec mi_to_narrow(mi_vec v)
{
    const mi_uvec bits = (mi_uvec)v, rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
    const mi_uvec nan = (mi_uvec)(v != v);
    return __builtin_convertvector(((nan & quiet) | (~nan & rounded)) >> 16, mi_narrow_vec);
}

#else

/* The processor's conversions, where the compiler has them: MI_F16C. Rounding mode 0 is to nearest, ties to even. */
#if defined(__has_builtin)
#if MI_VEC_BYTES == 64 && __has_builtin(__builtin_ia32_vcvtph2ps512_mask) && \
    __has_builtin(__builtin_ia32_vcvtps2ph512_mask)
#define MI_F16C 1
typedef short mi_narrow_bits __attribute__((vector_size(32)));
#define MI_WIDEN(h) __builtin_ia32_vcvtph2ps512_mask((mi_narrow_bits)(h), (mi_vec){0}, (unsigned short)-1, 4)
#define MI_TO_NARROW(v) __builtin_ia32_vcvtps2ph512_mask(v, 0, (mi_narrow_bits){0}, (unsigned short)-1)
#elif MI_VEC_BYTES == 32 && defined(__F16C__) && __has_builtin(__builtin_ia32_vcvtph2ps256) && \
    __has_builtin(__builtin_ia32_vcvtps2ph256)
#define MI_F16C 1
typedef short mi_narrow_bits __attribute__((vector_size(16)));
#define MI_WIDEN(h) __builtin_ia32_vcvtph2ps256((mi_narrow_bits)(h))
#define MI_TO_NARROW(v) __builtin_ia32_vcvtps2ph256(v, 0)
#endif
#endif

#ifdef MI_F16C
MI_INLINE mi_vec mi_widen(mi_narrow_vec h) { return MI_WIDEN(h); }
MI_INLINE mi_narrow_vec mi_to_narrow(mi_vec v) { return (mi_narrow_vec)MI_TO_NARROW(v); }
#else

MI_INLINE mi_vec mi_widen(mi_narrow_vec h)
{
    /* exponent and mantissa in place, then the other bias: 2^112 is exact, for subnormal numbers too */
    const mi_uvec bits = __builtin_convertvector(h, mi_uvec), magnitude = (bits & 0x7fff) << 13;
    const mi_uvec scaled = (mi_uvec)((mi_vec)magnitude * 0x1p112f);
    const mi_uvec special = (mi_uvec)(magnitude >= 0x7c00u << 13) & 0x7f800000;
    return (mi_vec)(scaled | special | (bits & 0x8000) << 16);
}

MI_INLINE mi_narrow_vec mi_to_narrow(mi_vec v)
{
    const mi_uvec bits = (mi_uvec)v, magnitude = bits & 0x7fffffff;
    /* the other bias; what rounds up carries from the mantissa into the exponent, up to infinity */
    const mi_uvec normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* below 2^-14 steps are 2^-24 apart: adding 0.5, whose own steps these are, rounds to them */
    const mi_uvec small = (mi_uvec)((mi_vec)magnitude + 0.5f) - 0x3f000000;
    const mi_uvec special = ((mi_uvec)(magnitude > 0x7f800000) & 0x200) | 0x7c00;
    const mi_uvec is_small = (mi_uvec)(magnitude < 113u << 23), is_special = (mi_uvec)(magnitude >= 143u << 23);
    const mi_uvec finite = (is_small & small) | (~is_small & normal);
    const mi_uvec found = (is_special & special) | (~is_special & finite);
    return __builtin_convertvector(found | (bits & 0x80000000) >> 16, mi_narrow_vec);
}
#endif
#endif

/* ---- loads and stores ---- */

MI_INLINE mi_vec mi_load_narrow(const mi_narrow *p) { return mi_widen((mi_narrow_vec) * (const mi_narrow_unaligned *)p); }
#if !MI_IS_BYTE
MI_INLINE void mi_store_narrow(mi_narrow *p, mi_vec v) { *(mi_narrow_unaligned *)p = (mi_narrow_unaligned)mi_to_narrow(v); }
#endif

/* The element in all lanes. */
#if MI_IS_BYTE
MI_INLINE mi_vec mi_broadcast_narrow(const mi_narrow *p) { return mi_broadcast((mi_real)*p); }
#else
MI_INLINE mi_vec mi_broadcast_narrow(const mi_narrow *p) { return mi_widen(*p - (mi_narrow_vec){0}); }
#endif

#undef MI_NARROW_MASKS
#if defined(__has_builtin)
#if !MI_IS_BYTE && MI_W == 16 && defined(__AVX512BW__) && defined(__AVX512VL__) && __has_builtin(__builtin_ia32_loaddquhi256_mask) && \
    __has_builtin(__builtin_ia32_storedquhi256_mask)
#define MI_NARROW_MASKS 1
typedef short mi_narrow_lanes __attribute__((vector_size(32)));
#endif
#endif

#ifdef MI_NARROW_MASKS
MI_INLINE mi_vec mi_load_narrow_n(const mi_narrow *p, int n)
{
    return mi_widen((mi_narrow_vec)__builtin_ia32_loaddquhi256_mask((const void *)p, (mi_narrow_lanes){0}, mi_mask_n(n)));
}

MI_INLINE void mi_store_narrow_n(mi_narrow *p, mi_vec v, int n)
{
    __builtin_ia32_storedquhi256_mask((void *)p, (mi_narrow_lanes)mi_to_narrow(v), mi_mask_n(n));
}
#else
/* Copies n <= MI_W elements in halving powers of two: no call, no loop over elements. */
MI_INLINE void mi_copy_narrow_n(mi_narrow *to, const mi_narrow *from, int n)
{
    int at = 0;
    MI_UNROLL for (int part = MI_W; part; part /= 2)
    {
        if (n & part) {
            __builtin_memcpy(to + at, from + at, (size_t)part * sizeof(mi_narrow));
            at += part;
        }
    }
}

MI_INLINE mi_vec mi_load_narrow_n(const mi_narrow *p, int n)
{
    mi_narrow lanes[MI_W] = {0};
    mi_copy_narrow_n(lanes, p, n);
    return mi_load_narrow(lanes);
}

#if !MI_IS_BYTE
MI_INLINE void mi_store_narrow_n(mi_narrow *p, mi_vec v, int n)
{
    mi_narrow lanes[MI_W];
    mi_store_narrow(lanes, v);
    mi_copy_narrow_n(p, lanes, n);
}
#endif
#endif

/* Lane i from p[i * stride]; stride counts elements. */
MI_INLINE mi_vec mi_load_narrow_strided(const mi_narrow *p, ptrdiff_t stride)
{
    mi_narrow lanes[MI_W];
    MI_UNROLL for (int i = 0; i < MI_W; i++) lanes[i] = p[i * stride];
    return mi_load_narrow(lanes);
}

MI_INLINE mi_vec mi_load_narrow_strided_n(const mi_narrow *p, ptrdiff_t stride, int n)
{
    mi_narrow lanes[MI_W] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i * stride];
    return mi_load_narrow(lanes);
}

#if !MI_IS_BYTE
MI_INLINE void mi_store_narrow_strided_n(mi_narrow *p, ptrdiff_t stride, mi_vec v, int n)
{
    mi_narrow lanes[MI_W];
    mi_store_narrow(lanes, v);
    for (int i = 0; i < n; i++) p[i * stride] = lanes[i];
}
#endif

/* mi_transpose of narrow elements to mi_real. */
MI_NOINLINE void mi_transpose_narrow(
    ptrdiff_t m, ptrdiff_t n, const mi_narrow *from, ptrdiff_t from_step, mi_real *to, ptrdiff_t to_step)
{
    for (ptrdiff_t i0 = 0; i0 < m; i0 += MI_W) {
        const int rows = m - i0 < MI_W ? (int)(m - i0) : MI_W;
        const mi_mask row_mask = mi_mask_n(rows);
        for (ptrdiff_t j0 = 0; j0 < n; j0 += MI_W) {
            const int columns = n - j0 < MI_W ? (int)(n - j0) : MI_W;
            mi_vec v[MI_W];
            MI_UNROLL for (int i = 0; i < MI_W; i++)
            {
                v[i] = i < rows ? mi_load_narrow_n(from + (i0 + i) * from_step + j0, columns) : (mi_vec){0};
            }
            mi_transpose_groups(MI_W, v);
            MI_UNROLL for (int j = 0; j < MI_W; j++)
            {
                if (j < columns) mi_store_mask(to + (j0 + j) * to_step + i0, v[j], row_mask);
            }
        }
    }
}
