/* Adam (Kingma, Ba 2015) with the weight decay of L2 regularisation, and AdamW (Loshchilov, Hutter
 * 2019), whose decay does not pass through the moments. With amsgrad (Reddi, Kale, Kumar 2018) the
 * largest v so far takes the place of v.
 *
 *     g <- -g with maximize;  Adam: g <- g + weight_decay p;  AdamW: p <- p (1 - lr weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * `formulas.h` has it as it is computed. */
#include "elements.h"
#include "optimizers.h"

#include <math.h>

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, AMSGRAD, MAXIMIZE, N_HYPER };

static const char *const states[] = {"m", "v", "v_max"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [BETA1] = {"beta1", 0.0, 1.0, true},
    [BETA2] = {"beta2", 0.0, 1.0, true},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [AMSGRAD] = {"amsgrad", 0.0, 1.0, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static uint32_t n_used(const double *hyper) { return hyper[AMSGRAD] != 0.0 ? 3 : 2; }

static void factors_of(const double *hyper, int64_t t, double *f) {
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[CB_ADAM_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_ADAM_KEEP] = 1.0;
    f[CB_ADAM_B1] = hyper[BETA1];
    f[CB_ADAM_A1] = 1.0 - hyper[BETA1];
    f[CB_ADAM_B2] = hyper[BETA2];
    f[CB_ADAM_A2] = 1.0 - hyper[BETA2];
    f[CB_ADAM_RATE] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)t));
    f[CB_ADAM_ROOT] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], (double)t));
    f[CB_ADAM_EPS] = hyper[EPS];
    f[CB_ADAM_AMS] = hyper[AMSGRAD];
}

static void decoupled_factors_of(const double *hyper, int64_t t, double *f) {
    factors_of(hyper, t, f);
    f[CB_ADAM_DECAY] = 0.0;
    f[CB_ADAM_KEEP] = 1.0 - hyper[LR] * hyper[WEIGHT_DECAY];
}

static void step_adam(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_ADAM);
}

static void step_adamw(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, decoupled_factors_of, CB_FORMULA_ADAM);
}

const cb_optimizer cb_optimizer_adam = {.name = "adam",
                                        .n_state = 3,
                                        .n_hyper = N_HYPER,
                                        .state = states,
                                        .hyper = hypers,
                                        .n_used = n_used,
                                        .step = step_adam};

const cb_optimizer cb_optimizer_adamw = {.name = "adamw",
                                         .n_state = 3,
                                         .n_hyper = N_HYPER,
                                         .state = states,
                                         .hyper = hypers,
                                         .n_used = n_used,
                                         .step = step_adamw};
