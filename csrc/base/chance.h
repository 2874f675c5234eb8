/* chance.h: a seeded generator for searches, splitmix64 (Steele, Lea, Flood 2014). The same seed
 * gives the same draws on every machine. */
#ifndef CB_BASE_CHANCE_H
#define CB_BASE_CHANCE_H

#include <stdint.h>

static inline uint64_t cb_chance_bits(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* Advances the state as if `n` more draws had been made. */
static inline void cb_chance_skip(uint64_t *state, uint64_t n) {
    *state += n * UINT64_C(0x9E3779B97F4A7C15);
}

/* Returns a uniform number in [0, 1). */
static inline double cb_chance(uint64_t *state) {
    return (double)(cb_chance_bits(state) >> 11) * 0x1p-53;
}

#endif
