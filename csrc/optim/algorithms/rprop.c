/* Rprop (Riedmiller, Braun 1993), as PyTorch defines it: each element has a step size of its own,
 * which grows while its gradient keeps its sign.
 *
 *     g <- -g with maximize;  step_size begins with lr
 *     step_size <- step_size times etaplus where g prev > 0, etaminus where g prev < 0,
 *                  then within step_size_min .. step_size_max
 *     g <- 0 where g prev < 0
 *     p <- p - sign(g) step_size           prev <- g */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

enum { LR, ETAMINUS, ETAPLUS, LEAST, MOST, MAXIMIZE, N_HYPER };

static const char *const states[] = {"prev", "step_size"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = CB_HYPER_LEAST_0("lr"),
    [ETAMINUS] = CB_HYPER_BELOW_1("etaminus"),
    [ETAPLUS] = {"etaplus", 1.0, CB_HYPER_MOST, false},
    [LEAST] = CB_HYPER_LEAST_0("step_size_min"),
    [MOST] = CB_HYPER_LEAST_0("step_size_max"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static void factors_of(const double *hyper, const cb_optim_row *row, double *f) {
    f[CB_GRAD_SCALE] = cb_sign_of(hyper[MAXIMIZE]);
    f[CB_DECAY] = 0.0;
    f[CB_RPROP_BEGIN] = row->t == 1 ? hyper[LR] : 0.0;
    f[CB_RPROP_DOWN] = hyper[ETAMINUS];
    f[CB_RPROP_UP] = hyper[ETAPLUS];
    f[CB_RPROP_LEAST] = hyper[LEAST];
    f[CB_RPROP_MOST] = hyper[MOST];
}

CB_ELEMENTWISE(rprop, CB_FORMULA_RPROP, factors_of, states, hypers);
