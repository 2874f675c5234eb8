/* kern_random.h: random numbers for kernels. Philox (philox.h) computes CB_DRAW_LANES blocks at
 * once; each of the four words of CB_VW blocks is a vector, so the rounds are vector code. Element
 * 8b + j is 16 bits of word j/2 of block b, from bit 16 (j % 2) on: written out in block order, the
 * words are the draws. */
#ifndef CB_BASE_KERN_RANDOM_H
#define CB_BASE_KERN_RANDOM_H

#include <string.h>

#include "kern_vector.h"
#include "philox.h"

#define CB_DRAW_LANES 16
#define CB_DRAWN (CB_DRAW_LANES * CB_PHILOX_BLOCK)

#if defined(__SSE2__)

typedef CB_VECTOR(uint64_t, 4 * CB_VW) VQ;

#if defined(__AVX512F__)
#define CB_OF_VECTORS(name, a, b) ((VU)_mm512_##name((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
#define CB_OF_VECTORS(name, a, b) ((VU)_mm256_##name((__m256i)(a), (__m256i)(b)))
#else
#define CB_OF_VECTORS(name, a, b) ((VU)_mm_##name((__m128i)(a), (__m128i)(b)))
#endif

/* The high and low halves of 32-bit by 32-bit products. */
VFN void philox_multiply(VU a, uint32_t by, VU *high, VU *low) {
    const VQ factor = (uint64_t)by - (VQ){0}, lower = 0xFFFFFFFFu - (VQ){0};
    VQ even = (VQ)CB_OF_VECTORS(mul_epu32, a, factor);
    VQ odd = (VQ)CB_OF_VECTORS(mul_epu32, (VQ)a >> 32, factor);
    *low = (VU)((even & lower) | (odd << 32));
    *high = (VU)((even >> 32) | (odd & ~lower));
}

/* Computes CB_VW blocks from `block` on. The words of four blocks are transposed within each
 * 128-bit lane; block numbers are assigned to lanes (`first`) such that the output is in order. */
VFN void philox_vector(const cb_philox *p, uint64_t block, VU out[4]) {
    VU first = (VU){0}, base = (uint32_t)block - (VU){0};
    for (uint32_t j = 0; j < CB_VW; j++) first[j] = j % 4 * (CB_VW / 4) + j / 4;
    VU c0 = base + first;
    VU c1 = (uint32_t)(block >> 32) - (VU)(c0 < base); /* a true comparison is -1 */
    VU c2 = p->stream - (VU){0}, c3 = p->step - (VU){0};
    uint32_t k0 = (uint32_t)p->seed, k1 = (uint32_t)(p->seed >> 32);
    for (int round = 0; round < CB_PHILOX_ROUNDS; round++) {
        VU high0, low0, high2, low2;
        philox_multiply(c0, 0xD2511F53u, &high0, &low0);
        philox_multiply(c2, 0xCD9E8D57u, &high2, &low2);
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    VU low01 = CB_OF_VECTORS(unpacklo_epi32, c0, c1),
       high01 = CB_OF_VECTORS(unpackhi_epi32, c0, c1);
    VU low23 = CB_OF_VECTORS(unpacklo_epi32, c2, c3),
       high23 = CB_OF_VECTORS(unpackhi_epi32, c2, c3);
    out[0] = CB_OF_VECTORS(unpacklo_epi64, low01, low23);
    out[1] = CB_OF_VECTORS(unpackhi_epi64, low01, low23);
    out[2] = CB_OF_VECTORS(unpacklo_epi64, high01, high23);
    out[3] = CB_OF_VECTORS(unpackhi_epi64, high01, high23);
}

static inline void cb_draw(const cb_philox *p, uint64_t block, uint16_t *out) {
    for (uint64_t at = 0; at < CB_DRAW_LANES; at += CB_VW) {
        VU words[4];
        philox_vector(p, block + at, words);
        memcpy(out + at * CB_PHILOX_BLOCK, words, sizeof words);
    }
}

#else

static inline void cb_draw(const cb_philox *p, uint64_t block, uint16_t *out) {
    for (uint64_t at = 0; at < CB_DRAW_LANES; at++) {
        uint32_t words[4];
        cb_philox_block(p, block + at, words);
        for (int j = 0; j < CB_PHILOX_BLOCK; j++)
            *out++ = (uint16_t)(words[j / 2] >> (16 * (j % 2)));
    }
}

#endif

/* Writes 1 for each of CB_DRAWN draws that is at least `threshold`, and 0 for the others. */
#if defined(__AVX512BW__)
VFN void cb_draw_kept(const cb_philox *random, uint64_t block, uint32_t threshold, float *out) {
    const __m512i least = _mm512_set1_epi16((short)threshold);
    const __m512 one = _mm512_set1_ps(1.0f);
    VU words[4];
    philox_vector(random, block, words);
    for (int k = 0; k < 4; k++) {
        __mmask32 kept = _mm512_cmpge_epu16_mask((__m512i)words[k], least);
        _mm512_storeu_ps(out + 32 * k, _mm512_maskz_mov_ps((__mmask16)kept, one));
        _mm512_storeu_ps(out + 32 * k + 16, _mm512_maskz_mov_ps((__mmask16)(kept >> 16), one));
    }
}
#else
VFN void cb_draw_kept(const cb_philox *random, uint64_t block, uint32_t threshold, float *out) {
    uint16_t bits[CB_DRAWN];
    cb_draw(random, block, bits);
    for (int i = 0; i < CB_DRAWN; i++) out[i] = bits[i] >= threshold ? 1.0f : 0.0f;
}
#endif

#endif
