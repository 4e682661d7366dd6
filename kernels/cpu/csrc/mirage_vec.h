/* One vector type and the elementwise functions of generated CPU kernels.
 *
 * `#define MI_REAL float` or `double` before the first include chooses the element type of the translation unit, and
 * with float `#define MI_NARROW float16` or `bfloat16` a second one, for memory only (see mirage_narrow.h).
 * Written with the vector extensions of GCC (12 or newer) and Clang; the masked accesses and 2^n scaling of AVX and
 * AVX-512 use the compiler's builtins where it has them (<immintrin.h> would double the compile time of a kernel) and
 * have a portable form beside them.
 */
#ifndef MIRAGE_VEC_H
#define MIRAGE_VEC_H

#include <math.h>
#include <stddef.h>

#ifndef MI_REAL
#define MI_REAL float
#endif
#define MI_IS_FLOAT_float 1
#define MI_IS_FLOAT_double 0
#define MI_CAT_(a, b) a##b
#define MI_CAT(a, b) MI_CAT_(a, b)
#define MI_IS_FLOAT MI_CAT(MI_IS_FLOAT_, MI_REAL)

#if defined(__AVX512F__)
#define MI_VEC_BYTES 64
#elif defined(__AVX__)
#define MI_VEC_BYTES 32
#else
#define MI_VEC_BYTES 16
#endif

#if MI_IS_FLOAT
#define MI_REAL_BYTES 4
#else
#define MI_REAL_BYTES 8
#endif
#define MI_W (MI_VEC_BYTES / MI_REAL_BYTES) /* lanes: 2, 4, 8 or 16 */

#define MI_LINE 64 /* bytes of a cache line */
#define MI_INLINE static inline __attribute__((always_inline, unused))
#define MI_NOINLINE static __attribute__((noinline, unused))
#if defined(__clang__)
#define MI_UNROLL _Pragma("clang loop unroll(full)")
#define MI_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define MI_UNROLL _Pragma("GCC unroll 64")
#define MI_NO_UNROLL _Pragma("GCC unroll 1")
#endif

typedef MI_REAL mi_real;
#if MI_IS_FLOAT
typedef int mi_int;
#define MI_SIGN_BIT (-0x7fffffff - 1)
#else
typedef long long mi_int;
#define MI_SIGN_BIT (-0x7fffffffffffffffLL - 1)
#endif
typedef mi_real mi_vec __attribute__((vector_size(MI_VEC_BYTES)));
typedef mi_int mi_ivec __attribute__((vector_size(MI_VEC_BYTES))); /* comparisons: all bits set where true */
typedef mi_real mi_vec_unaligned __attribute__((vector_size(MI_VEC_BYTES), aligned(MI_REAL_BYTES), may_alias));

/* ---- lanes ---- */

MI_INLINE mi_vec mi_broadcast(mi_real a) { return a - (mi_vec){0}; }

MI_INLINE mi_vec mi_select(mi_ivec m, mi_vec a, mi_vec b)
{
#if defined(__SSE2__) && MI_W == 2 && !defined(__clang__)
    __asm__("" : "+x"(m)); /* GCC 12 crashes where it sees a comparison of two doubles select */
#endif
    return (mi_vec)((m & (mi_ivec)a) | (~m & (mi_ivec)b));
}

/* mi_max and mi_min are like the x86 instructions: b where either operand is NaN. Clang makes one instruction of the
 * select; GCC 12 needs to be told, as it makes scalar code of a loop that carries a maximum. */
#if defined(__clang__) || MI_W == 2 || !(defined(__SSE2__) || defined(__aarch64__))
#define MI_CHOOSE(name, a, relation, b) return mi_select(a relation b, a, b);
#elif defined(__aarch64__)
#define MI_CHOOSE(name, a, relation, b) \
    mi_vec r; \
    MI_UNROLL for (int i = 0; i < MI_W; i++) r[i] = a[i] relation b[i] ? a[i] : b[i]; \
    return r;
#elif MI_VEC_BYTES == 64 && MI_IS_FLOAT
#define MI_CHOOSE(name, a, relation, b) return __builtin_ia32_##name##ps512_mask(a, b, a, (unsigned short)-1, 4);
#elif MI_VEC_BYTES == 64
#define MI_CHOOSE(name, a, relation, b) return __builtin_ia32_##name##pd512_mask(a, b, a, (unsigned char)-1, 4);
#elif MI_VEC_BYTES == 32 && MI_IS_FLOAT
#define MI_CHOOSE(name, a, relation, b) return __builtin_ia32_##name##ps256(a, b);
#elif MI_VEC_BYTES == 32
#define MI_CHOOSE(name, a, relation, b) return __builtin_ia32_##name##pd256(a, b);
#else
#define MI_CHOOSE(name, a, relation, b) return __builtin_ia32_##name##ps(a, b);
#endif
MI_INLINE mi_vec mi_max(mi_vec a, mi_vec b) { MI_CHOOSE(max, a, >, b) }
MI_INLINE mi_vec mi_min(mi_vec a, mi_vec b) { MI_CHOOSE(min, a, <, b) }

MI_INLINE mi_vec mi_abs(mi_vec a) { return (mi_vec)((mi_ivec)a & ~MI_SIGN_BIT); }

/* ---- loads and stores: no alignment assumed ---- */

MI_INLINE mi_vec mi_load(const mi_real *p) { return (mi_vec) * (const mi_vec_unaligned *)p; }
MI_INLINE void mi_store(mi_real *p, mi_vec v) { *(mi_vec_unaligned *)p = (mi_vec_unaligned)v; }

/* mi_mask_n(n), 0 <= n <= MI_W, selects the first n lanes. Masked accesses touch no memory outside these lanes; masked
 * loads fill the others with zero. MI_CHEAP_MASKS: a masked load costs no more than a plain one. */
#if defined(__has_builtin)
#if MI_VEC_BYTES == 64 && __has_builtin(__builtin_ia32_loadups512_mask)
#define MI_CHEAP_MASKS 1
#elif MI_VEC_BYTES == 32 && __has_builtin(__builtin_ia32_maskloadps256)
#define MI_CHEAP_MASKS 1
#endif
#endif
#ifndef MI_CHEAP_MASKS
#define MI_CHEAP_MASKS 0
#endif

#if MI_CHEAP_MASKS && MI_VEC_BYTES == 64
#if MI_IS_FLOAT
typedef unsigned short mi_mask;
#define MI_MASK_LOAD(p, m) __builtin_ia32_loadups512_mask((const void *)(p), (mi_vec){0}, m)
#define MI_MASK_STORE(p, v, m) __builtin_ia32_storeups512_mask((void *)(p), v, m)
#else
typedef unsigned char mi_mask;
#define MI_MASK_LOAD(p, m) __builtin_ia32_loadupd512_mask((const void *)(p), (mi_vec){0}, m)
#define MI_MASK_STORE(p, v, m) __builtin_ia32_storeupd512_mask((void *)(p), v, m)
#endif
MI_INLINE mi_mask mi_mask_n(int n) { return (mi_mask)((1u << n) - 1u); }
MI_INLINE mi_vec mi_load_mask(const mi_real *p, mi_mask m) { return MI_MASK_LOAD(p, m); }
MI_INLINE void mi_store_mask(mi_real *p, mi_vec v, mi_mask m) { MI_MASK_STORE(p, v, m); }

#elif MI_CHEAP_MASKS && MI_VEC_BYTES == 32
typedef mi_ivec mi_mask;
#if MI_IS_FLOAT
#define MI_MASK_LOAD(p, m) __builtin_ia32_maskloadps256((const void *)(p), m)
#define MI_MASK_STORE(p, v, m) __builtin_ia32_maskstoreps256((void *)(p), m, v)
MI_INLINE mi_mask mi_mask_n(int n) { return (mi_ivec){0, 1, 2, 3, 4, 5, 6, 7} < n; }
#else
#define MI_MASK_LOAD(p, m) __builtin_ia32_maskloadpd256((const void *)(p), m)
#define MI_MASK_STORE(p, v, m) __builtin_ia32_maskstorepd256((void *)(p), m, v)
MI_INLINE mi_mask mi_mask_n(int n) { return (mi_ivec){0, 1, 2, 3} < (mi_int)n; }
#endif
MI_INLINE mi_vec mi_load_mask(const mi_real *p, mi_mask m) { return MI_MASK_LOAD(p, m); }
MI_INLINE void mi_store_mask(mi_real *p, mi_vec v, mi_mask m) { MI_MASK_STORE(p, v, m); }

#else
typedef int mi_mask;
MI_INLINE mi_mask mi_mask_n(int n) { return n; }

/* Copies n < 2 * MI_W elements in halving powers of two: no call, no loop over elements. */
MI_INLINE void mi_copy_n(mi_real *to, const mi_real *from, int n)
{
    int at = 0;
    MI_UNROLL for (int part = MI_W; part; part /= 2)
    {
        if (n & part) {
            __builtin_memcpy(to + at, from + at, (size_t)part * sizeof(mi_real));
            at += part;
        }
    }
}

MI_INLINE mi_vec mi_load_mask(const mi_real *p, mi_mask n)
{
    mi_real lanes[MI_W] = {0};
    mi_copy_n(lanes, p, n);
    return mi_load(lanes);
}

MI_INLINE void mi_store_mask(mi_real *p, mi_vec v, mi_mask n)
{
    mi_real lanes[MI_W];
    mi_store(lanes, v);
    mi_copy_n(p, lanes, n);
}
#endif

/* The first n lanes, 0 <= n <= MI_W. */
MI_INLINE mi_vec mi_load_n(const mi_real *p, int n) { return mi_load_mask(p, mi_mask_n(n)); }
MI_INLINE void mi_store_n(mi_real *p, mi_vec v, int n) { mi_store_mask(p, v, mi_mask_n(n)); }

/* f(l, h) for each lane l, and f(h) for each bit h of their indices, the highest first */
#if MI_W == 16
#define MI_LANES(f, h) \
    f(0, h), f(1, h), f(2, h), f(3, h), f(4, h), f(5, h), f(6, h), f(7, h), f(8, h), f(9, h), f(10, h), f(11, h), \
        f(12, h), f(13, h), f(14, h), f(15, h)
#define MI_BITS(f) f(8) f(4) f(2) f(1)
#elif MI_W == 8
#define MI_LANES(f, h) f(0, h), f(1, h), f(2, h), f(3, h), f(4, h), f(5, h), f(6, h), f(7, h)
#define MI_BITS(f) f(4) f(2) f(1)
#elif MI_W == 4
#define MI_LANES(f, h) f(0, h), f(1, h), f(2, h), f(3, h)
#define MI_BITS(f) f(2) f(1)
#else
#define MI_LANES(f, h) f(0, h), f(1, h)
#define MI_BITS(f) f(1)
#endif

#define MI_EVERY_SECOND_(l, h) (2 * (l) + (h))

/* Every second of the lanes of a and then b, from the first one on, or from the second. */
MI_INLINE mi_vec mi_every_second(const int FROM, mi_vec a, mi_vec b)
{
    if (FROM) return __builtin_shufflevector(a, b, MI_LANES(MI_EVERY_SECOND_, 1));
    return __builtin_shufflevector(a, b, MI_LANES(MI_EVERY_SECOND_, 0));
}

/* Lane i is lane from[i] of v, each from 0 to MI_W - 1. */
MI_INLINE mi_vec mi_permute(mi_vec v, const mi_int *from)
{
#if defined(__clang__)
    mi_vec r;
    MI_UNROLL for (int i = 0; i < MI_W; i++) r[i] = v[from[i]];
    return r;
#else
    return __builtin_shuffle(v, (mi_ivec)mi_load((const mi_real *)from));
#endif
}

/* Lane i from p[2 * i] for i < n; nothing behind the last of them is read. */
MI_INLINE mi_vec mi_load_second_n(const mi_real *p, int n)
{
    const int elements = 2 * n - 1, more = elements - MI_W;
    const mi_vec a = more < 0 ? mi_load_n(p, elements) : mi_load(p), b = more > 0 ? mi_load_n(p + MI_W, more) : a;
    return mi_every_second(0, a, b);
}

/* Lane i from p[i * stride] for i < n; stride counts elements. */
MI_INLINE mi_vec mi_load_strided_n(const mi_real *p, ptrdiff_t stride, int n)
{
    if (__builtin_constant_p(stride) && stride == 2) return mi_load_second_n(p, n);
    mi_real lanes[MI_W] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i * stride];
    return mi_load(lanes);
}
MI_INLINE mi_vec mi_load_strided(const mi_real *p, ptrdiff_t stride)
{
    if (__builtin_constant_p(stride) && stride == 2) return mi_load_second_n(p, MI_W);
    mi_real lanes[MI_W];
    MI_UNROLL for (int i = 0; i < MI_W; i++) lanes[i] = p[i * stride];
    return mi_load(lanes);
}

MI_INLINE void mi_store_strided_n(mi_real *p, ptrdiff_t stride, mi_vec v, int n)
{
    mi_real lanes[MI_W];
    mi_store(lanes, v);
    for (int i = 0; i < n; i++) p[i * stride] = lanes[i];
}

/* v with its lanes from n on replaced by those of `fill`, e.g. -inf before a horizontal maximum. */
MI_INLINE mi_vec mi_fill_tail(mi_vec v, int n, mi_vec fill)
{
    mi_real index[MI_W];
    MI_UNROLL for (int i = 0; i < MI_W; i++) index[i] = (mi_real)i;
    return mi_select(mi_load(index) < mi_broadcast((mi_real)n), v, fill);
}

/* ---- quotients by what many elements share ---- */

#if MI_IS_FLOAT
#define MI_LEAST_NORMAL 0x1p-126f
#define MI_HALF_WAY 0x1p64f
#else
#define MI_LEAST_NORMAL 0x1p-1022
#define MI_HALF_WAY 0x1p512
#endif

/* A divisor y as two factors: x / y is x * inverse * scale, in a fraction of the time. The scale is 1 but where 1 / y is
 * no normal number: there it is a power of two by which y is multiplied first. */
typedef struct {
    mi_vec inverse, scale;
} mi_divisor;

MI_INLINE mi_divisor mi_divisor_of(mi_vec y)
{
    const mi_vec size = mi_abs(y), one = mi_broadcast(1);
    const mi_vec tiny = mi_select(size < mi_broadcast(MI_LEAST_NORMAL), mi_broadcast(MI_HALF_WAY), one);
    const mi_vec scale = mi_select(size > mi_broadcast(1 / MI_LEAST_NORMAL), mi_broadcast(1 / MI_HALF_WAY), tiny);
    return (mi_divisor){1 / (y * scale), scale};
}

/* x / y for the divisor of y; 1.5 units in the last place. */
MI_INLINE mi_vec mi_quotient(mi_vec x, mi_divisor y) { return x * y.inverse * y.scale; }

/* ---- horizontal reductions: butterfly over lanes whose indices differ in one bit h ---- */

#define MI_KEEP_(l, h) (((l) & (h)) ? MI_W + (l) : (l))
#define MI_SWAP_(l, h) (((l) & (h)) ? MI_W + ((l) ^ (h)) : ((l) ^ (h)))
/* lane l of a where bit h of l is clear, of b where it is set; MI_SWAP takes lane l ^ h instead */
#define MI_KEEP(a, b, h) __builtin_shufflevector(a, b, MI_LANES(MI_KEEP_, h))
#define MI_SWAP(a, b, h) __builtin_shufflevector(a, b, MI_LANES(MI_SWAP_, h))

MI_INLINE mi_real mi_hsum(mi_vec v)
{
#define MI_STEP(h) v = v + MI_SWAP(v, v, h);
    MI_BITS(MI_STEP)
#undef MI_STEP
    return v[0];
}

MI_INLINE mi_real mi_hmax(mi_vec v)
{
#define MI_STEP(h) v = mi_max(v, MI_SWAP(v, v, h));
    MI_BITS(MI_STEP)
#undef MI_STEP
    return v[0];
}

MI_INLINE mi_real mi_hmin(mi_vec v)
{
#define MI_STEP(h) v = mi_min(v, MI_SWAP(v, v, h));
    MI_BITS(MI_STEP)
#undef MI_STEP
    return v[0];
}

/* Reductions keep so many partial results, because one alone would wait for itself in every step. */
#define MI_PARTS 4

MI_INLINE mi_vec mi_sum_parts(const mi_vec *v) { return (v[0] + v[1]) + (v[2] + v[3]); }
/* NaN in the first operand of mi_max is passed over: no partial maximum is NaN, unless it began so */
MI_INLINE mi_vec mi_max_parts(const mi_vec *v) { return mi_max(mi_max(v[0], v[1]), mi_max(v[2], v[3])); }

/* ---- extremes in which NaN stays NaN ---- */

MI_INLINE mi_vec mi_maximum(mi_vec a, mi_vec b) { return mi_select(a != a, a, mi_max(a, b)); }
MI_INLINE mi_vec mi_minimum(mi_vec a, mi_vec b) { return mi_select(a != a, a, mi_min(a, b)); }

#define MI_EXTREME(name, relation) \
    MI_INLINE double mi_##name##_double(double a, double b) { return a != a || a relation b ? a : b; } \
    MI_INLINE float mi_##name##_float(float a, float b) { return a != a || a relation b ? a : b; } \
    MI_INLINE mi_real mi_h##name(mi_vec v) \
    { \
        mi_real r = v[0]; \
        MI_UNROLL for (int i = 1; i < MI_W; i++) r = r != r || r relation v[i] ? r : v[i]; \
        return r; \
    }
MI_EXTREME(maximum, >)
MI_EXTREME(minimum, <)

/* Lane i of the result is the sum of all lanes of v[i]; v[MI_W] is overwritten. */
MI_INLINE mi_vec mi_hsum_each(mi_vec *v)
{
#define MI_STEP(h) \
    MI_UNROLL for (int i = 0; i < h; i++) v[i] = MI_KEEP(v[i], v[i + h], h) + MI_SWAP(v[i], v[i + h], h);
    MI_BITS(MI_STEP)
#undef MI_STEP
    return v[0];
}

#define MI_LOW_(l, h) (((l) & (h)) ? MI_W + ((l) ^ (h)) : (l))
#define MI_HIGH_(l, h) (((l) & (h)) ? MI_W + (l) : ((l) ^ (h)))
#define MI_LOW(a, b, h) __builtin_shufflevector(a, b, MI_LANES(MI_LOW_, h))
#define MI_HIGH(a, b, h) __builtin_shufflevector(a, b, MI_LANES(MI_HIGH_, h))

/* Transposes v[MR] with lanes [MR,P], P staying together. */
MI_INLINE void mi_transpose_groups(const int MR, mi_vec *v)
{
    const int P = MI_W / MR;
#define MI_STEP(h) \
    MI_UNROLL for (int i = 0; h >= P && i < MR; i++) \
    { \
        if (!(i & h / P)) { \
            const mi_vec a = v[i], b = v[i + h / P]; \
            v[i] = MI_LOW(a, b, h); \
            v[i + h / P] = MI_HIGH(a, b, h); \
        } \
    }
    MI_BITS(MI_STEP)
#undef MI_STEP
}

/* to[j * to_step + i] = from[i * from_step + j] for i < m, j < n; steps count elements. */
MI_NOINLINE void mi_transpose(ptrdiff_t m, ptrdiff_t n, const mi_real *from, ptrdiff_t from_step, mi_real *to, ptrdiff_t to_step)
{
    for (ptrdiff_t i0 = 0; i0 < m; i0 += MI_W) {
        const int rows = m - i0 < MI_W ? (int)(m - i0) : MI_W;
        const mi_mask row_mask = mi_mask_n(rows);
        for (ptrdiff_t j0 = 0; j0 < n; j0 += MI_W) {
            const int columns = n - j0 < MI_W ? (int)(n - j0) : MI_W;
            const mi_real *const f = from + i0 * from_step + j0;
            mi_real *const t = to + j0 * to_step + i0;
            mi_vec v[MI_W];
            if (rows == MI_W && columns == MI_W) {
                MI_UNROLL for (int i = 0; i < MI_W; i++) v[i] = mi_load(f + i * from_step);
                mi_transpose_groups(MI_W, v);
                MI_UNROLL for (int j = 0; j < MI_W; j++) mi_store(t + j * to_step, v[j]);
            } else {
                const mi_mask mask = mi_mask_n(columns);
                MI_UNROLL for (int i = 0; i < MI_W; i++)
                {
                    v[i] = i < rows ? mi_load_mask(f + i * from_step, mask) : (mi_vec){0};
                }
                mi_transpose_groups(MI_W, v);
                MI_UNROLL for (int j = 0; j < MI_W; j++)
                {
                    if (j < columns) mi_store_mask(t + j * to_step, v[j], row_mask);
                }
            }
        }
    }
}

#ifdef MI_NARROW
#include "mirage_narrow.h"
#endif
#include "mirage_math.h"

#endif
