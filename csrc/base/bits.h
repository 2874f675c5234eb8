/* bits.h: converts between an f32 and its bit pattern, for kernels. */
#ifndef CB_BASE_BITS_H
#define CB_BASE_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t cb_bits_of_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float cb_f32_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
