/* Adamax (Kingma, Ba 2015): Adam by the largest gradient, which fades, in place of the root of v.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     m <- beta1 m + (1 - beta1) g         u <- max(beta2 u, |g| + eps)
 *     p <- p - lr / (1 - beta1^t) m / u */
#include "elements.h"
#include "optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "u"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [BETA1] = {"beta1", 0.0, 1.0, true},
    [BETA2] = {"beta2", 0.0, 1.0, true},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) {
    (void)hyper;
    return 2;
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[CB_ADAMAX_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAMAX_B1] = hyper[BETA1];
    f[CB_ADAMAX_A1] = 1.0 - hyper[BETA1];
    f[CB_ADAMAX_B2] = hyper[BETA2];
    f[CB_ADAMAX_RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)t));
    f[CB_ADAMAX_EPS] = hyper[EPS];
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_ADAMAX);
}

const cb_optimizer cb_optimizer_adamax = {.name = "adamax",
                                          .n_state = 2,
                                          .n_hyper = N_HYPER,
                                          .state = states,
                                          .hyper = hypers,
                                          .n_used = n_used,
                                          .step = step};
