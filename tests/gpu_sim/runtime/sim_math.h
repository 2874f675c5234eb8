/* sim_math.h: PTX arithmetic that C does not have, for translated kernels (translate/forms.py).
 * Results have exactly the bits that the PTX manual defines. Approximate operations are correctly
 * rounded; if a test asks for it, they are perturbed within the error that the manual states. */
#ifndef SIM_MATH_H
#define SIM_MATH_H

#include <fenv.h>
#include <math.h>

#include "sim_thread.h"

static inline float sim_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline double sim_f64(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t sim_raw32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
/* Every NaN that an f32 operation returns is this one. */
static inline uint32_t sim_bits32(float value) {
    return value != value ? 0x7fffffffu : sim_raw32(value);
}
static inline uint64_t sim_bits64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sim_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline float sim_saturate(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; } /* NaN: 0 */
static inline uint32_t sim_copy_sign32(uint32_t sign, uint32_t value) {
    return (sign & 0x80000000u) | (value & 0x7fffffffu);
}
static inline uint64_t sim_copy_sign64(uint64_t sign, uint64_t value) {
    return (sign & 1ull << 63) | (value & ~(1ull << 63));
}

/* Evaluates an operation under a rounding mode. Its operands must be volatile; otherwise the
 * compiler may move the operation out of the region. */
#define SIM_ROUNDED(mode, type, operation)     \
    const int before_ = fegetround();          \
    fesetround(mode);                          \
    volatile type result_ = (type)(operation); \
    fesetround(before_);                       \
    result_

/* Minimum and maximum; -0 is less than 0. If one operand is NaN, the result is the other one, or
 * NaN if `keeps_nan` is set. */
#define SIM_EXTREME(name, type, beats)                                       \
    static inline type name(type a, type b, int keeps_nan) {                 \
        if (a != a || b != b) return (a != a) != (keeps_nan != 0) ? b : a;   \
        return a beats b || (a == b && (0 beats 1) == !!signbit(a)) ? a : b; \
    }
SIM_EXTREME(sim_min_f32, float, <)
SIM_EXTREME(sim_max_f32, float, >)
SIM_EXTREME(sim_min_f64, double, <)
SIM_EXTREME(sim_max_f64, double, >)

/* Returns a + b, rounded to odd if it is inexact, so that rounding the result again to half as many
 * bits gives the correctly rounded sum. */
static inline double sim_sum(double a, double b) {
    double sum = a + b, back = sum - a, error = (a - (sum - back)) + (b - back);
    uint64_t bits = sim_bits64(sum);
    if (error != 0 && isfinite(sum) && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1ull;
    return sim_f64(bits);
}

static inline double sim_from_f16(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    double value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) value = fraction ? NAN : INFINITY;
    return half & 0x8000 ? -value : value;
}
static inline double sim_from_bf16(uint16_t half) { return sim_f32((uint32_t)half << 16); }

/* Converts to a type with `digits` binary digits and the smallest exponent `least` (of 1.x). It
 * counts in units in the last place, and rounds ties to even or, if `is_cut` is set, toward
 * zero. */
static inline uint16_t sim_narrow(double x, int digits, int least, uint16_t infinity, bool is_cut) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7fff;
    if (isinf(x)) return sign | infinity;
    int exponent;
    frexp(x, &exponent);
    if (exponent - 1 < least || x == 0) exponent = least + 1;
    const double units = ldexp(fabs(x), digits - exponent);
    uint32_t whole = (uint32_t)(is_cut ? floor(units) : nearbyint(units));
    whole += (uint32_t)(exponent - 1 - least) << (digits - 1);
    if (whole >= infinity) whole = is_cut ? infinity - 1u : infinity;
    return sign | (uint16_t)whole;
}
static inline uint16_t sim_to_f16(double x) { return sim_narrow(x, 11, -14, 0x7c00, false); }
static inline uint16_t sim_to_f16_rz(double x) { return sim_narrow(x, 11, -14, 0x7c00, true); }
static inline uint16_t sim_to_bf16(double x) { return sim_narrow(x, 8, -126, 0x7f80, false); }
static inline uint16_t sim_to_bf16_rz(double x) { return sim_narrow(x, 8, -126, 0x7f80, true); }

/* Converts an integral floating-point value. Values out of range become the nearest limit. NaN
 * becomes 0, or, in 64-bit types, only the sign bit. */
#define SIM_TO_INTEGER(name, type, low, high, nan) \
    static inline type name(double x) {            \
        if (x != x) return (type)(nan);            \
        if (x <= (double)(low)) return low;        \
        if (x >= (double)(high)) return high;      \
        return (type)x;                            \
    }
SIM_TO_INTEGER(sim_to_s8, int8_t, INT8_MIN, INT8_MAX, 0)
SIM_TO_INTEGER(sim_to_u8, uint8_t, 0, UINT8_MAX, 0)
SIM_TO_INTEGER(sim_to_s16, int16_t, INT16_MIN, INT16_MAX, 0)
SIM_TO_INTEGER(sim_to_u16, uint16_t, 0, UINT16_MAX, 0)
SIM_TO_INTEGER(sim_to_s32, int32_t, INT32_MIN, INT32_MAX, 0)
SIM_TO_INTEGER(sim_to_u32, uint32_t, 0, UINT32_MAX, 0)
SIM_TO_INTEGER(sim_to_s64, int64_t, INT64_MIN, INT64_MAX, INT64_MIN)
SIM_TO_INTEGER(sim_to_u64, uint64_t, 0, UINT64_MAX, 1ull << 63)

static inline __int128 sim_clamp(__int128 x, __int128 low, __int128 high) {
    return x < low ? low : x > high ? high : x;
}
static inline int32_t sim_clamp32(int64_t x) { return (int32_t)sim_clamp(x, INT32_MIN, INT32_MAX); }

/* Returns `value` rounded to f32. If a test asks for it, a hash first changes the value by at most
 * the relative error. */
static inline float sim_approximate(const sim_thread *t, double value, double error) {
    if (t->approximate) {
        uint32_t hash = (sim_raw32((float)value) ^ t->approximate) * 2654435761u;
        hash = (hash ^ hash >> 15) * 0x85ebca6bu;
        value *= 1 + error * ((int32_t)hash / 2147483648.0);
    }
    return (float)value;
}
/* The low 32 bits of approximate f64 results are zero, which leaves 20 bits of the fraction. */
static inline double sim_upper_half(double value) {
    return value != value ? value : sim_f64(sim_bits64(value) & 0xffffffff00000000ull);
}

static inline uint32_t sim_permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t choice = selector >> 4 * i & 15;
        uint32_t byte = bytes >> 8 * (choice & 7) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0; /* eight copies of its sign bit */
        result |= byte << 8 * i;
    }
    return result;
}
static inline uint32_t sim_lookup(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (int i = 0; i < 32; i++)
        result |= (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
    return result;
}
static inline uint32_t sim_funnel(uint32_t low, uint32_t high, uint32_t n, int is_left,
                                  int clamps) {
    n = clamps ? (n > 32 ? 32 : n) : n & 31;
    const uint64_t both = (uint64_t)high << 32 | low;
    return is_left ? (uint32_t)(both << n >> 32) : (uint32_t)(both >> n);
}
static inline uint64_t sim_extract(uint64_t a, uint32_t at, uint32_t n, uint32_t bits,
                                   int is_signed) {
    at &= 255, n &= 255;
    uint64_t result = 0, sign = 0;
    if (is_signed && n) sign = a >> (at + n - 1 < bits - 1 ? at + n - 1 : bits - 1) & 1;
    for (uint32_t i = 0; i < bits; i++)
        result |= (i < n && at + i < bits ? a >> (at + i) & 1 : sign) << i;
    return result;
}
static inline uint64_t sim_insert(uint64_t a, uint64_t b, uint32_t at, uint32_t n, uint32_t bits) {
    at &= 255, n &= 255;
    for (uint32_t i = 0; i < n && at + i < bits; i++)
        b = (b & ~(1ull << (at + i))) | (a >> i & 1) << (at + i);
    return b;
}
static inline uint32_t sim_count_zeros(uint64_t a, uint32_t bits) {
    return a ? (uint32_t)__builtin_clzll(a) - (64 - bits) : bits;
}
/* Returns the position of the highest bit that differs from the sign, or, if `counts` is set, its
 * distance from the top. */
static inline uint32_t sim_find(uint64_t a, uint32_t bits, int is_signed, int counts) {
    if (is_signed && a >> (bits - 1) & 1) a = ~a & (bits == 64 ? ~0ull : (1ull << bits) - 1);
    if (!a) return ~0u;
    const uint32_t at = 63 - (uint32_t)__builtin_clzll(a);
    return counts ? bits - 1 - at : at;
}
static inline uint64_t sim_reverse(uint64_t a, uint32_t bits) {
    uint64_t result = 0;
    for (uint32_t i = 0; i < bits; i++) result |= (a >> i & 1) << (bits - 1 - i);
    return result;
}
static inline uint32_t sim_dot(uint32_t a, uint32_t b, uint32_t sum, int a_signed, int b_signed) {
    for (int i = 0; i < 4; i++) {
        const int x = a >> 8 * i & 255, y = b >> 8 * i & 255;
        sum += (uint32_t)((a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)y : y));
    }
    return sum;
}
/* Adds the products of the 16-bit halves of a and the two lowest bytes of b to `sum`. */
static inline uint32_t sim_dot_pair(uint32_t a, uint32_t b, uint32_t sum, int a_signed,
                                    int b_signed) {
    for (int i = 0; i < 2; i++) {
        const int x = a >> 16 * i & 65535, y = b >> 8 * i & 255;
        sum += (uint32_t)((a_signed ? (int16_t)x : x) * (b_signed ? (int8_t)y : y));
    }
    return sum;
}

#endif
