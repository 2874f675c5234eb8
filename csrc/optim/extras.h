/* extras.h: what a step does beside the update, in the same pass (cb_optim_extras), and what it has
 * to know of all gradients before it. */
#ifndef CB_OPTIM_EXTRAS_H
#define CB_OPTIM_EXTRAS_H

#include "optimizer.h"

#define CB_EXTRAS_BLOCK 2048 /* elements that are updated before their extras: they stay in L1 */

/* Of elements at .. at + n of a row that were just updated; `updated` is that row, or stands for it
 * (halves.h). */
void cb_extras_of(const cb_optim_table *table, uint32_t at_row, const cb_optim_row *updated,
                  int64_t at, int64_t n);

/* The sum of squares of all gradients, the same for any threads; NaN: one of them is not finite.
 * `scratch` has cb_gradients_scratch(table) bytes. */
size_t cb_gradients_scratch(const cb_optim_table *table);
double cb_gradients_square(const cb_optim_table *table, cb_threads *pool, void *scratch);
void cb_gradients_clear(const cb_optim_table *table, cb_threads *pool);

/* Builds for each instruction set (kern_extras.c). */
typedef struct cb_extra_fns {
    double (*square)(const cb_optim_row *row, int64_t at, int64_t n);
    void (*average)(const cb_optim_row *row, void *average, double keep, int64_t at, int64_t n);
    void (*copy)(const cb_optim_row *row, const cb_extra_row *extra, int64_t at, int64_t n);
} cb_extra_fns;

#endif
