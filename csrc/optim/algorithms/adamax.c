/* Adamax (Kingma, Ba 2015): Adam with a decaying maximum of the gradients' magnitudes in place of
 * the root of v.
 *
 *     g <- -g with maximize;  g <- g + weight_decay p
 *     m <- beta1 m + (1 - beta1) g         u <- max(beta2 u, |g| + eps)
 *     p <- p - lr / (1 - beta1^t) m / u */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "adamax_factors.h"

static const char *const states[] = {"m", "u"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

CB_ELEMENTWISE(adamax, CB_FORMULA_ADAMAX, cb_adamax_factors, states, hypers);
