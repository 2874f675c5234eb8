/* formulas.h: the element-wise formulas of optimizers, compiled for each instruction set. */
#ifndef CB_OPTIM_FORMULAS_H
#define CB_OPTIM_FORMULAS_H

#include "formula_factors.h"
#include "optimizer.h"

#define CB_FORMULA_ENTRY(NAME, name) CB_FORMULA_##NAME,
typedef enum cb_formula { CB_FORMULAS(CB_FORMULA_ENTRY) CB_FORMULA_COUNT } cb_formula;

/* Updates `n` elements of the row from `at` on. For a formula that steps blocks, `at` must be a
 * multiple of CB_STATE_BLOCK. */
typedef void (*cb_formula_fn)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n);

/* Returns the build for this processor. */
cb_formula_fn cb_formula_of(cb_formula formula);

#endif
