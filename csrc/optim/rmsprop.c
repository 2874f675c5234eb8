/* RMSprop (Hinton 2012), as PyTorch defines it. The centered one divides by the spread of gradients
 * about their mean h.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- alpha s + (1 - alpha) g^2       h <- alpha h + (1 - alpha) g, centered
 *     q = g / (sqrt(s) + eps), centered: g / (sqrt(s - h^2) + eps)
 *     b <- momentum b + q,                 p <- p - lr b;   without momentum p <- p - lr q */
#include "elements.h"
#include "optimizers.h"

enum { LR, ALPHA, EPS, WEIGHT_DECAY, MOMENTUM, MAXIMIZE, N_HYPER };

static const char *const states[] = {"square_avg", "momentum_buffer"};
static const cb_hyper hypers[N_HYPER] = {
    [LR] = {"lr", 0.0, CB_HYPER_MOST, false},
    [ALPHA] = {"alpha", 0.0, CB_HYPER_MOST, false},
    [EPS] = {"eps", 0.0, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = {"weight_decay", 0.0, CB_HYPER_MOST, false},
    [MOMENTUM] = {"momentum", 0.0, CB_HYPER_MOST, false},
    [MAXIMIZE] = {"maximize", 0.0, 1.0, false},
};

static const char *const centered_states[] = {"square_avg", "grad_avg", "momentum_buffer"};

static uint32_t n_used(const double *hyper) { return hyper[MOMENTUM] != 0.0 ? 2 : 1; }

static uint32_t n_used_centered(const double *hyper) { return n_used(hyper) + 1; }

static void factors_of(const double *hyper, int64_t t, double *f) {
    (void)t;
    f[CB_GRAD_SCALE] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    f[CB_RMSPROP_DECAY] = hyper[WEIGHT_DECAY];
    f[CB_RMSPROP_ALPHA] = hyper[ALPHA];
    f[CB_RMSPROP_REST] = 1.0 - hyper[ALPHA];
    f[CB_RMSPROP_RATE] = hyper[LR];
    f[CB_RMSPROP_EPS] = hyper[EPS];
    f[CB_RMSPROP_KEPT] = hyper[MOMENTUM];
}

static void step(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_RMSPROP);
}

const cb_optimizer cb_optimizer_rmsprop = {.name = "rmsprop",
                                           .n_state = 2,
                                           .n_hyper = N_HYPER,
                                           .state = states,
                                           .hyper = hypers,
                                           .n_used = n_used,
                                           .step = step};

static void step_centered(const cb_optim_table *table, cb_threads *pool) {
    cb_step_elements(table, pool, factors_of, CB_FORMULA_RMSPROP_CENTERED);
}

const cb_optimizer cb_optimizer_rmsprop_centered = {.name = "rmsprop_centered",
                                                    .n_state = 3,
                                                    .n_hyper = N_HYPER,
                                                    .state = centered_states,
                                                    .hyper = hypers,
                                                    .n_used = n_used_centered,
                                                    .step = step_centered};
