/* ADOPT (Taniguchi et al. 2024), with the clipping of its second version: Adam that divides by the
 * root of v before it takes the mean, and by a v that has not seen the gradient.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     t = 1: v <- g^2, and nothing else; from then on
 *     u = g / max(sqrt(v), eps), with clip within (t - 1)^(1/4) of 0
 *     m <- beta1 m + (1 - beta1) u         p <- p - lr m
 *     v <- beta2 v + (1 - beta2) g^2 */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "adopt_factors.h"

static const char *const states[] = {"m", "v"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [DECOUPLED] = CB_HYPER_FLAG("decoupled_weight_decay"),
    [CLIP] = CB_HYPER_FLAG("clip"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(adopt, CB_FORMULA_ADOPT, cb_adopt_factors, states, hypers);
