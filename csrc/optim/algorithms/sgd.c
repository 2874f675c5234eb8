/* Stochastic gradient descent with momentum and Nesterov momentum, as PyTorch defines them.
 *
 *     g <- -g with maximize
 *     g <- g + weight_decay p
 *     b <- g at the first step, momentum b + (1 - dampening) g from then on
 *     g <- g + momentum b with nesterov, else b
 *     p <- p - lr g
 *
 * Without momentum there is no b. With a weight decay of 0 the term is skipped, because 0 times
 * infinity is NaN. */
#include "../elements.h"
#include "../optimizers.h"

#include "sgd_factors.h"

static const char *const states[] = {"momentum_buffer"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),
    [MOMENTUM] = CB_HYPER_LEAST_0("momentum"),
    [DAMPENING] = {"dampening", -CB_HYPER_MOST, CB_HYPER_MOST, false},
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [NESTEROV] = CB_HYPER_FLAG("nesterov"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static uint32_t n_used(const double *hyper) { return hyper[MOMENTUM] != 0.0; }

static cb_status check(const double *hyper, uint32_t group, cb_error *err) {
    if (hyper[NESTEROV] == 0.0 || (hyper[MOMENTUM] > 0.0 && hyper[DAMPENING] == 0.0)) return CB_OK;
    return cb_fail(err, CB_INVALID,
                   "sgd: group %u has momentum=%g and dampening=%g; nesterov needs a momentum and "
                   "no dampening",
                   group, hyper[MOMENTUM], hyper[DAMPENING]);
}

CB_ELEMENTWISE(sgd, CB_FORMULA_SGD, cb_sgd_factors, states, hypers, .n_used = n_used,
               .check = check);
