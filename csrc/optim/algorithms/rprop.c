/* Rprop (Riedmiller, Braun 1993), as PyTorch defines it. Each element has its own step size, which
 * grows while its gradient keeps its sign.
 *
 *     g <- -g with maximize;  step_size starts at lr
 *     step_size <- step_size times etaplus where g prev > 0, etaminus where g prev < 0,
 *                  then clamped to step_size_min .. step_size_max
 *     g <- 0 where g prev < 0
 *     p <- p - sign(g) step_size           prev <- g */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "rprop_factors.h"

static const char *const states[] = {"prev", "step_size"};
static const cb_hyper hypers[N_HYPER] = {
    [LEARNING_RATE] = CB_HYPER_LEAST_0("lr"),
    [ETA_MINUS] = CB_HYPER_BELOW_1("etaminus"),
    [ETA_PLUS] = {"etaplus", 1.0, CB_HYPER_MOST, false},
    [STEP_SIZE_MIN] = CB_HYPER_LEAST_0("step_size_min"),
    [STEP_SIZE_MAX] = CB_HYPER_LEAST_0("step_size_max"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(rprop, CB_FORMULA_RPROP, cb_rprop_factors, states, hypers);
