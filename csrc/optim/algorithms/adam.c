/* Adam (Kingma, Ba 2015) with L2 regularisation, and AdamW (Loshchilov, Hutter 2019), whose weight
 * decay does not enter the moments. With amsgrad (Reddi, Kale, Kumar 2018) the largest v so far
 * replaces v.
 *
 *     g <- -g with maximize;  Adam: g <- g + weight_decay p;  AdamW: p <- p (1 - lr weight_decay)
 *     m <- beta1 m + (1 - beta1) g         v <- beta2 v + (1 - beta2) g^2
 *     p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * `formula_factors.h` gives the formula in the form in which it is computed. */
#include "../elements.h"
#include "../optimizers.h"

#include <math.h>

#include "adam_factors.h"

static const char *const states[] = {"m", "v", "v_max"};
static const cb_hyper hypers[N_HYPER] = {
    CB_ADAPTIVE_HYPERS,
    [AMSGRAD] = CB_HYPER_FLAG("amsgrad"),
    [MAXIMIZE] = CB_HYPER_FLAG("maximize"),
};

static uint32_t n_used(const double *hyper) { return hyper[AMSGRAD] != 0.0 ? 3 : 2; }

CB_ELEMENTWISE(adam, CB_FORMULA_ADAM, cb_adam_factors, states, hypers, .n_used = n_used);

CB_ELEMENTWISE(adamw, CB_FORMULA_ADAM, cb_adamw_factors, states, hypers, .n_used = n_used);
