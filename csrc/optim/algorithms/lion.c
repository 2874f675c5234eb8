/* Lion (Chen et al. 2023): steps of constant size in the direction of the momentum's sign.
 *
 *     g <- -g with maximize;  p <- p (1 - lr weight_decay)
 *     p <- p - lr sign(beta1 m + (1 - beta1) g)
 *     m <- beta2 m + (1 - beta2) g */
#include "../elements.h"
#include "../optimizers.h"

#include "lion_factors.h"

static const char *const states[] = {"m"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"), [BETA1] = CB_HYPER_BELOW_1("beta1"),
    [BETA2] = CB_HYPER_BELOW_1("beta2"),      [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(lion, CB_FORMULA_LION, cb_lion_factors, states, hypers);
