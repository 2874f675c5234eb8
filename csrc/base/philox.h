/* philox.h: the counter-based random generator (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). Philox4x32 with 7 rounds, the fewest that pass BigCrush; each element uses 16
 * bits.
 *
 * Key = the 64-bit seed. Counter = (element block, stream, step): block b covers elements 8b..8b+7.
 * The same (seed, stream, step, element) gives the same number on every backend, for any tiling. */
#ifndef CB_BASE_PHILOX_H
#define CB_BASE_PHILOX_H

#include <stdint.h>

#define CB_PHILOX_ROUNDS 7
#define CB_PHILOX_BLOCK 8 /* elements drawn by one block */

typedef struct cb_philox {
    uint64_t seed;
    uint32_t stream; /* numbered by the tracer in program order */
    uint32_t step;   /* advances each call */
} cb_philox;

/* The words of element block `block`: element 8*block + j uses 16 bits of word j/2, from bit
 * 16*(j%2) on. */
static inline void cb_philox_block(const cb_philox *p, uint64_t block, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = p->stream, c3 = p->step;
    uint32_t k0 = (uint32_t)p->seed, k1 = (uint32_t)(p->seed >> 32);
    for (int round = 0; round < CB_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static inline uint32_t cb_philox_u16(const cb_philox *p, uint64_t element) {
    uint32_t words[4];
    cb_philox_block(p, element / CB_PHILOX_BLOCK, words);
    return (words[(element % 8) / 2] >> (16 * (element % 2))) & 0xFFFFu;
}

/* Dropout keeps an element if its 16 bits are >= this; it is p rounded to a multiple of 2^-16. */
static inline uint32_t cb_dropout_threshold(double p) { return (uint32_t)(p * 65536.0 + 0.5); }
/* The factor of kept elements: 1 / (1 - p) with the rounded p, so that the expectation is exact. */
static inline double cb_dropout_scale(double p) {
    return 65536.0 / (65536.0 - (double)cb_dropout_threshold(p));
}

#endif
