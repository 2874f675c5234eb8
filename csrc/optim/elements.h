/* elements.h: for optimizers that update every element by itself, with the same formula for all
 * elements of a row. */
#ifndef CB_OPTIM_ELEMENTS_H
#define CB_OPTIM_ELEMENTS_H

#include "formulas.h"

/* What is the same for all elements of a row, computed once, in double. `factor` has room for
 * CB_MAX_FACTORS. */
typedef void (*cb_factors_fn)(const double *hyper, int64_t t, double *factor);

void cb_step_elements(const cb_optim_table *table, cb_threads *pool, cb_factors_fn factors,
                      cb_formula formula);

#endif
