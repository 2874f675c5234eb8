/* elements.h: for optimizers that update every element by itself, the same formula for all elements
 * of a row. */
#ifndef CB_OPTIM_ELEMENTS_H
#define CB_OPTIM_ELEMENTS_H

#include "optimizer.h"

#define CB_MAX_FACTORS 12

/* What is the same for all elements of a row, computed once, in double. `factor` has room for
 * CB_MAX_FACTORS. */
typedef void (*cb_factors_fn)(const double *hyper, int64_t t, double *factor);
/* Updates `n` elements of the row from `begin` on. */
typedef void (*cb_elements_fn)(const double *factor, const cb_optim_row *row, int64_t begin,
                               int64_t n);

void cb_step_elements(const cb_optim_table *table, cb_threads *pool, cb_factors_fn factors,
                      cb_elements_fn update);

#endif
