/* Lion (Chen et al. 2023): steps of one size, in the direction of a momentum's sign.
 *
 *     g <- -g with maximize;  p <- p (1 - lr weight_decay)
 *     p <- p - lr sign(beta1 m + (1 - beta1) g)
 *     m <- beta2 m + (1 - beta2) g */
#include "elements.h"
#include "optimizers.h"

enum { LR, BETA1, BETA2, WEIGHT_DECAY, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [BETA1] = {"beta1", 0.0, 1.0, true},
    [BETA2] = {"beta2", 0.0, 1.0, true},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) {
    (void)hyper;
    return 1;
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    (void)t;
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[CB_LION_KEEP] = 1.0 - hyper[LR] * hyper[WEIGHT_DECAY];
    f[CB_LION_B1] = hyper[BETA1];
    f[CB_LION_A1] = 1.0 - hyper[BETA1];
    f[CB_LION_B2] = hyper[BETA2];
    f[CB_LION_A2] = 1.0 - hyper[BETA2];
    f[CB_LION_RATE] = hyper[LR];
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_LION);
}

const cb_optimizer cb_optimizer_lion = {.name = "lion",
                                        .n_state = 1,
                                        .n_hyper = N_HYPER,
                                        .state = states,
                                        .hyper = hypers,
                                        .n_used = n_used,
                                        .step = step};
