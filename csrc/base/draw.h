/* draw.h: arrays of random numbers from the counter-based generator. An element depends only on
 * (seed, stream, step, its position), so drawing it again gives the same number. */
#ifndef CB_BASE_DRAW_H
#define CB_BASE_DRAW_H

#include "dtype.h"
#include "philox.h"

/* Draws 1 with probability 1 - p, otherwise 0; p in 0..1 is rounded to a multiple of 2^-32. */
void cb_draw_keep(const cb_philox *random, double p, uint64_t n, uint8_t *out);
/* Draw uniform numbers in [0, 1): multiples of 2^-24 (f32) or 2^-53 (f64). */
void cb_draw_uniform_f32(const cb_philox *random, uint64_t n, float *out);
void cb_draw_uniform_f64(const cb_philox *random, uint64_t n, double *out);
/* Draw normal numbers with mean 0 and variance 1. */
void cb_draw_normal_f32(const cb_philox *random, uint64_t n, float *out);
void cb_draw_normal_f64(const cb_philox *random, uint64_t n, double *out);

/* Returns the random bits, out of 16, that a uniform number uses. A type with fewer significant
 * bits takes as many leading bits as it holds exactly. So the number is below 1, while rounding
 * could give 1. */
static inline uint32_t cb_uniform_mask(cb_dtype dtype) {
    if (dtype == CB_F16) return 0xFFE0u;
    return dtype == CB_BF16 ? 0xFF00u : 0xFFFFu;
}

#endif
