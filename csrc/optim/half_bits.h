/* half_bits.h: numbers of 16 bits and f32, without branches, for loops that are compiled once for
 * each instruction set. */
#ifndef CB_OPTIM_HALF_BITS_H
#define CB_OPTIM_HALF_BITS_H

#include <string.h>

#include "../base/dtype.h"

static inline uint32_t cb_bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float cb_float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits of x; those of a NaN in the upper half alone, so that whatever is done with the lower
 * one leaves it a NaN. */
static inline uint32_t cb_bits_with_nan(float x) {
    const uint32_t bits = cb_bits_of(x), nan = (bits & 0xFFFF0000u) | 0x400000u;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : bits;
}

/* As cb_f32_to_bf16. */
static inline uint16_t cb_bf16_of(float x) {
    const uint32_t bits = cb_bits_with_nan(x);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static inline float cb_of_bf16(uint16_t x) { return cb_float_of((uint32_t)x << 16); }

#endif
