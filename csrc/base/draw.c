/* A block of the generator is four 32-bit words. Masks use half a word per element, like the op
 * "dropout", so their bits do not depend on which of them draws. Single precision uses one word per
 * element, double precision two. Normal numbers come in pairs from the Box-Muller transform,
 * computed in double precision. Half a unit is added to the uniform number under the logarithm, so
 * it is never 0 and the radius is never infinite. */
#include "draw.h"

#include <math.h>
#include <string.h>

static const double two_pi = 6.283185307179586476925;

void cb_draw_keep(const cb_philox *random, double p, uint64_t n, uint8_t *out) {
    const uint32_t threshold = cb_dropout_threshold(p);
    for (uint64_t i = 0; i < n; i += CB_PHILOX_BLOCK) {
        uint32_t word[4];
        cb_philox_block(random, i / CB_PHILOX_BLOCK, word);
        uint8_t bit[CB_PHILOX_BLOCK];
        for (int j = 0; j < CB_PHILOX_BLOCK; j++)
            bit[j] = (word[j / 2] >> (16 * (j % 2)) & 0xFFFFu) >= threshold;
        memcpy(out + i, bit, n - i < CB_PHILOX_BLOCK ? n - i : CB_PHILOX_BLOCK);
    }
}

void cb_draw_uniform_f32(const cb_philox *random, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n; i += 4) {
        uint32_t word[4];
        cb_philox_block(random, i / 4, word);
        for (uint64_t j = 0; j < 4 && i + j < n; j++) out[i + j] = (float)(word[j] >> 8) * 0x1p-24f;
    }
}

/* Returns 53 random bits. */
static uint64_t bits53(const uint32_t word[2]) { return ((uint64_t)word[0] << 32 | word[1]) >> 11; }

void cb_draw_uniform_f64(const cb_philox *random, uint64_t n, double *out) {
    for (uint64_t i = 0; i < n; i += 2) {
        uint32_t word[4];
        cb_philox_block(random, i / 2, word);
        for (uint64_t j = 0; j < 2 && i + j < n; j++)
            out[i + j] = (double)bits53(word + 2 * j) * 0x1p-53;
    }
}

/* Makes two independent normal numbers from `u` in (0, 1) and `v` in [0, 1). */
static void normal_pair(double u, double v, double out[2]) {
    const double radius = sqrt(-2.0 * log(u)), angle = two_pi * v;
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

void cb_draw_normal_f32(const cb_philox *random, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n; i += 4) {
        uint32_t word[4];
        double z[4];
        cb_philox_block(random, i / 4, word);
        for (int j = 0; j < 4; j += 2)
            normal_pair(((double)word[j] + 0.5) * 0x1p-32, (double)word[j + 1] * 0x1p-32, z + j);
        for (uint64_t j = 0; j < 4 && i + j < n; j++) out[i + j] = (float)z[j];
    }
}

void cb_draw_normal_f64(const cb_philox *random, uint64_t n, double *out) {
    for (uint64_t i = 0; i < n; i += 2) {
        uint32_t word[4];
        double z[2];
        cb_philox_block(random, i / 2, word);
        normal_pair(((double)bits53(word) + 0.5) * 0x1p-53, (double)bits53(word + 2) * 0x1p-53, z);
        for (uint64_t j = 0; j < 2 && i + j < n; j++) out[i + j] = z[j];
    }
}
