/* Adamax (Kingma, Ba 2015): Adam by the largest gradient, which fades, in place of the root of v.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     m <- beta1 m + (1 - beta1) g         u <- max(beta2 u, |g| + eps)
 *     p <- p - lr / (1 - beta1^t) m / u */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "u"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAMAX_B1] = hyper[BETA1];
    f[CB_ADAMAX_A1] = 1.0 - hyper[BETA1];
    f[CB_ADAMAX_B2] = hyper[BETA2];
    f[CB_ADAMAX_RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)row->t));
    f[CB_ADAMAX_EPS] = hyper[EPS];
}

CB_ELEMENTWISE(adamax, CB_FORMULA_ADAMAX, factors_of, states, hypers);
