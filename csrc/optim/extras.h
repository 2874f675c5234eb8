/* extras.h: what a step does beside the update, in the same pass (cb_optim_extras), and what it has
 * to know of all gradients before it. */
#ifndef CB_OPTIM_EXTRAS_H
#define CB_OPTIM_EXTRAS_H

#include "optimizer.h"

/* Elements that are updated before what else is done with them. So few that the processor's
 * prefetchers see all arrays of a row read at once: in blocks of 2,048, where each stands still
 * while the others are read, 16 M elements take 1.3 to 1.7 times as long. */
#define CB_EXTRAS_BLOCK 256

/* Builds for each instruction set (kern_extras.c). */
typedef struct cb_extra_fns {
    double (*square)(const cb_optim_row *row, int64_t at, int64_t n);
    void (*average)(const cb_optim_row *row, void *average, double keep, int64_t at, int64_t n);
    void (*copy)(const cb_optim_row *row, const cb_extra_row *extra, int64_t at, int64_t n);
} cb_extra_fns;

/* The build for this processor. */
const cb_extra_fns *cb_extras_functions(void);

/* Does the extras of elements at .. at + n, which were just updated. `row` is their row, or its
 * replacement in f32 (halves.h). */
void cb_extras_of(const cb_extra_fns *f, const cb_optim_table *table, uint32_t at_row,
                  const cb_optim_row *row, int64_t at, int64_t n);

/* Whether the numbers are in their ranges, and copies of types that there are. `n`: rows. */
CB_MUST_CHECK cb_status cb_extras_check(const cb_optimizer *o, const cb_optim_extras *extras,
                                        uint32_t n, cb_error *err);

/* Makes `extras` those of the table: what they have to know of all gradients is read, and the
 * factor of these is set, the same for any threads. Where the outcome is that the step is skipped,
 * it is not to be taken. `scratch` has cb_gradients_scratch(table, extras) bytes. */
size_t cb_gradients_scratch(const cb_optim_table *table, const cb_optim_extras *extras);
cb_optim_outcome cb_gradients_measure(cb_optim_table *table, const cb_optim_extras *extras,
                                      cb_threads *pool, void *scratch);
void cb_gradients_clear(const cb_optim_table *table, cb_threads *pool);

#endif
