/* kern_random.h: random numbers for kernels, many at a time. */
#ifndef CB_EXEC_CPU_KERN_RANDOM_H
#define CB_EXEC_CPU_KERN_RANDOM_H

#include <string.h>

#include "../../base/philox.h"

/* Philox (base/philox.h) for CB_DRAW_LANES blocks at once, one array for each of the four words, so
 * that the rounds are vector code. Bits 16.. of word j/2 of block b are element 8b + j: written out
 * in this order the words are the draws. */
#define CB_DRAW_LANES 16
#define CB_DRAWN (CB_DRAW_LANES * CB_PHILOX_BLOCK)

static inline void cb_draw(const cb_philox *p, uint64_t block, uint16_t *restrict out) {
    uint32_t c0[CB_DRAW_LANES], c1[CB_DRAW_LANES], c2[CB_DRAW_LANES], c3[CB_DRAW_LANES];
    for (uint32_t i = 0; i < CB_DRAW_LANES; i++) {
        uint64_t b = block + i;
        c0[i] = (uint32_t)b;
        c1[i] = (uint32_t)(b >> 32);
        c2[i] = p->stream;
        c3[i] = p->step;
    }
    uint32_t k0 = (uint32_t)p->seed, k1 = (uint32_t)(p->seed >> 32);
    for (int round = 0; round < CB_PHILOX_ROUNDS; round++) {
        for (int i = 0; i < CB_DRAW_LANES; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c0[i] = n0;
            c1[i] = (uint32_t)p1;
            c2[i] = n2;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    uint32_t words[4 * CB_DRAW_LANES];
    for (int i = 0; i < CB_DRAW_LANES; i++) {
        words[4 * i] = c0[i];
        words[4 * i + 1] = c1[i];
        words[4 * i + 2] = c2[i];
        words[4 * i + 3] = c3[i];
    }
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(out, words, sizeof words);
#else
    for (int i = 0; i < CB_DRAWN; i++) out[i] = (uint16_t)(words[i / 2] >> (16 * (i % 2)));
#endif
}

#endif
