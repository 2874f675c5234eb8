/* Averaged stochastic gradient descent (Polyak, Juditsky 1992), as PyTorch defines it. eta and mu
 * of a step are computed at the end of the previous step.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     p <- p (1 - lambd eta) - eta g
 *     ax <- p if mu is 1, else ax + (p - ax) mu
 *     eta <- lr / (1 + lambd lr t)^alpha, initially lr
 *     mu <- 1 / max(1, t - t0), initially 1 */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "asgd_factors.h"

static const char *const states[] = {"ax"}, *const numbers[] = {"eta", "mu"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),
    [LAMBD] = CB_HYPER_LEAST_0("lambd"),
    [ALPHA] = CB_HYPER_LEAST_0("alpha"),
    [T0] = CB_HYPER_LEAST_0("t0"),
    [WEIGHT_DECAY] = CB_HYPER_LEAST_0("weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(asgd, CB_FORMULA_ASGD, cb_asgd_factors, states, hypers, .count_on = cb_asgd_count_on,
               .n_number = 2, .number = numbers);
