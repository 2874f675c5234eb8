/* halves.h: steps f16 and bf16 rows in f32. Their weights are converted to f32 block by block, and
 * converted back to the form that the row has (cb_half_form).
 *
 *     cb_halves_room room;
 *     cb_optim_row whole = cb_halves_open(f, row, at, n, &room);
 *     formula(factor, &whole, at, n);
 *     cb_halves_close(f, row, &whole, at, n);
 */
#ifndef CB_OPTIM_HALVES_H
#define CB_OPTIM_HALVES_H

#include "extras.h"

/* Compiled for each instruction set (kern_halves.c). */
typedef struct cb_half_fns {
    void (*widen)(cb_dtype dtype, const uint16_t *x, float *to, int64_t n);
    /* Converts the weights of a row to f32 in `weight`. For a master copy, `weight` is the copy
     * itself. */
    void (*open[CB_HALF_FORM_COUNT])(const cb_optim_row *row, int64_t at, int64_t n, float *weight);
    void (*close[CB_HALF_FORM_COUNT])(const cb_optim_row *row, int64_t at, int64_t n,
                                      const float *weight);
} cb_half_fns;

/* Returns the build for this processor. */
const cb_half_fns *cb_halves_functions(void);

typedef struct cb_halves_room {
    float param[CB_EXTRAS_BLOCK], grad[CB_EXTRAS_BLOCK];
} cb_halves_room;

/* cb_halves_open returns an f32 row in place of elements at .. at + n of a row of halves; no other
 * elements of it may be accessed. n is at most CB_EXTRAS_BLOCK, and `at` a multiple of
 * CB_PHILOX_BLOCK. cb_halves_close converts its weights back. */
cb_optim_row cb_halves_open(const cb_half_fns *f, const cb_optim_row *row, int64_t at, int64_t n,
                            cb_halves_room *room);
void cb_halves_close(const cb_half_fns *f, const cb_optim_row *row, const cb_optim_row *whole,
                     int64_t at, int64_t n);

#endif
