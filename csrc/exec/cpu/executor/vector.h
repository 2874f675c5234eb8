/* vector.h: the functions of vecmath.h on vectors. Operations and their order are the same, so the
 * bits are the same. A V is a register of CB_VW floats of the instruction set that the file is
 * compiled for. Vectors are an extension of gcc and clang, so arithmetic is written as on numbers.
 *
 *     VSEL(mask, a, b)    a where the mask (a comparison of vectors) holds, else b */
#ifndef CB_EXEC_VECTOR_H
#define CB_EXEC_VECTOR_H

#include <stdbool.h>

#include "../../../base/kern_vector.h"
#include "../../../micro/vecmath.h"

VFN V vm_of(float x) { return x - (V){0}; }
VFN V vm_load(const void *p) {
    V x;
    memcpy(&x, p, sizeof x);
    return x;
}
VFN void vm_store(void *p, V x) { memcpy(p, &x, sizeof x); }

/* Call this before code for the baseline instruction set, which is slow while the upper halves of
 * registers are in use. */
VFN void v_leave(void) {
#ifdef __AVX__
    _mm256_zeroupper();
#endif
}

/* Bypasses the caches. The address must be a multiple of the vector's bytes. */
VFN void vm_store_far(void *p, V x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)x);
#elif defined(__SSE2__)
    _mm_stream_ps(p, (__m128)x);
#else
    vm_store(p, x);
#endif
}

VFN V VSEL(VI mask, V a, V b) {
#if defined(__AVX512F__)
    return (V)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)b, (__m512)a);
#elif defined(__AVX2__)
    return (V)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#elif defined(__SSE4_1__)
    return (V)_mm_blendv_ps((__m128)b, (__m128)a, (__m128)mask);
#else
    return (V)(((VI)a & mask) | ((VI)b & ~mask));
#endif
}

VFN VI vm_larger_int(VI a, VI b) {
#if defined(__AVX512F__)
    return (VI)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (VI)_mm256_max_epi32((__m256i)a, (__m256i)b);
#elif defined(__SSE4_1__)
    return (VI)_mm_max_epi32((__m128i)a, (__m128i)b);
#else
    VI more = a > b;
    return (a & more) | (b & ~more);
#endif
}

VFN V vm_sqrt(V x) {
#if defined(__AVX512F__)
    return (V)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (V)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
    return (V)_mm_sqrt_ps((__m128)x);
#else
    for (int k = 0; k < CB_VW; k++) x[k] = sqrtf(x[k]);
    return x;
#endif
}

VFN V vm_floor(V x) {
#if defined(__AVX512F__)
    return (V)_mm512_floor_ps((__m512)x);
#elif defined(__AVX2__)
    return (V)_mm256_floor_ps((__m256)x);
#elif defined(__SSE4_1__)
    return (V)_mm_floor_ps((__m128)x);
#else
    for (int k = 0; k < CB_VW; k++) x[k] = floorf(x[k]);
    return x;
#endif
}

/* Return the larger and the smaller of two numbers that are not NaN. */
VFN V vm_larger(V a, V b) {
#if defined(__AVX512F__)
    return (V)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (V)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (V)_mm_max_ps((__m128)a, (__m128)b);
#else
    return VSEL(a > b, a, b);
#endif
}
VFN V vm_least(V a, V b) {
#if defined(__AVX512F__)
    return (V)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (V)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (V)_mm_min_ps((__m128)a, (__m128)b);
#else
    return VSEL(a < b, a, b);
#endif
}

#define vm_select VSEL

/* VSEL with a comparison as its mask: with AVX-512 the result stays in a mask register. */
#if defined(__AVX512F__)
#define VSEL_BY(code, x, y, a, b)                                                             \
    ((V)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)(x), (__m512)(y), code), (__m512)(b), \
                             (__m512)(a)))
#define VSEL_LT(x, y, a, b) VSEL_BY(_CMP_LT_OQ, x, y, a, b)
#define VSEL_GE(x, y, a, b) VSEL_BY(_CMP_GE_OQ, x, y, a, b)
#define VSEL_NUMBER(x, a, b) VSEL_BY(_CMP_ORD_Q, x, x, a, b)
#else
#define VSEL_LT(x, y, a, b) VSEL((x) < (y), a, b)
#define VSEL_GE(x, y, a, b) VSEL((x) >= (y), a, b)
#define VSEL_NUMBER(x, a, b) VSEL((x) == (x), a, b) /* a, or b where x is NaN */
#endif
#define VSEL_ORDERED(x, a) VSEL_NUMBER(x, a, x)

VFN V vm_abs(V x) { return (V)((VU)x & 0x7FFFFFFFu); }
VFN V vm_copysign(V x, V sign) { return (V)(((VU)x & 0x7FFFFFFFu) | ((VU)sign & 0x80000000u)); }
VFN V vm_one_where(VI mask) { return (V)((VI)vm_of(1.0f) & mask); }

/* ---- 16-bit floats: kern_half.h once more ---------------------------------------------------- */

VFN VU vm_of_halves(VS x) {
#if defined(__AVX512F__)
    return (VU)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
    return (VU)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, VU);
#endif
}
VFN VS vm_to_halves(VU x) { /* below 2^16 */
#if defined(__AVX512F__)
    return (VS)_mm512_cvtepi32_epi16((__m512i)x);
#elif defined(__AVX2__)
    return (VS)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)x),
                                _mm256_extracti128_si256((__m256i)x, 1));
#else
    return __builtin_convertvector(x, VS);
#endif
}

/* Rounds to bf16. Every NaN becomes a quiet NaN; the digits in its lower half are ignored. */
VFN V vm_round_bf16(V x) {
    VU bits = (VU)x;
    V y = (V)(bits + 0x7FFFu + (bits >> 16 & 1u)), nan = (V)(bits | 0x400000u);
    return (V)((VU)VSEL_NUMBER(x, y, nan) & 0xFFFF0000u);
}

VFN V vm_of_f16(VS half) {
#if defined(__AVX512F__)
    return (V)_mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
    return (V)_mm256_cvtph_ps((__m128i)half);
#else
    VU h = vm_of_halves(half), sign = (h & 0x8000u) << 16, rest = (h & 0x7FFFu) << 13;
    VU finite = (VU)((V)rest * 0x1p112f);
    VI large = (VI)rest >= 0x0F800000;
    return (V)(sign | (VU)VSEL(large, (V)(rest | 0x7F800000u), (V)finite));
#endif
}
VFN VS vm_to_f16(V x) {
#if defined(__AVX512F__)
    return (VS)_mm512_maskz_cvtps_ph((__mmask16)0xFFFF, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (VS)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
    VU bits = (VU)x, sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    VU normal = (rest - (112u << 23) + 0xFFFu + (rest >> 13 & 1u)) >> 13;
    VU tiny = (VU)((V)rest + 0.5f) - 0x3F000000u;
    VU nan = 0x7E00u | (rest >> 13 & 0x3FFu), infinity = (VU){0} + 0x7C00u;
    VU large = (VU)VSEL((VI)rest > 0x7F800000, (V)nan, (V)infinity);
    VU finite = (VU)VSEL((VI)rest < 0x38800000, (V)tiny, (V)normal);
    return vm_to_halves(sign | (VU)VSEL((VI)rest >= 0x477FF000, (V)large, (V)finite));
#endif
}
VFN V vm_round_f16(V x) { return vm_of_f16(vm_to_f16(x)); }

/* ---- exp and functions based on it ----------------------------------------------------------- */

/* Limits x to -most..most. The result for a NaN does not matter, because callers replace it. */
VFN V vm_clamp(V x, float most) { return vm_least(vm_larger(x, vm_of(-most)), vm_of(most)); }
VFN V vm_at_most(V x, float most) { return vm_least(x, vm_of(most)); }

/* Returns p 2^n, rounded once. p is near 1; n is also the integer in the low bits of `shifted`. */
VFN V vm_scale(V p, V n, V shifted) {
#if defined(__AVX512F__)
    (void)shifted;
    return (V)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    (void)n;
    VI exponent = (VI)((VU)shifted - cb_bits_of_f32(CB_ROUND_F32)), half = exponent >> 1;
    V first = (V)(((VU)half + 127u) << 23);
    V second = (V)(((VU)exponent - (VU)half + 127u) << 23);
    return p * first * second;
#endif
}

/* Returns e^(x + low). If `has_low` is false, it skips the addition; adding 0 would give the same
 * bits. */
VFN V vm_exp_parts(V x, V low, bool has_low) {
    x = vm_clamp(x, 104.0f);
    V shifted = x * 0x1.715476p+0f + CB_ROUND_F32;
    V n = shifted - CB_ROUND_F32;
    V r = x - n * 0x1.63p-1f;
    r = r + n * 0x1.bd0106p-13f;
    if (has_low) r = r + low;
    V p = r * 0x1.6a21acp-10f + 0x1.123b6ap-7f;
    p = p * r + 0x1.5558fap-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * (r * r) + r) + 1.0f;
    return vm_scale(p, n, shifted);
}

VFN V vm_exp_sum(V x, V low) { return vm_exp_parts(x, low, true); }
VFN V vm_exp_of(V x) { return vm_exp_parts(x, x, false); } /* x must not be NaN */
VFN V vm_exp(V x) {
    V y = vm_exp_of(x);
    return VSEL_ORDERED(x, y);
}

VFN V vm_sigmoid(V x) {
    V e = vm_exp(-vm_abs(x)), one = vm_of(1.0f);
    return VSEL_LT(x, (V){0}, e, one) / (1.0f + e);
}

VFN V vm_tanh(V x) {
    V a = vm_abs(x), s = x * x;
    V p = s * -0x1.6e69aep-8f + 0x1.50820ep-6f;
    p = p * s - 0x1.b7fd50p-5f;
    p = p * s + 0x1.110552p-3f;
    p = p * s - 0x1.55552ap-2f;
    V small = x + x * (s * p);
    V large = 1.0f - 2.0f / (vm_exp(2.0f * a) + 1.0f);
    return vm_copysign(VSEL_GE(a, vm_of(0.625f), large, small), x);
}

/* ---- log ------------------------------------------------------------------------------------- */

VFN V vm_log(V x) {
    VI tiny = x < 0x1p-126f;
    VU bits = (VU)VSEL(tiny, x * 0x1p23f, x);
    VI k = (VI)(bits - 0x3F3504F3u) >> 23;
    V f = (V)(bits - ((VU)k << 23)) - 1.0f;
    V n = __builtin_convertvector(k - (tiny & 23), V);
    V p = f * 0x1.146310p-4f - 0x1.de4fa0p-4f;
    p = p * f + 0x1.e6f608p-4f;
    p = p * f - 0x1.fc1f6cp-4f;
    p = p * f + 0x1.2336e2p-3f;
    p = p * f - 0x1.555c5ap-3f;
    p = p * f + 0x1.99a4bcp-3f;
    p = p * f - 0x1.000006p-2f;
    p = p * f + 0x1.555548p-2f;
    V s = f * f;
    V r = p * (s * f) + n * -0x1.bd0106p-13f;
    r = (f + (r - 0.5f * s)) + n * 0x1.63p-1f;
    r = VSEL(x > 0.0f, r, VSEL(x == 0.0f, vm_of(-INFINITY), vm_of(NAN)));
    return VSEL(x < INFINITY, r, x);
}

VFN V vm_log1p(V x) {
    V u = 1.0f + x;
    V lost = x - (u - 1.0f);
    lost = VSEL((u > 0.0f) & (u < INFINITY), lost / u, (V){0});
    V r = vm_log(u) + lost;
    return VSEL(u == 1.0f, x, r);
}

/* ---- error function and GELU ----------------------------------------------------------------- */

VFN V vm_erfcx(V t) {
    V a = t + 2.0f, b = 1.0f + 2.0f * t;
    V inverse = 1.0f / (a * b);
    V y = (t - 2.0f) * (b * inverse);
    V p = y * -3.96105271e-4f - 1.22233949e-3f;
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

VFN V vm_exp_minus_square(V a, float scale) {
    V high = (V)((VU)a & 0xFFFFF000u);
    return vm_exp_sum(-(high * high) * scale, -((a - high) * (a + high)) * scale);
}

VFN V vm_erf(V x) {
    V a = vm_abs(x), s = x * x;
    V p = s * 0x1.496a30p-14f - 0x1.a3f700p-11f;
    p = p * s + 0x1.5405b2p-8f;
    p = p * s - 0x1.b7f90ep-6f;
    p = p * s + 0x1.ce2cf8p-4f;
    p = p * s - 0x1.81273ep-2f;
    p = p * s + 0x1.06eba8p-3f;
    V small = x + x * p;
    V t = vm_at_most(a, 4.5f);
    V large = vm_copysign(1.0f - vm_erfcx(t) * vm_exp_of(-t * t), x);
    return VSEL_GE(a, vm_of(1.0f), large, small);
}

VFN V vm_normal(V x, V *density) {
    V a = vm_at_most(vm_abs(x), 14.5f);
    V e = vm_exp_minus_square(a, 0.5f);
    V tail = 0.5f * (e * vm_erfcx(a * 0x1.6a09e6p-1f));
    *density = e;
    V rest = 1.0f - tail;
    return VSEL_LT(x, (V){0}, tail, rest);
}

VFN V vm_gelu_tanh_part(V x) { return vm_sigmoid(1.5957691216f * (x + 0.044715f * (x * x * x))); }
VFN V vm_gelu_tanh_slope_of(V s, V x) {
    V c = vm_clamp(x, 32.0f);
    V y = s + c * (s * (1.0f - s)) * (1.5957691216f * (1.0f + 0.134145f * (c * c)));
    return VSEL_ORDERED(x, y);
}

/* ---- sine and cosine ------------------------------------------------------------------------- */

/* Convert the lower or the upper half to f64, and back. gcc splits the generic conversion into
 * scalars. */
VFN VD vm_wide(V x, bool is_upper) {
#if defined(__AVX512DQ__)
    __m512 from = (__m512)x;
    return (VD)_mm512_cvtps_pd(is_upper ? _mm512_extractf32x8_ps(from, 1)
                                        : _mm512_castps512_ps256(from));
#elif defined(__AVX2__)
    __m256 from = (__m256)x;
    return (VD)_mm256_cvtps_pd(is_upper ? _mm256_extractf128_ps(from, 1)
                                        : _mm256_castps256_ps128(from));
#else
    VH half;
    memcpy(&half, (const char *)&x + (is_upper ? sizeof half : 0), sizeof half);
    return __builtin_convertvector(half, VD);
#endif
}
VFN V vm_narrow(VD lower, VD upper) {
#if defined(__AVX512DQ__)
    return (V)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)lower)),
                                 _mm512_cvtpd_ps((__m512d)upper), 1);
#elif defined(__AVX2__)
    return (V)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)upper), _mm256_cvtpd_ps((__m256d)lower));
#else
    VH half[2] = {__builtin_convertvector(lower, VH), __builtin_convertvector(upper, VH)};
    V x;
    memcpy(&x, half, sizeof x);
    return x;
#endif
}

VFN VD vm_less_turns(VD x, VD n) { return (x - n * CB_TURN_HIGH) - n * CB_TURN_LOW; }

VFN void vm_sin_cos_near(V x, V *sin, V *cos) {
    V shifted = x * CB_TURNS_F32 + CB_ROUND_F32;
    V n = shifted - CB_ROUND_F32;
    V r = vm_narrow(vm_less_turns(vm_wide(x, false), vm_wide(n, false)),
                    vm_less_turns(vm_wide(x, true), vm_wide(n, true)));
    V s = r * r;
    V p = (s * -0x1.97e840p-13f + 0x1.1102eap-7f) * s - 0x1.55553ap-3f;
    V q = (s * 0x1.98ad10p-16f - 0x1.6c0780p-10f) * s + 0x1.555542p-5f;
    VU sine = (VU)(r + r * (s * p)) | ((VU)r & 0x80000000u);
    VU cosine = (VU)((1.0f - 0.5f * s) + (s * s) * q);
    VU quadrant = (VU)shifted, odd = -(quadrant & 1u);
    *sin = (V)(((cosine & odd) | (sine & ~odd)) ^ ((quadrant & 2u) << 30));
    *cos = (V)(((sine & odd) | (cosine & ~odd)) ^ (((quadrant + 1u) & 2u) << 30));
}

VFN V vm_sin_near(V x) {
    V sin, cos;
    vm_sin_cos_near(x, &sin, &cos);
    return sin;
}
VFN V vm_cos_near(V x) {
    V sin, cos;
    vm_sin_cos_near(x, &sin, &cos);
    return cos;
}

#endif
