/* halves.h: rows of f16 and bf16, stepped as f32. Their weights are made f32, block by block, and
 * put back in the form that the row asks for (cb_half_form).
 *
 *     cb_halves_room room;
 *     cb_optim_row whole = cb_halves_open(f, row, at, n, &room);
 *     formula(factor, &whole, at, n);
 *     cb_halves_close(f, row, &whole, at, n);
 */
#ifndef CB_OPTIM_HALVES_H
#define CB_OPTIM_HALVES_H

#include "extras.h"

/* Builds for each instruction set (kern_halves.c). */
typedef struct cb_half_fns {
    void (*widen)(cb_dtype dtype, const uint16_t *x, float *to, int64_t n);
    /* The weights of a row as f32, in `weight` or, for a master copy, in place. */
    void (*open[CB_HALF_FORM_COUNT])(const cb_optim_row *row, int64_t at, int64_t n, float *weight);
    void (*close[CB_HALF_FORM_COUNT])(const cb_optim_row *row, int64_t at, int64_t n,
                                      const float *weight);
} cb_half_fns;

/* The build for this processor. */
const cb_half_fns *cb_halves_functions(void);

typedef struct cb_halves_room {
    float param[CB_EXTRAS_BLOCK], grad[CB_EXTRAS_BLOCK];
} cb_halves_room;

/* The row of f32 that stands for elements at .. at + n of one of halves, at most CB_EXTRAS_BLOCK
 * of them; nothing else of it may be touched. `at` is a multiple of CB_PHILOX_BLOCK. */
cb_optim_row cb_halves_open(const cb_half_fns *f, const cb_optim_row *row, int64_t at, int64_t n,
                            cb_halves_room *room);
void cb_halves_close(const cb_half_fns *f, const cb_optim_row *row, const cb_optim_row *whole,
                     int64_t at, int64_t n);

#endif
