/* Adagrad (Duchi, Hazan, Singer 2011).
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- s + g^2, where s begins with initial_accumulator_value
 *     p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) */
#include "elements.h"
#include "optimizers.h"

enum { LR, LR_DECAY, WEIGHT_DECAY, INITIAL, EPS, MAXIMIZE, N_HYPER };

static const char *const states[] = {"sum"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [LR_DECAY] = {"lr_decay", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [INITIAL] = {"initial_accumulator_value", 0.0, CB_HYPER_MOST, false},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) {
    (void)hyper;
    return 1;
}

static void factors_of(const double *hyper, int64_t t, double *f) {
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[CB_ADAGRAD_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAGRAD_FIRST] = t == 1 ? hyper[INITIAL] : 0.0;
    f[CB_ADAGRAD_RATE] = hyper[LR] / (1.0 + (double)(t - 1) * hyper[LR_DECAY]);
    f[CB_ADAGRAD_EPS] = hyper[EPS];
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_ADAGRAD);
}

const cb_optimizer cb_optimizer_adagrad = {.name = "adagrad",
                                           .n_state = 1,
                                           .n_hyper = N_HYPER,
                                           .state = states,
                                           .hyper = hypers,
                                           .n_used = n_used,
                                           .step = step};
