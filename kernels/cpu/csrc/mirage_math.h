/* Vector functions mi_fn_<name>(x, parameters...), one for each scalar function that operators are defined with.
 * Included by mirage_vec.h.
 *
 * Largest error in units in the last place (float / double; tests hold them):
 *     exp 1.1 / 1.1    log 1 / 1    sigmoid 2.5 / 2    tanh 2.5 / 2    erf 3 / 2    gauss_cdf 5.5 / 4.5    sqrt 0.5
 *     sin, cos 1 / 1    pow 1.5 + |p| / 10; small whole powers p multiply, |p| / 2 + 0.5
 *     abs, floor, ceil, round are exact
 * gauss_cdf keeps this relative accuracy in the left tail. Results below the smallest normal number may be flushed to
 * zero. NaN gives NaN everywhere, and infinities give the limit of the function.
 *
 * The polynomials interpolate their function at Chebyshev nodes (computed with 60 digits, then rounded).
 */
#ifndef MIRAGE_MATH_H
#define MIRAGE_MATH_H

#if MI_IS_FLOAT
#define MI_C(single, twice) ((mi_real)(single))
#define MI_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold */
#define MI_MANTISSA_BITS 23
#define MI_EXPONENT_BIAS 127
#define MI_SQRT_HALF_BITS 0x3f3504f3
#define MI_HIGH_HALF (~(mi_int)0xfff)
#else
#define MI_C(single, twice) (twice)
#define MI_MAGIC 6755399441055744.0 /* 1.5 * 2^52 */
#define MI_MANTISSA_BITS 52
#define MI_EXPONENT_BIAS 1023
#define MI_SQRT_HALF_BITS 0x3fe6a09e667f3bcdLL
#define MI_HIGH_HALF (~(mi_int)0x7ffffff)
#endif
#define MI_INFINITY ((mi_real)__builtin_inf())

/* Multiples of ln 2 up to the largest exponent are exact in the high part. */
#define MI_LN2_HIGH MI_C(0.693145751953125, 0.69314718055920820916)
#define MI_LN2_LOW MI_C(1.42860682e-6, 7.3710025651677989018e-13)
#define MI_LOG2_E MI_C(1.44269504, 1.44269504088896340736)

/* sum of c[i] x^i, for a constant count of terms */
MI_INLINE mi_vec mi_poly(mi_vec x, const mi_real *c, int terms)
{
    mi_vec r = mi_broadcast(c[terms - 1]);
    MI_UNROLL for (int i = terms - 2; i >= 0; i--) r = r * x + c[i];
    return r;
}
#define MI_POLY(x, c) mi_poly(x, c, (int)(sizeof(c) / sizeof((c)[0])))

/* The sign bit of `from` on the non-negative a. */
MI_INLINE mi_vec mi_with_sign(mi_vec a, mi_vec from)
{
    return (mi_vec)((mi_ivec)a | ((mi_ivec)from & MI_SIGN_BIT));
}

/* y * 2^n for integral |n| <= 250 (float) or 2000 (double), y near 1; overflow gives inf. */
MI_INLINE mi_vec mi_scale(mi_vec y, mi_vec n)
{
#if MI_VEC_BYTES == 64 && MI_CHEAP_MASKS && MI_IS_FLOAT
    return __builtin_ia32_scalefps512_mask(y, n, y, (unsigned short)-1, 4);
#elif MI_VEC_BYTES == 64 && MI_CHEAP_MASKS
    return __builtin_ia32_scalefpd512_mask(y, n, y, (unsigned char)-1, 4);
#else
    /* two factors, because 2^n itself may be out of range where y * 2^n is not */
    mi_ivec i = (mi_ivec)(n + MI_MAGIC) - (mi_ivec)mi_broadcast(MI_MAGIC);
    mi_ivec half = i >> 1;
    mi_vec first = (mi_vec)((half + MI_EXPONENT_BIAS) << MI_MANTISSA_BITS);
    mi_vec second = (mi_vec)((i - half + MI_EXPONENT_BIAS) << MI_MANTISSA_BITS);
    return y * first * second;
#endif
}

/* Of (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2. */
static const mi_real mi_exp_terms[] = {
    MI_C(0.5, 0.5),
    MI_C(0.166665767, 0.16666666666666671),
    MI_C(0.0416665542, 0.0416666666666666698),
    MI_C(0.00836323288, 0.00833333333332608312),
    MI_C(0.00139262508, 0.00138888888888837112),
#if !MI_IS_FLOAT
    0.000198412698750022788,
    0.0000248015873256774619,
    2.75572551700008874e-6,
    2.75572734787185805e-7,
    2.51053127296221018e-8,
    2.09147553258932022e-9,
#endif
};

/* r and n of x + low = n ln 2 + r with |r| <= ln(2) / 2 */
MI_INLINE mi_vec mi_exp_rest(mi_vec x, mi_vec low, mi_vec *n)
{
    mi_vec rounded = (x + low) * MI_LOG2_E + MI_MAGIC;
    *n = rounded - MI_MAGIC;
    return x - *n * MI_LN2_HIGH - *n * MI_LN2_LOW + low;
}

/* e^r - 1, accurate near 0 as well, and n */
MI_INLINE mi_vec mi_exp_reduced(mi_vec x, mi_vec low, mi_vec *n)
{
    mi_vec r = mi_exp_rest(x, low, n);
    return r + r * r * MI_POLY(r, mi_exp_terms);
}

/* e^r, and n */
MI_INLINE mi_vec mi_exp_factor(mi_vec x, mi_vec low, mi_vec *n)
{
    mi_vec r = mi_exp_rest(x, low, n);
    return (MI_POLY(r, mi_exp_terms) * r + 1) * r + 1;
}

MI_INLINE mi_vec mi_exp_sum(mi_vec x, mi_vec low)
{
    mi_vec n, factor = mi_exp_factor(x, low, &n);
    return mi_scale(factor, n);
}

/* e^x for x up to about 88 (float) or 709 (double), and 0 where that is no normal number: to find such a number takes a processor
 * of Intel's some 150 cycles, and of an attention with a mask half of the terms may be zero. */
MI_INLINE mi_vec mi_exp_falling(mi_vec x)
{
    const mi_vec least = mi_broadcast(MI_C(-87.336544, -708.39641));
#if MI_VEC_BYTES == 64 && MI_CHEAP_MASKS
    mi_vec n;
    const mi_vec y = mi_exp_factor(x, (mi_vec){0}, &n);
    /* lanes that are left out do not slow down the others; 5 is "not less than", also for NaN */
#if MI_IS_FLOAT
    const unsigned short some = __builtin_ia32_cmpps512_mask(x, least, 5, (unsigned short)-1, 4);
    return __builtin_ia32_scalefps512_mask(y, n, (mi_vec){0}, some, 4);
#else
    const unsigned char some = __builtin_ia32_cmppd512_mask(x, least, 5, (unsigned char)-1, 4);
    return __builtin_ia32_scalefpd512_mask(y, n, (mi_vec){0}, some, 4);
#endif
#else
    return mi_select(x < least, (mi_vec){0}, mi_exp_sum(mi_max(least, x), (mi_vec){0}));
#endif
}

MI_INLINE mi_vec mi_fn_exp(mi_vec x) { return mi_exp_falling(mi_min(mi_broadcast(MI_C(90.0, 711.0)), x)); }

MI_INLINE mi_vec mi_fn_sigmoid(mi_vec x) { return 1 / (1 + mi_fn_exp(-x)); }

/* expm1(2|x|) / (expm1(2|x|) + 2) */
MI_INLINE mi_vec mi_fn_tanh(mi_vec x)
{
    mi_vec n;
    mi_vec a = mi_min(mi_broadcast(MI_C(10.0, 20.0)), mi_abs(x));
    mi_vec q = mi_exp_reduced(a + a, (mi_vec){0}, &n);
    mi_vec power = mi_scale(mi_broadcast(1), n);
    mi_vec e = q * power + (power - 1);
    return mi_with_sign(e / (e + 2), x);
}

/* The upper tail of the normal distribution at z >= 0: exp(-z^2 / 2) H(u) / (z + 4), u = (z - 4) / (z + 4). */
MI_INLINE mi_vec mi_gauss_tail(mi_vec z)
{
    static const mi_real c[] = {
        MI_C(0.755285131, 0.755285130415751493),
        MI_C(-0.607896659, -0.607896641971892087),
        MI_C(0.387137368, 0.387137400742214686),
        MI_C(-0.186521281, -0.18652185795965941),
        MI_C(0.0603975331, 0.0603965748909283784),
        MI_C(-0.00754526827, -0.00754018896665929385),
        MI_C(-0.00348931728, -0.00347969236720851984),
        MI_C(0.0016452193, 0.00163081845663021229),
        MI_C(0.000171054612, 0.00013334431021535789),
        MI_C(-0.000231798678, -0.000231094927757244129),
        MI_C(-5.15565933e-5, -1.90824303963323049e-6),
#if !MI_IS_FLOAT
        0.0000351446520755692002,
        7.16597693056827682e-7,
        -5.92007805470354875e-6,
        -6.29498591295800629e-7,
        1.02139357367864004e-6,
        2.71434226206526629e-7,
        -1.5481941766875712e-7,
        -8.49733181560880047e-8,
        1.3242017277604495e-8,
        1.93241972024835762e-8,
        1.88060819610391978e-9,
        -2.42859684557967092e-9,
        -7.02168458241780917e-10,
        -5.17586203384345997e-12,
#endif
    };
    z = mi_min(mi_broadcast(MI_C(15.0, 40.0)), z);
    mi_vec w = 1 / (z + 4);
    mi_vec h = MI_POLY((z - 4) * w, c);
    /* the square of the high half is exact, so the exponent has twice the precision */
    mi_vec high = (mi_vec)((mi_ivec)z & MI_HIGH_HALF);
    return mi_exp_sum((mi_real)-0.5 * high * high, (mi_real)-0.5 * (z - high) * (z + high)) * (h * w);
}

MI_INLINE mi_vec mi_fn_gauss_cdf(mi_vec x)
{
    mi_vec tail = mi_gauss_tail(mi_abs(x));
    return mi_select(x < (mi_vec){0}, tail, 1 - tail);
}

MI_INLINE mi_vec mi_fn_erf(mi_vec x)
{
    /* erf(x) / x in powers of x^2, for |x| <= 1 */
    static const mi_real c[] = {
        MI_C(1.12837917, 1.12837916709551257),
        MI_C(-0.376126385, -0.376126389031837481),
        MI_C(0.112837825, 0.112837916709548787),
        MI_C(-0.0268654307, -0.0268661706450767932),
        MI_C(0.00522103181, 0.00522397762481801447),
        MI_C(-0.000848408041, -0.000854832698083378991),
        MI_C(0.00011265959, 0.000120553311116427109),
        MI_C(-9.66704457e-6, -0.0000149255952668311816),
#if !MI_IS_FLOAT
        1.6461000484121368e-6,
        -1.6350312701054695e-7,
        1.46597752740474358e-8,
        -1.13728488566917737e-9,
        5.9571761477489114e-11,
#endif
    };
    mi_vec a = mi_abs(x);
    mi_vec small = x * MI_POLY(x * x, c);
    mi_vec large = mi_with_sign(1 - 2 * mi_gauss_tail(a * MI_C(1.41421356, 1.41421356237309505)), x);
    return mi_select(a < mi_broadcast(1), small, large);
}

/* Positive x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and log(1 + f) = f - half + rest: 2 atanh(s) with s = f / (f + 2) */
MI_INLINE mi_vec mi_log_parts(mi_vec x, mi_vec *f, mi_vec *half, mi_vec *rest)
{
    static const mi_real c[] = {
        MI_C(0.666666666, 0.666666666666666971),
        MI_C(0.400001222, 0.399999999998988905),
        MI_C(0.285507786, 0.285714286262538376),
        MI_C(0.233316145, 0.222222110893794962),
#if !MI_IS_FLOAT
        0.181828924325368712,
        0.153316117220550079,
        0.14617807153417325,
#endif
    };
    const mi_real smallest = MI_C(1.17549435e-38, 2.2250738585072014e-308);
    mi_ivec subnormal = x < mi_broadcast(smallest);
    mi_vec scaled = mi_select(subnormal, x * MI_C(16777216.0, 18014398509481984.0), x);
    mi_ivec bits = (mi_ivec)scaled - MI_SQRT_HALF_BITS;
    mi_vec magic = mi_broadcast(MI_MAGIC);
    mi_vec e = (mi_vec)((bits >> MI_MANTISSA_BITS) + (mi_ivec)magic) - magic;
    mi_vec m = (mi_vec)((bits & (((mi_int)1 << MI_MANTISSA_BITS) - 1)) + MI_SQRT_HALF_BITS);

    *f = m - 1;
    mi_vec s = *f / (*f + 2);
    mi_vec s2 = s * s;
    *half = (mi_real)0.5 * *f * *f;
    *rest = s * (*half + s2 * MI_POLY(s2, c));
    return e - mi_select(subnormal, mi_broadcast(MI_C(24.0, 54.0)), (mi_vec){0});
}

MI_INLINE mi_vec mi_fn_log(mi_vec x)
{
    mi_vec f, half, r, e = mi_log_parts(x, &f, &half, &r);
    mi_vec y = e * MI_LN2_HIGH + (f - (half - (r + e * MI_LN2_LOW)));

    y = mi_select(x == mi_broadcast(MI_INFINITY), x, y);
    y = mi_select(x == (mi_vec){0}, mi_broadcast(-MI_INFINITY), y);
    return mi_select((x < (mi_vec){0}) | (x != x), mi_broadcast((mi_real)__builtin_nan("")), y);
}

MI_INLINE mi_vec mi_fn_sqrt(mi_vec x)
{
    mi_vec r;
    MI_UNROLL for (int i = 0; i < MI_W; i++) r[i] = MI_IS_FLOAT ? __builtin_sqrtf((float)x[i]) : __builtin_sqrt(x[i]);
    return r;
}

MI_INLINE mi_vec mi_fn_abs(mi_vec x) { return mi_abs(x); }

/* Functions of libm lane by lane; the compiler has instructions for those that round. */
#define MI_LANE_BY_LANE(name, single, twice) \
    MI_INLINE mi_vec mi_fn_##name(mi_vec x) \
    { \
        mi_vec r; \
        MI_UNROLL for (int i = 0; i < MI_W; i++) r[i] = MI_IS_FLOAT ? single((float)x[i]) : twice(x[i]); \
        return r; \
    }
MI_LANE_BY_LANE(floor, __builtin_floorf, __builtin_floor)
MI_LANE_BY_LANE(ceil, __builtin_ceilf, __builtin_ceil)
MI_LANE_BY_LANE(round, __builtin_nearbyintf, __builtin_nearbyint) /* halves to the even integer */

/* Whether some |x| is above the limit, or no number. */
MI_INLINE int mi_some_beyond(mi_vec x, mi_real limit)
{
    const mi_vec a = mi_abs(x);
#if MI_VEC_BYTES == 64 && MI_CHEAP_MASKS && MI_IS_FLOAT
    return __builtin_ia32_cmpps512_mask(a, mi_broadcast(limit), 6, (unsigned short)-1, 4) != 0;
#elif MI_VEC_BYTES == 64 && MI_CHEAP_MASKS
    return __builtin_ia32_cmppd512_mask(a, mi_broadcast(limit), 6, (unsigned char)-1, 4) != 0;
#else
    const mi_ivec within = a <= mi_broadcast(limit);
    mi_int all = -1;
    MI_UNROLL for (int i = 0; i < MI_W; i++) all &= within[i];
    return !all;
#endif
}

/* x = n pi / 2 + (high + low) with |high| <= pi / 4, for |x| up to MI_FURTHEST. Products of n with the first three parts of pi / 2
 * are exact, and so are the first two differences (Cody and Waite, 1980). */
#define MI_FURTHEST MI_C(12800.0, 1.6e6)
#define MI_2_OVER_PI MI_C(0.636619772, 0.63661977236758134308)
#define MI_HALF_PI_1 MI_C(0x1.92p+0, 0x1.921fb544p+0)
#define MI_HALF_PI_2 MI_C(0x1.fbp-12, 0x1.0b46p-34)
#define MI_HALF_PI_3 MI_C(0x1.51p-22, 0x1.1a626331p-54)
#define MI_HALF_PI_4 MI_C(0x1.0b4612p-34, 0x1.1701b839a252p-88)

/* The sine of x, or, `turned` by a quarter, its cosine. */
MI_INLINE mi_vec mi_sine(mi_vec x, int turned)
{
    /* of (sin r / r - 1) / r^2 and (cos r - 1 + r^2 / 2) / r^4 in powers of r^2 */
    static const mi_real s[] = {
        MI_C(-0.166666667, -0.16666666666666666666),
        MI_C(0.00833333187, 0.008333333333333331491),
        MI_C(-0.000198400865, -0.00019841269841265062561),
        MI_C(2.72498952e-6, 2.7557319219337310344e-6),
#if !MI_IS_FLOAT
        -2.5052106231802837884e-8,
        1.6058531516797759169e-10,
        -7.5866910941979583589e-13,
#endif
    };
    static const mi_real c[] = {
        MI_C(0.0416666647, 0.041666666666666665388),
        MI_C(-0.00138883029, -0.0013888888888887396492),
        MI_C(2.45479169e-5, 0.000024801587298764560771),
#if !MI_IS_FLOAT
        -2.7557317271145145962e-7,
        2.0876146146558611582e-9,
        -1.1382623647474604629e-11,
#endif
    };
    if (__builtin_expect(mi_some_beyond(x, MI_FURTHEST), 0)) {
        mi_vec r;
        for (int i = 0; i < MI_W; i++) {
            if (turned) r[i] = MI_IS_FLOAT ? __builtin_cosf((float)x[i]) : __builtin_cos(x[i]);
            else r[i] = MI_IS_FLOAT ? __builtin_sinf((float)x[i]) : __builtin_sin(x[i]);
        }
        return r;
    }
    const mi_vec rounded = x * MI_2_OVER_PI + MI_MAGIC, n = rounded - MI_MAGIC;
    const mi_vec rest = x - n * MI_HALF_PI_1 - n * MI_HALF_PI_2, part = n * MI_HALF_PI_3;
    const mi_vec high = rest - part, low = (rest - high) - part - n * MI_HALF_PI_4;
    const mi_vec square = high * high, half = (mi_real)0.5 * square, near = 1 - half;
    const mi_vec sine = high + (high * (square * MI_POLY(square, s)) + low * near);
    const mi_vec cosine = near + (((1 - near) - half) + (square * square * MI_POLY(square, c) - high * low));
    const mi_ivec quarter = (mi_ivec)rounded + turned;
    const mi_vec found = mi_select((quarter & 1) != 0, cosine, sine);
    return (mi_vec)((mi_ivec)found ^ (quarter & 2) << (8 * (int)sizeof(mi_real) - 2));
}

MI_INLINE mi_vec mi_fn_sin(mi_vec x) { return mi_sine(x, 0); }
MI_INLINE mi_vec mi_fn_cos(mi_vec x) { return mi_sine(x, 1); }

/* NaN in x stays NaN: mi_max and mi_min return their second operand. */
MI_INLINE mi_vec mi_fn_maximum(mi_vec x, mi_vec c) { return mi_max(c, x); }
MI_INLINE mi_vec mi_fn_relu(mi_vec x) { return mi_max((mi_vec){0}, x); }
MI_INLINE mi_vec mi_fn_clamp(mi_vec x, mi_vec lo, mi_vec hi) { return mi_min(hi, mi_max(lo, x)); }

/* The logarithm of 1 above 0, and of 0 elsewhere. */
MI_INLINE mi_vec mi_fn_log_step(mi_vec x)
{
    return mi_select(x > (mi_vec){0}, (mi_vec){0}, mi_broadcast(-MI_INFINITY));
}

/* |x| to a power, as exp(p log |x|) with a logarithm of twice the precision; x is neither 0 nor infinite. */
MI_INLINE mi_vec mi_power(mi_vec x, mi_real p)
{
    mi_vec f, half, rest, e = mi_log_parts(mi_abs(x), &f, &half, &rest);
    const mi_vec twos = e * MI_LN2_HIGH, sum = twos + f;
    const mi_vec small = (f - (sum - twos)) + ((rest - half) + e * MI_LN2_LOW);
    const mi_vec high = sum + small, low = small - (high - sum);
    /* halves of the digits, whose products are exact */
    const mi_vec p2 = mi_broadcast(p), p_high = (mi_vec)((mi_ivec)p2 & MI_HIGH_HALF), p_low = p2 - p_high;
    const mi_vec h_high = (mi_vec)((mi_ivec)high & MI_HIGH_HALF), h_low = high - h_high, product = p * high;
    const mi_vec error = ((p_high * h_high - product) + p_high * h_low + p_low * h_high) + p_low * h_low;
    const mi_vec most = mi_broadcast(MI_C(150.0, 1000.0));
    const mi_ivec within = mi_abs(product) < most;
    return mi_exp_sum(mi_max(-most, mi_min(most, product)), mi_select(within, error + p * low, (mi_vec){0}));
}

/* x to the power p[0]: p must have the same value in every lane. */
MI_INLINE mi_vec mi_fn_pow(mi_vec x, mi_vec p)
{
    mi_real e = p[0];
    mi_vec base = e < 0 ? 1 / x : x;
    mi_vec square = base * base;
    mi_real a = e < 0 ? -e : e;
    if (a == 0) return mi_broadcast(1);
    if (a == 1) return base;
    if (a == 2) return square;
    if (a == 3) return square * base;
    if (a == 4) return square * square;
    const int whole = e == __builtin_floor(e), odd = whole && e / 2 != __builtin_floor(e / 2);
    const mi_vec positive = mi_abs(x), none = mi_broadcast(e < 0 ? MI_INFINITY : 0), all = mi_broadcast(e < 0 ? 0 : MI_INFINITY);
    mi_vec r = mi_power(x, e);
    if (!whole) r = mi_select(x < (mi_vec){0}, mi_broadcast((mi_real)__builtin_nan("")), r);
    r = mi_select(positive == (mi_vec){0}, none, mi_select(positive == mi_broadcast(MI_INFINITY), all, r));
    return mi_select(x != x, x, odd ? mi_with_sign(r, x) : r);
}

#endif
