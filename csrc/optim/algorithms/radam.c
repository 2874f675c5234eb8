/* RAdam (Liu et al. 2020): Adam that does not divide by the root of v while the estimate of v has a
 * large variance (rho <= 5), and later scales the step by a rectification term r.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     rho_inf = 2 / (1 - beta2) - 1        rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
 *     r = sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
 *     rho > 5:  p <- p - lr m / (1 - beta1^t) r sqrt(1 - beta2^t) / (sqrt(v) + eps)
 *     else      p <- p - lr m / (1 - beta1^t) */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "radam_factors.h"

static const char *const states[] = {"m", "v"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [DECOUPLED] = CB_HYPER_FLAG("decoupled_weight_decay"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(radam, CB_FORMULA_RADAM, cb_radam_factors, states, hypers);
