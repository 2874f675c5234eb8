/* extras.h: the additional work of a step in the same pass as the update (cb_optim_extras), and the
 * norm of all gradients, which it may need before the step. */
#ifndef CB_OPTIM_EXTRAS_H
#define CB_OPTIM_EXTRAS_H

#include "optimizer.h"

/* Extras are done after every CB_EXTRAS_BLOCK updated elements. A block is so short that the
 * hardware prefetchers treat all arrays of a row as concurrent streams. With blocks of 2,048
 * elements, each stream pauses while the others are read, and 16 M elements take 1.3 to 1.7 times
 * as long. */
#define CB_EXTRAS_BLOCK 256

/* Compiled for each instruction set (kern_extras.c). */
typedef struct cb_extra_fns {
    /* Returns the sum of squares of the gradient, or NaN if an element is not finite. */
    double (*square)(const cb_optim_row *row, int64_t at, int64_t n);
    void (*average)(const cb_optim_row *row, void *average, double keep, int64_t at, int64_t n);
    void (*copy)(const cb_optim_row *row, const cb_extra_row *extra, int64_t at, int64_t n);
} cb_extra_fns;

/* Returns the build for this processor. */
const cb_extra_fns *cb_extras_functions(void);

/* Does the extras of elements at .. at + n, which have just been updated. `row` is their row, or
 * its f32 replacement (halves.h). */
void cb_extras_of(const cb_extra_fns *f, const cb_optim_table *table, uint32_t at_row,
                  const cb_optim_row *row, int64_t at, int64_t n);

/* Checks that the numbers are in range and that copies are f16 or bf16. `n` is the number of
 * rows. */
CB_MUST_CHECK cb_status cb_extras_check(const cb_optimizer *o, const cb_optim_extras *extras,
                                        uint32_t n, cb_error *err);

/* Sets the extras of the table, computes the norm of all gradients if they need it, and sets
 * grad_factor. Results do not depend on the number of threads. If the outcome is `skipped`, the
 * caller must not take the step. `scratch` has cb_gradients_scratch(table, extras) bytes. */
size_t cb_gradients_scratch(const cb_optim_table *table, const cb_optim_extras *extras);
cb_optim_outcome cb_gradients_measure(cb_optim_table *table, const cb_optim_extras *extras,
                                      cb_threads *pool, void *scratch);
void cb_gradients_clear(const cb_optim_table *table, cb_threads *pool);

#endif
