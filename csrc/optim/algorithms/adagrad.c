/* Adagrad (Duchi, Hazan, Singer 2011).
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     s <- s + g^2, where s starts at initial_accumulator_value
 *     p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) */
#include "../elements.h"
#include "../optimizers.h"

#include "adagrad_factors.h"

static const char *const states[] = {"sum"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),
    [LEARNING_RATE_DECAY] = CB_HYPER_LEAST_0("lr_decay"),
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [INITIAL_ACCUMULATOR] = CB_HYPER_LEAST_0("initial_accumulator_value"),
    [EPS] = CB_HYPER_LEAST_0("eps"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(adagrad, CB_FORMULA_ADAGRAD, cb_adagrad_factors, states, hypers);
