/* What kernels generated from loop programs use beside mirage_vec.h: integers and booleans in vectors, elements of every
 * type, reductions in which NaN stays NaN. */
#ifndef MIRAGE_LOOPS_H
#define MIRAGE_LOOPS_H

#include "mirage_pool.h"
#include "mirage_vec.h"

typedef struct {
    const long *sizes;          /* the dims, see the kernel's declarations */
    void *const *tensors;       /* inputs, outputs, then the workspace */
    const long *strides;        /* in elements, of all dims of the inputs in this order */
    long failed, index, extent; /* the check that failed, from 1, with the index and the dim it is not in */
} mi_loops;

/* ---- integers ---- */

MI_INLINE long mi_least(long a, long b) { return a < b ? a : b; }
MI_INLINE long mi_clamp(long a, long low, long high) { return a < low ? low : a > high ? high : a; }

/* Arithmetic wraps around; division rounds down, and by 0 gives 0. */
#define MI_INTEGER(bits, type, utype) \
    MI_INLINE type mi_add##bits(type a, type b) { return (type)((utype)a + (utype)b); } \
    MI_INLINE type mi_sub##bits(type a, type b) { return (type)((utype)a - (utype)b); } \
    MI_INLINE type mi_mul##bits(type a, type b) { return (type)((utype)a * (utype)b); } \
    MI_INLINE type mi_floordiv##bits(type a, type b) \
    { \
        if (b == 0) return 0; \
        if (b == -1) return (type)(0 - (utype)a); \
        return a / b - (a % b != 0 && (a ^ b) < 0); \
    } \
    MI_INLINE type mi_mod##bits(type a, type b) \
    { \
        if (b == 0 || b == -1) return 0; \
        const type r = a % b; \
        return r != 0 && (r ^ b) < 0 ? r + b : r; \
    }
MI_INTEGER(32, int, unsigned)
MI_INTEGER(64, long, unsigned long)

/* What is not in range becomes the least value, as the processor's conversions do. */
MI_INLINE int mi_to_int32(double x) { return x > -2147483649.0 && x < 2147483648.0 ? (int)x : -0x7fffffff - 1; }
MI_INLINE long mi_to_int64(double x)
{
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (long)x : -0x7fffffffffffffffL - 1;
}

/* Reports an index that is out of range: the first one, whichever thread finds it. The cell that found it ends. */
MI_NOINLINE void mi_report(mi_loops *args, long number, long index, long extent)
{
    long none = 0;
    if (__atomic_compare_exchange_n(&args->failed, &none, number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        args->index = index;
        args->extent = extent;
    }
}

#define MI_IN_RANGE(index, extent) ((index) >= -(extent) && (index) < (extent))

/* ---- elements ---- */

MI_INLINE float mi_from_bfloat16(unsigned short h)
{
    const unsigned bits = (unsigned)h << 16;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
}

MI_INLINE unsigned short mi_to_bfloat16(float f)
{
    unsigned bits;
    __builtin_memcpy(&bits, &f, sizeof f);
    return (unsigned short)((f != f ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

MI_INLINE float mi_from_float16(unsigned short h)
{
    const unsigned magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    unsigned bits = magnitude;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    f *= 0x1p112f;
    __builtin_memcpy(&bits, &f, sizeof f);
    bits |= sign | (magnitude >= 0x7c00u << 13 ? 0x7f800000 : 0);
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
}

MI_INLINE unsigned short mi_to_float16(float f)
{
    unsigned bits, magnitude, found;
    __builtin_memcpy(&bits, &f, sizeof f);
    magnitude = bits & 0x7fffffff;
    if (magnitude >= 143u << 23) {
        found = (magnitude > 0x7f800000 ? 0x200 : 0) | 0x7c00;
    } else if (magnitude < 113u << 23) {
        float small;
        __builtin_memcpy(&small, &magnitude, sizeof small);
        small += 0.5f; /* whose steps are those of the subnormal numbers */
        __builtin_memcpy(&found, &small, sizeof small);
        found -= 0x3f000000;
    } else {
        found = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    }
    return (unsigned short)(found | (bits & 0x80000000) >> 16);
}

/* ---- vectors of integers and booleans: int64 and mi_ivec lanes ---- */

typedef long mi_long __attribute__((vector_size(8 * MI_W)));
typedef int mi_narrow_int __attribute__((vector_size(4 * MI_W)));
typedef signed char mi_bytes __attribute__((vector_size(MI_W)));
typedef short mi_shorts __attribute__((vector_size(2 * MI_W)));

/* Conversions in steps of a factor of 2: GCC 12 takes lane by lane what does more. */
MI_INLINE mi_ivec mi_widen_bytes(mi_bytes v)
{
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(v, mi_shorts), mi_narrow_int), mi_ivec);
}
MI_INLINE mi_bytes mi_narrow_bytes(mi_ivec v)
{
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(v, mi_narrow_int), mi_shorts), mi_bytes);
}

#define MI_LANE_ACCESS(name, type, vector, lanes_t, widen, narrow) \
    MI_INLINE vector mi_load_##name##_n(const type *p, long n) \
    { \
        lanes_t v = {0}; \
        __builtin_memcpy(&v, p, (size_t)n * sizeof(type)); \
        return widen; \
    } \
    MI_INLINE vector mi_load_##name(const type *p) \
    { \
        lanes_t v; \
        __builtin_memcpy(&v, p, sizeof v); \
        return widen; \
    } \
    MI_INLINE void mi_store_##name##_n(type *p, vector given, long n) \
    { \
        const lanes_t v = narrow; \
        __builtin_memcpy(p, &v, (size_t)n * sizeof(type)); \
    } \
    MI_INLINE void mi_store_##name(type *p, vector given) \
    { \
        const lanes_t v = narrow; \
        __builtin_memcpy(p, &v, sizeof v); \
    }
MI_LANE_ACCESS(int64, long, mi_long, mi_long, v, given)
MI_LANE_ACCESS(int32, int, mi_long, mi_narrow_int, __builtin_convertvector(v, mi_long),
    __builtin_convertvector(given, mi_narrow_int))
MI_LANE_ACCESS(bool, unsigned char, mi_ivec, mi_bytes, -mi_widen_bytes(v), -mi_narrow_bytes(given))

/* What is only stored is computed with as int64. Conversions of bytes and 16-bit integers go by way of int, see above. */
typedef unsigned char mi_ubytes __attribute__((vector_size(MI_W)));
typedef unsigned short mi_ushorts __attribute__((vector_size(2 * MI_W)));
typedef unsigned int mi_uints __attribute__((vector_size(4 * MI_W)));
#define MI_AS(v, type) __builtin_convertvector(v, type)
#define MI_STORED(name, type, lanes_t, up, down) MI_LANE_ACCESS(name, type, mi_long, lanes_t, MI_AS(up, mi_long), MI_AS(down, lanes_t))
MI_STORED(int8, signed char, mi_bytes, MI_AS(MI_AS(v, mi_shorts), mi_narrow_int), MI_AS(MI_AS(given, mi_narrow_int), mi_shorts))
MI_STORED(uint8, unsigned char, mi_ubytes, MI_AS(MI_AS(v, mi_shorts), mi_narrow_int), MI_AS(MI_AS(given, mi_narrow_int), mi_shorts))
MI_STORED(int16, short, mi_shorts, MI_AS(v, mi_narrow_int), MI_AS(given, mi_narrow_int))
MI_STORED(uint16, unsigned short, mi_ushorts, MI_AS(v, mi_narrow_int), MI_AS(given, mi_narrow_int))
MI_STORED(uint32, unsigned int, mi_uints, v, given)

/* int32 elements as numbers, without a detour through int64 */
MI_INLINE mi_vec mi_load_int32_real(const int *p)
{
    mi_narrow_int v;
    __builtin_memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, mi_vec);
}
MI_INLINE mi_vec mi_load_int32_real_n(const int *p, long n)
{
    mi_narrow_int v = {0};
    __builtin_memcpy(&v, p, (size_t)n * sizeof(int));
    return __builtin_convertvector(v, mi_vec);
}

MI_INLINE mi_long mi_lanes_from(long first)
{
    mi_long v;
    MI_UNROLL for (int i = 0; i < MI_W; i++) v[i] = first + i;
    return v;
}
MI_INLINE mi_long mi_broadcast_int(long a) { return a - (mi_long){0}; }
MI_INLINE mi_ivec mi_broadcast_bool(int a) { return (mi_ivec){0} - (a != 0); }
MI_INLINE mi_ivec mi_as_bool(mi_long m) { return __builtin_convertvector(m, mi_ivec); }
MI_INLINE mi_long mi_bool_to_int(mi_ivec m) { return -__builtin_convertvector(m, mi_long); }
MI_INLINE mi_vec mi_bool_to_real(mi_ivec m) { return __builtin_convertvector(-m, mi_vec); }
MI_INLINE mi_vec mi_int_to_real(mi_long a) { return __builtin_convertvector(a, mi_vec); }
MI_INLINE mi_ivec mi_select_bool(mi_ivec m, mi_ivec a, mi_ivec b) { return (m & a) | (~m & b); }
MI_INLINE mi_long mi_select_int(mi_ivec m, mi_long a, mi_long b)
{
    const mi_long wide = __builtin_convertvector(m, mi_long);
    return (wide & a) | (~wide & b);
}

MI_INLINE mi_real mi_hproduct(mi_vec v)
{
    mi_real r = v[0];
    MI_UNROLL for (int i = 1; i < MI_W; i++) r *= v[i];
    return r;
}

#endif
