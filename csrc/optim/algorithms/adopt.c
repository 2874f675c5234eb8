/* ADOPT (Taniguchi et al. 2024), with the clipping of its second version. Unlike Adam, it divides
 * by the root of v before averaging, and v does not yet include the current gradient.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p, or decoupled: p <- p (1 - lr weight_decay)
 *     t = 1: only v <- g^2;  t > 1:
 *     u = g / max(sqrt(v), eps), with clip clamped to +-(t - 1)^(1/4)
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
