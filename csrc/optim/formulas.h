/* formulas.h: what optimizers do to one element, compiled once for each instruction set. */
#ifndef CB_OPTIM_FORMULAS_H
#define CB_OPTIM_FORMULAS_H

#include "optimizer.h"

#define CB_MAX_FACTORS 16

/* Factors are what is the same for all elements of a row. The first one multiplies the gradient,
 * whichever the formula; what the others mean is the formula's. */
enum { CB_GRAD_SCALE = 0 };

/* m = b1 m + a1 g;  v = b2 v + (a2 g) g;  with ams w = max(w, v), else w is v;
 * p = p keep - rate m / (sqrt(w) root + eps), where decay p is added to g first. */
enum {
    CB_ADAM_DECAY = 1,
    CB_ADAM_KEEP,
    CB_ADAM_B1,
    CB_ADAM_A1,
    CB_ADAM_B2,
    CB_ADAM_A2,
    CB_ADAM_RATE,
    CB_ADAM_ROOT,
    CB_ADAM_EPS,
    CB_ADAM_AMS
};

/* b = kept b + added g, or g at the first step; g = g + kept b with ahead, else b; p = p + rate g.
 * decay p is added to g first; there is no b where kept is 0. */
enum { CB_SGD_DECAY = 1, CB_SGD_RATE, CB_SGD_KEPT, CB_SGD_ADDED, CB_SGD_IS_FIRST, CB_SGD_AHEAD };

typedef enum cb_formula { CB_FORMULA_ADAM, CB_FORMULA_SGD, CB_FORMULA_COUNT } cb_formula;

/* Updates `n` elements of the row from `at` on. */
typedef void (*cb_formula_fn)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n);

/* The build for this processor. */
cb_formula_fn cb_formula_of(cb_formula formula);

#endif
