/* kern_half.h: converts 16-bit floats to and from f32 in kernels. Results are bitwise equal to
 * those of dtype.c, but there are no branches, so loops vectorise. */
#ifndef CB_BASE_KERN_HALF_H
#define CB_BASE_KERN_HALF_H

#include "bits.h"
#include "dtype.h"

static inline bool is_half(cb_dtype dtype) { return dtype == CB_F16 || dtype == CB_BF16; }

static inline float half_load_bf16(uint16_t h) { return cb_f32_of_bits((uint32_t)h << 16); }

static inline uint16_t half_store_bf16(float x) {
    uint32_t bits = cb_bits_of_f32(x);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/* Fraction and exponent move into place; multiplying by 2^112 corrects the bias and normalizes
 * subnormals. The exponent of infinity and NaN is set separately. */
static inline float half_load_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7FFFu) << 13;
    uint32_t finite = cb_bits_of_f32(cb_f32_of_bits(rest) * 0x1p112f);
    return cb_f32_of_bits(sign | (rest >= 0x0F800000u ? rest | 0x7F800000u : finite));
}

/* Normal results are rounded on the 13 bits that are dropped. For subnormal results, the sum with
 * 1/2 has an ulp of 2^-24, the spacing of f16's subnormals, so the addition does the rounding. */
static inline uint16_t half_store_f16(float x) {
    uint32_t bits = cb_bits_of_f32(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    uint32_t normal = (rest - (112u << 23) + 0xFFFu + (rest >> 13 & 1u)) >> 13;
    uint32_t tiny = cb_bits_of_f32(cb_f32_of_bits(rest) + 0.5f) - 0x3F000000u;
    uint32_t finite = rest < 0x38800000u ? tiny : normal;
    uint32_t nan = 0x7E00u | (rest >> 13 & 0x3FFu);
    uint32_t large = rest > 0x7F800000u ? nan : 0x7C00u;
    return (uint16_t)(sign | (rest >= 0x477FF000u ? large : finite));
}

static inline float half_load(cb_dtype dtype, const uint16_t *from) {
    return dtype == CB_BF16 ? half_load_bf16(*from) : half_load_f16(*from);
}

static inline void half_store(cb_dtype dtype, uint16_t *to, float x) {
    *to = dtype == CB_BF16 ? half_store_bf16(x) : half_store_f16(x);
}

static inline void half_widen(cb_dtype dtype, const uint16_t *restrict from, float *restrict to,
                              int64_t n) {
    if (dtype == CB_BF16) {
        for (int64_t i = 0; i < n; i++) to[i] = half_load_bf16(from[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = half_load_f16(from[i]);
    }
}

static inline void half_narrow(cb_dtype dtype, const float *restrict from, uint16_t *restrict to,
                               int64_t n) {
    if (dtype == CB_BF16) {
        for (int64_t i = 0; i < n; i++) to[i] = half_store_bf16(from[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = half_store_f16(from[i]);
    }
}

#endif
