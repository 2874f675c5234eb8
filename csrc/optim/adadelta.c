/* Adadelta (Zeiler 2012).
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- rho s + (1 - rho) g^2           d = sqrt(a + eps) / sqrt(s + eps) g
 *     a <- rho a + (1 - rho) d^2           p <- p - lr d */
#include "elements.h"
#include "optimizers.h"

enum { LR, RHO, EPS, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static const char *const states[] = {"square_avg", "acc_delta"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [RHO] = {"rho", 0.0, 1.0, false},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) {
    (void)hyper;
    return 2;
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    (void)t;
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[CB_ADADELTA_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADADELTA_RHO] = hyper[RHO];
    f[CB_ADADELTA_REST] = 1.0 - hyper[RHO];
    f[CB_ADADELTA_RATE] = hyper[LR];
    f[CB_ADADELTA_EPS] = hyper[EPS];
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_ADADELTA);
}

const cb_optimizer cb_optimizer_adadelta = {.name = "adadelta",
                                            .n_state = 2,
                                            .n_hyper = N_HYPER,
                                            .state = states,
                                            .hyper = hypers,
                                            .n_used = n_used,
                                            .step = step};
