/* vecmath.h: elementary functions that vectorise. Each is straight-line code, so a plain loop `for
 * (i...) out[i] = cb_exp_f32(in[i]);` becomes vector code on every instruction set. Results are
 * bitwise equal: no fused multiply-add, reciprocal estimate or table is used.
 *
 * Largest error in units of the last place of the result, over the whole range
 * (tests/c/micro/test_vecmath.c):
 *
 *     exp 1.5   log 1.5   log1p 2.5   tanh 2.0   sigmoid 2.5   erf 1.5   sin, cos 1.5
 *     gelu 6 (x > -13)   silu 3 (x > -87)   gelu_tanh 5 (x > -1)
 *
 * The last three are x times a probability. Below the stated x the probability is subnormal, or,
 * for gelu_tanh, as inaccurate as its cubic argument: up to 200 units where the result is 1e-20.
 *
 * Special values follow C's math library: NaN in, NaN out; exp(-inf) = 0, log(0) = -inf, log(-1) =
 * NaN. Subnormal inputs and results have the same error bounds. The f64 forms call the math
 * library.
 *
 * Polynomials are minimax fits (weighted least squares with Lawson's reweighting) unless said
 * otherwise. */
#ifndef CB_MICRO_VECMATH_H
#define CB_MICRO_VECMATH_H

#include <math.h>

#include "../base/bits.h"

static inline uint64_t cb_bits_of_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double cb_f64_of_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- exp, sigmoid, tanh ---------------------------------------------------------------------- */

/* Adding this to a float of magnitude below 2^22 leaves the nearest integer in the low bits, which
 * rounds and converts in one addition. Unlike a conversion, it is defined for NaN. */
#define CB_ROUND_F32 0x1.8p23f
#define CB_ROUND_F64 0x1.8p52

#ifndef CB_GPU /* a GPU needs one or two instructions for these: exec/cuda/text/prelude.cuh */
/* Returns x with its magnitude limited to `most`; a NaN becomes +-most. Compares integers, because
 * gcc turns a float comparison here into a branch and duplicates all code that follows. The copy
 * for clamped values would then compute subnormals, which are slow on most processors, in every
 * lane. */
static inline float cb_clamp_f32(float x, float most) {
    uint32_t bits = cb_bits_of_f32(x), sign = bits & 0x80000000u, limit = cb_bits_of_f32(most);
    uint32_t magnitude = bits ^ sign;
    magnitude = magnitude < limit ? magnitude : limit;
    return cb_f32_of_bits(sign | magnitude);
}

/* Returns the magnitude of x, limited to `most`. */
static inline float cb_magnitude_f32(float x, float most) { return cb_clamp_f32(fabsf(x), most); }

/* 1 / x; both must be normal. */
static inline float cb_inverse_f32(float x) { return 1.0f / x; }
#endif

/* e^(x + low), |low| < 1; x must not be NaN. With n the nearest integer to x / ln 2 and r = x - n
 * ln 2, e^x = 2^n e^r. ln 2 is subtracted in two parts; the first is so short that n times it is
 * exact. 2^n is applied in two factors, because it may be outside the range of f32 although the
 * product is not. */
static inline float cb_exp_sum_f32(float x, float low) {
    x = cb_clamp_f32(x, 104.0f); /* beyond it the result is 0 or infinity */
    float shifted = x * 0x1.715476p+0f + CB_ROUND_F32;
    float n = shifted - CB_ROUND_F32;
    float r = x - n * 0x1.63p-1f;
    r = (r + n * 0x1.bd0106p-13f) + low;
    float p = 0x1.6a21acp-10f;
    p = p * r + 0x1.123b6ap-7f;
    p = p * r + 0x1.5558fap-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * (r * r) + r) + 1.0f;
    uint32_t exponent = cb_bits_of_f32(shifted); /* n, and above it bits that a shift by 23 drops */
    uint32_t half = exponent >> 1;
    float first = cb_f32_of_bits((half << 23) + 0x3F800000u);
    float second = cb_f32_of_bits(((exponent - half) << 23) + 0x3F800000u);
    return p * first * second;
}

static inline float cb_exp_f32(float x) {
    float y = cb_exp_sum_f32(x, 0.0f);
    return x == x ? y : x;
}

/* Computed from e^-|x|, which cannot overflow. Small results keep their relative accuracy. */
static inline float cb_sigmoid_f32(float x) {
    float e = cb_exp_f32(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static inline float cb_tanh_f32(float x) {
    float a = fabsf(x), s = x * x;
    float p = -0x1.6e69aep-8f; /* |x| < 0.625: (tanh(x) / x - 1) / x^2 */
    p = p * s + 0x1.50820ep-6f;
    p = p * s - 0x1.b7fd50p-5f;
    p = p * s + 0x1.110552p-3f;
    p = p * s - 0x1.55552ap-2f;
    float small = x + x * (s * p);
    float large = 1.0f - 2.0f / (cb_exp_f32(2.0f * a) + 1.0f);
    return copysignf(a >= 0.625f ? large : small, x);
}

/* ---- log ------------------------------------------------------------------------------------- */

/* x = 2^k m with m in [sqrt(1/2), sqrt(2)): log x = k ln 2 + log m. */
static inline float cb_log_f32(float x) {
    int tiny = x < 0x1p-126f;
    uint32_t bits = cb_bits_of_f32(tiny ? x * 0x1p23f : x);
    int32_t k = (int32_t)(bits - 0x3F3504F3u) >> 23;
    float f = cb_f32_of_bits(bits - ((uint32_t)k << 23)) - 1.0f;
    float n = (float)(tiny ? k - 23 : k);
    float p = 0x1.146310p-4f; /* (log(1 + f) - f + f^2 / 2) / f^3 */
    p = p * f - 0x1.de4fa0p-4f;
    p = p * f + 0x1.e6f608p-4f;
    p = p * f - 0x1.fc1f6cp-4f;
    p = p * f + 0x1.2336e2p-3f;
    p = p * f - 0x1.555c5ap-3f;
    p = p * f + 0x1.99a4bcp-3f;
    p = p * f - 0x1.000006p-2f;
    p = p * f + 0x1.555548p-2f;
    float s = f * f;
    float r = p * (s * f) + n * -0x1.bd0106p-13f;
    r = (f + (r - 0.5f * s)) + n * 0x1.63p-1f;
    r = x > 0.0f ? r : (x == 0.0f ? -INFINITY : NAN);
    return x < INFINITY ? r : x; /* infinity, NaN */
}

/* log(1 + x) = log(u) + lost / u, where u is 1 + x rounded and `lost` is the rounding error. */
static inline float cb_log1p_f32(float x) {
    float u = 1.0f + x;
    float lost = x - (u - 1.0f);
    lost = u > 0.0f && u < INFINITY ? lost / u : 0.0f;
    float r = cb_log_f32(u) + lost;
    return u == 1.0f ? x : r;
}

/* ---- error function and GELU ----------------------------------------------------------------- */

/* erfc(t) e^(t^2), t >= 0. A rational substitution makes it nearly polynomial (Shepherd,
 * Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc(x)", Math. Comp. 36, 1981). One
 * division serves both y = (t - 2) / (t + 2) and the factor 1 / (1 + 2t). */
static inline float cb_erfcx_f32(float t) {
    float a = t + 2.0f, b = 1.0f + 2.0f * t;
    float inverse = cb_inverse_f32(a * b);
    float y = (t - 2.0f) * (b * inverse);
    float p = -3.96105271e-4f;
    p = p * y - 1.22233949e-3f;
    p = p * y + 1.31256900e-3f;
    p = p * y + 8.62535543e-3f;
    p = p * y - 8.06088746e-3f;
    p = p * y - 5.42026213e-2f;
    p = p * y + 1.64055654e-1f;
    p = p * y - 1.66031572e-1f;
    p = p * y - 9.27639974e-2f;
    p = p * y + 1.27697840e+0f;
    return p * (a * inverse);
}

/* e^(-a^2 scale); scale must be a power of two. a^2 is split into an exact square and a small rest,
 * because rounding a large exponent causes a relative error in the result proportional to it. */
static inline float cb_exp_minus_square_f32(float a, float scale) {
    float high = cb_f32_of_bits(cb_bits_of_f32(a) & 0xFFFFF000u);
    return cb_exp_sum_f32(-(high * high) * scale, -((a - high) * (a + high)) * scale);
}

static inline float cb_erf_f32(float x) {
    float a = fabsf(x), s = x * x;
    float p = 0x1.496a30p-14f; /* |x| < 1: erf(x) / x - 1 */
    p = p * s - 0x1.a3f700p-11f;
    p = p * s + 0x1.5405b2p-8f;
    p = p * s - 0x1.b7f90ep-6f;
    p = p * s + 0x1.ce2cf8p-4f;
    p = p * s - 0x1.81273ep-2f;
    p = p * s + 0x1.06eba8p-3f;
    float small = x + x * p;
    float t = cb_magnitude_f32(x, 4.5f); /* from 3.92 on, erf rounds to 1 */
    float large = copysignf(1.0f - cb_erfcx_f32(t) * cb_exp_sum_f32(-t * t, 0.0f), x);
    return a >= 1.0f ? large : small;
}

/* The normal distribution: returns the probability below x and sets *density to e^(-x^2 / 2), which
 * is not normalized. x must not be NaN. */
static inline float cb_normal_f32(float x, float *density) {
    float a = cb_magnitude_f32(x, 14.5f); /* there the tail is 0 */
    float e = cb_exp_minus_square_f32(a, 0.5f);
    float tail = 0.5f * (e * cb_erfcx_f32(a * 0x1.6a09e6p-1f));
    *density = e;
    return x < 0.0f ? tail : 1.0f - tail;
}

static inline float cb_gelu_f32(float x) {
    float density;
    return x * cb_normal_f32(x, &density);
}

/* d gelu / dx = P(x) + x p(x) */
static inline float cb_gelu_slope_f32(float x) {
    float density, below = cb_normal_f32(x, &density);
    return below + x * (density * 0x1.988454p-2f); /* 1 / sqrt(2 pi) */
}

/* x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline float cb_gelu_tanh_part_f32(float x) {
    return cb_sigmoid_f32(1.5957691216f * (x + 0.044715f * (x * x * x)));
}
static inline float cb_gelu_tanh_f32(float x) { return x * cb_gelu_tanh_part_f32(x); }

/* The derivative, from s = sigmoid(2u). It is constant (0 or 1) well before |x| = 32, where the
 * cubic is far from overflow. */
static inline float cb_gelu_tanh_slope_of_f32(float s, float x) {
    float c = cb_clamp_f32(x, 32.0f);
    float y = s + c * (s * (1.0f - s)) * (1.5957691216f * (1.0f + 0.134145f * (c * c)));
    return x == x ? y : x;
}

static inline float cb_gelu_tanh_slope_f32(float x) {
    return cb_gelu_tanh_slope_of_f32(cb_gelu_tanh_part_f32(x), x);
}

static inline float cb_silu_f32(float x) { return x * cb_sigmoid_f32(x); }

static inline float cb_silu_slope_f32(float x) {
    float s = cb_sigmoid_f32(x);
    return s * (1.0f + x * (1.0f - s));
}

/* ---- sine and cosine ------------------------------------------------------------------------- */

/* x = n pi/2 + r is computed in f64, with pi/2 in two parts. The first has 33 bits, so n times it
 * is exact up to |n| = 2^20. The polynomials cover r, rounded to f32, up to |r| = 0.86, because the
 * rounded n may be off by one between two multiples. A zero has the sign of r. */
#define CB_SIN_MAX_F32 0x1p20f
#define CB_TURNS_F32 0x1.45f306p-1f /* 2 / pi */
#define CB_TURN_HIGH 0x1.921fb544p+0
#define CB_TURN_LOW 0x1.0b4611a626331p-34

static inline float cb_sin_quadrant_f32(float x, uint32_t quarter_turns) {
    float shifted = x * CB_TURNS_F32 + CB_ROUND_F32, n = shifted - CB_ROUND_F32;
    float r = (float)(((double)x - (double)n * CB_TURN_HIGH) - (double)n * CB_TURN_LOW), s = r * r;
    uint32_t quadrant = cb_bits_of_f32(shifted) + quarter_turns;
    float p = (s * -0x1.97e840p-13f + 0x1.1102eap-7f) * s - 0x1.55553ap-3f;
    float q = (s * 0x1.98ad10p-16f - 0x1.6c0780p-10f) * s + 0x1.555542p-5f;
    float sine = r + r * (s * p), cosine = (1.0f - 0.5f * s) + (s * s) * q;
    uint32_t odd = 0u - (quadrant & 1u);
    uint32_t signed_sine = cb_bits_of_f32(sine) | (cb_bits_of_f32(r) & 0x80000000u);
    uint32_t bits = (cb_bits_of_f32(cosine) & odd) | (signed_sine & ~odd);
    return cb_f32_of_bits(bits ^ ((quadrant & 2u) << 30));
}

/* For |x| <= CB_SIN_MAX_F32 and NaN. cb_sin_f32 and cb_cos_f32 use the math library beyond. */
static inline float cb_sin_near_f32(float x) { return cb_sin_quadrant_f32(x, 0); }
static inline float cb_cos_near_f32(float x) { return cb_sin_quadrant_f32(x, 1); }
static inline float cb_sin_f32(float x) {
    return fabsf(x) > CB_SIN_MAX_F32 ? (float)sin((double)x) : cb_sin_near_f32(x);
}
static inline float cb_cos_f32(float x) {
    return fabsf(x) > CB_SIN_MAX_F32 ? (float)cos((double)x) : cb_cos_near_f32(x);
}

/* ---- f64 ------------------------------------------------------------------------------------- */

static inline double cb_exp_f64(double x) { return exp(x); }
static inline double cb_log_f64(double x) { return log(x); }
static inline double cb_log1p_f64(double x) { return log1p(x); }
static inline double cb_tanh_f64(double x) { return tanh(x); }
static inline double cb_erf_f64(double x) { return erf(x); }
static inline double cb_sin_f64(double x) { return sin(x); }
static inline double cb_cos_f64(double x) { return cos(x); }

static inline double cb_sigmoid_f64(double x) {
    double e = exp(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

static inline double cb_normal_f64(double x, double *density) {
    *density = exp(-0.5 * x * x);
    return 0.5 * erfc(-x * 0x1.6a09e667f3bcdp-1);
}
static inline double cb_gelu_f64(double x) {
    double density;
    return x * cb_normal_f64(x, &density);
}
static inline double cb_gelu_slope_f64(double x) {
    double density, below = cb_normal_f64(x, &density);
    return below + x * (density * 0x1.9884533d43651p-2);
}

static inline double cb_gelu_tanh_part_f64(double x) {
    return cb_sigmoid_f64(0x1.9884533d43651p+0 * (x + 0.044715 * (x * x * x)));
}
static inline double cb_gelu_tanh_f64(double x) { return x * cb_gelu_tanh_part_f64(x); }

static inline double cb_gelu_tanh_slope_of_f64(double s, double x) {
    x = x > 32.0 ? 32.0 : x;
    x = x < -32.0 ? -32.0 : x;
    return s + x * (s * (1.0 - s)) * (0x1.9884533d43651p+0 * (1.0 + 0.134145 * (x * x)));
}
static inline double cb_gelu_tanh_slope_f64(double x) {
    return cb_gelu_tanh_slope_of_f64(cb_gelu_tanh_part_f64(x), x);
}

static inline double cb_silu_f64(double x) { return x * cb_sigmoid_f64(x); }
static inline double cb_silu_slope_f64(double x) {
    double s = cb_sigmoid_f64(x);
    return s * (1.0 + x * (1.0 - s));
}

/* ---- the same names for both types ----------------------------------------------------------- */

static inline float cb_floor_f32(float x) { return floorf(x); }
static inline double cb_floor_f64(double x) { return floor(x); }
static inline float cb_sqrt_f32(float x) { return sqrtf(x); }
static inline double cb_sqrt_f64(double x) { return sqrt(x); }
static inline float cb_abs_f32(float x) { return fabsf(x); }
static inline double cb_abs_f64(double x) { return fabs(x); }
static inline float cb_pow_f32(float x, float y) { return powf(x, y); }
static inline double cb_pow_f64(double x, double y) { return pow(x, y); }

#endif
