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

/* m and v as above; p = p keep - rate m / (sqrt(v) + eps), or p keep - rate m where it is not yet
 * rectified. */
enum {
    CB_RADAM_DECAY = 1,
    CB_RADAM_KEEP,
    CB_RADAM_B1,
    CB_RADAM_A1,
    CB_RADAM_B2,
    CB_RADAM_A2,
    CB_RADAM_RATE,
    CB_RADAM_EPS,
    CB_RADAM_RECTIFIED
};

/* m as above; u = max(b2 u, |g| + eps); p = p - rate m / u. */
enum {
    CB_ADAMAX_DECAY = 1,
    CB_ADAMAX_B1,
    CB_ADAMAX_A1,
    CB_ADAMAX_B2,
    CB_ADAMAX_RATE,
    CB_ADAMAX_EPS
};

/* s = s + first + g g; p = p - rate g / (sqrt(s) + eps). */
enum { CB_ADAGRAD_DECAY = 1, CB_ADAGRAD_FIRST, CB_ADAGRAD_RATE, CB_ADAGRAD_EPS };

/* s = rho s + (rest g) g; d = sqrt(a + eps) / sqrt(s + eps) g; a = rho a + (rest d) d;
 * p = p - rate d. */
enum {
    CB_ADADELTA_DECAY = 1,
    CB_ADADELTA_RHO,
    CB_ADADELTA_REST,
    CB_ADADELTA_RATE,
    CB_ADADELTA_EPS
};

/* s = alpha s + (rest g) g; centered: h = alpha h + rest g, and s - h h takes the place of s;
 * q = g / (sqrt(s) + eps); with kept: b = kept b + q, and b takes the place of q; p = p - rate q.
 * States: s, b, or s, h, b where it is centered. */
enum {
    CB_RMSPROP_DECAY = 1,
    CB_RMSPROP_ALPHA,
    CB_RMSPROP_REST,
    CB_RMSPROP_RATE,
    CB_RMSPROP_EPS,
    CB_RMSPROP_KEPT
};

/* p = p keep - rate sign(b1 m + a1 g); m = b2 m + a2 g. */
enum { CB_LION_KEEP = 1, CB_LION_B1, CB_LION_A1, CB_LION_B2, CB_LION_A2, CB_LION_RATE };

/* clang-format off */
#define CB_FORMULAS(X)                                    \
    X(ADAM, adam)                                         \
    X(SGD, sgd)                                           \
    X(RADAM, radam)                                       \
    X(ADAMAX, adamax)                                     \
    X(ADAGRAD, adagrad)                                   \
    X(ADADELTA, adadelta)                                 \
    X(RMSPROP, rmsprop)                                   \
    X(RMSPROP_CENTERED, rmsprop_centered)                 \
    X(LION, lion)
/* clang-format on */

#define CB_FORMULA_ENTRY(NAME, name) CB_FORMULA_##NAME,
typedef enum cb_formula { CB_FORMULAS(CB_FORMULA_ENTRY) CB_FORMULA_COUNT } cb_formula;

/* Updates `n` elements of the row from `at` on. */
typedef void (*cb_formula_fn)(const double *factor, const cb_optim_row *row, int64_t at, int64_t n);

/* The build for this processor. */
cb_formula_fn cb_formula_of(cb_formula formula);

#endif
