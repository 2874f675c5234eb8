/* formula_factors.h: the formulas by name, and what their factors mean. Nothing else is included,
 * as kernels for a GPU read it as well. */
#ifndef CB_OPTIM_FORMULA_FACTORS_H
#define CB_OPTIM_FORMULA_FACTORS_H

#include <stdint.h>

#define CB_MAX_FACTORS 16

/* Factors are what is the same for all elements of a row. The first two are every formula's: the
 * gradient is multiplied by the one, and gets the parameter times the other; it is called g below.
 * What the others mean is the formula's. */
enum { CB_GRAD_SCALE = 0, CB_DECAY, CB_FIRST };

/* m = b1 m + a1 g, as a share a1 of the way to g (LERP);  v = b2 v + (a2 g) g;
 * with ams w = max(w, v), else w is v;
 * p = p keep - rate m / (sqrt(w) root + eps). */
enum {
    CB_ADAM_KEEP = CB_FIRST,
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
 * There is no b where kept is 0. */
enum { CB_SGD_RATE = CB_FIRST, CB_SGD_KEPT, CB_SGD_ADDED, CB_SGD_IS_FIRST, CB_SGD_AHEAD };

/* m and v as above; p = p keep - rate m / (sqrt(v) + eps), or p keep - rate m where it is not yet
 * rectified. */
enum {
    CB_RADAM_KEEP = CB_FIRST,
    CB_RADAM_B1,
    CB_RADAM_A1,
    CB_RADAM_B2,
    CB_RADAM_A2,
    CB_RADAM_RATE,
    CB_RADAM_EPS,
    CB_RADAM_RECTIFIED
};

/* m as above; u = max(b2 u, |g| + eps); p = p - rate m / u. */
enum { CB_ADAMAX_B1 = CB_FIRST, CB_ADAMAX_A1, CB_ADAMAX_B2, CB_ADAMAX_RATE, CB_ADAMAX_EPS };

/* s = s + first + g g; p = p - rate g / (sqrt(s) + eps). */
enum { CB_ADAGRAD_FIRST = CB_FIRST, CB_ADAGRAD_RATE, CB_ADAGRAD_EPS };

/* s = rho s + (rest g) g; d = sqrt(a + eps) / sqrt(s + eps) g; a = rho a + (rest d) d;
 * p = p - rate d. */
enum { CB_ADADELTA_RHO = CB_FIRST, CB_ADADELTA_REST, CB_ADADELTA_RATE, CB_ADADELTA_EPS };

/* s = alpha s + (rest g) g; centered: h = alpha h + rest g, as a share rest of the way to g (LERP),
 * and s - h h takes the place of s; q = g / (sqrt(s) + eps); with kept: b = kept b + q, and b
 * takes the place of q; p = p - rate q.
 * States: s, b, or s, h, b where it is centered. */
enum {
    CB_RMSPROP_ALPHA = CB_FIRST,
    CB_RMSPROP_REST,
    CB_RMSPROP_RATE,
    CB_RMSPROP_EPS,
    CB_RMSPROP_KEPT
};

/* p = p keep - rate sign(b1 m + a1 g); m = b2 m + a2 g. */
enum { CB_LION_KEEP = CB_FIRST, CB_LION_B1, CB_LION_A1, CB_LION_B2, CB_LION_A2, CB_LION_RATE };

/* m and v as above; p = p keep - (now g + past m) / (sqrt(v) root + eps). */
enum {
    CB_NADAM_KEEP = CB_FIRST,
    CB_NADAM_B1,
    CB_NADAM_A1,
    CB_NADAM_B2,
    CB_NADAM_A2,
    CB_NADAM_NOW,
    CB_NADAM_PAST,
    CB_NADAM_ROOT,
    CB_NADAM_EPS
};

/* Fast and slow: m = b1 m + a1 g; l = b3 l + a3 g; v as above;
 * p = p keep - (now m + past l) / (sqrt(v) root + eps). */
enum {
    CB_ADEMAMIX_KEEP = CB_FIRST,
    CB_ADEMAMIX_B1,
    CB_ADEMAMIX_A1,
    CB_ADEMAMIX_B2,
    CB_ADEMAMIX_A2,
    CB_ADEMAMIX_B3,
    CB_ADEMAMIX_A3,
    CB_ADEMAMIX_NOW,
    CB_ADEMAMIX_PAST,
    CB_ADEMAMIX_ROOT,
    CB_ADEMAMIX_EPS
};

/* u = g / max(sqrt(v), eps), kept within -most .. most; m = b1 m + a1 u; p = p keep - rate m; then
 * v as above. At the first step only v = g g. */
enum {
    CB_ADOPT_KEEP = CB_FIRST,
    CB_ADOPT_B1,
    CB_ADOPT_A1,
    CB_ADOPT_B2,
    CB_ADOPT_A2,
    CB_ADOPT_RATE,
    CB_ADOPT_EPS,
    CB_ADOPT_MOST,
    CB_ADOPT_IS_FIRST
};

/* p = p keep - rate g; x = p where share is 1, else x + (p - x) share. */
enum { CB_ASGD_KEEP = CB_FIRST, CB_ASGD_RATE, CB_ASGD_SHARE };

/* q is the last g. s, which begins with `begin` where that is not 0, is multiplied by up where
 * g q > 0, by down where g q < 0, and kept within least .. most; g is 0 where g q < 0;
 * p = p - s sign(g). */
enum { CB_RPROP_BEGIN = CB_FIRST, CB_RPROP_DOWN, CB_RPROP_UP, CB_RPROP_LEAST, CB_RPROP_MOST };

/* z begins with p. v as above; u = g / (sqrt(v) root + eps) + still p; p = p + (z - p) share +
 * back u; z = z - rate u. */
enum {
    CB_SCHEDULE_FREE_STILL = CB_FIRST,
    CB_SCHEDULE_FREE_B2,
    CB_SCHEDULE_FREE_A2,
    CB_SCHEDULE_FREE_ROOT,
    CB_SCHEDULE_FREE_EPS,
    CB_SCHEDULE_FREE_SHARE,
    CB_SCHEDULE_FREE_BACK,
    CB_SCHEDULE_FREE_RATE,
    CB_SCHEDULE_FREE_IS_FIRST
};

/* Adam's factors where m and v are kept in 8 bits, and the seed of the noise that rounds them. */
enum { CB_ADAMW_8BIT_SEED = CB_ADAM_AMS + 1 };

/* clang-format off */
/* Those that step an element by itself, and then those that step blocks of CB_STATE_BLOCK. */
#define CB_ELEMENT_FORMULAS(X)                            \
    X(ADAM, adam)                                         \
    X(SGD, sgd)                                           \
    X(RADAM, radam)                                       \
    X(ADAMAX, adamax)                                     \
    X(ADAGRAD, adagrad)                                   \
    X(ADADELTA, adadelta)                                 \
    X(RMSPROP, rmsprop)                                   \
    X(RMSPROP_CENTERED, rmsprop_centered)                 \
    X(LION, lion)                                         \
    X(NADAM, nadam)                                       \
    X(ADEMAMIX, ademamix)                                 \
    X(ADOPT, adopt)                                       \
    X(ASGD, asgd)                                         \
    X(RPROP, rprop)                                       \
    X(SCHEDULE_FREE, schedule_free)
#define CB_FORMULAS(X)                                    \
    CB_ELEMENT_FORMULAS(X)                                \
    X(ADAMW_8BIT, adamw_8bit)
/* clang-format on */

/* x^n for n >= 0, by the same products on every machine. */
static inline double cb_power(double x, int64_t n) {
    double power = 1.0;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) power *= x;
    return power;
}

/* Weight decay of the gradient, or apart from it: what the parameter is multiplied by. */
static inline double cb_decay(double *factor, double lr, double decay, int apart) {
    factor[CB_DECAY] = apart ? 0.0 : decay;
    return apart ? 1.0 - lr * decay : 1.0;
}

static inline double cb_sign_of(double maximize) { return maximize != 0.0 ? -1.0 : 1.0; }

#endif
