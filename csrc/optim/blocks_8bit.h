/* blocks_8bit.h: how 8-bit moments are encoded, for the CPU's formulas and a GPU's kernels. The
 * includer defines CB_INLINE and
 *
 *     CB_BLOCK_ROOM                               elements of a block that one call handles,
 *     CB_MOST_ACROSS(x), CB_LEAST_ACROSS(x)       largest and smallest x of all calls of a block,
 *     CB_WRITES_SCALES                            true in the call that writes the scales. */
#ifndef CB_OPTIM_BLOCKS_8BIT_H
#define CB_OPTIM_BLOCKS_8BIT_H

#include "../base/bits.h"

/* Returns 32 bits that look independent for neighbouring x. */
CB_INLINE uint32_t noise_of(uint32_t x) {
    x ^= x >> 16;
    x *= UINT32_C(0x7FEB352D);
    x ^= x >> 15;
    x *= UINT32_C(0x846CA68B);
    return x ^ x >> 16;
}

/* Returns the noise of element i of a block whose noise starts at `first`. The upper and the lower
 * half both advance by an irrational fraction of their range (0.618 and 0.414), so both cover it
 * evenly. */
CB_INLINE uint32_t noise_at(uint32_t first, int32_t i) {
    return first + (uint32_t)i * UINT32_C(0x9E373505);
}

/* Returns floor(x + noise) for 0 <= x < 255, modulo 256, where noise is the lower 15 bits of
 * `noise` as a fraction: in [256, 512) a float's last bit is worth 2^-15. */
CB_INLINE int32_t rounded_unsigned(float x, uint32_t noise) {
    return (int32_t)((cb_bits_of_f32(x + 256.0f) + (noise & 0x7FFF)) >> 15);
}

/* Returns floor(x + noise) for -127 <= x <= 127, modulo 256, where noise is the upper 14 bits of
 * `noise` as a fraction: in [512, 1024) a float's last bit is worth 2^-14. */
CB_INLINE int32_t rounded_signed(float x, uint32_t noise) {
    return (int32_t)((cb_bits_of_f32(x + 768.0f) + (noise >> 18)) >> 14);
}

/* The codes for the square roots of a block. Code 0 is 0; codes from 1 on are evenly spaced f32 bit
 * patterns, which are nearly evenly spaced logarithms. */
typedef struct cb_root_codes {
    uint32_t first; /* the bits of code 1 */
    uint32_t step;
} cb_root_codes;

/* Returns codes for roots from `least` to `most`. Before rounding, `most` is below code 254, so
 * noise and rounding errors never carry a code past 255. */
CB_INLINE cb_root_codes root_codes_of(float least, float most) {
    const uint32_t first = cb_bits_of_f32(least);
    cb_root_codes codes;
    codes.first = first;
    codes.step = (cb_bits_of_f32(most) - first) / 253 + 1;
    return codes;
}

CB_INLINE float root_of(cb_root_codes codes, int32_t code) {
    const uint32_t bits = codes.first - codes.step + (uint32_t)code * codes.step;
    return cb_f32_of_bits(code == 0 ? 0 : bits);
}

/* Returns the code of a root, modulo 256; `inverse` is 1 / step. Without `low`, the root must not
 * be below code 1. With `low`, such roots get code 1, and 0 gets code 0. */
CB_INLINE int32_t code_of_root(cb_root_codes codes, float inverse, float root, bool low,
                               uint32_t noise) {
    const uint32_t bits = cb_bits_of_f32(root);
    const uint32_t inside = low && bits < codes.first ? codes.first : bits;
    const float above = (float)(int32_t)(inside - codes.first + codes.step);
    const int32_t code = rounded_unsigned(above * inverse, noise);
    return low && bits == 0 ? 0 : code;
}

/* Returns the bits of the smallest nonzero root of a block, or 0 if all are 0. */
CB_INLINE uint32_t least_but_0(const float *root, int32_t n) {
    uint32_t least_less_1 = UINT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        const uint32_t less_1 = cb_bits_of_f32(root[i]) - 1;
        least_less_1 = less_1 < least_less_1 ? less_1 : least_less_1;
    }
    return CB_LEAST_ACROSS(least_less_1) + 1;
}

/* Bits of magnitudes. Elements whose root is not finite, or whose update is not below 2^60, are
 * outliers. They are excluded from the ranges of their block, so that its other elements keep their
 * precision. Products of roots, scales and updates below these limits do not overflow. */
#define CB_INFINITE_BITS UINT32_C(0x7F800000)
#define CB_UPDATE_LIMIT_BITS UINT32_C(0x5D800000)

typedef struct cb_block_scales {
    float unit;      /* the update that one unit of a code represents */
    float m_inverse; /* 1 / unit; 0 if `unit` is too small to divide by */
    float v[2];      /* the smallest nonzero root, and the largest root */
} cb_block_scales;

/* Returns the scales of a block, from the bits of its largest update and of its smallest and
 * largest root. Roots more than 15.8 octaves below the largest are raised to that limit when they
 * are encoded, so that two codes are never more than a 16th of an octave apart. */
CB_INLINE cb_block_scales scales_of(uint32_t update_most, uint32_t least, uint32_t most) {
    const uint32_t range = UINT32_C(253) << 19;
    const float update = cb_f32_of_bits(update_most);
    if (most > range && least < most - range) least = most - range;
    cb_block_scales scales;
    scales.unit = update / 127;
    scales.m_inverse = update >= 0x1p-119f ? 127 / update : 0;
    scales.v[0] = cb_f32_of_bits(least);
    scales.v[1] = cb_f32_of_bits(most);
    return scales;
}

#endif
