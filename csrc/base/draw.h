/* draw.h: arrays of random numbers from the counter-based generator. An element is a function of
 * (seed, stream, step, its position) alone: drawn again, in part or as a whole, it is the same. */
#ifndef CB_BASE_DRAW_H
#define CB_BASE_DRAW_H

#include "philox.h"

/* 1 with probability 1 - p, else 0; p in 0..1, taken to a multiple of 2^-32. */
void cb_draw_keep(const cb_philox *random, double p, uint64_t n, uint8_t *out);
/* Multiples of 2^-24 and of 2^-53 in [0, 1). */
void cb_draw_uniform_f32(const cb_philox *random, uint64_t n, float *out);
void cb_draw_uniform_f64(const cb_philox *random, uint64_t n, double *out);
/* Mean 0, variance 1. */
void cb_draw_normal_f32(const cb_philox *random, uint64_t n, float *out);
void cb_draw_normal_f64(const cb_philox *random, uint64_t n, double *out);

#endif
